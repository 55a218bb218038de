"""Fits a click model and evaluates it."""

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from clickexp.data.feed import Compiled, Data, feed, fingerprint, session_count
from clickexp.errors import ConfigError, DivergedError
from clickexp.evaluation.evaluator import ModelState
from clickexp.evaluation.inputs import check_ahead, checked
from clickexp.evaluation.model_evaluator import Metrics, RankVectors, per_rank
from clickexp.loggers.base import Logger
from clickexp.models.base import ClickModel
from clickexp.training.accelerators import warn_of_faults
from clickexp.training.base import BaseTrainer, FitReport, check
from clickexp.training.checkpoint import check_same, load_training, save_training
from clickexp.training.optimizers import Optimizer, lazy_adagrad
from clickexp.training.sparse import rows as tbl
from clickexp.training.sparse.huge_pages import use_huge_pages
from clickexp.training.step import TrainState, TrainStep, learning_rates, split_model
from clickexp.training.stopping import EarlyStopping, Stopping
from clickexp.utils.bounds import Bounds, PositiveInt, Seed, bounded

MAX_BATCH = 4096
MIN_STEPS = 128


class Trainer(BaseTrainer):
    """Trains until the validation metric stops improving and leaves the model in its best state.

    optimizer: an `Optimizer`, or an Optax transformation for every parameter, tables included.
    epochs: at most so many. early_stopping: None trains all of them; the best epoch is restored all the same. It may be
    `flax.training.early_stopping.EarlyStopping`, which then watches the validation loss.
    batch_size, eval_batch_size: sessions a step. steps: batches a dispatch. Without a batch_size it is 4096, or the
    largest power of 2 that makes 128 steps an epoch of a smaller log.
    shuffle, seed: a new order of the training sessions every epoch, told by (seed, epoch).
    metrics: names and metrics of the validation, besides loss and ll, by default log-likelihood and both perplexities.
    logger: takes progress and the record of every epoch.
    checkpoint: a file that keeps the whole state of the training. Where it exists, training continues from it, to the
    same numbers as without the interruption. It is written after an epoch when checkpoint_minutes have passed since
    the last time, never if they are None, and is the caller's to delete. Only the same training continues: one with the
    same data, seed, batch size and settings. must_continue: ConfigError where that cannot be, and else a message, with
    which training starts from scratch.
    settings: names and values of what else makes a training what it is, such as its learning rate.
    """

    @bounded
    def __init__(
        self,
        optimizer: Optimizer | optax.GradientTransformation | None = None,
        epochs: PositiveInt = 50,
        early_stopping: Stopping = EarlyStopping(),
        *,
        batch_size: PositiveInt | None = None,
        eval_batch_size: PositiveInt = 8192,
        steps: PositiveInt = 16,
        shuffle: bool = True,
        seed: Seed = 0,
        metrics: Metrics | None = None,
        logger: Logger | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_minutes: Annotated[int | float, Bounds(least=0)] | None = 5,
        must_continue: bool = False,
        settings: Mapping[str, Any] | None = None,
    ):
        super().__init__(
            early_stopping=early_stopping,
            eval_batch_size=eval_batch_size,
            steps=steps,
            metrics=metrics,
            logger=logger,
        )
        optimizer = lazy_adagrad() if optimizer is None else optimizer
        if not isinstance(optimizer, Optimizer):
            transforms = hasattr(optimizer, "init") and hasattr(optimizer, "update")
            check(transforms, f"optimizer={optimizer!r}: give an Optimizer or a transformation of Optax")
            optimizer = Optimizer(optimizer)
        self.optimizer = optimizer
        self.epochs = epochs
        self.batch_size = batch_size
        self.seed = seed if shuffle else None
        self.checkpoint = Path(checkpoint) if checkpoint and checkpoint_minutes is not None else None
        self.checkpoint_seconds = 60 * (checkpoint_minutes or 0)
        self.must_continue = must_continue
        self.settings = dict(settings or {})

    def train(self, model: ClickModel, train: Data, val: Data) -> FitReport:
        """Fits the model in place.

        DivergedError where the loss stops being a number; the model is then in its best state so far.
        DataError where ids, positions or clicks do not fit the model.
        """
        warn_of_faults()
        train, val = (checked(data, model, model.compute_loss, "clicks") for data in (train, val))
        check_ahead(val)
        fit = _Fit(self, model)
        try:
            fit.run(train, val)
        finally:
            fit.restore_best(model)
        return FitReport(
            epochs=len(fit.history),
            best_epoch=fit.best_epoch,
            sessions=sum(record["sessions"] for record in fit.history),
            seconds=fit.seconds,
            compile_seconds=fit.compile_seconds,
            history=fit.history,
            per_rank=fit.per_rank,
        )


class _Fit:
    """One call of `Trainer.train`."""

    def __init__(self, trainer: Trainer, model: ClickModel):
        self.trainer = trainer
        self.stopping = dataclasses.replace(trainer.early_stopping or EarlyStopping(patience=trainer.epochs))
        model.train()
        graphdef, self.state = split_model(model, trainer.optimizer)
        model.eval()
        self.step = TrainStep(graphdef, trainer.optimizer)
        self.train_step = Compiled(self.step, donate_argnums=0)
        self.count_step = Compiled(self.step.count_rows, donate_argnums=0)
        self.prior_shares = Compiled(tbl.shares, donate_argnums=0)
        self.snapshot = Compiled(_snapshot, donate_argnums=1, keep_unused=True)
        self.evaluator = trainer.evaluation.program(nnx.graphdef(model), trainer.metrics)
        self.learning_rates = learning_rates(self.state)
        self.best: ModelState | None = None
        self.best_epoch = 0
        self.per_rank: RankVectors = {}
        self.history: list[dict[str, int | float]] = []
        self.start = self.kept = time.perf_counter()
        self.earlier = dict(seconds=0.0, compile_seconds=0.0)

    @property
    def seconds(self) -> float:
        return self.earlier["seconds"] + time.perf_counter() - self.start

    @property
    def compile_seconds(self) -> float:
        programs = self.train_step, self.count_step, self.prior_shares, self.snapshot, self.evaluator.run
        return self.earlier["compile_seconds"] + sum(program.seconds for program in programs)

    def run(self, train: Data, val: Data) -> None:
        if not self._continue(train, val):
            self._count_rows(train)
        for epoch in range(len(self.history) + 1, self.trainer.epochs + 1):
            start, compiled = time.perf_counter(), self.compile_seconds
            loss, sessions = self._train(train, epoch)
            metrics = self.evaluator(_model_state(self.state), val, "val", epoch)
            values = metrics.compute()
            values["loss"] = -values["ll"]
            improved = self.stopping.update(values)
            record = {"epoch": epoch, "train/loss": loss, **{f"val/{name}": v for name, v in values.items()}}
            record |= {
                "seconds": time.perf_counter() - start,
                "compile_seconds": self.compile_seconds - compiled,
                "sessions": sessions,
                "improved": improved,
            }
            self.history.append(record)
            self.trainer.logger.epoch(record)
            if not math.isfinite(loss):
                raise DivergedError(f"the training loss is {loss} in epoch {epoch}. Lower the learning rate.")
            if improved:
                self.best, self.best_epoch = self.snapshot(_model_state(self.state), self.best), epoch
                self.per_rank = per_rank(metrics)
            if self.stopping.should_stop:
                return
            self._keep(train, val)

    def restore_best(self, model: ClickModel) -> None:
        """Without any improvement the model keeps the state it came with."""
        if self.best is not None:
            nnx.update(model, *self.best)

    def _train(self, data: Data, epoch: int) -> tuple[float, int]:
        """Mean loss of the epoch's documents, and its sessions."""
        losses, done, total = [], 0, session_count(data)
        for batch in self._feed(data, self.trainer.seed, epoch):
            self.state, loss, documents = self.train_step(self.state, batch.arrays, np.int32(batch.steps))
            losses.append((loss, documents))
            done += batch.sessions
            self.trainer.logger.progress("train", epoch, done, total, _mean(losses[-2:-1]))
        check(done > 0, "there are no training sessions; batches must come again each time they are iterated")
        return _mean(losses), done

    def _count_rows(self, data: Data) -> None:
        """Shares the prior of each row among its training documents, which one pass over the data counts."""
        tables = [table for _, table in nnx.to_flat_state(self.state.tables)]
        if any(map(tbl.has_prior, tables)):
            for batch in self._feed(data):
                self.state = self.count_step(self.state, batch.arrays, np.int32(batch.steps))
            self.state = dataclasses.replace(self.state, tables=self.prior_shares(self.state.tables))

    def _keep(self, train: Data, val: Data) -> None:
        """Writes the checkpoint if it is time to; a full disk is no reason to stop."""
        file = self.trainer.checkpoint
        if file is None or time.perf_counter() - self.kept < self.trainer.checkpoint_seconds:
            return
        best = self.snapshot(_model_state(self.state), None) if self.best is None else self.best
        facts = {
            **self._same(train, val),
            "best_epoch": self.best_epoch,
            "per_rank": self.per_rank,
            "history": self.history,
            "stopping": {"best": self.stopping.best, "failures": self.stopping.failures},
            "earlier": {"seconds": self.seconds, "compile_seconds": self.compile_seconds},
        }
        try:
            save_training(file, (self.state, best), facts)
        except OSError as error:
            self.trainer.logger.message(f"cannot write {file}: {error}")
        self.kept = time.perf_counter()

    def _continue(self, train: Data, val: Data) -> bool:
        """Takes up the training that left the checkpoint; False where there is none that fits."""
        file, logger = self.trainer.checkpoint, self.trainer.logger
        if file is None or not file.exists():
            none = (
                "checkpoint_minutes=null: give a number"
                if file is None
                else f"{file}: there is no checkpoint"
            )
            check(not self.trainer.must_continue, f"{none} to continue from")
            return False
        best = jax.eval_shape(_snapshot, _model_state(self.state), None)
        try:
            check_same(file, self._same(train, val))
            (state, best), facts = load_training(file, (self.state, best))
        except ValueError as error:
            if self.trainer.must_continue:
                raise ConfigError(f"the checkpoint to continue from cannot be used: {error}") from error
            logger.message(f"training starts from scratch, since {file} cannot be used: {error}")
            return False
        self.state, self.best_epoch, self.history = state, facts["best_epoch"], facts["history"]
        self.best, self.per_rank = best if self.best_epoch else None, facts["per_rank"]
        self.earlier = facts["earlier"]
        vars(self.stopping).update(facts["stopping"])
        for table in jax.tree.leaves(self.state.tables):
            use_huge_pages(table)
        for record in self.history:
            logger.epoch(record)
        logger.message(f"training continues after epoch {len(self.history)}")
        return True

    def _same(self, train: Data, val: Data) -> dict[str, dict[str, Any]]:
        """What has to be the same where training continues, besides the structure of its arrays."""
        own = {
            "seed": self.trainer.seed,
            "batch_size": self.trainer.batch_size,
            "learning rates": self.learning_rates,
            "training data": fingerprint(train),
            "validation data": fingerprint(val),
        }
        return {"settings": self.trainer.settings, "of": own}

    def _feed(self, data: Data, seed: int | None = None, epoch: int = 0):
        size = self.trainer.batch_size or _fitting_batch_size(session_count(data))
        return feed(data, size, self.trainer.steps, seed, epoch)


def _fitting_batch_size(sessions: int) -> int:
    steps = max(sessions // MIN_STEPS, 1)
    return min(MAX_BATCH, 1 << (steps.bit_length() - 1))


def _mean(sums: list[tuple[jax.Array, jax.Array]]) -> float | None:
    """Mean loss a document from (summed loss, documents) of several dispatches; None for none."""
    if not sums:
        return None
    loss, documents = (math.fsum(map(float, column)) for column in zip(*sums, strict=True))
    return loss / max(documents, 1.0)


def _model_state(state: TrainState) -> ModelState:
    return state.params, state.tables, state.other


def _snapshot(state: ModelState, old: ModelState | None) -> ModelState:
    """A copy of the model's state that no later step overwrites, in the memory of `old`."""
    params, tables, other = state
    params, other = jax.tree.map(jnp.copy, (params, other))  # else jit hands out its arguments
    return params, tbl.parameters(tables), other

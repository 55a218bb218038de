"""Fits a model by gradient descent."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from clickexp.data import Sessions, Superbatch
from clickexp.data.batches import batch_like
from clickexp.data.feed import Compiled, Data, feed, feed_like, resident_on, session_count
from clickexp.data.loader import resident_bytes
from clickexp.evaluation.evaluator import ModelState
from clickexp.evaluation.inputs import ColumnSelection
from clickexp.models.base import Model
from clickexp.training.base import BaseTrainer
from clickexp.training.earlier import EarlierLogs
from clickexp.training.loop import Learner
from clickexp.training.memory import free_device_bytes
from clickexp.training.optimizers import Optimizer, optimizer_of
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.sparse.huge_pages import use_huge_pages
from clickexp.training.sparse.learned_priors import Documents
from clickexp.training.sparse.packing import Path
from clickexp.training.spread import by_row, by_session, on_each, training_on
from clickexp.training.step import TrainState, TrainStep, decayed, learning_rates, split_model
from clickexp.training.stopping import EarlyStopping, Stopping, early_stopping_of
from clickexp.utils import hosts
from clickexp.utils.bounds import BatchSize, Fraction, NonNegativeInt, OneOf, PositiveInt, Seed
from clickexp.utils.rounding import ceil_div

AUTO = "auto"
_MAX_BATCH = 4096
MIN_STEPS = 128
_MOST_RESIDENT = 0.4
"""Share of the free memory that resident sessions take at most: twice as much, while they are copied."""
_FIXED_PRIOR = 3
"""Epochs before precisions of priors are learned, which rows that have not yet left their start would make too high."""


@dataclasses.dataclass(eq=False)
class Trainer(BaseTrainer):
    """Trains until the validation metric stops improving and leaves the model in its best state.

    Settings that all trainers share are those of `BaseTrainer`. Two trainings are the same, and one continues from the
    checkpoint of the other, if they have the same data, seed, batch size, learning rates and `settings`.

    Attributes:
        optimizer: An `Optimizer`, or an Optax transformation for every parameter, tables included; by default
            `natural_gradient()`.
        epochs: Passes over the training data at most.
        early_stopping: None trains all epochs; the best is restored in any case. Flax's EarlyStopping watches the loss.
        batch_size: Sessions per step; None: 4096, or the largest power of 2 that makes 128 steps per epoch of a
            smaller log.
        rate_decay: Factor by which learning rates fall where validation no longer improves, by the rule of early
            stopping, which then counts from 0: noise of the last steps would else stay in parameters.
        decays: How often they fall before training stops; those of Optax that are no data (see `with_rate`) never do,
            and none without early stopping.
        shuffle: Whether every epoch has the training sessions in a new order.
        seed: Of that order, which follows from (seed, epoch).
        earlier: What earlier logs say, where the model is fitted to a log that goes on.
        resident: Whether training sessions stay on the devices, each of which has all and looks up those of a batch;
            `auto`: on accelerators, where they take less than 40% of the memory that is free.
    """

    optimizer: Optimizer | optax.GradientTransformation | None = None
    epochs: PositiveInt = 50
    early_stopping: Stopping = dataclasses.field(default_factory=EarlyStopping)
    _: dataclasses.KW_ONLY
    batch_size: BatchSize | None = None
    rate_decay: Fraction = 0.5
    decays: NonNegativeInt = 3
    shuffle: bool = True
    seed: Seed = 0
    earlier: EarlierLogs = dataclasses.field(default_factory=EarlierLogs)
    resident: bool | Annotated[str, OneOf(AUTO)] = AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer = optimizer_of(self.optimizer)

    @property
    def stopping(self) -> EarlyStopping:
        """Without early stopping, the rule that keeps the best epoch by its loss and never stops."""
        return early_stopping_of(self.early_stopping) or EarlyStopping(patience=self.epochs)

    def learner(self, model: Model, train: Data | None = None) -> Learner:
        """Gradient descent; see `Learner`."""
        return _GradientDescent(self, model, train)


class _GradientDescent(Learner):
    """Epochs of training steps."""

    state: TrainState

    def __init__(self, trainer: Trainer, model: Model, train: Data | None):
        self._trainer = trainer
        self.passes = trainer.epochs
        optimizer = optimizer_of(trainer.optimizer)
        devices = training_on(trainer.devices)
        model.train()
        batch = batch_like(train) if isinstance(train, Sessions) else None
        graphdef, state = split_model(model, optimizer, trainer.seed, trainer.earlier.shared, batch)
        model.eval()
        devices.check_model(state.params, state.other)
        super().__init__(state, devices)
        self._no_documents = jax.eval_shape(learned_priors.no_documents, state.tables)
        self._found: dict[Path, Documents] | None = None
        structure, *self._first_state = nnx.split(model)
        self._select_columns = ColumnSelection(
            lambda model, batch: model.compute_loss(batch, aggregate=False), structure
        )
        self._step = step = TrainStep(graphdef, optimizer, self.devices.placement)
        kinds, mapped = [by_row, by_session, on_each], self.devices.mapped
        steps = mapped(step, kinds, (0, on_each, on_each))
        self._train = Compiled(steps, donate_argnums=0)
        self._count = Compiled(mapped(step.count, [by_row, *kinds], 0), donate_argnums=0)
        self._shares = Compiled(learned_priors.shares, donate_argnums=0)
        self.programs = [self._train, self._count, self._shares]
        self._refit_priors = None
        if packing.priors(self.state.tables):
            self.warmup_passes = _FIXED_PRIOR

            def refit_priors(tables: nnx.State) -> nnx.State:
                return learned_priors.refit_priors(tables, self.devices.placement)

            self._refit_priors = Compiled(mapped(refit_priors, [by_row], 0), donate_argnums=0)
            self.programs.append(self._refit_priors)
        self._resident: tuple[Data, Mapping[str, jax.Array] | None] | None = None
        seed = trainer.seed if trainer.shuffle else None
        rates = learning_rates(self.state)
        self.settings = {"seed": seed, "batch_size": trainer.batch_size, "learning rates": rates}

    def compile(self, data: Data) -> ModelState | None:
        # the shapes of a training that several devices share show when it has begun
        if not isinstance(data, Sessions) or self.devices.placement.devices > 1:
            return None
        if _stays(self._trainer.resident, data):
            return None
        state, documents, earlier = (
            self.like[0],
            self._no_documents,
            self._trainer.earlier.documents,
        )
        if documents:
            arguments = state.tables, documents, dict(earlier)
            self._shares.program(*arguments)
            tables = jax.eval_shape(self._shares.jitted, *arguments)
            state = dataclasses.replace(state, tables=tables)
        selected = cast(Sessions, self._select_columns(data, self._first_state))
        steps = self._trainer.steps_per_execution
        self._train.program(state, feed_like(selected, self._batch_size(data), steps), np.int32(0))
        if self._refit_priors:
            self._refit_priors.program(state.tables)
        return state.params, self.devices.evaluated(state.tables), state.other

    def start(self, data: Data) -> None:
        """Shares the prior of each row among its training documents, which one pass over the data counts."""
        documents, steps = self._counted(data)
        if not steps:
            return
        earlier = self.devices.lay(dict(self._trainer.earlier.documents))
        tables = self._shares(self.state.tables, documents, earlier)
        self._found = self.devices.whole(documents, self._no_documents)
        # unless data are shuffled, one batch may have all documents of a row
        random = isinstance(data, Sessions) and self.settings["seed"] is not None
        steps_per_pass = self.devices.lay(jnp.float32(steps if random else 1))
        self.state = dataclasses.replace(self.state, tables=tables, steps_per_pass=steps_per_pass)
        if self.state.pull is not None:
            share = self.devices.lay(jnp.float32(1 / max(steps, 1)))
            pull = dataclasses.replace(self.state.pull, share=share)
            self.state = dataclasses.replace(self.state, pull=pull)

    def _counted(self, data: Data) -> tuple[dict[Path, Documents], int]:
        """The documents of this log by table, and in how many steps a pass sees them; 0 where nobody asks."""
        documents, steps = self._no_documents, 0
        if not documents and self.state.pull is None:
            return documents, steps
        if documents and isinstance(data, Sessions) and self._reads_documents(data):
            counted = learned_priors.documents_of(data, documents)
            return self.devices.lay(counted), ceil_div(data.count, self._batch_size(data))
        documents = self.devices.lay(jax.tree.map(lambda sums: jnp.zeros(sums.shape), documents))
        for sums in jax.tree.leaves(documents):
            use_huge_pages(sums)
        for batch in self._feed(data):
            documents = self._count(documents, self.state, batch.arrays, np.int32(batch.steps))
            steps += batch.steps
        return documents, steps

    def _reads_documents(self, data: Sessions) -> bool:
        """Whether tables have the rows of documents, which are counted without a pass of the model over the data."""
        if jax.process_count() > 1:  # each of which reads its share
            return False
        selected = cast(Sessions, self._select_columns(data, self._first_state))
        shapes = feed_like(selected, self._batch_size(data), 1)
        of_documents = self._step.tables_of_documents(self.state, shapes)
        rows = {path: len(documents.sums) for path, documents in self._no_documents.items()}
        return all(of_documents[path] and rows[path] > data.query_doc_pairs for path in rows)

    def documents(self, data: Data) -> dict[Path, Documents] | None:
        if optimizer_of(self._trainer.optimizer).rows is None:
            return None
        counted, earlier = self._found, self._trainer.earlier.documents
        if counted is None:  # training has continued
            counted = self.devices.whole(self._counted(data)[0], self._no_documents)
        return {
            path: jax.tree.map(np.add, sums, earlier[path]) if path in earlier else sums
            for path, sums in counted.items()
        }

    def run_pass(self, data: Data, epoch: int) -> tuple[float, int]:
        losses, done, total = [], 0, session_count(data)
        prior_rate = self.devices.lay(jnp.float32(epoch > _FIXED_PRIOR))
        self.state = dataclasses.replace(self.state, prior_rate=prior_rate)
        for batch in self._feed(data, self.settings["seed"], epoch):
            self.state, loss, documents = self._train(
                self.state, batch.arrays, np.int32(batch.steps)
            )
            losses.append((loss, documents))
            done += batch.sessions
            so_far = _mean(losses[-2:-1]) if losses[1:] else None  # the last may still be computed
            self._trainer.logger.progress("train", epoch, done, total, so_far)
        if self._refit_priors:
            self.state = dataclasses.replace(
                self.state, tables=self._refit_priors(self.state.tables)
            )
        return _mean(losses), done

    def decay(self) -> bool:
        if int(self.state.decays) >= self._trainer.decays or not learning_rates(self.state):
            return False
        self.state = decayed(self.state, self._trainer.rate_decay)
        return True

    def model_state(self) -> ModelState:
        tables = self.devices.evaluated(self.state.tables)
        return self.state.params, tables, self.state.other

    def snapshot(self, state: TrainState, old: ModelState | None) -> ModelState:
        params, other = super().snapshot((state.params, state.other), old)
        return params, packing.learned(state.tables), other

    def restore(self, model: Model, best: ModelState | None) -> None:
        if best is not None:
            whole = self.devices.whole(best, self.like[1])
            nnx.update(model, *jax.tree.map(jnp.asarray, whole))

    def resume(self, state: TrainState) -> None:
        super().resume(state)
        for table in jax.tree.leaves(state.tables):
            use_huge_pages(table)

    def release(self) -> None:
        # cycles that Flax leaves would hold the tables until garbage is collected, see `break_cycles`
        for table in jax.tree.leaves(self.state.tables):
            table.delete()
        self._found = None
        super().release()

    def _feed(self, data: Data, seed: int | None = None, epoch: int = 0) -> Iterator[Superbatch]:
        size = self._batch_size(data)
        data = self._select_columns(data, self._first_state)
        steps, devices = self._trainer.steps_per_execution, self.devices.feeding
        for batch in feed(data, size, steps, seed, epoch, devices, self._tables(data)):
            self.devices.check(batch)
            yield batch

    def _batch_size(self, data: Data) -> int:
        fitting = max(_fitting_batch_size(session_count(data)), self.devices.placement.devices)
        return self._trainer.batch_size or fitting

    def _tables(self, data: Data) -> Mapping[str, jax.Array] | None:
        """The sessions on the devices, where they stay there; copied once."""
        if self._resident is None or self._resident[0] is not data:
            tables = None
            stays = isinstance(data, Sessions) and _stays(self._trainer.resident, data)
            # hosts may have more and less memory
            if isinstance(data, Sessions) and hosts.broadcast(stays):
                tables = resident_on(data, self.devices.feeding)
            self._resident = data, tables
        return self._resident[1]


def _stays(resident: bool | str, sessions: Sessions) -> bool:
    """Returns whether sessions stay on the devices."""
    if resident != AUTO:
        return bool(resident)
    if jax.default_backend() == "cpu":  # which computes with arrays as they lie
        return False
    free = free_device_bytes()
    return free is not None and resident_bytes(sessions) < _MOST_RESIDENT * free


def _fitting_batch_size(sessions: int) -> int:
    steps = max(sessions // MIN_STEPS, 1)
    return min(_MAX_BATCH, 1 << (steps.bit_length() - 1))


def _mean(sums: list[tuple[jax.Array, jax.Array]]) -> float:
    """Mean loss per document from (summed loss, documents) of dispatches; nan for none."""
    if not sums:
        return math.nan
    loss, documents = (math.fsum(map(float, column)) for column in zip(*sums, strict=True))
    return loss / max(documents, 1.0)

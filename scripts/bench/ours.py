"""One benchmark task of clickexp on a log that log.py wrote, with settings in JSON; prints a line of JSON.

python scripts/bench/ours.py LOG '{"task": "throughput", "model": "PBM"}'
python scripts/bench/ours.py LOG '{"task": "fit", "model": "CM (marginal)"}'
"""

import dataclasses
import functools
import inspect
import itertools
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from log import Log

from clickexp import models
from clickexp.data import superbatches
from clickexp.data.feed import Compiled
from clickexp.evaluation.groups import HeldOut
from clickexp.loggers.base import Logger
from clickexp.models import ClickModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.training import Trainer, click_metrics, lazy_adagrad
from clickexp.training.optimizers import optimizer_of
from clickexp.training.step import TrainStep, split_model

MODELS = {
    "CM": models.CascadeModel,
    "CM (marginal)": models.CascadeModelMarginal,
    "PBM": models.PositionBasedModel,
    "UBM": models.UserBrowsingModel,
    "DCM": models.DependentClickModel,
    "CCM": models.ClickChainModel,
    "DBN": models.DynamicBayesianNetwork,
    "SDBN": models.DynamicBayesianNetwork,
    "GCTR": models.GlobalCTRModel,
    "RCTR": models.RankCTRModel,
    "DCTR": models.DocumentCTRModel,
    "DRCTR": models.DocumentRankCTRModel,
}
FIXED = {"SDBN": {"fix_continuation": True}}
SUPERBATCHES = 8


def build(
    name: str, log: Log, seed: int = 0, *, numbers: bool = False, **options: object
) -> ClickModel:
    """A model with default settings, or with numbers in its tables, for the sizes and click rate of the log."""
    known = dict(
        query_doc_pairs=log.query_doc_pairs, positions=log.positions, click_rate=log.click_rate
    )
    wanted = inspect.signature(MODELS[name].__init__).parameters
    sizes = {key: value for key, value in known.items() if key in wanted}
    if numbers:
        options |= {
            role: dataclasses.replace(config, posterior="none")
            for role, config in MODELS[name].roles.items()
            if isinstance(config, EmbeddingParameterConfig)
        }
    return MODELS[name](**sizes, **FIXED.get(name, {}), **options, rngs=nnx.Rngs(seed))


class Stamps(Logger):
    """Receives the ends of epochs."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def epoch(self, record: Mapping[str, Any]) -> None:
        self.times.append(time.perf_counter())


class Case:
    """A model on a log, with posteriors or with numbers, whose training and evaluation can be timed again and again."""

    def __init__(self, name: str, log: Log, batch_size: int = 4096, *, numbers: bool = False):
        self.name, self.log, self.batch_size = name, log, batch_size
        self.train, self.val = log.sessions("train"), log.sessions("val")
        self.build = functools.partial(build, name, log, numbers=numbers)
        self.trainer = Trainer(lazy_adagrad() if numbers else None, batch_size=batch_size)

    def step_seconds(self) -> float:
        """Mean seconds of a training step: SUPERBATCHES dispatches on batches that lie in memory."""
        step, superbatches = self._step
        start = time.perf_counter()
        for batch in superbatches:
            self._state, *_ = step(self._state, batch.arrays, np.int32(batch.steps))
        jax.block_until_ready(self._state)
        return (time.perf_counter() - start) / sum(batch.steps for batch in superbatches)

    def evaluation_seconds(self) -> float:
        """Seconds of the click metrics over all training sessions, data loading included."""
        evaluation, state = self._evaluation
        start = time.perf_counter()
        evaluation(state, "test").values()
        return time.perf_counter() - start

    def epoch_seconds(self, sessions: int | None = None) -> tuple[float, float]:
        """Seconds of a one-epoch training, from the call to the trained model, and seconds of compilation.

        The first are without the second. They hold everything that a training does once: the pass that
        counts rows for the prior, room for the optimizer's state, the copy and return of the best state.
        """
        model = self.build()
        trainer = dataclasses.replace(self.trainer, epochs=1, early_stopping=None)
        train = self.train if sessions is None else self.train.slice(0, sessions)
        start = time.perf_counter()
        report = trainer.train(model, train, self.val)
        jax.block_until_ready(nnx.state(model))
        return time.perf_counter() - start - report.compile_seconds, report.compile_seconds

    def later_epoch_seconds(self, epochs: int = 3) -> float:
        """Median seconds of each epoch after the first of one training."""
        stamps = Stamps()
        trainer = dataclasses.replace(
            self.trainer, epochs=1 + epochs, early_stopping=None, logger=stamps
        )
        trainer.train(self.build(), self.train, self.val)
        return statistics.median(end - start for start, end in itertools.pairwise(stamps.times))

    def warm_up(self) -> None:
        """Compiles what the trainer does outside its compiled steps, and reads the log into memory."""
        self.epoch_seconds(
            min(self.train.count, self.batch_size * self.trainer.steps_per_execution)
        )
        for split in (self.train, self.val):
            all(
                map(len, superbatch.arrays)
                for superbatch in superbatches(split, self.batch_size, 16)
            )

    @property
    def row_bytes(self) -> float:
        """Bytes in memory per row of a table while the model trains, of the widest."""
        _, state = split_model(self.build(), optimizer_of(self.trainer.optimizer))
        return max(
            4 * table.get_value().values.shape[1] for _, table in nnx.to_flat_state(state.tables)
        )

    @functools.cached_property
    def _step(self) -> tuple[Compiled, list]:
        graphdef, self._state = split_model(self.build(), optimizer_of(self.trainer.optimizer))
        batches = superbatches(self.train, self.batch_size, self.trainer.steps_per_execution)
        step = Compiled(TrainStep(graphdef, optimizer_of(self.trainer.optimizer)), donate_argnums=0)
        return step, list(itertools.islice(batches, SUPERBATCHES))

    @functools.cached_property
    def _evaluation(self):
        model, groups = self.build(), {"click": click_metrics()}
        evaluation = self.trainer.evaluator.compiled(model, HeldOut(self.train), groups)
        return evaluation, (nnx.state(model),)


def throughput(log: Log, model: str, batch_size: int = 4096) -> dict[str, float]:
    """Training sessions a second of one epoch alone, and of each epoch after the first."""
    case = Case(model, log, batch_size)
    case.warm_up()
    seconds, compiling = case.epoch_seconds()
    count = case.train.count
    return dict(
        first=count / seconds, later=count / case.later_epoch_seconds(), compile_seconds=compiling
    )


def fit(
    log: Log, model: str, seed: int = 0, options: dict[str, Any] | None = None
) -> dict[str, float]:
    """Test metrics after training with the trainer's defaults, epochs run, seconds without compilation."""
    fitted, trainer = build(model, log, seed, **(options or {})), Trainer(seed=seed)
    report = trainer.train(fitted, log.sessions("train"), log.sessions("val"))
    metrics = trainer.evaluate(fitted, log.sessions("test")).compute()
    seconds = report.seconds - report.compile_seconds
    return {**metrics, "epochs": report.epochs, "best_epoch": report.best_epoch, "seconds": seconds}


TASKS = {"throughput": throughput, "fit": fit}


def main() -> None:
    settings = json.loads(sys.argv[2])
    print(json.dumps(TASKS[settings.pop("task")](Log.open(Path(sys.argv[1])), **settings)))


if __name__ == "__main__":
    main()

"""Estimates from counts: what counting and expectation-maximisation share.

Every tower of a classic click model is a family of coins, one a row: one for each query-document pair, position, or
a single one. Over the log a coin shows `successes` and `failures`, observed or expected, and its estimate is

    P = (successes + prior_successes) / (successes + prior_successes + failures + prior_failures),

which is stored in the model as the logit log(successes + ...) - log(failures + ...).
(Chuklin, Markov and de Rijke 2015, "Click models for web search", chapter 4.)
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Integer, Shaped

from clickexp.data.batches import Arrays, at_step, with_mask
from clickexp.data.feed import Compiled, Data, feed, session_count
from clickexp.errors import ConfigError
from clickexp.evaluation.inputs import check_ahead, checked
from clickexp.evaluation.model_evaluator import RankVectors, per_rank
from clickexp.models.base import ClickModel
from clickexp.numerics import LogPair, log_sigmoid_pair
from clickexp.parameters import EmbeddingParameter, GlobalParameter, PositionParameter, Rows, Table
from clickexp.parameters.base import Parameter
from clickexp.training.accelerators import warn_of_faults
from clickexp.training.base import BaseTrainer, FitReport, check
from clickexp.types import Array, Batch, Scalar
from clickexp.utils.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, bounded

MOST_LIKELY = math.log((1 - 1e-6) / 1e-6)
"""Largest logit of an estimate, that of probability 1 - 1e-6: certain events leave no likelihood for others."""

TINY = 1e-30
"""Least count, for events that always or never happen: approximate expectations even count more than there are."""

FEW_ROWS = 4096
"""Towers of at most so many rows add up in float64 on the host, since single rows may count every document."""

Event = Bool[Array, "rank batch"]
PerRank = Float[Array, "rank batch"]
Logit = Float[Array, "#rank #batch"]
Totals = Float[Array, "rows 2"]


class Counts(NamedTuple):
    """How often a coin came up and how often it did not, at each document."""

    successes: PerRank
    failures: PerRank


Expected = tuple[Scalar | None, dict[str, Counts]]
"""Summed loss of a batch, unless counts do not depend on the logits, and counts for each role."""

Expect = Callable[["Coins", dict[str, Logit], Batch], Expected]
"""What a batch tells of the coins, given their logits at each document."""


def counts(event: Event, possible: Event) -> Counts:
    """Observed events where they were possible."""
    return Counts(*(jnp.asarray(possible & seen, jnp.float32) for seen in (event, ~event)))


class _StandIn:
    """Takes a tower's place in a model: hands out given logits, and writes down the rows that they stand for."""

    def __init__(self, tower: Parameter):
        self.tower = tower
        self.logit: Logit = jnp.zeros((1, 1))
        self.rows: Integer[Array, "#rank #batch"] | None = None

    def ranked(self, batch: Batch) -> LogPair:
        if isinstance(self.tower, GlobalParameter):
            self.rows = jnp.zeros((1, 1), jnp.int32)
        else:
            self.rows = batch[self.tower.config.use_feature].T
        return log_sigmoid_pair(self.logit)


class Coins:
    """A model seen as its coins: which row of each tower a document takes, and the likelihood for given logits.

    ConfigError where a tower has other numbers than one logit a row.
    """

    def __init__(self, model: ClickModel):
        self.name = model.name
        self.towers = {name: tower for name, tower in vars(model).items() if isinstance(tower, Parameter)}
        self.sizes = {role: _row_count(role, tower) for role, tower in self.towers.items()}
        check(
            len(set(map(id, self.towers.values()))) == len(self.towers),
            f"{' and '.join(self.towers)} of {self.name} share a tower; give each its own",
        )
        self.stand_ins = {role: _StandIn(tower) for role, tower in self.towers.items()}
        # not by Flax: the copy holds no variable, so that steps do not take the model's tables as arguments
        self.model = object.__new__(type(model))
        self.model.__dict__.update({**vars(model), **self.stand_ins})

    def rows(self, batch: Batch) -> dict[str, Integer[Array, "#rank #batch"]]:
        """The row of each tower at each document."""
        self.model.conditional(batch)
        return {role: stand_in.rows for role, stand_in in self.stand_ins.items()}

    def log_likelihood(self, logits: Mapping[str, Logit], batch: Batch) -> Scalar:
        """Sum over documents of log P(observed click or skip | clicks above)."""
        for role, logit in logits.items():
            self.stand_ins[role].logit = logit
        pair = self.model.conditional(batch)
        observed = jnp.where(batch["clicks"].T, pair.log, pair.complement)
        return jnp.sum(jnp.where(batch["mask"].T, observed, 0.0))

    def store(self, logits: Mapping[str, Array], unseen: float) -> None:
        """Gives the model's towers these logits [rows]; `unseen` is that of rows the log does not show."""
        for role, tower in self.towers.items():
            logit = jnp.asarray(logits[role], jnp.float32)
            if not isinstance(tower, EmbeddingParameter):
                tower.weight[...] = logit.reshape(tower.weight.shape)
                continue
            if tower.baseline is not None:
                tower.baseline[...] = jnp.float32(unseen)
                logit = logit - jnp.float32(unseen)
            tower.table.set_value(Rows(logit[:, None], 1))


def _row_count(role: str, tower: Parameter) -> int:
    match tower:
        case GlobalParameter():
            return 1
        case PositionParameter():
            return tower.weight.shape[0]
        case EmbeddingParameter() if isinstance(tower.table, Table) and tower.projection is None:
            return tower.table.get_value().values.shape[0]
    raise ConfigError(
        f"{role}: counts cannot estimate this {type(tower).__name__}; choose a tower of one number a row, such as "
        f"parameter@{role}=embedding or position, or train it with trainer=default"
    )


class EstimatingTrainer(BaseTrainer):
    """Fits a model by passes over the log that count; a subclass says what is counted and how often.

    prior_successes, prior_failures: what every coin starts from.
    batch_size: sessions a step. The counts of a pair are float32, exact up to 2^24 impressions.
    """

    passes = 1

    @bounded
    def __init__(
        self,
        *,
        prior_successes: PositiveFloat = 1.0,
        prior_failures: NonNegativeFloat = 1.0,
        batch_size: PositiveInt = 8192,
        **settings,
    ):
        super().__init__(**settings)
        self.prior = np.array([prior_successes, prior_failures])
        self.batch_size = batch_size

    def expectation(self, name: str) -> Expect:
        """What is counted for the model of this name; ConfigError if there is nothing."""
        raise NotImplementedError

    def train(self, model: ClickModel, train: Data, val: Data) -> FitReport:
        """Fits the model in place, whatever its parameters were. ConfigError for what cannot be estimated.

        DataError where ids, positions or clicks do not fit the model.
        """
        warn_of_faults()
        expect = self.expectation(model.name)
        train, val = (checked(data, model, model.compute_loss, "clicks") for data in (train, val))
        check_ahead(val)
        start = time.perf_counter()
        fit = _Fit(self, model, Coins(model), expect)
        try:
            fit.run(train, val)
        finally:
            fit.keep()
        return FitReport(
            epochs=len(fit.history),
            best_epoch=fit.kept_epoch,
            sessions=sum(record["sessions"] for record in fit.history),
            seconds=time.perf_counter() - start,
            compile_seconds=fit.compile_seconds,
            history=fit.history,
            per_rank=fit.per_rank,
        )


class _Fit:
    """One call of `EstimatingTrainer.train`."""

    def __init__(self, trainer: EstimatingTrainer, model: ClickModel, coins: Coins, expect: Expect):
        self.trainer, self.model, self.coins, self.expect = trainer, model, coins, expect
        self.stopping = trainer.early_stopping and dataclasses.replace(trainer.early_stopping)
        self.many = [role for role, rows in coins.sizes.items() if rows > FEW_ROWS]
        self.step = Compiled(self._superbatch, donate_argnums=1)
        self.estimate = Compiled(_logits)
        self.evaluator = trainer.evaluation.program(nnx.graphdef(model), trainer.metrics)
        nothing = {role: jnp.zeros((rows, 2)) for role, rows in coins.sizes.items()}
        self.logits = self._estimates(nothing)
        self.unseen = float(_logits(np.zeros((1, 2), np.float32), np.float32(trainer.prior))[0])
        self.kept, self.kept_epoch = self.logits, 0
        self.per_rank: RankVectors = {}
        self.history: list[dict[str, int | float]] = []

    @property
    def compile_seconds(self) -> float:
        return sum(program.seconds for program in (self.step, self.estimate, self.evaluator.run))

    def run(self, train: Data, val: Data) -> None:
        for epoch in range(1, self.trainer.passes + 1):
            start, compiled = time.perf_counter(), self.compile_seconds
            totals, told, sessions = self._pass(train, epoch)
            self.logits = self._estimates(totals)
            self.coins.store(self.logits, self.unseen)
            metrics = self.evaluator((nnx.state(self.model),), val, "val", epoch)
            values = metrics.compute()
            values["loss"] = -values["ll"]
            improved = self.stopping is None or self.stopping.update(values)
            record = {"epoch": epoch, **told, **{f"val/{name}": v for name, v in values.items()}}
            record |= {
                "seconds": time.perf_counter() - start,
                "compile_seconds": self.compile_seconds - compiled,
                "sessions": sessions,
                "improved": improved,
            }
            self.history.append(record)
            self.trainer.logger.epoch(record)
            if improved:
                self.kept, self.kept_epoch, self.per_rank = self.logits, epoch, per_rank(metrics)
            if self.stopping and self.stopping.should_stop:
                return

    def keep(self) -> None:
        """Leaves the model with the best estimates, without early stopping the last."""
        self.coins.store(self.kept, self.unseen)

    def _pass(self, data: Data, epoch: int) -> tuple[dict[str, Array], dict[str, float], int]:
        """Totals for each role, the mean training loss of the logits so far, and the sessions."""
        many = {role: jnp.zeros((self.coins.sizes[role], 2)) for role in self.many}
        few = {role: np.zeros((rows, 2)) for role, rows in self.coins.sizes.items() if role not in many}
        loss, documents, done, total, told = 0.0, 0, 0, session_count(data), {}
        for batch in feed(data, self.trainer.batch_size, self.trainer.steps):
            many, sums, batch_loss, batch_documents = self.step(self.logits, many, batch.arrays)
            for role, each in sums.items():
                few[role] += np.asarray(each, np.float64).sum(axis=0)
            done += batch.sessions
            if batch_loss is not None:
                loss += float(np.asarray(batch_loss, np.float64).sum())
                documents += int(np.asarray(batch_documents).sum())
                told = {"train/loss": loss / max(documents, 1)}
            self.trainer.logger.progress("train", epoch, done, total, told.get("train/loss"))
        check(done > 0, "there are no training sessions; batches must come again each time they are iterated")
        return {**many, **few}, told, done

    def _estimates(self, totals: Mapping[str, Array]) -> dict[str, jax.Array]:
        prior = np.float32(self.trainer.prior)
        return {role: self.estimate(np.asarray(t, np.float32) if role not in self.many else t, prior)
                for role, t in totals.items()}  # fmt: skip

    def _superbatch(
        self, logits: dict[str, Float[Array, " rows"]], many: dict[str, Array], arrays: Arrays
    ) -> tuple[dict[str, Array], dict[str, Array], Float[Array, " steps"] | None, Integer[Array, " steps"]]:
        """Adds a superbatch to the totals of many rows; each batch's totals of few rows, loss and documents."""
        arrays = with_mask(arrays)

        def body(
            many: dict[str, Array], index: Shaped[Array, ""]
        ) -> tuple[dict[str, Array], tuple[dict[str, Array], Scalar | None, Shaped[Array, ""]]]:
            batch = at_step(arrays, index)
            batch["mask"] = batch["mask"].astype(bool)
            batch["clicks"] = batch["clicks"] & batch["mask"]
            rows = self.coins.rows(batch)
            shape = batch["clicks"].T.shape
            taken = {role: jnp.broadcast_to(logits[role][r], shape) for role, r in rows.items()}
            loss, told = self.expect(self.coins, taken, batch)
            few = {role: jnp.zeros((size, 2)) for role, size in self.coins.sizes.items() if role not in many}
            totals = {role: _added(t, rows[role], told[role], batch) for role, t in {**many, **few}.items()}
            documents = jnp.sum(batch["mask"], dtype=jnp.int32)
            return {role: totals[role] for role in many}, (
                {role: totals[role] for role in few}, loss, documents
            )  # fmt: skip

        many, each = jax.lax.scan(body, many, jnp.arange(len(arrays["mask"])))
        return many, *each


def _added(totals: Totals, rows: Integer[Array, "#rank #batch"], told: Counts, batch: Batch) -> Totals:
    """The totals with the counts of the documents that were shown."""
    # summed before they are scattered where documents share a row: in parallel, and more exactly
    shared = tuple(axis for axis in (0, 1) if rows.shape[axis] == 1)
    sums = [jnp.sum(jnp.where(batch["mask"].T, each, 0.0), axis=shared, keepdims=True) for each in told]
    return totals.at[rows.ravel()].add(jnp.stack(sums, axis=-1).reshape(-1, 2))


def _logits(totals: Totals, prior: Float[Array, "2"]) -> Float[Array, " rows"]:
    successes, failures = jnp.moveaxis(jnp.log(jnp.maximum(totals + prior, TINY)), -1, 0)
    return jnp.minimum(successes - failures, MOST_LIKELY)

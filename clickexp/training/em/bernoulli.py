"""A click model seen as Bernoulli variables: the row of each tower that a document takes, and what rows count.

Every tower of a classic click model holds one probability per row: one for each query-document pair, position, or a
single one. Over the log a row has `successes` and `failures`, observed or expected, and its estimate is

    P = (successes + prior_successes) / (successes + prior_successes + failures + prior_failures),

which is stored in the model as the logit log(successes + ...) - log(failures + ...).
(Chuklin, Markov and de Rijke 2015, "Click models for web search", chapter 4.)
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer

from clickexp.errors import ConfigError
from clickexp.models.base import ClickModel
from clickexp.numerics import LogPair, log_sigmoid_pair
from clickexp.parameters import (
    EmbeddingParameter,
    EmbeddingParameterConfig,
    GlobalParameter,
    GlobalParameterConfig,
    PositionParameter,
    PositionParameterConfig,
    Rows,
    Table,
)
from clickexp.parameters.base import Parameter, ParameterConfig
from clickexp.parameters.embedding import FullEmbedding
from clickexp.types import Array, ByRank, Scalar

_LARGEST_LOGIT = math.log((1 - 1e-6) / 1e-6)
"""Of an estimate, that of probability 1 - 1e-6, and its least that of 1e-6: certain events leave no likelihood for
others."""

_LEAST_COUNT = 1e-30
"""For events that always or never happen: approximate expectations even count more than there are."""

Event = Bool[Array, "rank batch"]
PerRank = Float[Array, "rank batch"]
Logit = Float[Array, "#rank #batch"]
_RowIds = Integer[Array, "#rank #batch"]
_Totals = Float[Array, "rows 2"]


class Counts(NamedTuple):
    """Successes and failures of a Bernoulli variable at each document."""

    successes: PerRank
    failures: PerRank


def counts(event: Event, possible: Event) -> Counts:
    """Observed events where they were possible."""
    return Counts(*(jnp.asarray(possible & seen, jnp.float32) for seen in (event, ~event)))


def estimates(totals: _Totals, prior: Float[Array, "2"]) -> Float[Array, " rows"]:
    """Logit of each row.

    Args:
        totals: Successes and failures.
        prior: What both start from; without counts a row that the log does not show has probability 1/2.
    """
    successes, failures = jnp.moveaxis(jnp.log(jnp.maximum(totals + prior, _LEAST_COUNT)), -1, 0)
    return jnp.clip(successes - failures, -_LARGEST_LOGIT, _LARGEST_LOGIT)


def counts_of_rows(rows: _RowIds, counted: Counts, batch: ByRank) -> _Totals:
    """The counts of the documents that were shown, of each of `rows`."""
    # summed before they are scattered where documents share a row: in parallel, and more exactly
    shared = tuple(axis for axis in (0, 1) if rows.shape[axis] == 1)
    sums = [
        jnp.sum(jnp.where(batch["mask"], counts, 0.0), axis=shared, keepdims=True)
        for counts in counted
    ]
    return jnp.stack(sums, axis=-1).reshape(-1, 2)


class _StandIn:
    """Takes a tower's place in a model: returns given logits, and records the rows that they are for."""

    def __init__(self, tower: Any):
        self.tower = tower
        self.logit: Logit = jnp.zeros((1, 1))
        self.rows: _RowIds = jnp.zeros((1, 1), jnp.int32)

    def log_pair(self, batch: ByRank) -> LogPair:
        if not isinstance(self.tower, GlobalParameter):
            self.rows = batch[self.tower.config.use_feature]
        return log_sigmoid_pair(self.logit)


class BernoulliTowers:
    """The towers of a model by role, as tables of Bernoulli probabilities.

    Args:
        model: A model whose towers hold one logit per row.

    Raises:
        ConfigError: A tower holds anything else, or serves two roles.
    """

    def __init__(self, model: ClickModel):
        towers = {
            name: tower for name, tower in vars(model).items() if isinstance(tower, Parameter)
        }
        self._towers: dict[str, Any] = towers
        self.sizes = {role: _row_count(role, tower) for role, tower in self._towers.items()}
        if len(set(map(id, self._towers.values()))) < len(self._towers):
            raise ConfigError(
                f"{' and '.join(self._towers)} of {model.name} share a tower; give each its own"
            )
        self._stand_ins = {role: _StandIn(tower) for role, tower in self._towers.items()}
        # not by Flax: the copy holds no variable, so that steps do not take the model's tables as arguments
        self._model: Any = object.__new__(type(model))
        self._model.__dict__.update({**vars(model), **self._stand_ins})

    def rows(self, batch: ByRank) -> dict[str, _RowIds]:
        """The row of each tower at each document."""
        self._model.conditional(batch)
        return {role: stand_in.rows for role, stand_in in self._stand_ins.items()}

    def log_likelihood(self, logits: Mapping[str, Logit], batch: ByRank) -> Scalar:
        """Sum over documents of log P(observed click or skip | clicks above)."""
        for role, logit in logits.items():
            self._stand_ins[role].logit = logit
        pair = self._model.conditional(batch)
        observed = jnp.where(batch["clicks"], pair.log, pair.complement)
        return jnp.sum(jnp.where(batch["mask"], observed, 0.0))

    def store(self, logits: Mapping[str, Rows], unseen: float) -> None:
        """Gives the model's towers these logits, and maybe others behind them.

        Args:
            logits: One per row, by role.
            unseen: That of rows the log does not show.
        """
        for role, tower in self._towers.items():
            rows = logits[role]
            if not isinstance(tower, EmbeddingParameter):
                weight = rows.whole(jnp.arange(self.sizes[role])).reshape(tower.weight.shape)
                tower.weight.set_value(jnp.asarray(weight))
                continue
            logit: Any = jnp.asarray(rows.values, jnp.float32)
            if tower.baseline is not None:
                tower.baseline[...] = jnp.float32(unseen)
                logit = logit - jnp.float32(unseen)
            tower.table.set_value(dataclasses.replace(rows, values=logit))


def _row_count(role: str, tower: Any) -> int:
    match tower:
        case GlobalParameter():
            return 1
        case PositionParameter():
            return tower.weight.shape[0]
        case EmbeddingParameter() if isinstance(tower.table, Table) and tower.projection is None:
            return tower.table.get_value().values.shape[0]
    raise _not_counted(role, type(tower).__name__)


def check_towers(settings: Mapping[str, Any]) -> None:
    """Checks arguments of a model before there is data: ConfigError for a tower that counts cannot estimate."""
    for role, tower in settings.items():
        if not isinstance(tower, ParameterConfig):
            continue
        if isinstance(tower, EmbeddingParameterConfig):
            store = getattr(tower.embedding_fn, "func", tower.embedding_fn)
            is_counted = store is FullEmbedding and tower.embedding_features == 1
        else:
            is_counted = isinstance(tower, GlobalParameterConfig | PositionParameterConfig)
        if not is_counted:
            raise _not_counted(role, type(tower).__name__.removesuffix("Config"))


def _not_counted(role: str, tower: str) -> ConfigError:
    return ConfigError(
        f"{role}: counts cannot estimate this {tower}; choose a tower of one number per row, such as "
        f"{role}=embedding or position, or train it with trainer=default"
    )

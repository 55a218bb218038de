"""How sure a fitted model is of each document: intervals from the posteriors of its tables."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Integer

from clickexp.models import MixtureModel, Model
from clickexp.numerics import log_sigmoid_pair, mean_slope
from clickexp.parameters import EmbeddingParameter, Rows, Table
from clickexp.parameters.base import PosteriorParameter
from clickexp.parameters.context import new_session
from clickexp.types import Array, Batch
from clickexp.utils.statistics.means import QUANTILE

ROLES = {"attraction": ("attraction", "ctr"), "satisfaction": ("satisfaction",)}
"""Columns of probabilities, and the roles that they come from, the first that a model has."""
EFFECTIVE = "effective_impressions"
_BLOCK = 1 << 16
"""Rows whose effective impressions are computed at a time."""


def posterior_outputs(
    model: Model, batch: Batch, ends: Table | None = None, effective: Table | None = None
) -> dict[str, Array]:
    """Returns logarithms of what is known of each document.

    For each column of `ROLES` whose tower has posteriors N(m, v) of logits, in a new search session: the standard
    deviation sqrt(v) as `_sd`, the bounds s(m -+ 1.96 sqrt(v)) of the 95% interval of the probability as `_low` and
    `_high`; for attraction also `_effective_impressions`. A mixture has them of towers that all its components share.

    Args:
        model: A fitted model.
        batch: What its towers read.
        ends: Both of intervals of attraction by id, in place of -1.96 and 1.96.
        effective: Effective impressions by id; None computes them.
    """
    outputs = {}
    for column, roles in ROLES.items():
        tower = tower_of(model, roles)
        if not isinstance(tower, PosteriorParameter):
            continue
        mean, variance = tower.posterior(new_session(batch))
        if variance is None:
            continue
        sd = jnp.sqrt(variance)
        outputs[f"{column}_sd"] = jnp.log(sd)
        low, high = -QUANTILE, QUANTILE
        if column == "attraction" and ends is not None:
            low, high = jnp.moveaxis(ends.take(batch["query_doc_ids"]), -1, 0)
        outputs[f"{column}_low"] = log_sigmoid_pair(mean + low * sd).log
        outputs[f"{column}_high"] = log_sigmoid_pair(mean + high * sd).log
        if column == "attraction":
            outputs[EFFECTIVE] = jnp.log(
                _effective_impressions(tower, new_session(batch))
                if effective is None
                else effective.take(batch["query_doc_ids"])[..., 0]
            )
    return outputs


def effective_by_id(tower: EmbeddingParameter) -> Table:
    """Returns the effective impressions of a tower with a row of one number for each query-document pair.

    Args:
        tower: Whose table is that of `table_of_documents`.
    """
    graphdef, state = nnx.split(tower)

    @jax.jit
    def of_rows(state: nnx.State) -> Float[Array, "rows 1"]:
        tower = nnx.merge(graphdef, state)

        def of_row(row: Integer[Array, ""]) -> Float[Array, ""]:
            return _effective_impressions(tower, {"query_doc_ids": row[None, None]})[0, 0]

        rows = jnp.arange(tower.table.largest_id + 1)
        return jax.lax.map(of_row, rows, batch_size=_BLOCK)[:, None]

    return Table(Rows(of_rows(state), 1))


def table_of_documents(tower: object) -> Table | None:
    """Returns the whole table that a tower has a row of for each query-document pair; None of other towers."""
    if not isinstance(tower, EmbeddingParameter) or tower.config.use_feature != "query_doc_ids":
        return None
    return tower.table if isinstance(tower.table, Table) else None


def tower_of(model: Model, roles: Sequence[str]) -> object:
    """Returns the tower of the first of these roles that the model has, or that all components of a mixture share."""
    components = model.models if isinstance(model, MixtureModel) else [model]
    towers = [
        next((getattr(component, role) for role in roles if hasattr(component, role)), None)
        for component in components
    ]
    return towers[0] if all(tower is towers[0] for tower in towers) else None


def _effective_impressions(tower: PosteriorParameter, batch: Batch) -> Float[Array, "batch rank"]:
    """Returns how many surely examined impressions the log is worth for each document.

    n = (1 / v - 1 / v_0) / E[s(z) s(-z)] for the posterior N(m, v) of the logit z, with its variance v_0 before any
    data. The best normal approximation of a posterior has 1 / v = 1 / v_0 + E[-d^2 log P(clicks | z) / dz^2] (Opper and
    Archambeau 2009, "The variational Gaussian approximation revisited"), to which each impression that is surely
    examined adds E[s(z) s(-z)]. One at a rank that few users reach adds less, and so n is below the impressions. A
    click counts as one, and an attractive document without a click below 0, since its user probably did not look at
    it: n may be below the clicks. For a click-through-rate model n is the number of impressions. Of a sum of tables, v
    and v_0 are sums, and n counts what a pair borrows from others of its document and its query.

    Args:
        tower: A tower with posteriors.
        batch: What it reads.
    """
    mean, variance = tower.posterior(batch)
    _, before = _without_data(tower).posterior(batch)
    if variance is None or before is None:
        raise ValueError("the tower has no posteriors")
    return jnp.maximum(1 / variance - 1 / before, 0.0) / mean_slope(mean, variance)


class _PriorRows:
    """Stands in for the rows of a table: each as its prior, which may differ between rows."""

    def __init__(self, rows: Rows):
        self._rows = rows

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Float[Array, "*ids"] | None = None
    ) -> Float[Array, "*ids dim"]:
        return self._rows.means(self._values(ids), log_ranks)

    def variance(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids dim"]:
        return self._rows.deviations(self._values(ids)) ** 2

    def _values(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids width"]:
        return jnp.asarray(self._rows.whole(ids)).at[..., : self._rows.numbers].set(0.0)


def _without_data(tower: PosteriorParameter) -> PosteriorParameter:
    """Returns the tower as if no session had shown any document."""
    graphdef, state = nnx.split(tower)
    return nnx.merge(graphdef, nnx.map_state(lambda _, variable: _as_prior(variable), state))


def _as_prior(variable: nnx.Variable) -> nnx.Variable:
    return (
        variable.copy(_PriorRows(variable.get_value())) if isinstance(variable, Table) else variable
    )

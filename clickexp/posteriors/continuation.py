"""Continuation of cascade models at the largest marginal likelihood, under the prior by what lists show.

Where a policy orders lists, the prior that training learns leaves out what the documents of a query share; see
`clickexp.posteriors.policy_prior`. Users of a query whose documents attract less look like users who leave, so that
training takes continuation for too small. By Fisher's identity, the gradient of the marginal log-likelihood by
continuation is the expectation of that of the log-likelihood over the posteriors of rows (Louis 1982, "Finding the
observed information matrix when using the EM algorithm"). A step takes posteriors under the better prior, and moves
continuation by the covariance of `clickexp.posteriors.shared` times that gradient. Expectations are of four points of
each posterior: those of satisfaction, and of attraction that few clicks tell, are wide.

The better prior is a simple one, too. Half of the way that continuation has gone counts as a deviation.
"""

import dataclasses
import re
from typing import cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Integer

from clickexp.data import Sessions
from clickexp.data.by_document import ByDocument
from clickexp.models import Model
from clickexp.models.cascade.chain import CascadeFamily
from clickexp.parameters import Rows, Table
from clickexp.posteriors.documents import ROLES, table_of_documents, tower_of
from clickexp.posteriors.exported import row_tables
from clickexp.posteriors.information import ROOM, prepared
from clickexp.posteriors.policy_prior import (
    LEAST_DOCUMENTS,
    Numbers,
    Queries,
    Recombination,
    ShownByRow,
    documents_to_fit,
    fit,
    in_units,
    learned_rows,
    scale_of,
    shown_in,
)
from clickexp.posteriors.rows import by_path, newton_refined, posterior_precision
from clickexp.posteriors.shared import SharedPosterior, add_to_shared, shared_estimate
from clickexp.training.sparse.packing import Path
from clickexp.utils import hosts

_STEPS = 3
"""The first is nine tenths of the way."""
_MOST_SESSIONS = 300_000
"""Of larger logs, the sessions of some queries represent all."""
_POINTS = 4
"""Of each posterior: what two points leave out of expectations moves continuation by up to a third of a deviation."""
_LONGEST_STEP = 5.0
"""Of a number, in standard deviations."""
_OF_WAY = 0.5
"""What a better prior still errs by, of what it has moved continuation by."""
_CONTINUATION = re.compile(r"continuation\w*/weight\[")
"""Names of numbers that move."""

Step = Float[np.ndarray, " numbers"]


def improve_continuation(
    model: Model,
    train: Sessions,
    queries: Queries,
    devices: int | str = 1,
) -> SharedPosterior | None:
    """Moves continuation of a fitted model to where the better prior leaves it; means of rows follow to first order.

    Args:
        model: A cascade model whose attraction is a whole table of pairs with a learned prior by rank. Others stay as
            they are.
        train: Its training sessions.
        queries: From `lists_shown`.
        devices: How many share the passes, or `all`.

    Returns:
        The posterior of shared numbers; None where they stay as they are.
    """
    rows = learned_rows(tower_of(model, ROLES["attraction"]))
    if not isinstance(model, CascadeFamily) or rows is None:
        return None
    part = _of_some_queries(train, queries)
    shown = shown_in(rows, ByDocument.of(part).dense(len(rows.values)).shown, queries)
    documents = documents_to_fit(shown)
    if len(documents) < LEAST_DOCUMENTS:
        return None
    estimate = shared_estimate(model, train, {}, devices)
    if estimate is None:
        return None
    names = estimate.posterior.names
    posterior = SharedPosterior(names, estimate.share * estimate.posterior.covariance)
    is_moved = np.array([bool(_CONTINUATION.match(name)) for name in names])
    if not is_moved.any() or len(shown.x) * (2 * is_moved.sum() + 2) > ROOM:
        return None
    covariance = posterior.covariance[np.ix_(is_moved, is_moved)] * train.count / part.count
    steps = _Steps(model, part, shown, posterior.places(model)[is_moved], covariance, devices)
    for _ in range(_STEPS):
        steps.take(documents)
    steps.apply(model)
    return _with_error(posterior, is_moved, _OF_WAY * steps.total)


def _with_error(
    posterior: SharedPosterior, is_moved: Bool[np.ndarray, " all"], error: Step
) -> SharedPosterior:
    """Returns a posterior with one more error, of some numbers together."""
    errors = np.zeros(len(is_moved))
    errors[is_moved] = error
    return SharedPosterior(posterior.names, posterior.covariance + np.outer(errors, errors))


class _Steps:
    """Steps of continuation, on a copy of a model.

    Args:
        model: As training has left it.
        train: Its training sessions.
        shown: What they show of the rows of attraction.
        places: Of continuation in the vector of all shared numbers.
        covariance: Of continuation.
        devices: How many share the passes.

    Attributes:
        total: Sum of the steps so far.
    """

    def __init__(
        self,
        model: Model,
        train: Sessions,
        shown: ShownByRow,
        places: Integer[np.ndarray, " numbers"],
        covariance: Float[np.ndarray, "numbers numbers"],
        devices: int | str,
    ):
        self._train, self._shown, self._devices = train, shown, devices
        self._places, self._covariance = places, covariance
        self._model = newton_refined(model, row_tables(model), train, devices=devices)
        self._table = cast(Table, table_of_documents(tower_of(self._model, ROLES["attraction"])))
        # under the prior that training has learned, with which `fit` and recombinations begin
        self._rows = np.array(self._table.get_value().values)
        self.total: Step = np.zeros(len(places))

    def take(self, documents: Integer[np.ndarray, " documents"]) -> None:
        """Fits the prior to some documents, takes posteriors of all under it, and moves continuation."""
        rows = self._table.get_value()
        scale = scale_of(rows)
        prior = fit(*in_units(self._rows[documents], scale), self._shown.some(documents))
        better = Recombination.for_probabilities(prior).of(self._rows, scale, self._shown)
        self._table.set_value(dataclasses.replace(rows, values=jnp.asarray(better)))
        passes, state, data = prepared(self._model, self._train, self._devices, _POINTS)
        kept = {
            path: np.arange(len(table.get_value().values))
            for path, table in nnx.to_flat_state(state[1])
        }
        self._sums = passes.sums(state, self._places, kept, data)
        step = -self._covariance @ np.asarray(self._sums.gradient, np.float64)
        longest = _LONGEST_STEP * np.sqrt(np.diag(self._covariance))
        # processors of several hosts round differently
        step = np.array(hosts.broadcast(np.clip(step, -longest, longest).tolist()))
        self._follow(step)
        add_to_shared(self._model, self._places, step)
        self.total += step

    def apply(self, model: Model) -> None:
        """Moves continuation of the model as far, and the means of its rows with it."""
        add_to_shared(model, self._places, self.total)
        for path, table in _tables(model).items():
            table.set_value(self._following(path, table.get_value(), self.total))

    def _follow(self, step: Step) -> None:
        """Refines rows of the copy after a step, under the prior that training has learned."""
        for path, table in _tables(self._model).items():
            refined = self._refined(path, table.get_value(), step)
            if table is self._table:
                self._rows = refined
            else:
                rows = dataclasses.replace(table.get_value(), values=jnp.asarray(refined))
                table.set_value(rows)

    def _refined(self, path: Path, rows: Rows, step: Step) -> np.ndarray:
        """Returns rows by what clicks say of them where the last pass was, which a step changes to first order."""
        precision = scale_of(rows) ** 2
        crossed, own, gradient = self._of_rows(path, step)
        total = posterior_precision(own, precision)
        is_read = (own != 0) | (gradient != 0)
        values = np.array(rows.values)
        offsets = (own * values[:, 0] - gradient - crossed) / total
        values[is_read, 0] = offsets[is_read]
        values[is_read, 1] = np.log(precision / total)[is_read] / 2
        return values

    def _following(self, path: Path, rows: Rows, step: Step) -> Rows:
        """Returns rows whose means follow a step, to first order."""
        crossed, *_ = self._of_rows(path, step)
        moved = np.asarray(rows.deviations(rows.values)[:, 0], np.float64) ** 2 * crossed
        return dataclasses.replace(rows, values=rows.values.at[:, 0].add(-jnp.float32(moved)))

    def _of_rows(self, path: Path, step: Step) -> tuple[Numbers, Numbers, Numbers]:
        """Returns E[L_tz] times a step, E[L_zz] and E[L_z] of rows in the last pass."""
        sums = np.asarray(self._sums.rows[path], np.float64)[:, 0]
        return sums[:, : len(step)] @ step, sums[:, -2], sums[:, -1]


def _tables(model: Model) -> dict[Path, Table]:
    return by_path(model, row_tables(model))


def _of_some_queries(train: Sessions, queries: Queries) -> Sessions:
    """Returns all sessions of some queries by chance, fewer sessions than are read at most."""
    if train.count <= _MOST_SESSIONS:
        return train
    query = np.concatenate(
        [queries.labels[chunk["query_doc_ids"][:, 0]] for chunk in train.chunks()]
    )
    turns = np.random.default_rng(0).permutation(len(queries.labels))[query]
    last = np.partition(turns, _MOST_SESSIONS)[_MOST_SESSIONS]
    return train.select(np.flatnonzero(turns < last))

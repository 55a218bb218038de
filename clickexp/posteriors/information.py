"""How sure shared parameters are: the information that a log has on them, with rows of tables integrated out.

Shared parameters theta are those of all towers but rows of tables z. Rows are independent given theta, or nearly so:
those of one session are coupled only where it leaves open what its user examined. With the posterior of a row, of
variance v, the log-likelihood of theta loses what the row explains in its place (Louis 1982, "Finding the observed
information matrix when using the EM algorithm"):

    I = E[L_tt] - sum over rows of v E[L_tz]' E[L_tz] + v^2 / 2 E[L_tzz]' E[L_tzz],

for the loss L of the log and expectations over the posteriors, in which the variance of the score L_t stands, up to its
second term in Hermite polynomials. v is 1 / (precision of the prior + E[L_zz]), at most the variance of the prior.
Two points m -+ s of each posterior N(m, s^2) give expectations (of polynomials up to the third degree exactly).
Precisions of learned priors and slopes of their means are among the parameters.
"""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data import Sessions
from clickexp.data.feed import Data
from clickexp.evaluation.inputs import ColumnSelection
from clickexp.models.base import Model
from clickexp.parameters.table import Rows, Table
from clickexp.posteriors.derivatives import (
    BATCH,
    Passes,
    State,
    Sums,
    linear_towers,
    shared_size,
)
from clickexp.training.sparse import packing
from clickexp.training.sparse.packing import Path
from clickexp.training.spread import training_on
from clickexp.types import Array
from clickexp.utils.progress import Report, no_report

_FEW = 64
"""Shared numbers up to which those that the log does not read are carried along."""
ROOM = 2**25
"""Numbers that are kept of rows; where there are more rows, a sample represents all."""
_LEAST_PRECISION = 1e-2
"""Of rows without a prior."""
_CHUNK = 2**15


class _Kept(NamedTuple):
    """Rows of a table that sums are kept of.

    Attributes:
        rows: Their numbers, ascending.
        weights: How many rows each represents.
    """

    rows: np.ndarray
    weights: np.ndarray


class Information(NamedTuple):
    """Information of a log on shared parameters.

    Attributes:
        used: Those parameters that it says something about, as places in the vector of all of them.
        matrix: Observed information of these and, after them, of nuisances: slopes and precisions of priors. As an
            estimate it may have eigenvalues below 0.
        first: The same without the second term of what rows explain.
        complete: The same with rows known, which explain nothing.
        score: Gradient of the loss with rows at their optimum, in the same order.
    """

    used: np.ndarray
    matrix: np.ndarray
    first: np.ndarray
    complete: np.ndarray
    score: np.ndarray


def information(
    model: Model,
    data: Data,
    report: Report = no_report,
    devices: int | str = 1,
) -> Information:
    """Returns what a log says about the shared parameters of a model that was fitted to it.

    Takes one or two passes. Of tables with more rows than `ROOM` has numbers for, a sample by the number of documents
    represents all.

    Args:
        model: The model, in the state to judge.
        data: Its training data, which can be iterated twice.
        report: Receives how many sessions of a pass are done, and how many there are, 0 if that is not known.
        devices: See `prepared`.
    """
    passes, state, data = prepared(model, data, devices)
    tables = {path: table.get_value() for path, table in nnx.to_flat_state(state[1])}
    size = shared_size(state)
    used, room = np.arange(size), ROOM // max(len(tables), 1)
    kept = {
        path: _Kept(np.arange(len(r.values)), np.ones(len(r.values))) for path, r in tables.items()
    }
    if size > _FEW or any(len(r.values) * r.dim * 2 * size > room for r in tables.values()):
        moved, counts = passes.reads(state, data, report)
        used = np.flatnonzero(moved)
        numbers = 2 * (len(used) + 1)
        kept = {
            path: _sample(of_rows, room // (tables[path].dim * numbers))
            for path, of_rows in counts.items()
        }
    rows = {path: of_table.rows for path, of_table in kept.items()}
    return _assembled(state, used, kept, passes.sums(state, used, rows, data, report))


def prepared(model: Model, data: Data, devices: int | str = 1) -> tuple[Passes, State, Data]:
    """Returns passes of a model, its state, and the data with the columns that its loss reads.

    Args:
        model: The model.
        data: What is read.
        devices: How many share the rows of tables, and sessions where each has a whole batch of them; or `all`.
    """
    graphdef, *whole = nnx.split(model)
    data = ColumnSelection(
        lambda model, batch: model.compute_loss(batch, aggregate=False), graphdef
    )(data, whole)
    graphdef, params, tables, other = nnx.split(model, nnx.Param, Table, ...)
    several = training_on(devices)
    least = BATCH * several.placement.devices
    if not isinstance(data, Sessions) or data.count < least:
        several = training_on(1)
    passes = _compiled(graphdef, linear_towers(model), several)
    return passes, (params, tables, other), data


_compiled = functools.lru_cache(maxsize=4)(Passes)


def _sample(counts: np.ndarray, most: int) -> _Kept:
    """Rows with documents: all, or at most about as many, each with a probability proportional to its documents."""
    order = np.sort(counts)[::-1].astype(np.float64)
    certain = np.arange(min(most, len(order)))
    rest = order.sum() - np.concatenate([[0.0], np.cumsum(order)])[certain]
    factors = (most - certain) / np.maximum(rest, 1.0)
    chance = np.where(counts > 0, 1.0, 0.0)
    if np.count_nonzero(counts) > most:
        chance = np.minimum(counts * factors[np.argmax(factors * order[certain] <= 1)], 1.0)
    rows = np.flatnonzero(np.random.default_rng(0).random(len(counts)) < chance)
    return _Kept(rows, 1 / chance[rows])


def _assembled(state: State, used: np.ndarray, kept: dict[Path, _Kept], sums: Sums) -> Information:
    """Integrates rows out, in double precision."""
    tables = nnx.to_flat_state(state[1])
    learned = [path for path, table in tables if table.get_value().prior is not None]
    size = len(used)
    score = np.zeros(size + len(learned))
    complete, first, second = np.zeros((3, len(score), len(score)))
    score[:size], complete[:size, :size] = sums.gradient, sums.information
    for path, table in tables:
        at = size + learned.index(path) if path in learned else None
        for block in _blocks(table, kept[path], sums.rows[path], size, len(score), at):
            if at is not None:
                complete[at, at] += np.sum(block.weight * block.of_prior)
                score[at] += np.sum(block.weight * (block.of_prior - 0.5))
            explained = block.cross * (block.weight * block.variance)[:, None]
            first -= explained.T @ block.cross
            score -= explained.T @ block.gradient
            explained = block.curved * (block.weight * block.variance_of_spread)[:, None]
            second -= explained.T @ block.curved
    first += complete
    informed = np.append(np.diag(first)[:size] != 0, np.ones(len(learned), bool))
    both = np.ix_(informed, informed)
    return Information(
        used[informed[:size]],
        (first + second)[both],
        first[both],
        complete[both],
        score[informed],
    )


class _Block(NamedTuple):
    """Numbers of some rows, all [numbers] but for the derivatives by shared parameters and nuisances, [numbers, all].

    Attributes:
        weight: How many each represents.
        cross: E[loss_tz].
        curved: E[loss_tz e s].
        gradient: E[loss_z].
        variance: Of the row.
        variance_of_spread: Of the logarithm of its deviation.
        of_prior: Second derivative of the bound by the logarithm of the prior's precision.
    """

    weight: np.ndarray
    cross: np.ndarray
    curved: np.ndarray
    gradient: np.ndarray
    variance: np.ndarray
    variance_of_spread: np.ndarray
    of_prior: np.ndarray


def of_sites(rows: Rows, values: np.ndarray) -> np.ndarray:
    """Returns precisions S of what earlier logs say of rows, and the gradients S m - h of that, [2, rows, dim]."""
    if not rows.has_sites:
        return np.zeros((2, len(values), rows.dim))
    site, tilt = (np.asarray(part, np.float64) for part in rows.site(values))
    mean = np.asarray(rows.means(jnp.asarray(values)), np.float64)
    return np.stack([site, site * mean - tilt])


def _row_variance(own: np.ndarray, precision: np.ndarray | float) -> np.ndarray:
    """Variances of posteriors, at most that of the prior and of earlier logs.

    Rows without clicks leave the precision of their prior as it is: they explain just as much of the information on it
    as there is. With a larger variance they would explain more, and many such rows make the matrix indefinite.

    Args:
        own: E[loss_zz], an estimate that may be below 0.
        precision: Of the prior, with that of earlier logs.
    """
    return 1 / np.maximum(own + precision, precision)


def _blocks(
    table: Table, kept: _Kept, sums: Array, size: int, width: int, at: int | None
) -> Iterator[_Block]:
    """The rows of a table in blocks, for double precision takes room; at: place of the precision of the prior."""
    rows = table.get_value()
    whole = np.asarray(rows.values)
    for start in range(0, len(kept.rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        values = whole[kept.rows[part]]
        block = np.asarray(sums[part], np.float64).reshape(-1, 2 * size + 2)
        offset = values[:, : rows.dim].astype(np.float64).ravel()
        cross, curved = np.zeros((2, len(block), width))
        cross[:, :size], curved[:, :size] = block[:, :size], block[:, size : 2 * size]
        weight = np.repeat(kept.weights[part], rows.dim)
        own, gradient = block[:, -2], block[:, -1]
        if rows.prior is None or at is None:
            precision = max(packing.prior_precision(table), _LEAST_PRECISION)
            variance = _row_variance(own, precision)
            # for the gradient, too: numbers are taken to be at their optimum
            zero = np.zeros_like(variance)
            yield _Block(weight, cross, curved, zero, variance, zero, zero)
            continue
        log_precision = float(rows.prior.log_precision)
        precision = math.exp(log_precision)
        spreads = values[:, rows.dim : rows.numbers].astype(np.float64).ravel()
        square = np.exp(2 * spreads - log_precision)
        cross[:, at], curved[:, at] = precision * offset, precision * square
        site, pull = (part.ravel() for part in of_sites(rows, values))
        variance = _row_variance(own, precision + site)
        of_prior = precision / 2 * (offset**2 + square)
        yield _Block(
            weight,
            cross,
            curved,
            gradient + precision * offset + pull,
            variance,
            variance / (2 * square),
            of_prior,
        )

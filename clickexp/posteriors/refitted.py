"""Posteriors of documents and their normal prior by rank, given the rates of clicks of all cells.

The prior of a logit is N(b_0 + b_1 x + b_2 (x^2 - 1), V), as a table has it (`clickexp.parameters.table.Prior`). Its
numbers have the largest marginal likelihood, by sums over nodes and quasi-Newton steps (Byrd et al. 1995, "A limited
memory algorithm for bound constrained optimization"). So has the scale of examination, which a factor of attraction
takes up: only the shape of the prior tells it, so that it is right where logits are normal, given x. Where earlier logs
tell of documents, the posterior has their factor exp(h z - S z^2 / 2), the site of the row.
"""

import dataclasses
from functools import partial
from typing import NamedTuple, TypeVar, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from clickexp.data.loader import ahead
from clickexp.parameters import Rows
from clickexp.parameters.table import Prior
from clickexp.posteriors.click_rates import ClickRates, Rates
from clickexp.posteriors.population import Documents, Population
from clickexp.posteriors.towers import Places, logits_of
from clickexp.utils import hosts
from clickexp.utils.blocks import blocks

_DISTANCE = 0.8
_NODES = _DISTANCE * np.arange(-7, 8)
"""In deviations of posteriors from the mean, where these were before."""
_FARTHEST, _LARGEST_FACTOR = 0.5, 0.2
"""Of posteriors, where nodes need not follow: moves of means, in deviations, and of logarithms of deviations."""
_ROUNDS, _GROWTH = 20, 4.0
"""How often nodes follow at most, and how much wider or closer they come at a time."""
_PRECISION_OF_LARGEST = 0.1
"""Of the logit of the largest examination around that of training: of small logs, the shape of the prior is open."""
_LARGEST_START, _LARGEST_LOGIT = 4.0, 7.0
"""Of examination where a search for its scale begins at most, .98, and where it ends at most, .999."""
_PRECISION = {"ftol": 1e-12, "gtol": 1e-8}
"""Of the search, so that one process and several report alike."""
_EVALUATED = 1 << 12
"""Documents that a thread evaluates at a time."""

OfDocuments = Float[np.ndarray, " documents"]
Found = TypeVar("Found")


class PriorByRank(NamedTuple):
    """A normal prior of logits.

    Attributes:
        line: Of 1, x and x^2 - 1.
        variance: Around it.
    """

    line: Float[np.ndarray, "3"]
    variance: float


class Shared(NamedTuple):
    """What all documents share.

    Attributes:
        prior: Of their logits.
        rates: Logits of the rates of clicks.
    """

    prior: PriorByRank
    rates: Rates


def refitted_rows(population: Population, cells: Places, goes_on: bool) -> Rows:
    """Returns rows whose posteriors are fitted to a log under the rates of its tower.

    Where the log does not go on from earlier ones, the prior and the scale of examination are fitted, too, and the
    tower gets this scale.

    Args:
        population: Documents of the log, and posteriors near these.
        cells: Those of the population.
        goes_on: Whether rows have sites of earlier logs.
    """
    tower, rows, baseline = population.tower, population.rows, population.posteriors.baseline
    shared = Shared(_prior_of(rows, baseline), tower.logits()[tower.rates(cells)])
    if not goes_on:
        documents = _by_rank(population, population.sampled)
        shared = most_likely(documents, tower.kind, shared, tower.learns_scale)
        # processors of several hosts round differently
        line, variance, rates = hosts.broadcast(
            (shared.prior.line.tolist(), shared.prior.variance, shared.rates.tolist())
        )
        shared = Shared(PriorByRank(np.array(line), variance), np.array(rates))
        if tower.learns_scale:
            tower.move(cells, shared.rates)
        rows = dataclasses.replace(rows, prior=_as_of_rows(shared.prior, baseline))

    def changed(values: np.ndarray, part: slice) -> np.ndarray:
        places = slice(*np.searchsorted(population.ids, (part.start, part.stop)))
        if places.start == places.stop:
            return values
        found = with_posteriors(_by_rank(population, places), tower.kind, shared)
        values, at = values.copy(), population.ids[places] - part.start
        values[at, 0] = found.means - found.known @ shared.prior.line
        values[at, 1] = np.log(found.deviations) - np.log(shared.prior.variance) / 2
        return values

    return rows.recomputed(changed)


def _by_rank(
    population: Population, places: Integer[np.ndarray, " documents"] | slice
) -> Documents:
    """Returns documents with regressors 1, x and x^2 - 1."""
    x = population.posteriors.some(population.ids[places]).x
    return population.documents(places, np.stack([np.ones(len(x)), x, x**2 - 1], axis=1))


def _prior_of(rows: Rows, baseline: float) -> PriorByRank:
    prior = cast(Prior, rows.prior)
    line = np.concatenate([np.ravel(prior.mean), np.ravel(prior.slopes)]).astype(np.float64)
    line[0] += baseline
    return PriorByRank(line, float(np.exp(-prior.log_precision)))


def _as_of_rows(prior: PriorByRank, baseline: float) -> Prior:
    line = prior.line
    return Prior(
        log_precision=jnp.float32(-np.log(prior.variance)),
        mean=jnp.float32(line[:1] - baseline),
        slopes=jnp.float32(line[1:, None]),
    )


def most_likely(
    documents: Documents, kind: type[ClickRates], before: Shared, learns_scale: bool
) -> Shared:
    """Returns the most likely prior, and rates with the most likely scale.

    Args:
        documents: Their clicks and skips, posteriors near theirs, and regressors 1, x and x^2 - 1.
        kind: What clicks are of rates.
        before: Near this.
        learns_scale: Whether a factor of all rates is to be found, too.
    """
    search = _Search(documents, kind, before.rates, learns_scale)
    line, variance = before.prior
    start = np.array([*line, np.log(variance), min(search.largest, _LARGEST_START)])
    bounds = [(None, None)] * 4 + [(None, _LARGEST_LOGIT)]
    found = minimize(
        search.loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=_PRECISION
    )
    return search.at(found.x)


class _Search:
    """Of the line of a prior, the logarithm of its variance, and the logit of the largest rate.

    Args:
        documents: With posteriors near theirs.
        kind: What clicks are of rates.
        rates: Logits, before.
        learns_scale: Whether a factor of them is to be found, too.
    """

    def __init__(
        self, documents: Documents, kind: type[ClickRates], rates: Rates, learns_scale: bool
    ):
        self._documents, self._kind = documents, kind
        self._rates, self._learns_scale = rates, learns_scale
        self.largest = min(float(rates.max()), _LARGEST_LOGIT)
        self._first: float | None = None

    def at(self, point: Float[np.ndarray, "5"]) -> Shared:
        """Returns what the numbers are of."""
        prior = PriorByRank(point[:3], float(np.exp(point[3])))
        if not self._learns_scale:
            return Shared(prior, self._rates)
        logs = log_expit(self._rates)
        return Shared(prior, logits_of(logs - logs.max() + log_expit(point[4])))

    def loss(self, point: Float[np.ndarray, "5"]) -> tuple[float, Float[np.ndarray, "5"]]:
        """Returns the negative logarithm of the likelihood, per document, less the first one, and its gradient."""
        shared, known = self.at(point), self._documents.known
        found = _marginals(self._documents, self._kind, shared, self._learns_scale)
        self._documents = found.posteriors_of(self._documents)
        line, variance = shared.prior
        away = (found.means - known @ line) / variance
        squares = away**2 * variance + found.deviations**2 / variance - 1
        moved = point[4] - self.largest
        value = found.values.sum() - _PRECISION_OF_LARGEST * moved**2 / 2
        by_largest = found.slopes.sum() * expit(-point[4]) - _PRECISION_OF_LARGEST * moved
        gradient = np.array([*(away @ known), squares.sum() / 2, by_largest])
        if self._first is None:
            self._first = value
        return (self._first - value) / len(known), -gradient / len(known)


def with_posteriors(documents: Documents, kind: type[ClickRates], shared: Shared) -> Documents:
    """Returns documents with posteriors under a prior and rates.

    Args:
        documents: Their clicks and skips, posteriors near these, and regressors 1, x and x^2 - 1.
        kind: What clicks are of rates.
        shared: The prior and the rates.
    """
    return _marginals(documents, kind, shared, has_slopes=False).posteriors_of(documents)


class _Marginals(NamedTuple):
    """Of documents.

    Attributes:
        values: Their marginal log-likelihoods.
        means: Of posteriors.
        deviations: The same.
        slopes: Of the values by a logarithm that all rates share; 0 where these are not known.
    """

    values: OfDocuments
    means: OfDocuments
    deviations: OfDocuments
    slopes: OfDocuments

    def posteriors_of(self, documents: Documents) -> Documents:
        """Returns the documents with these posteriors."""
        return documents._replace(means=self.means, deviations=self.deviations)


def _marginals(
    documents: Documents, kind: type[ClickRates], shared: Shared, has_slopes: bool
) -> _Marginals:
    """Returns marginals by nodes that follow posteriors."""

    def of(part: slice) -> _Marginals:
        some = documents.some(part)
        left, all_of_part = np.arange(len(some.means)), np.empty((4, len(some.means)))
        for _ in range(_ROUNDS):
            found = _at_nodes(some, kind, shared, has_slopes)
            all_of_part[:, left] = found
            is_far = _is_far(some, found)
            if not is_far.any():
                break
            left, some = left[is_far], _followed(some, found).some(is_far)
        return _Marginals(*all_of_part)

    parts = (partial(of, part) for part in blocks(len(documents.means), _EVALUATED))
    found = [*ahead(parts, 2, "posteriors", threads=2)]
    return _Marginals(*map(np.concatenate, zip(*found, strict=True)))


def _at_nodes(
    documents: Documents, kind: type[ClickRates], shared: Shared, has_slopes: bool
) -> _Marginals:
    """Returns marginals by sums over nodes around posteriors."""
    deviations = documents.deviations[:, None]
    logits = documents.means[:, None] + deviations * _NODES
    clicks = kind(documents.clicks, documents.skips, logits)
    precisions, tilts = documents.precisions[:, None], documents.tilts[:, None]
    line, variance = shared.prior
    logs = np.log(_DISTANCE * deviations / np.sqrt(2 * np.pi * variance))
    logs = logs + tilts * logits - precisions * logits**2 / 2
    logs -= (logits - (documents.known @ line)[:, None]) ** 2 / (2 * variance)
    logs += clicks.log_likelihood(shared.rates)
    largest = logs.max(axis=1, keepdims=True)
    weights = np.exp(logs - largest)
    total = weights.sum(axis=1, keepdims=True)
    weights /= total
    means = np.sum(weights * logits, axis=1)
    variances = np.sum(weights * (logits - means[:, None]) ** 2, axis=1)
    slopes = np.zeros(len(means))
    if has_slopes:
        slopes = clicks.slopes(shared.rates, weights).sum(axis=1)
    return _Marginals((largest + np.log(total))[:, 0], means, np.sqrt(variances), slopes)


def _is_far(near: Documents, found: _Marginals) -> Bool[np.ndarray, " documents"]:
    """Returns whether nodes lay far from posteriors."""
    moves = np.abs(found.means - near.means)
    ratios = found.deviations / near.deviations
    return (
        (moves > _FARTHEST * near.deviations)
        | (ratios > np.exp(_LARGEST_FACTOR))
        | (ratios < np.exp(-_LARGEST_FACTOR))
    )


def _followed(near: Documents, found: _Marginals) -> Documents:
    """Returns documents whose nodes follow posteriors.

    Those beyond all nodes lie at the last of these, and seem as narrow as those between two.
    """
    is_beyond = np.abs(found.means - near.means) > _NODES.max() / 2 * near.deviations
    narrower = np.maximum(found.deviations, near.deviations / _GROWTH)
    deviations = np.where(is_beyond, _GROWTH * near.deviations, narrower)
    return near._replace(means=found.means, deviations=deviations)

"""Posteriors of documents and their normal prior by rank, given the rates of clicks of all cells.

The prior of a logit is N(b_0 + b_1 x + b_2 (x^2 - 1), V), as a table has it (`clickexp.parameters.table.Prior`). Its
numbers have the largest marginal likelihood, by sums over nodes and quasi-Newton steps (Byrd et al. 1995, "A limited
memory algorithm for bound constrained optimization"). So has the scale of examination, which a factor of attraction
takes up: only the shape of the prior tells it. Where earlier logs tell of documents, the posterior has their factor
exp(h z - S z^2 / 2), the site of the row.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.optimize import Bounds, minimize
from scipy.special import expit, log_expit

from clickexp.data.loader import ahead
from clickexp.parameters import Rows
from clickexp.parameters.table import Prior
from clickexp.posteriors.click_rates import ClickRates, Nodes, Rates
from clickexp.posteriors.population import Documents, Population
from clickexp.posteriors.towers import Places, logits_of
from clickexp.utils import hosts
from clickexp.utils.blocks import blocks
from clickexp.utils.rounding import ceil_div

_DISTANCE = 0.8
_NODES = _DISTANCE * np.arange(-7, 8)
"""In deviations of posteriors from the mean, where these were before."""
_ROUNDS = 6
"""How often nodes follow posteriors, at most."""
_FALL, _RISE = 1 / 3, 4.0
"""Of the variance of the prior in a round: a narrow one would lie between nodes."""
_SETTLED = 0.01
"""Change of the numbers of a prior in the last round."""
_FARTHEST, _LARGEST_FACTOR = 0.5, 0.2
"""Of posteriors in the last round: moves of means, in deviations, and of logarithms of deviations."""
_PRECISION_OF_SCALE = 0.1
"""Of the logit of the largest examination around that of training: of small logs, the shape of the prior is open."""
_ENOUGH_DOCUMENTS = 50_000
"""Documents whose prior and scale represent those of all."""
_LARGEST_START, _LARGEST_LOGIT = 4.0, 7.0
"""Of examination where a search for its scale begins, .98, and where it may end, .999."""
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


class Learned(NamedTuple):
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
    shared = Learned(_prior_of(rows, baseline), tower.logits()[tower.rates(cells)])
    if not goes_on:
        shared = _learned(population, shared)
        if tower.has_scale:
            tower.move(cells, shared.rates)
        rows = dataclasses.replace(rows, prior=_as_of_rows(shared.prior, baseline))

    def changed(values: np.ndarray, part: slice) -> np.ndarray:
        places = slice(*np.searchsorted(population.ids, (part.start, part.stop)))
        if places.start == places.stop:
            return values
        documents = _by_rank(population, places)
        found = refitted(documents, tower.kind, shared)
        values, at = values.copy(), population.ids[places] - part.start
        values[at, 0] = found.means - documents.known @ shared.prior.line
        values[at, 1] = np.log(found.deviations) - np.log(shared.prior.variance) / 2
        return values

    return rows.recomputed(changed)


def _by_rank(
    population: Population, places: Integer[np.ndarray, " documents"] | slice
) -> Documents:
    """Returns documents with regressors 1, x and x^2 - 1."""
    x = population.posteriors.some(population.ids[places]).x
    return population.documents(places)._replace(known=_regressors(x), of_ranks=0)


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


def _learned(population: Population, before: Learned) -> Learned:
    """Returns what documents share, near what training has learned."""
    tower, number = population.tower, ceil_div(len(population.sampled), _ENOUGH_DOCUMENTS)
    documents = _by_rank(population, population.sampled[::number])
    found = learned(documents, tower.kind, before, tower.has_scale)
    # processors of several hosts round differently
    line, variance, rates = hosts.broadcast(
        (found.prior.line.tolist(), found.prior.variance, found.rates.tolist())
    )
    return Learned(PriorByRank(np.array(line), variance), np.array(rates))


def learned(
    documents: Documents, kind: type[ClickRates], before: Learned, has_scale: bool
) -> Learned:
    """Returns the most likely prior, and rates with the most likely scale.

    Args:
        documents: Their clicks and skips, posteriors near theirs, and regressors 1, x and x^2 - 1.
        kind: What clicks are of rates.
        before: Near this.
        has_scale: Whether a factor of all rates is to be found, too.
    """
    line, variance = before.prior
    search = _Search(before.rates, min(before.rates.max(), _LARGEST_START), has_scale)
    numbers = np.array([*line, np.log(variance), search.largest])
    for _ in range(_ROUNDS):
        loss = partial(search.loss, _MarginalLikelihood(documents, kind))
        limits = np.full((2, 5), [[-np.inf], [np.inf]])
        limits[:, 3] = numbers[3] + np.log([_FALL, _RISE])
        limits[1, 4] = _LARGEST_LOGIT
        found = minimize(loss, numbers, jac=True, method="L-BFGS-B", bounds=Bounds(*limits)).x
        change, numbers = np.abs(found - numbers).max(), found
        shared = search.at(numbers)
        if change < _SETTLED:
            break
        documents = refitted(documents, kind, shared)
    return shared


class _Search(NamedTuple):
    """Of the line of a prior, the logarithm of its variance, and the logit of the largest rate.

    Attributes:
        rates: Logits, before.
        largest: The largest of them, where the search begins.
        has_scale: Whether a factor of them is to be found, too.
    """

    rates: Rates
    largest: float
    has_scale: bool

    def at(self, point: Float[np.ndarray, "5"]) -> Learned:
        """Returns what the numbers are of."""
        prior = PriorByRank(point[:3], float(np.exp(point[3])))
        if not self.has_scale:
            return Learned(prior, self.rates)
        logs = log_expit(self.rates)
        return Learned(prior, logits_of(logs - logs.max() + log_expit(point[4])))

    def loss(
        self, likelihood: "_MarginalLikelihood", point: Float[np.ndarray, "5"]
    ) -> tuple[float, Float[np.ndarray, "5"]]:
        """Returns the negative logarithm of a likelihood, per document, and its gradient."""
        value, by_prior, by_scale = likelihood(self.at(point), self.has_scale)
        away = point[4] - self.largest
        value -= _PRECISION_OF_SCALE * away**2 / 2
        by_largest = by_scale * expit(-point[4]) - _PRECISION_OF_SCALE * away
        number = likelihood.number
        return -value / number, -np.array([*by_prior, by_largest]) / number


def refitted(documents: Documents, kind: type[ClickRates], shared: Learned) -> Documents:
    """Returns documents with posteriors under a prior and rates.

    Args:
        documents: Their clicks and skips, posteriors near these, and regressors 1, x and x^2 - 1.
        kind: What clicks are of rates.
        shared: The prior and the rates.
    """

    def of(part: slice) -> Moments:
        some = documents.some(part)
        near = Moments(some.means.copy(), some.deviations.copy())
        left = np.arange(len(some.means))
        for _ in range(_ROUNDS):
            nodes = _DocumentsAtNodes.of(some, kind)
            _, found, _ = nodes.posteriors(shared.prior, nodes.log_likelihood(shared.rates))
            near.means[left], near.deviations[left] = found
            unsettled = _is_unsettled(some, found)
            if not unsettled.any():
                break
            left, some = left[unsettled], _around(some, found).some(unsettled)
        return near

    found = [*_by_block(len(documents.means), of)]
    means, deviations = map(np.concatenate, zip(*found, strict=True))
    return documents._replace(means=means, deviations=deviations)


def _is_unsettled(near: Documents, found: "Moments") -> Bool[np.ndarray, " documents"]:
    """Returns whether nodes around posteriors were too far from those found there."""
    moves = np.abs(found.means - near.means) / near.deviations
    factors = np.abs(np.log(found.deviations / near.deviations))
    return ~((moves < _FARTHEST) & (factors < _LARGEST_FACTOR))


def _around(near: Documents, found: "Moments") -> Documents:
    """Returns documents whose nodes follow posteriors.

    Those beyond all nodes lie at the last of these, and seem narrow.
    """
    is_beyond = np.abs(found.means - near.means) > _NODES.max() / 2 * near.deviations
    deviations = np.where(is_beyond, near.deviations, found.deviations)
    return near._replace(means=found.means, deviations=deviations)


class Moments(NamedTuple):
    """Of posteriors.

    Attributes:
        means: Their means.
        deviations: Their standard deviations.
    """

    means: OfDocuments
    deviations: OfDocuments


class _DocumentsAtNodes(NamedTuple):
    """Some documents at the nodes of their logits.

    Attributes:
        clicks: Of the documents, and their skips.
        logits: At nodes.
        fixed: Logarithms of the distances of nodes times sites.
        regressors: Of the mean of the prior.
    """

    clicks: ClickRates
    logits: Nodes
    fixed: Nodes
    regressors: Float[np.ndarray, "documents 3"]

    @classmethod
    def of(cls, documents: Documents, kind: type[ClickRates]) -> "_DocumentsAtNodes":
        """Returns documents with nodes around their posteriors."""
        deviations = documents.deviations[:, None]
        logits = documents.means[:, None] + deviations * _NODES
        precisions, tilts = documents.precisions[:, None], documents.tilts[:, None]
        sites = tilts * logits - precisions * logits**2 / 2
        clicks = kind(documents.clicks, documents.skips, logits)
        return cls(clicks, logits, np.log(_DISTANCE * deviations) + sites, documents.known)

    def log_likelihood(self, rates: Rates) -> Nodes:
        """Returns the log-likelihood of clicks and sites at nodes, with the logarithms of their distances."""
        return self.fixed + self.clicks.log_likelihood(rates)

    def posteriors(
        self, prior: PriorByRank, log_likelihood: Nodes
    ) -> tuple[OfDocuments, Moments, Nodes]:
        """Returns marginal log-likelihoods of documents, moments of their posteriors, and weights of nodes."""
        away = self.logits - (self.regressors @ prior.line)[:, None]
        logs = log_likelihood - away**2 / (2 * prior.variance)
        largest = logs.max(axis=1, keepdims=True)
        weights = np.exp(logs - largest)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        values = (largest + np.log(total))[:, 0] - np.log(2 * np.pi * prior.variance) / 2
        means = np.sum(weights * self.logits, axis=1)
        variances = np.sum(weights * (self.logits - means[:, None]) ** 2, axis=1)
        return values, Moments(means, np.sqrt(variances)), weights


class _MarginalLikelihood:
    """Its logarithm, at fixed nodes of documents."""

    def __init__(self, documents: Documents, kind: type[ClickRates]):
        self.number = len(documents.means)

        def of(part: slice) -> _DocumentsAtNodes:
            return _DocumentsAtNodes.of(documents.some(part), kind)

        self._blocks = {part.start: of(part) for part in blocks(self.number, _EVALUATED)}
        self._kept: dict[int, Nodes] = {}

    def __call__(
        self, shared: Learned, has_scale: bool
    ) -> tuple[float, Float[np.ndarray, "4"], float]:
        """Returns it with its derivatives by the line, by the log variance, and by a logarithm that all rates share.

        Args:
            shared: The prior and the rates, which without `has_scale` are those of the first call.
            has_scale: Whether the last derivative is needed, which is 0 else.
        """
        prior, rates = shared

        def of(part: slice) -> tuple[float, Float[np.ndarray, "4"], float]:
            block = self._blocks[part.start]
            if has_scale or part.start not in self._kept:
                self._kept[part.start] = block.log_likelihood(rates)
            values, found, weights = block.posteriors(prior, self._kept[part.start])
            away = (found.means - block.regressors @ prior.line) / prior.variance
            squares = away**2 * prior.variance + found.deviations**2 / prior.variance - 1
            by_prior = np.array([*(away @ block.regressors), squares.sum() / 2])
            by_scale = block.clicks.slopes(rates, weights).sum() if has_scale else 0.0
            return values.sum(), by_prior, by_scale

        values, by_prior, by_scale = zip(*_by_block(self.number, of), strict=True)
        return sum(values), np.sum(by_prior, axis=0), sum(by_scale)


def _by_block(number: int, function: Callable[[slice], Found]) -> Iterator[Found]:
    """Yields a function of parts of so many documents in turn."""
    makers = (partial(function, part) for part in blocks(number, _EVALUATED))
    return ahead(makers, 2, "posteriors", threads=2)


def _regressors(x: OfDocuments) -> Float[np.ndarray, "documents 3"]:
    return np.stack([np.ones(len(x)), x, x**2 - 1], axis=1)

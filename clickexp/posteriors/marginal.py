"""Examination at the largest marginal likelihood, with attraction integrated out document by document.

Given the clicks above, P(click) of PBM and UBM is e_c s(z): e_c the examination of a cell, which is a position, or one
and that of the last click above, within a layout or not, and z the logit of a document. A document with k_c clicks and
n_c skips in each cell adds the logarithm of

    integral p(z) prod_c (e_c s(z))^k_c (1 - e_c s(z))^n_c dz,

which the trapezoidal rule computes at nodes around the posterior that training has found: exact to the last digits of
smooth densities (Trefethen and Weideman 2014, "The exponentially convergent trapezoidal rule"). Nodes of a document are
shifted by chance, evenly over their distance. So of a prior that is narrow beside it, the integral is right in the mean
over documents, and its logarithm too small: documents with few impressions, whose posteriors are alike, do not seem
likelier under a prior with its mass at or between nodes. By Bayes' rule, the prior of a document that lists show at
given ranks is

    p(z) proportional to g(z) exp(t z).

The density g of all documents is the exponential of a parabola and five bumps (Efron 2016, "Empirical Bayes
deconvolution estimates"), and t is the parabola of `clickexp.posteriors.policy_prior` in the mean log rank of the
document, its mean rank and the share of lists that show it. Training knows normal densities, and no shares: what these
leave out of the order of lists biases examination.

P(click) of trust bias is t_c s(z) + f_c (1 - s(z)) in place of e_c s(z). Clicks hardly tell an affine change of s(z),
which t and f take up, or of PBM and UBM a factor of s(z), so that documents may move far. Posteriors and the prior that
training has learned are fitted again under what is found (`posteriors/refitted.py`).

Of very many documents, some are integrated out, and regression tells what the others add
(`clickexp.posteriors.regression`). Of PBM and UBM, examination then is as smooth over positions as the log shows
(`clickexp.posteriors.smoothing`).

Where the log goes on from earlier ones, p(z) has their factor exp(h z - S z^2 / 2), the site of the row of the
document, and the logarithms of e_c, or the numbers of layouts, have the normal prior that these logs give.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Integer, Real
from scipy.sparse import csr_array
from scipy.special import expit, log_expit

from clickexp.data import Sessions
from clickexp.data.loader import ahead
from clickexp.models import Model
from clickexp.parameters import EmbeddingParameter, Rows
from clickexp.posteriors.click_rates import ClickRates
from clickexp.posteriors.documents import ROLES, tower_of
from clickexp.posteriors.policy_prior import Queries, learned_rows
from clickexp.posteriors.population import Documents, Population
from clickexp.posteriors.refitted import refitted_rows
from clickexp.posteriors.regression import Features, Regression
from clickexp.posteriors.shared import SharedPosterior
from clickexp.posteriors.smoothing import Moments, Points, smoothed
from clickexp.posteriors.towers import (
    LEAST_PRECISION,
    Numbers,
    Sums,
    Tower,
    logits_of,
    names_of_positions,
    scaled,
    tower_of_examination,
)
from clickexp.training.earlier import SharedPrior
from clickexp.utils import hosts
from clickexp.utils.blocks import blocks
from clickexp.utils.memory import return_freed_memory

_LEAST_FOR_SHAPE = 50
"""Documents below which the shape of their prior is not known."""
_DISTANCE = 0.8
_NODES = _DISTANCE * np.arange(-6, 7)
"""In deviations of the posterior of a document, before they are shifted."""
_PRECISION_OF_SCALE = 1e4
"""Of the mean logarithm of examination, where it stays in the search."""
_LARGEST_HELD = 0.9
"""Largest examination, where the mean stays."""
_PRECISION_OF_SHAPE = 1.0
"""Of the heights of bumps around 0, and of the slopes of t by ranks: in a fixed order, these and their logarithms tell
the same."""
_GRID_STEP, _LEAST_STEPS = 0.15, 40
"""Of the grid of logits where priors are summed, in deviations of all documents from their mean: a step, and how many
there are on each side at least. The grid holds the nodes of all documents: a prior whose mass lies beyond it would seem
to make any clicks likely."""
_SPACING = 0.02
"""Of slopes between which sums of priors are interpolated, to 1e-6."""
_BUMPS, _WIDTH = np.linspace(-3.0, 3.0, 5), 1.2
_STEPS, _LEAST_GAIN, _LEAST_GAIN_OF_PART = 50, 1e-5, 1.0
"""Of a search at most; gain of the last, and of that among a part of the documents, which ends elsewhere than all."""
_PARTS, _LEAST_PART = (64, 8), 2_000
"""One of so many documents leads near the end, where that is enough of them, and then one of fewer."""
_BLOCK = 256
"""Documents of a product: OpenBLAS gives larger ones to threads, which wait for each other where cores are busy."""
_EVALUATED = 1 << 12
"""Documents that a thread evaluates at a time."""
_KEPT = 100_000
"""Documents up to which what does not change with numbers is kept, in about 1,000 bytes each."""

Matrix = Float[np.ndarray, "numbers numbers"]
Found = TypeVar("Found")


class Evidence(NamedTuple):
    """The marginal likelihood at a point.

    Attributes:
        loss: Its negative logarithm, that of priors included.
        score: The gradient of the log-likelihood of documents, without priors.
        squares: Sum of the outer products of the scores of documents: their information.
    """

    loss: float
    score: Numbers
    squares: Matrix


class Earlier(NamedTuple):
    """The normal prior that earlier logs give the logarithms of examination.

    Attributes:
        center: Of cells.
        information: The inverse of the covariance; 0 for nothing.
    """

    center: Float[np.ndarray, " cells"]
    information: Float[np.ndarray, "cells cells"]

    @classmethod
    def of(cls, prior: SharedPrior | None, cells: int) -> "Earlier":
        """Returns that of all cells, whatever the other parameters of a prior are."""
        earlier = cls(np.zeros(cells), np.zeros((cells, cells)))
        if prior is not None:
            names = names_of_positions(np.arange(cells))
            prior = prior.some(np.isin(prior.names, names))
            at = prior.among(names)
            earlier.center[at] = prior.center
            earlier.information[np.ix_(at, at)] = prior.information
        return earlier

    def some(self, cells: Integer[np.ndarray, " chosen"]) -> "Earlier":
        """Returns that of the chosen cells."""
        return Earlier(self.center[cells], self.information[np.ix_(cells, cells)])

    def with_mean(
        self, logs: Float[np.ndarray, " cells"], clicks: Float[np.ndarray, " cells"]
    ) -> "Earlier":
        """Returns a prior that knows nothing but a mean of logarithms over clicks, and this almost surely.

        The mean is lower where an examination would be above .9. Priors of logits know a ratio of numbers near 1.
        """
        weights, lower = clicks / clicks.sum(), max(logs.max() - np.log(_LARGEST_HELD), 0.0)
        return Earlier(logs - lower, _PRECISION_OF_SCALE * np.outer(weights, weights))


class _Parts(NamedTuple):
    """Parts of a model whose examination has the likelihood.

    Attributes:
        tower: Of examination.
        attraction: Tower of the documents.
        rows: Its rows.
    """

    tower: Tower
    attraction: EmbeddingParameter
    rows: Rows

    @classmethod
    def of(cls, model: Model) -> "_Parts | None":
        """Returns those of a model; None where it has another form."""
        tower, attraction = tower_of_examination(model), tower_of(model, ROLES["attraction"])
        rows = learned_rows(attraction)
        if tower is None or rows is None or not isinstance(attraction, EmbeddingParameter):
            return None
        return cls(tower, attraction, rows)


def has_marginal_likelihood(model: Model) -> bool:
    """Whether updates move examination of a model to its largest marginal likelihood."""
    parts = _Parts.of(model)
    return parts is not None and parts.tower.has_updates


def improve_examination(
    model: Model,
    train: Sessions,
    queries: Queries,
    impressions: Real[np.ndarray, " rows"] | None = None,
    prior: SharedPrior | None = None,
) -> SharedPosterior | None:
    """Moves examination of a fitted model to the largest marginal likelihood, and to smooth curves over positions.

    Curves are smooth where no earlier log tells of examination: its own are, and their prior would count twice. Then
    posteriors of documents are fitted again, and where no earlier log is known, their prior. With it comes the scale of
    examination, a factor of all positions, which only the shape of the prior tells: given ratios, it has the largest
    likelihood under the normal prior. Where logs go on, and of layouts, the geometric mean over clicks stays. Rates of
    the trust-bias model move where no earlier log is known, and where documents have four impressions on average.

    Args:
        model: PBM or UBM with a number per position, or per position and last click, and differences between layouts
            or none; or the trust-bias model with two per position. Its attraction is a whole table of pairs with a
            learned prior by rank. Others stay as they are.
        train: Its training sessions.
        queries: Of pairs, in these and in earlier logs, from `lists_shown`.
        impressions: How many of them show the pair; None for those of the training sessions.
        prior: What earlier logs say of shared parameters, differences between layouts included; None for nothing.

    Returns:
        What these sessions say of examination, and that its curves are smooth; None where it stays as it is.
    """
    parts = _Parts.of(model)
    if parts is None:
        return None
    tower, attraction, rows = parts
    goes_on = prior is not None or rows.has_sites
    if not tower.may_move(prior, goes_on):
        return None
    population = Population.of(train, tower, rows, attraction.level, queries, impressions)
    if len(population.ids) < _LEAST_FOR_SHAPE:
        return None
    before = tower.logits()
    earlier = Earlier.of(prior, len(before))
    # else curves of earlier logs are smooth, and would be so twice
    is_first = not earlier.information.any()
    clicks, skips = population.in_all()
    shown = clicks + skips
    if shown.sum() < tower.least_impressions * len(population.ids):
        return None
    cells = np.flatnonzero(shown + np.diag(earlier.information)[: tower.size])
    population = population.in_cells(cells)
    documents = population.under_policy(population.sampled)
    earlier = earlier.some(tower.rates(cells))
    if tower.holds_scale:
        earlier = earlier.with_mean(log_expit(before)[cells], clicks[cells])
    sums = tower.sums(cells, prior)
    if len(documents.means) < len(sums.start) + _numbers_of_prior(documents):
        return None  # some directions have no information
    of_all = population if population.is_sampled else None
    found, covariance = maximum(documents, sums, earlier, of_all)
    points = tower.points(cells) if is_first else None
    if points is not None:
        found, covariance = _smoothed(points, found, covariance)
    # processors of several hosts round differently
    found, covariance = map(np.array, hosts.broadcast((found.tolist(), covariance.tolist())))
    numbers = scaled(found, before[cells], clicks[cells]) if tower.learns_scale else found
    tower.move(cells, numbers)
    return_freed_memory()
    attraction.table.set_value(refitted_rows(population, cells, goes_on))
    return_freed_memory()
    if tower.learns_scale:  # covariances of logarithms of examination stay
        slopes = expit(-found) / expit(-tower.logits()[cells])
        covariance = covariance * np.outer(slopes, slopes)
    return SharedPosterior(tower.names(cells), covariance)


def _smoothed(
    points: Points, found: Numbers, covariance: Matrix
) -> tuple[Numbers, Float[np.ndarray, "numbers numbers"]]:
    """Returns logits of rates and their covariance, where rates are points of smooth curves over positions.

    Args:
        points: Of the curves.
        found: Logits, as clicks tell of each by itself.
        covariance: Of these.
    """
    slopes = expit(-found)
    of_clicks = Moments(log_expit(found), covariance * np.outer(slopes, slopes))
    smooth = smoothed(points, of_clicks)
    found = logits_of(smooth.mean)
    slopes = expit(-found)
    return found, smooth.covariance / np.outer(slopes, slopes)


def _numbers_of_prior(documents: Documents) -> int:
    """Returns how many numbers the density g and the line t have."""
    return 2 + len(_BUMPS) + documents.known.shape[1]


def maximum(
    documents: Documents,
    sums: Sums,
    earlier: Earlier | None = None,
    of_all: Population | None = None,
) -> tuple[Numbers, Float[np.ndarray, "numbers numbers"]]:
    """Returns the numbers of examination at the largest marginal likelihood, and what documents say of them.

    By quasi-Newton steps (Nocedal 1980, "Updating quasi-Newton matrices with limited storage"), which begin with the
    information that is the sum of the squared scores of documents (Berndt et al. 1974, "Estimation and inference in
    nonlinear structural models"). From the maximum of documents that represent others, a step leads to that of all.

    Args:
        documents: What is known of documents.
        sums: Logits of examination as sums of numbers.
        earlier: What earlier logs say of examination; None for nothing.
        of_all: Those that the documents represent; None for themselves.

    Returns:
        The numbers, and the covariance of the estimate without what earlier logs say.
    """
    likelihood = MarginalLikelihood(documents, sums, earlier)
    point = likelihood.start
    for number in _PARTS:
        if len(documents.means) >= number * _LEAST_PART:
            point, _ = _search(likelihood.of_part(number), point, _LEAST_GAIN_OF_PART)
    point, evidence = _search(likelihood, point)
    count = len(sums.start)
    if of_all is None:
        covariance = np.linalg.inv(likelihood.own_information(evidence))
        return point[:count], covariance[:count, :count]
    evidence = likelihood.regressed(evidence, point, of_all)
    gradient = likelihood.pull(point) - evidence.score
    step = -np.linalg.solve(likelihood.information(evidence, point), gradient)
    covariance = np.linalg.inv(likelihood.own_information(evidence))
    return sums.stepped(point[:count], step[:count], covariance[:count, :count])


def _search(
    likelihood: "MarginalLikelihood", point: Numbers, least_gain: float = _LEAST_GAIN
) -> tuple[Numbers, Evidence]:
    """Returns where quasi-Newton steps from a point end, and the evidence there."""
    length, evidence = 1.0, likelihood(point)
    gradient = likelihood.pull(point) - evidence.score
    changes: list[tuple[Numbers, Numbers]] = []
    for _ in range(_STEPS):
        step = -length * _solved(likelihood.information(evidence, point), changes, gradient)
        evidence_there = likelihood(point + step)
        gain = evidence.loss - evidence_there.loss
        if not gain >= 0:  # nor where a step has left the finite numbers
            length /= 4
            continue
        point, evidence, before = point + step, evidence_there, gradient
        gradient = likelihood.pull(point) - evidence.score
        if step @ (gradient - before) > 0:
            changes.append((step, gradient - before))
        if gain < least_gain * length:
            break
        length = min(2 * length, 1.0)
    return point, evidence


def _solved(
    curvature: Matrix, changes: Sequence[tuple[Numbers, Numbers]], gradient: Numbers
) -> Numbers:
    """Returns the inverse of a curvature times a gradient, where the curvature is corrected by steps.

    Args:
        curvature: An estimate, which may be far off: the square of the score of a document with many impressions is.
        changes: Steps, and the changes of the gradient by them, each of which the corrected curvature explains in turn.
        gradient: The gradient.
    """
    shares = []
    for step, change in reversed(changes):
        shares.append(step @ gradient / (step @ change))
        gradient = gradient - shares[-1] * change
    solved = np.linalg.solve(curvature, gradient)
    for (step, change), share in zip(changes, reversed(shares), strict=True):
        solved = solved + step * (share - change @ solved / (step @ change))
    return solved


class _Scores(NamedTuple):
    """Of documents.

    Attributes:
        values: Their log-likelihood.
        slopes: Its derivatives by numbers.
    """

    values: Float[np.ndarray, " documents"]
    slopes: Float[np.ndarray, "documents numbers"]

    def evidence(self) -> Evidence:
        """Returns that of the documents, without priors of numbers."""
        squares = np.zeros(2 * self.slopes.shape[1:])
        for part in blocks(len(self.slopes), _BLOCK):
            squares += self.slopes[part].T @ self.slopes[part]
        return Evidence(-float(self.values.sum()), self.slopes.sum(axis=0), squares)


class _Units(NamedTuple):
    """Of the logits that the density g is a function of.

    Attributes:
        center: Mean of the logits of all documents.
        scale: Their deviation.
    """

    center: float
    scale: float

    def of(self, logits: np.ndarray) -> np.ndarray:
        """Returns logits in these units."""
        return (logits - self.center) / self.scale


class _Block(NamedTuple):
    """Documents that a thread evaluates at a time, and what is known of them at their nodes.

    Attributes:
        clicks: Of the documents, and their skips.
        known: What t is a line in.
        fixed: Logarithms of the distances of nodes times what does not change, of sites.
        basis: At nodes.
    """

    clicks: ClickRates
    known: Float[np.ndarray, "documents regressors"]
    fixed: Float[np.ndarray, "documents nodes"]
    basis: Float[np.ndarray, "functions documents nodes"]

    @classmethod
    def of(
        cls,
        documents: Documents,
        shifts: Float[np.ndarray, " documents"],
        units: _Units,
        rates: type[ClickRates],
    ) -> "_Block":
        """Returns that of documents, whose nodes are shifted by so many of their deviations."""
        deviations = documents.deviations[:, None]
        logits = documents.means[:, None] + deviations * np.add.outer(shifts, _NODES)
        precisions, tilts = documents.precisions[:, None], documents.tilts[:, None]
        sites = tilts * logits - precisions * logits**2 / 2
        clicks = rates(documents.clicks, documents.skips, logits)
        fixed = np.log(_DISTANCE * deviations) + sites
        return cls(clicks, documents.known, fixed, _basis(units.of(logits)))

    def scores(
        self,
        logits: Float[np.ndarray, " rates"],
        slopes: Float[np.ndarray, "rates sums"],
        density: Numbers,
        tilt: Float[np.ndarray, " documents"],
        prior: Float[np.ndarray, "documents values"],
    ) -> "_Scores":
        """Returns the evidence of each document, without priors of numbers.

        Args:
            logits: Of rates.
            slopes: Of the logarithms of rates in numbers.
            density: Factors of the basis.
            tilt: Of documents.
            prior: Logarithms of the sums of unnormalised priors, and the expectations of the basis under them.
        """
        terms = self.fixed + np.tensordot(density, self.basis, 1) + tilt[:, None] * self.basis[0]
        terms += self.clicks.log_likelihood(logits)
        log_likelihood, after = _normalised(terms)
        values = log_likelihood - prior[:, 0]
        by_numbers = self.clicks.slopes(logits, after) @ slopes
        expected = np.stack([np.sum(after * each, axis=1) for each in self.basis], axis=1)
        by_density = expected - prior[:, 1:]
        by_line = by_density[:, :1] * self.known
        return _Scores(values, np.concatenate([by_numbers, by_density, by_line], axis=1))


class MarginalLikelihood:
    """Its negative logarithm, as a function of numbers of examination, the logarithm of g, and the line t.

    Args:
        documents: What is known of documents.
        sums: Logits of examination as sums of numbers.
        earlier: What earlier logs say of examination; None for nothing.
    """

    def __init__(self, documents: Documents, sums: Sums, earlier: Earlier | None = None):
        self._sums, count = sums, len(sums.start)
        self._earlier = earlier or Earlier.of(None, sums.design.shape[0])
        means, deviations = documents.means, documents.deviations
        shifts = (np.random.default_rng(0).random(len(means)) - 0.5) * _DISTANCE
        variance = float(np.mean(deviations**2))
        self._units = units = _Units(float(means.mean()), np.sqrt(means.var() + variance))
        reach = deviations * (_NODES.max() + _DISTANCE / 2) / units.scale
        self._grid = _grid_up_to(float(np.max(np.abs(units.of(means)) + reach)))
        self._basis_of_grid = _basis(self._grid)
        self._log_unit = np.log(units.scale * _GRID_STEP)
        # the start is a normal prior whose mean is a line
        standardised = units.of(means)
        line, *_ = np.linalg.lstsq(documents.known, standardised)
        within = np.var(standardised - documents.known @ line) + variance / units.scale**2
        density = np.zeros(len(self._basis_of_grid))
        density[1] = -0.5
        self.start = np.concatenate([sums.start, density / within, line / within])
        self._ends = np.cumsum([count, len(density)])
        self._centers = self.start.copy()
        self._centers[:count] = sums.centers
        self._of_others = np.full(len(self.start), LEAST_PRECISION)
        self._of_others[count + 2 : self._ends[1]] = _PRECISION_OF_SHAPE
        of_ranks = slice(len(self.start) - documents.of_ranks, None)
        self._centers[of_ranks], self._of_others[of_ranks] = 0.0, _PRECISION_OF_SHAPE
        self._precisions = np.diag(self._of_others)
        self._precisions[:count, :count] = sums.precisions
        self._read(documents, shifts)

    def _read(self, documents: Documents, shifts: Float[np.ndarray, " documents"]) -> None:
        self._documents, self._shifts = documents, shifts
        self._kept: dict[int, _Block] = {}

    def of_part(self, number: int) -> "MarginalLikelihood":
        """Returns that of every `number`-th document, as a function of the same numbers."""
        part, chosen = copy.copy(self), slice(None, None, number)
        part._read(self._documents.some(chosen), self._shifts[chosen])
        return part

    def _block(self, part: slice) -> _Block:
        """Returns a part of the documents; of few, each is computed once."""
        block = self._kept.get(part.start)
        if block is None:
            some, shifts = self._documents.some(part), self._shifts[part]
            block = _Block.of(some, shifts, self._units, self._sums.rates)
            if len(self._shifts) <= _KEPT:
                self._kept[part.start] = block
        return block

    def held(self, point: Numbers) -> float:
        """Returns the negative logarithm of the priors of numbers, and of that of earlier logs."""
        _, away = self._away(point)
        offsets = point - self._centers
        return (
            float(offsets @ self._precisions @ offsets + away @ self._earlier.information @ away)
            / 2
        )

    def pull(self, point: Numbers) -> Numbers:
        """Returns the gradient of `held`."""
        slopes, away = self._away(point)
        pull = self._precisions @ (point - self._centers)
        pull[: slopes.shape[1]] += slopes.T @ (self._earlier.information @ away)
        return pull

    def information(self, evidence: Evidence, point: Numbers) -> Matrix:
        """Returns the information of documents, of the priors of numbers, and of the earlier logs."""
        slopes, _ = self._away(point)
        information = evidence.squares + self._precisions
        count = slopes.shape[1]
        information[:count, :count] += slopes.T @ self._earlier.information @ slopes
        return information

    def own_information(self, evidence: Evidence) -> Matrix:
        """Returns `information` without earlier logs, and without what training says: it has seen the same clicks."""
        precisions = self._of_others.copy()
        precisions[: len(self._sums.own)] = self._sums.own
        return evidence.squares + np.diag(precisions)

    def _away(
        self, point: Numbers
    ) -> tuple[Float[np.ndarray, "cells sums"], Float[np.ndarray, " cells"]]:
        """Slopes of the logarithms of examination in numbers, and how far they are from their prior."""
        logits = self._logits(point)
        return self._slopes(logits), log_expit(logits) - self._earlier.center

    def _logits(self, point: Numbers) -> Float[np.ndarray, " cells"]:
        return self._sums.design @ point[: self._ends[0]]

    def _slopes(self, logits: Float[np.ndarray, " cells"]) -> Float[np.ndarray, "cells sums"]:
        """Slopes of the logarithms of examination in numbers."""
        return self._sums.design * expit(-logits)[:, None]

    def __call__(self, point: Numbers) -> Evidence:
        """Returns the evidence at a point."""
        found = [*self._by_block(point, lambda part, scores: scores.evidence())]
        loss = self.held(point) + sum(of_block.loss for of_block in found)
        score = np.sum([of_block.score for of_block in found], axis=0)
        return Evidence(loss, score, np.sum([of_block.squares for of_block in found], axis=0))

    def regressed(self, evidence: Evidence, point: Numbers, of_all: Population) -> Evidence:
        """Returns the evidence at a point, with the score and the information of all documents.

        Args:
            evidence: That of the documents.
            point: The point.
            of_all: The documents that these represent.
        """
        logits = self._logits(point)
        features = Features(self._sums.rates, logits, lambda z: _basis(self._units.of(z)))
        pairs = self._by_block(
            point, lambda part, scores: (scores.slopes, features.of(self._documents.some(part)))
        )
        regression = Regression.of(pairs, features.mean(of_all))
        score, squares = regression.of_all(evidence.score, evidence.squares, of_all.share)
        return Evidence(evidence.loss, score, squares)

    def _by_block(
        self, point: Numbers, function: Callable[[slice, _Scores], Found]
    ) -> Iterator[Found]:
        """Yields a function of some documents and their scores at a point, of blocks in turn."""
        _, density, line = np.split(point, self._ends)
        logits = self._logits(point)
        slopes, tilt = self._slopes(logits), self._documents.known @ line
        prior = self._prior(density, tilt)

        def of(part: slice) -> Found:
            scores = self._block(part).scores(logits, slopes, density, tilt[part], prior[part])
            return function(part, scores)

        makers = (partial(of, part) for part in blocks(len(tilt), _EVALUATED))
        yield from ahead(makers, 2, "evidence", threads=2)

    def _prior(
        self, density: Numbers, tilt: Float[np.ndarray, " documents"]
    ) -> Float[np.ndarray, "documents values"]:
        """Returns the logarithms of the sums of unnormalised priors, and the expectations of the basis under them."""
        untilted = density @ self._basis_of_grid

        def at(tilts: Float[np.ndarray, " tilts"]) -> Float[np.ndarray, "tilts values"]:
            values = np.empty((len(tilts), 1 + len(density)))
            for part in blocks(len(tilts), _BLOCK):
                priors = np.multiply.outer(tilts[part], self._grid)
                priors += untilted
                log_sums, weights = _normalised(priors)
                values[part, 0] = log_sums + self._log_unit
                values[part, 1:] = weights @ self._basis_of_grid.T
            return values

        return interpolated(at, tilt)


def interpolated(
    function: Callable[[Float[np.ndarray, " points"]], Float[np.ndarray, "points values"]],
    points: Float[np.ndarray, " points"],
) -> Float[np.ndarray, "points values"]:
    """Returns a smooth function at points by the cubic through the nearest four of evenly spaced ones.

    Args:
        function: Of points.
        points: Where to take it. It is called there where they are fewer than the nodes.
    """
    first = points.min() - 2 * _SPACING
    nodes = np.ceil((points.max() - first) / _SPACING) + 3
    if not nodes <= len(points):  # nor where a search has left the finite numbers
        return function(points)
    places = (points - first) / _SPACING
    before = places.astype(np.int32)
    u = places - before
    outer, inner = u * (u - 1) / 6, (u + 1) * (u - 2) / 2
    weights = np.stack([outer * (2 - u), inner * (u - 1), -inner * u, outer * (u + 1)], axis=1)
    columns = np.add.outer(before, np.arange(-1, 3, dtype=np.int32))
    ends = np.arange(0, columns.size + 1, 4)
    by_node = csr_array((weights.ravel(), columns.ravel(), ends), (len(points), int(nodes)))
    return by_node @ function(first + _SPACING * np.arange(nodes))


def _grid_up_to(farthest: float) -> Float[np.ndarray, " logits"]:
    """Returns evenly spaced logits on both sides of 0, beyond the farthest of documents."""
    steps = max(int(np.ceil(farthest / _GRID_STEP)) + 1, _LEAST_STEPS)
    return _GRID_STEP * np.arange(-steps, steps + 1)


def _basis(standardised: np.ndarray) -> np.ndarray:
    """Returns what the logarithm of g is a sum of, [functions, ...]."""
    bumps = [np.exp(-(((standardised - center) / _WIDTH) ** 2) / 2) for center in _BUMPS]
    return np.stack([standardised, standardised**2, *bumps])


def _normalised(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logarithms of the sums of the exponentials of rows, and in place of rows these in units of sums."""
    largest = terms.max(axis=1, keepdims=True)
    terms -= largest
    weights = np.exp(terms, out=terms)
    total = weights.sum(axis=1, keepdims=True)
    weights /= total
    return (largest + np.log(total))[:, 0], weights

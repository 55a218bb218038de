"""Posteriors of documents under a prior that knows which lists a policy has shown them in.

The mean of a prior by rank is a parabola in x, the mean log rank of a document. Where a policy orders lists, more can
be known before any click. A policy shows documents that it ranks high in more of the lists of their query, so that the
share of these tells of attraction what ranks in them do not (Heckman 1979, "Sample selection bias as a specification
error"). And of few lists, ranks and shares are off by chance: they tell less of a document, which varies the more
around the mean (Fuller 1987, "Measurement error models"). For a document in n of the N lists of its query,

    l = 1.7 q((n + 1/2) / (N + 1)) - center,    w = N / (N + 8),    q the quantile of a normal distribution,

the prior is, in units of the standard deviation of the N(mean by rank, 1 / precision) that training learns, normal with

    mean by rank + mean + w (a l + b x) + (1 - w) (c l + d x) + e l^2 + f l x + g x^2 + u

and variance constant + of_few / (n + 2) + r' C r. The last term is what clicks leave open of the mean: r are the
factors of mean and a to g, whose covariance is C (Kass and Steffey 1989, "Approximate Bayesian inference in
conditionally independent hierarchical models").

u ~ N(0, per_query) is what the documents of a query share. Ranks and shares compare them with each other, so that a
query whose documents all attract shows in neither.
In random order a to g are near 0. Attraction rises with l where lists seldom show documents, and hardly where they
always do, which lines alone do not follow. Few clicks are where lists seldom show documents, so that the mean there
goes on from that of others. A policy with normal noise shows documents in shares whose quantiles are a line in what it
ranks by, and these go on better than log odds; 1.7 makes both alike for usual shares.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Integer, Real
from scipy.special import digamma, ndtri

from clickexp.data import Sessions
from clickexp.data.kept import kept
from clickexp.models import Model
from clickexp.parameters import EmbeddingParameter, Rows, Table
from clickexp.parameters.table import Prior
from clickexp.posteriors.documents import ROLES, table_of_documents, tower_of
from clickexp.types import Array
from clickexp.utils.blocks import blocks
from clickexp.utils.progress import Report, no_report
from clickexp.utils.sums import add_at

LEAST_FOR_POLICY_PRIOR = 200
"""Documents of the training log below which the learned prior holds for all."""
_SAMPLE = 100_000
"""Documents that the prior is fitted to; of more, as many by chance."""
_FEW = 8
"""Lists of a query whose shares and ranks count half as those of many lists and half as those of few."""
OF_RANKS = 4
"""Numbers of `regressors_by_ranks`."""
_BOUNDS = (-5.0, 3.0), (-4.0, 7.0), (-9.0, 3.0), *[(-9.0, 9.0)] * 8
"""Of log constant, log of_few, log per_query, mean, and a to g.

The last eight have a standard normal prior themselves, and log of_few one around what chance of ranks explains.
"""
_START = 0.0, 0.0, -2.0, *[0.0] * 8
_LARGEST_GAIN = 2.0
"""Logarithm of the largest value of the factor of clicks where p is below 0, over that at 0."""
_NEAREST = 3.0
"""Where it is largest, for a steep one at least."""
_LEFT_OUT = math.exp(digamma(0.5)) - 0.5
"""Impressions of documents that all lists leave out; see `left_out`."""
_BLOCK = 1 << 13
"""Documents that are computed in double precision at a time: as many as a cache holds."""
_MERGED = 1 << 14
"""Links that merge queries at a time: as many as the cache of a core holds."""

Numbers = Float[np.ndarray, " documents"]


class Shown(NamedTuple):
    """Counts of documents in the training log.

    Attributes:
        impressions: How many lists show each, n.
        lists: How many lists its query has, N; at least n, and 0 for documents that no list shows.
        x: Standardised mean log ranks, those of few lists drawn to 0; 0 where they are unknown.
        query: Labels, alike for documents of one query.
    """

    impressions: Real[np.ndarray, " documents"]
    lists: Real[np.ndarray, " documents"]
    x: Numbers
    query: Integer[np.ndarray, " documents"]

    def some(self, chosen: Integer[np.ndarray, " chosen"] | slice) -> "Shown":
        """Returns the chosen documents."""
        return Shown(*(numbers[chosen] for numbers in self))


class ShownByRow(NamedTuple):
    """What the log shows of the rows of a large table, which is computed of some at a time.

    Attributes:
        impressions: How many lists show each.
        x: Standardised mean log ranks, not finite where they are unknown.
        lists: How many lists its query has, as far as these are counted.
        query: Labels, alike for documents of one query.
    """

    impressions: Real[np.ndarray, " rows"]
    x: Float[np.ndarray, " rows"]
    lists: Real[np.ndarray, " rows"]
    query: Integer[np.ndarray, " rows"]

    @property
    def is_shown(self) -> Bool[np.ndarray, " rows"]:
        """Whether a list shows each or one of its query."""
        return (self.lists > 0) | (self.impressions > 0)

    def some(self, chosen: Integer[np.ndarray, " chosen"] | slice) -> Shown:
        """Returns what it shows of the chosen rows."""
        number, x, lists, query = (numbers[chosen] for numbers in self)
        return Shown(number, np.maximum(lists, number), np.where(np.isfinite(x), x, 0.0), query)


class PolicyPrior(NamedTuple):
    """Mean and variance of offsets from the mean by rank, in standard deviations of the learned prior.

    Attributes:
        constant: Variance of documents that very many lists show.
        of_few: How much more documents vary that few lists show, times their number and 2.
        per_query: Variance of what the documents of a query share.
        mean: Of documents of average shares and ranks.
        slopes: a to g.
        center: Average of l.
        left_out: From `left_out`; 0 of a prior that intervals do not use.
        covariance: Of mean and slopes, as clicks leave them open.
    """

    constant: float = 1.0
    of_few: float = 0.0
    per_query: float = 0.0
    mean: float = 0.0
    slopes: tuple[float, ...] = (0.0,) * 7
    center: float = 0.0
    left_out: float = 0.0
    covariance: Float[np.ndarray, "8 8"] = np.zeros((8, 8))

    def moments(self, shown: Shown) -> tuple[Numbers, Numbers]:
        """Returns the means without u, and the variances around those with u.

        Documents that no list shows have the mean by rank alone, for they may be new.
        """
        lines = np.where(shown.lists > 0, _lines(shown, self.center), 0.0)
        means, of_means = self.moments_of_mean(lines)
        return means, self.constant + self.of_few * _scarcity(shown) + of_means

    def moments_of_mean(self, lines: Float[np.ndarray, "8 documents"]) -> tuple[Numbers, Numbers]:
        """Returns the means of documents and the variances with which clicks leave these open."""
        means = np.array([self.mean, *self.slopes]) @ lines
        return means, np.sum(lines * (self.covariance @ lines), axis=0)


def _scarcity(shown: Shown) -> Numbers:
    return 1 / (shown.impressions + 2)


def mean_quantile(shown: Shown) -> float:
    """Returns the mean of l over documents, before it is centered."""
    return float(_quantiles(shown).mean())


def _quantiles(shown: Shown) -> Numbers:
    """Returns l, before it is centered."""
    return 1.7 * ndtri((shown.impressions + 0.5) / (shown.lists + 1))


def regressors(shown: Shown, center: float | None = None) -> Float[np.ndarray, "7 documents"]:
    """Returns what a to g are the slopes of.

    Args:
        shown: What the log shows of documents.
        center: Of l, by default its mean over these documents.
    """
    of_shares, x = _quantiles(shown), shown.x
    of_shares -= of_shares.mean() if center is None else center
    many = shown.lists / (shown.lists + _FEW)
    lines = [many * of_shares, many * x, (1 - many) * of_shares, (1 - many) * x]
    return np.stack([*lines, of_shares**2, of_shares * x, x**2])


def regressors_by_ranks(
    shown: Shown, center: float, ranks: Numbers
) -> Float[np.ndarray, "4 documents"]:
    """Returns the terms that a parabola in l, x and the mean rank has beside those of `regressors`.

    Neither a mean rank nor that of its logarithm has all that a policy tells of a document.

    Args:
        shown: What the log shows of documents.
        center: Of l.
        ranks: Mean ranks, from any center and in any unit.
    """
    return np.stack([ranks, ranks**2, ranks * shown.x, ranks * (_quantiles(shown) - center)])


def _lines(shown: Shown, center: float) -> Float[np.ndarray, "8 documents"]:
    """Returns what the mean and a to g are factors of."""
    return np.concatenate([np.ones((1, len(shown.x))), regressors(shown, center)])


def chance_of_ranks(rows: Rows, shown: Shown) -> float:
    """Returns how much documents vary since their ranks are off by chance, times the number of their lists.

    If x of one list is off with variance w, that of n lists is off with w / n. Documents around a slope b by x then
    vary by b^2 w / n (Fuller 1987, "Measurement error models"). The slope is that which training has learned. A line
    by the log rank of one document leaves a = v w / (v + w) of the variance v of x over all documents in lists, which
    tells w. It is at most the average number of lists, where the log ranks of most documents tell little of them.

    Args:
        rows: Of attraction.
        shown: What the log shows of documents, each in a list at least.
    """
    slope = float(cast(Prior, rows.prior).slopes[0, 0]) * scale_of(rows)
    average = np.average(shown.x, weights=shown.impressions)
    variance = float(np.average((shown.x - average) ** 2, weights=shown.impressions))
    left, of_one = float(rows.log_ranks[2]), float(shown.impressions.mean())
    if variance * left < of_one * (variance - left):
        of_one = variance * left / (variance - left)
    return slope**2 * of_one


def fit(offsets: Numbers, variances: Numbers, shown: Shown, of_chance: float) -> PolicyPrior:
    """Returns the most likely prior, with the logits of documents integrated out.

    The posterior N(m, v) of an offset under the prior N(0, 1) is the product of that prior and of what clicks say, a
    normal factor of precision p = 1 / v - 1 and mean m / (v p). Under N(mu + u, s), the integral of the product is
    proportional to exp(h mu - p mu^2 / 2 + s r^2 / (2 t) + r u / t - p u^2 / (2 t)) / sqrt(t) for h = m / v,
    r = h - p mu and t = 1 + s p. Its logarithm is a parabola in u, and so is the sum over the documents of a query,
    which is integrated in turn.

    Mean and slopes are held near 0 by a standard normal prior. Clicks that tell little of a variance are often most
    likely where it is 0, and intervals are too short there (Chung, Rabe-Hesketh, Dorie, Gelman and Liu 2013, "A
    nondegenerate penalized likelihood estimator for variance parameters in multilevel models"). So log of_few has a
    normal prior with deviation 1 around what chance of ranks explains.

    Args:
        offsets: Means of posteriors, from those of the prior, in its standard deviations.
        variances: Of posteriors, over that of the prior.
        shown: What the log shows of the documents, each in a list at least.
        of_chance: From `chance_of_ranks`.
    """
    from scipy.optimize import minimize  # here, since it takes long, and runs do without

    log_chance = float(np.clip(np.log(max(of_chance, 1e-9)), *_BOUNDS[1]))
    precisions, tilts = evidence_of(offsets, variances)
    center = mean_quantile(shown)
    lines = _lines(shown, center)
    query, scarcity = np.unique(shown.query, return_inverse=True)[1], _scarcity(shown)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        parts = np.stack([np.full(len(tilts), np.exp(point[0])), np.exp(point[1]) * scarcity])
        per_query, mean, variance = np.exp(point[2]), point[3:] @ lines, parts.sum(axis=0)
        scale, rest = 1 + variance * precisions, tilts - precisions * mean
        curvature, slope = precisions / scale, rest / scale
        value = np.log(scale) - rest * slope * variance + precisions * mean**2 - 2 * tilts * mean
        of_query = _Sums(np.bincount(query, curvature), np.bincount(query, slope), per_query)
        by_curvature, by_slope = (sums[query] for sums in of_query.gradients())
        by_variance = (
            curvature - slope**2 - curvature * (curvature * by_curvature + slope * by_slope)
        )
        by_mean = -2 * slope - curvature * by_slope
        gradient = np.concatenate(
            [parts @ by_variance, [per_query * of_query.by_variance()], lines @ by_mean]
        )
        gradient[3:] += 2 * point[3:]
        away = point[1] - log_chance
        gradient[1] += 2 * away
        total = value.sum() + of_query.value() + point[3:] @ point[3:] + away**2
        return total / 2 / len(tilts), gradient / 2 / len(tilts)

    # a tolerance of values stops where the sums of several devices, which round differently, are 1e-4 apart
    options = {"ftol": 0.0, "gtol": 1e-8}
    best = minimize(
        loss, np.array(_START), jac=True, method="L-BFGS-B", bounds=_BOUNDS, options=options
    ).x
    constant, of_few, per_query = np.exp(best[:3]).tolist()
    mean, *slopes = best[3:].tolist()
    of_documents = precisions / (1 + (constant + of_few * scarcity) * precisions)
    covariance = np.linalg.inv(_information(lines, of_documents, query, per_query))
    return PolicyPrior(
        constant, of_few, per_query, mean, tuple(slopes), center, covariance=covariance
    )


def left_out(rows: Rows, shown: Shown, prior: PolicyPrior) -> float:
    """Returns the mean square of the means that documents would have that all lists of these queries leave out.

    They have the mean by rank of the average x, as new documents do. Lists with them would have them at their end:
    at the x that a line of x by l has there, as far as x of other documents goes. So a mean is from theirs

        s x + t (x^2 - 1) + mean + w (a l + b x) + ... + g x^2,

    with the slopes s and t by rank that training has learned. What clicks leave open of a to g adds to the square.
    By Jeffreys' prior, the share of a document that none of N lists shows has the mean logarithm of .14 / N, and l is
    the one of that share.

    Args:
        rows: Of attraction.
        shown: What the log shows of documents, each in a list at least.
        prior: That is fitted to these.
    """
    line = np.stack([np.ones(len(shown.x)), _quantiles(shown)], axis=1)
    of_x = np.linalg.lstsq(line, shown.x)[0]
    unseen = shown._replace(impressions=np.full(len(shown.x), _LEFT_OUT))
    x = np.clip(of_x[0] + of_x[1] * _quantiles(unseen), shown.x.min(), shown.x.max())
    by_rank = np.asarray(cast(Prior, rows.prior).slopes, np.float64)[:, 0] * scale_of(rows)
    means, of_means = prior.moments_of_mean(_lines(unseen._replace(x=x), prior.center))
    means += by_rank @ np.stack([x, x**2 - 1])
    return float(np.mean(means**2 + of_means))


def _information(
    lines: Float[np.ndarray, "8 documents"],
    curvature: Numbers,
    query: Integer[np.ndarray, " documents"],
    per_query: float,
) -> Float[np.ndarray, "8 8"]:
    """Returns the information of mean and slopes, u integrated out, with that of their standard normal prior.

    Args:
        lines: What they are factors of.
        curvature: Information of each document on its mean.
        query: Numbers from 0.
        per_query: Variance of u.
    """
    weighted = lines * curvature
    of_query = np.stack([np.bincount(query, row) for row in weighted])
    shared = per_query / (1 + per_query * np.bincount(query, curvature))
    return weighted @ lines.T - (of_query * shared) @ of_query.T + np.eye(len(lines))


class _Sums(NamedTuple):
    """Evidence of the documents of each query on u: exp(slope u - curvature u^2 / 2), and the variance of its prior.

    Attributes:
        curvature: By query.
        slope: The same.
        variance: Of all.
    """

    curvature: Numbers
    slope: Numbers
    variance: float

    def posterior(self) -> tuple[Numbers, Numbers]:
        """Returns means and variances of u."""
        variances = self.variance / (1 + self.variance * self.curvature)
        return variances * self.slope, variances

    def value(self) -> float:
        """Returns -2 times the logarithm of the integrals over u."""
        scale = 1 + self.variance * self.curvature
        return float(np.sum(np.log(scale) - self.variance * self.slope**2 / scale))

    def gradients(self) -> tuple[Numbers, Numbers]:
        """Returns the derivatives of the value by curvature and slope."""
        means, variances = self.posterior()
        return variances + means**2, -2 * means

    def by_variance(self) -> float:
        """Returns the derivative of the value by the variance."""
        scale = 1 + self.variance * self.curvature
        return float(np.sum(self.curvature / scale - (self.slope / scale) ** 2))


def _on_shared(
    offsets: Numbers, variances: Numbers, means: Numbers, spreads: Numbers
) -> tuple[Numbers, Numbers]:
    """Returns curvature and slope of what each document says of u; see `recombined` for the arguments."""
    precisions, tilts = evidence_of(offsets, variances)
    weights = 1 / (1 + spreads * precisions)
    return precisions * weights, (tilts - precisions * means) * weights


def evidence_of(offsets: Numbers, variances: Numbers) -> tuple[Numbers, Numbers]:
    """Returns what clicks say, p and h of `fit`; where p is below 0, one above 0 that bounds the factor.

    There the likelihood is convex: by noise, or of skips, or of a click that may be a mistake. At the true logits, the
    square of the slope less p is 0 in the mean over all documents, which tells how much they vary. It is above 0 of
    these. Without them, or with a large p, documents seem alike, and intervals are too short. With a p of 0, or with p
    itself, factors have no bound, and a few of them can make any variance likely.

    With h^2 / 4, no logit is more than e^2 times as likely as 0, and under a normal prior around 0 none moves by more
    than a standard deviation of this one. Of large h it is |h| / 3, since h / p would be near 0.
    """
    precisions, tilts = 1 / variances - 1, offsets / variances
    slopes = np.abs(tilts)
    bounds = slopes * np.minimum(slopes / (2 * _LARGEST_GAIN), 1 / _NEAREST)
    return np.where(precisions > 0, precisions, bounds), tilts


def recombined(
    offsets: Numbers, variances: Numbers, means: Numbers, spreads: Numbers
) -> tuple[Numbers, Numbers]:
    """Returns means and variances of the posteriors under other priors, in the units of `fit`.

    Args:
        offsets: Means of posteriors.
        variances: Of posteriors.
        means: Of the priors.
        spreads: Variances of the priors.
    """
    precisions, tilts = evidence_of(offsets, variances)
    changed = 1 / (precisions + 1 / spreads)
    return changed * (tilts + means / spreads), changed


class Queries(NamedTuple):
    """Which ids are of one query, and how many lists it has.

    Attributes:
        labels: Of each id, alike for those of one query.
        lists: Of the query of each id.
    """

    labels: Integer[np.ndarray, " ids"]
    lists: Real[np.ndarray, " ids"]


def lists_of_queries(
    train: Sessions,
    rows: int,
    report: Report,
    earlier: Queries | None = None,
) -> Queries:
    """Returns for each id how many lists its query has: those with any document that lists link to it.

    Of a prepared log that goes on from no other they are found once; see `clickexp.data.kept`.

    Of documents that several queries share, these are the lists of all; where lists are pages of results, those of the
    page. Shares are then popularities or shares of a page, and the fit finds out what these tell.

    Args:
        train: The training sessions.
        rows: One more than the largest id.
        report: Receives how many of them are read, and how many there are.
        earlier: What earlier logs say of the first ids.
    """
    if earlier is None:
        return Queries(
            **kept(train, "queries", rows, lambda: _linked(train, rows, report)._asdict())
        )
    return _linked(train, rows, report, earlier)


def _linked(
    train: Sessions,
    rows: int,
    report: Report,
    earlier: Queries | None = None,
) -> Queries:
    """Returns `lists_of_queries`."""
    first, query = np.zeros(rows), np.arange(rows, dtype=np.int32)
    if earlier is not None:
        _, one_of_each, label = np.unique(earlier.labels, return_index=True, return_inverse=True)
        query[: len(label)] = one_of_each[label]
        first[one_of_each] = earlier.lists[one_of_each]
    done = 0
    for chunk in train.chunks():
        ids = chunk["query_doc_ids"]
        add_at(first, ids[:, 0], 1.0)
        # clip: numpy would check all ids first
        linked = query.take(ids, mode="clip")
        # most lists are of queries that earlier ones have linked
        new = np.flatnonzero((linked != linked[:, :1]) & chunk.shown)
        links = np.stack([ids[new // ids.shape[1], 0], ids.ravel()[new]])
        for part in blocks(links.shape[1], _MERGED):
            _merge(query, links[:, part])
        done += len(ids)
        report(done, train.count)
    while ((smallest := query[query]) != query).any():
        query = smallest
    lists = np.bincount(query, first, rows).astype(np.float32)
    return Queries(query, lists[query])


def _merge(query: np.ndarray, links: Integer[np.ndarray, "2 links"]) -> None:
    """Merges the queries of linked ids; `query` leads from each id, over smaller ones, to the smallest of its query.

    Ids that no link has may lead there over one that was the smallest before (Tarjan 1975, "Efficiency of a good but
    not linear set union algorithm").
    """
    # clip: numpy would check all ids first
    take = partial(query.take, mode="clip")
    smallest = take(links)
    while ((smaller := take(smallest)) != smallest).any():
        smallest = smaller
    ends = smallest.compress(smallest[0] != smallest[1], axis=1)
    while ends.size:
        larger = np.maximum(*ends)
        # one of the smaller ends of each; those of others are merged in the next turn
        query[larger] = np.minimum(*ends)
        smallest_of_larger = take(larger)
        while ((smaller := take(smallest_of_larger)) != smallest_of_larger).any():
            smallest_of_larger = smaller
        query[larger] = smallest_of_larger
        ends = take(ends)
        ends = ends.compress(ends[0] != ends[1], axis=1)
    query[links] = take(smallest)


def lists_shown(
    model: Model,
    train: Sessions,
    report: Report = no_report,
    earlier: Queries | None = None,
) -> Queries | None:
    """Returns `lists_of_queries` of a model whose documents have the prior of this module; None of others."""
    rows = learned_rows(tower_of(model, ROLES["attraction"]))
    return None if rows is None else lists_of_queries(train, len(rows.values), report, earlier)


class Followed(NamedTuple):
    """How posteriors of documents follow the mean of their prior, in its units.

    Attributes:
        lines: What mean and slopes are factors of.
        shares: How much of a move of its mean a posterior follows.
        precisions: Of what clicks say.
    """

    lines: Float[np.ndarray, "8 documents"]
    shares: Numbers
    precisions: Numbers


class UnderPolicy(NamedTuple):
    """A model, and the prior of its attraction by what lists show.

    Probabilities and intervals differ in documents that no list shows: for intervals, these may also be what the policy
    leaves out.

    Attributes:
        model: A fitted model, its posteriors refined.
        rows: Of attraction.
        shown: What the log shows of them.
        documents: Those that the prior is fitted to.
        prior: By what lists show.
    """

    model: Model
    rows: Rows
    shown: ShownByRow
    documents: Integer[np.ndarray, " documents"]
    prior: PolicyPrior

    @classmethod
    def of(
        cls, model: Model, impressions: Real[np.ndarray, " documents"], queries: Queries | None
    ) -> "UnderPolicy | None":
        """Fits the prior of a model.

        Args:
            model: A fitted model, its posteriors refined.
            impressions: Training impressions by id.
            queries: From `lists_shown`.

        Returns:
            None where its attraction is no whole table of one number per query-document pair with a learned prior by
            rank, or the log shows few documents.
        """
        rows = learned_rows(tower_of(model, ROLES["attraction"]))
        if rows is None or queries is None:
            return None
        shown = shown_in(rows, impressions, queries)
        documents = documents_to_fit(shown)
        if len(documents) < LEAST_FOR_POLICY_PRIOR:
            return None
        # sums by query then have a number per query, and not one up to the largest label
        shown = shown._replace(query=_numbered(shown.query))
        return cls._fitted(model, rows, shown, documents)

    @classmethod
    def _fitted(
        cls,
        model: Model,
        rows: Rows,
        shown: ShownByRow,
        documents: Integer[np.ndarray, " documents"],
    ) -> "UnderPolicy":
        numbers = in_units(np.asarray(rows.values)[documents], scale_of(rows))
        return cls(model, rows, shown, documents, PolicyPrior()).fitted_to(*numbers)

    def fitted_to(self, offsets: Numbers, variances: Numbers) -> "UnderPolicy":
        """Fits the prior to posteriors of its documents, in the units of `fit`."""
        some = self.shown.some(self.documents)
        prior = fit(offsets, variances, some, chance_of_ranks(self.rows, some))
        return self._replace(prior=prior._replace(left_out=left_out(self.rows, some, prior)))

    def refitted(self, model: Model) -> "UnderPolicy":
        """Fits the prior to other posteriors of the same rows."""
        table = cast(Table, table_of_documents(tower_of(model, ROLES["attraction"])))
        rows = table.get_value()
        shown = self.shown._replace(x=_x_of(rows))  # a view, which would hold the table of before
        return self._fitted(model, rows, shown, self.documents)

    def probabilities(self) -> Model:
        """Returns the model with posteriors for probabilities."""
        return self._recombined(Recombination.for_probabilities(self.prior))

    def intervals(self) -> Model:
        """Returns the model with posteriors for intervals."""
        return self._recombined(Recombination.for_intervals(self.prior))

    def followed(self, rows: Rows, chosen: Integer[np.ndarray, " documents"]) -> Followed:
        """Returns how posteriors follow the mean of their prior.

        Args:
            rows: With posteriors for probabilities or intervals.
            chosen: Some of them.
        """
        scale = scale_of(self.rows)
        clicks = in_units(np.asarray(self.rows.values)[chosen], scale)
        _, variances = in_units(np.asarray(rows.values)[chosen], scale)
        some, (precisions, _) = self.shown.some(chosen), evidence_of(*clicks)
        lines = np.where(some.lists > 0, _lines(some, self.prior.center), 0.0)
        shares = np.clip(1 - precisions * variances, 0.0, 1.0)
        return Followed(lines, shares, precisions)

    @property
    def ends(self) -> None:
        """Those of intervals, which are normal; see `clickexp.posteriors.shape.Shaped`."""

    def _recombined(self, recombination: "Recombination") -> Model:
        values = recombination.of(np.asarray(self.rows.values), scale_of(self.rows), self.shown)
        return with_rows(self.model, dataclasses.replace(self.rows, values=jnp.asarray(values)))


class Recombination(NamedTuple):
    """A prior that takes the place of another in posteriors.

    Attributes:
        moments: Means of documents, without what those of a query share, and variances around them.
        per_query: Variance of what documents of a query share.
        unknown: Variance of the means of documents that no list shows.
    """

    moments: Callable[[Shown], tuple[Numbers, Numbers]]
    per_query: float
    unknown: float

    @classmethod
    def for_probabilities(cls, prior: PolicyPrior) -> "Recombination":
        """Returns that of a prior; documents that no list shows may be new, and stay as training has left them."""

        def moments(some: Shown) -> tuple[Numbers, Numbers]:
            means, variances = prior.moments(some)
            return means, np.where(some.lists > 0, variances, 1.0)

        return cls(moments, prior.per_query, 0.0)

    @classmethod
    def for_intervals(cls, prior: PolicyPrior) -> "Recombination":
        """Returns that of a prior; documents that no list shows may be of any query, and what the policy leaves out."""
        return cls(prior.moments, prior.per_query, prior.left_out + prior.per_query)

    def priors(self, rows: np.ndarray, scale: float, shown: Shown | ShownByRow) -> "Priors":
        """Returns the priors of documents.

        Args:
            rows: With posteriors under the prior that training has learned.
            scale: From `scale_of`.
            shown: What the log shows of them.
        """
        curvature, slope = np.zeros((2, int(shown.query.max()) + 1))
        for part in blocks(len(rows), _BLOCK):
            some = shown.some(part)
            of_each = _on_shared(*in_units(rows[part], scale), *self.moments(some))
            add_at(curvature, some.query, of_each[0])
            add_at(slope, some.query, of_each[1])
        return Priors(self, _Sums(curvature, slope, self.per_query))

    def of(self, rows: np.ndarray, scale: float, shown: Shown | ShownByRow) -> np.ndarray:
        """Returns the rows of a table under the prior; blocks of them are in double precision.

        Args:
            rows: With posteriors under the prior that training has learned.
            scale: From `scale_of`.
            shown: What the log shows of them.
        """
        priors, values = self.priors(rows, scale, shown), np.array(rows)
        for part in blocks(len(values), _BLOCK):
            values[part, 0], values[part, 1] = priors.posteriors(
                values[part], scale, shown.some(part)
            )
        return values


class Priors(NamedTuple):
    """Normal priors of documents, given the clicks of the others of their query.

    Attributes:
        recombination: What they are without these.
        of_queries: What the documents of each query say of what they share.
    """

    recombination: "Recombination"
    of_queries: _Sums

    def of(self, offsets: Numbers, variances: Numbers, some: Shown) -> tuple[Numbers, Numbers]:
        """Returns means and variances.

        Args:
            offsets: Means of posteriors under the prior that training has learned.
            variances: Of the same.
            some: What the log shows of the documents.
        """
        (means, spreads), is_shown = self.recombination.moments(some), some.lists > 0
        curvature, slope = _on_shared(offsets, variances, means, spreads)
        all_ = self.of_queries
        others = _Sums(
            np.maximum(all_.curvature[some.query] - curvature, 0.0),
            all_.slope[some.query] - slope,
            all_.variance,
        )
        shared, doubts = others.posterior()
        doubts = np.where(is_shown, doubts, self.recombination.unknown)
        return means + np.where(is_shown, shared, 0.0), spreads + doubts

    def posteriors(self, rows: np.ndarray, scale: float, some: Shown) -> tuple[Numbers, Numbers]:
        """Returns offsets and spreads of rows under these priors; see `Recombination.of`."""
        clicks = in_units(rows, scale)
        offsets, variances = recombined(*clicks, *self.of(*clicks, some))
        return offsets / scale, np.log(variances) / 2


def shown_in(
    rows: Rows, impressions: Real[np.ndarray, " documents"], queries: Queries
) -> ShownByRow:
    """Returns what the log shows of the rows of a table.

    Args:
        rows: From `learned_rows`.
        impressions: Training impressions by id.
        queries: From `lists_shown`.
    """
    if missing := len(rows.values) - len(impressions):
        impressions = np.pad(impressions, (0, missing))
    return ShownByRow(impressions, _x_of(rows), queries.lists, queries.labels)


def _x_of(rows: Rows) -> Float[np.ndarray, " rows"]:
    """Returns standardised mean log ranks, a view of the table."""
    return np.asarray(rows.values)[:, rows.numbers]


def documents_to_fit(shown: ShownByRow) -> Integer[np.ndarray, " documents"]:
    """Returns the documents that the prior is fitted to, of whole queries by chance where there are many."""
    ids = np.flatnonzero(shown.impressions)
    if len(ids) <= _SAMPLE:
        return ids
    rng = np.random.default_rng(0)
    ids = rng.permutation(ids.astype(np.int32))
    turns = rng.permutation(np.arange(int(shown.query.max()) + 1, dtype=np.int32))
    turns = turns[shown.query[ids]]
    last = np.partition(turns, _SAMPLE - 1)[_SAMPLE - 1]
    first = np.flatnonzero(turns <= last)
    return ids[first[np.argsort(turns[first], kind="stable")[:_SAMPLE]]]


def _numbered(labels: Integer[np.ndarray, " rows"]) -> Integer[np.ndarray, " rows"]:
    """Returns the numbers of labels, from 0, in their order."""
    is_label = np.zeros(int(labels.max()) + 1, bool)
    is_label[labels] = True
    return (np.cumsum(is_label, dtype=np.int32) - 1)[labels]


def scale_of(rows: Rows) -> float:
    """Returns 1 over the standard deviation of the prior that training has learned."""
    return math.exp(float(cast(Prior, rows.prior).log_precision) / 2)


def in_units(values: Array, scale: float) -> tuple[Numbers, Numbers]:
    """Returns offsets and variances of rows in units of `fit`; the scale is that of `scale_of`."""
    numbers = np.asarray(values, np.float64)
    return numbers[:, 0] * scale, np.exp(2 * numbers[:, 1])


def read_in_pass(values: Array, read_at: Array, scale: float) -> tuple[Numbers, ...]:
    """Returns where a pass has read clicks of rows, and what these say; logits are less those of rows without offset.

    Args:
        values: Of rows, with the posteriors N(offset, variance) that Newton steps have found.
        read_at: The same before.
        scale: From `scale_of`.

    Returns:
        Means and deviations of the posteriors before, slopes of the log-likelihood, and its curvatures with the
        opposite sign.
    """
    offsets, variances = in_units(values, scale)
    before, variances_before = in_units(read_at, scale)
    curvatures = 1 / variances - 1
    slopes = offsets / variances - curvatures * before
    deviations = np.sqrt(variances_before) / scale
    return before / scale, deviations, slopes * scale, curvatures * scale**2


def with_rows(model: Model, rows: Rows, role: str = "attraction") -> Model:
    """Returns a model with other rows of attraction, or of another of `ROLES`, in a separate table."""
    changed = nnx.clone(model)
    tower = cast(EmbeddingParameter, tower_of(changed, ROLES[role]))
    tower.table.set_value(rows)
    return changed


def with_posteriors(rows: Rows, columns: Float[np.ndarray, "2 ids"]) -> Rows:
    """Returns rows with other offsets and spreads."""

    def changed(before: np.ndarray, part: slice) -> np.ndarray:
        return np.column_stack([*columns[:, part], before[:, 2:]])

    return rows.recomputed(changed)


def learned_rows(tower: object) -> Rows | None:
    """Returns the rows of a whole table of pairs, one number each, with a learned prior by rank."""
    table = table_of_documents(tower)
    if table is None or not table.get_metadata().get("learns_prior", True):
        return None
    rows = table.get_value()
    return rows if rows.by_rank and rows.dim == 1 else None

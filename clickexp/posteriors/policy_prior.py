"""Posteriors of documents under a prior that knows which lists a policy has shown them in.

The mean of a prior by rank is a parabola in x, the mean log rank of a document. Where a policy orders lists, more can
be known before any click. A policy shows documents that it ranks high in more of the lists of their query, so that the
share of these tells of attraction what ranks in them do not (Heckman 1979, "Sample selection bias as a specification
error"). And of queries with few lists, ranks and shares are off by chance: they tell less of a document, which varies
the more around the mean (Fuller 1987, "Measurement error models"). For a document in n of the N lists of its query,

    l = log((n + 1/2) / (N - n + 1/2)) - center,    w = N / (N + 8),

the prior is, in units of the standard deviation of the N(mean by rank, 1 / precision) that training learns, normal with

    mean by rank + mean + w (a l + b x) + (1 - w) (c l + d x)    and variance    constant + per_list / N.

In random order a, b, c, d and per_list are near 0.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from flax import nnx
from jaxtyping import Float, Integer, Real

from clickexp.data import Sessions
from clickexp.models import Model
from clickexp.parameters import EmbeddingParameter, Rows
from clickexp.posteriors.documents import ROLES, table_of_documents, tower_of
from clickexp.types import Array
from clickexp.utils.blocks import blocks
from clickexp.utils.progress import Report, no_report

LEAST_DOCUMENTS = 200
"""Documents of the training log below which the learned prior holds for all."""
_SAMPLE = 200_000
"""Documents that the prior is fitted to; of more, as many by chance."""
_FEW = 8
"""Lists of a query whose shares and ranks count half as those of many lists and half as those of few."""
_BOUNDS = (-3.0, 3.0), (-4.0, 7.0), *[(-9.0, 9.0)] * 5
"""Of log constant, log per_list, mean, a, b, c and d; the last five have a standard normal prior themselves."""
_FARTHEST = 3.0
"""Standard deviations of the prior to which clicks may pull a document that tell no precision."""
_LINKS = 1 << 22
"""Links between documents that are kept in memory."""
_MERGED = 1 << 21
"""Links that merge queries at a time."""

Numbers = Float[np.ndarray, " documents"]


class Shown(NamedTuple):
    """Counts of documents in the training log.

    Attributes:
        impressions: How many lists show each, n.
        lists: How many lists its query has, N; at least n, and 0 for documents that no list shows.
        x: Standardised mean log ranks, those of few lists drawn to 0; 0 where they are unknown.
    """

    impressions: Real[np.ndarray, " documents"]
    lists: Real[np.ndarray, " documents"]
    x: Numbers


class PolicyPrior(NamedTuple):
    """Mean and variance of offsets from the mean by rank, in standard deviations of the learned prior.

    Attributes:
        constant: Variance of documents of queries with very many lists.
        per_list: What documents of queries with one list vary more.
        mean: Of documents of average shares and ranks.
        slopes: a, b, c, d.
        center: Average of the log odds of shares.
        spread: Mean square of the means over the documents of the log.
    """

    constant: float = 1.0
    per_list: float = 0.0
    mean: float = 0.0
    slopes: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    center: float = 0.0
    spread: float = 0.0

    def means(self, shown: Shown) -> Numbers:
        """Returns the means; of documents that no list shows, that by rank alone, for they may be new."""
        line = self.mean + np.array(self.slopes) @ regressors(shown, self.center)
        return np.where(shown.lists > 0, line, 0.0)

    def variances(self, shown: Shown) -> Numbers:
        """Returns the variances; documents that no list shows may be of any share and rank."""
        unknown = np.where(shown.lists > 0, 0.0, self.spread)
        return self.constant + self.per_list / np.maximum(shown.lists, 1) + unknown


def log_odds(shown: Shown) -> Numbers:
    """Returns the log odds of the share of lists that show each document."""
    return np.log((shown.impressions + 0.5) / (shown.lists - shown.impressions + 0.5))


def regressors(shown: Shown, center: float) -> Float[np.ndarray, "4 documents"]:
    """Returns what a, b, c and d are the slopes of."""
    of_shares, many = log_odds(shown) - center, shown.lists / (shown.lists + _FEW)
    return np.stack(
        [many * of_shares, many * shown.x, (1 - many) * of_shares, (1 - many) * shown.x]
    )


def fit(offsets: Numbers, variances: Numbers, shown: Shown) -> PolicyPrior:
    """Returns the most likely prior, with the logits of documents integrated out; slopes are held near 0 by a prior.

    The posterior N(m, v) of an offset under the prior N(0, 1) is the product of that prior and of what clicks say, a
    normal factor of precision p = 1 / v - 1 and mean m / (v p). Under N(mu, s), the integral of the product is
    proportional to exp(h mu - p mu^2 / 2 + s (h - p mu)^2 / (2 t)) / sqrt(t) for h = m / v and t = 1 + s p.

    Args:
        offsets: Means of posteriors, from those of the prior, in its standard deviations.
        variances: Of posteriors, over that of the prior.
        shown: What the log shows of the documents, each in a list at least.
    """
    from scipy.optimize import minimize  # here, since it takes long, and runs do without

    precisions, tilts = _clicks(offsets, variances)
    center = float(log_odds(shown).mean())
    lines = np.concatenate([np.ones((1, len(offsets))), regressors(shown, center)])

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        parts = np.stack([np.full(len(offsets), np.exp(point[0])), np.exp(point[1]) / shown.lists])
        mean, variance = point[2:] @ lines, parts.sum(axis=0)
        scale, rest = 1 + variance * precisions, tilts - precisions * mean
        value = np.log(scale) - rest**2 * variance / scale + precisions * mean**2 - 2 * tilts * mean
        by_variance = precisions / scale - (rest / scale) ** 2
        gradient = np.concatenate([parts @ by_variance / 2, -lines @ (rest / scale)])
        gradient[2:] += point[2:]
        return (value.sum() + point[2:] @ point[2:]) / 2 / len(offsets), gradient / len(offsets)

    options = {"ftol": 1e-12, "gtol": 1e-8}
    found = minimize(
        loss, np.zeros(7), jac=True, method="L-BFGS-B", bounds=_BOUNDS, options=options
    ).x
    (constant, per_list), (mean, a, b, c, d) = np.exp(found[:2]).tolist(), found[2:].tolist()
    return PolicyPrior(
        constant, per_list, mean, (a, b, c, d), center, float(np.mean((found[2:] @ lines) ** 2))
    )


def _clicks(offsets: Numbers, variances: Numbers) -> tuple[Numbers, Numbers]:
    """The likelihood of clicks: p and h. Where p is below 0, as noise or skips may leave it, one that bounds h / p."""
    precisions, tilts = 1 / variances - 1, offsets / variances
    return np.where(precisions > 0, precisions, np.abs(tilts) / _FARTHEST), tilts


def recombined(
    offsets: Numbers, variances: Numbers, means: Numbers, spreads: Numbers
) -> tuple[Numbers, Numbers]:
    """Returns means and variances of the posteriors under priors N(means, spreads), in the units of `fit`."""
    precisions, tilts = _clicks(offsets, variances)
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

    Of documents that several queries share, these are the lists of all; where lists are pages of results, those of the
    page. Shares are then popularities or shares of a page, and the fit finds out what these tell.

    Args:
        train: The training sessions.
        rows: One more than the largest id.
        report: Receives how many of them are read, and how many there are.
        earlier: What earlier logs say of the first ids.
    """
    first, query = np.zeros(rows), np.arange(rows, dtype=np.int32)
    if earlier is not None:
        _, one_of_each, label = np.unique(earlier.labels, return_index=True, return_inverse=True)
        query[: len(label)] = one_of_each[label]
        first[one_of_each] = earlier.lists[one_of_each]
    links: list[np.ndarray] = []
    done = 0

    for chunk in train.chunks():
        ids = chunk["query_doc_ids"]
        np.add.at(first, ids[:, 0], 1.0)
        known = query[ids]
        # most lists are of queries that earlier ones have linked
        is_new = (known != known[:, :1]) & chunk.shown
        links.append(np.stack([ids[np.nonzero(is_new)[0], 0], ids[is_new]]))
        if sum(each.shape[1] for each in links) > max(_LINKS, rows):
            query, links = _merged(query, links), []
        done += len(ids)
        report(done, train.count)
    query = _merged(query, links)
    lists = np.bincount(query, first, rows).astype(np.float32)
    return Queries(query, lists[query])


def _merged(query: np.ndarray, links: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the smallest id of the query of each id, once links between ids have merged some."""
    ends = np.concatenate([np.zeros((2, 0), np.int32), *links], axis=1)
    for part in blocks(ends.shape[1], _MERGED):
        found = query[ends[:, part]]
        while (found := found[:, found[0] != found[1]]).size:
            np.minimum.at(query, found.max(axis=0), found.min(axis=0))
            while (query[query] != query).any():
                query = query[query]
            found = query[found]
    return query


def lists_shown(
    model: Model,
    train: Sessions,
    report: Report = no_report,
    earlier: Queries | None = None,
) -> Queries | None:
    """Returns `lists_of_queries` of a model whose documents have the prior of this module; None of others."""
    rows = learned_rows(tower_of(model, ROLES["attraction"]))
    return None if rows is None else lists_of_queries(train, len(rows.values), report, earlier)


def with_policy_prior(
    model: Model,
    trained: Model,
    impressions: Real[np.ndarray, " documents"],
    lists: Real[np.ndarray, " rows"] | None,
) -> tuple[Callable[[], Model], Callable[[], Model]]:
    """Returns the model with posteriors of attraction under the prior by what lists show, for probabilities, intervals.

    Variances of the prior for intervals are the larger ones of two fits, to refined posteriors and to those that
    training has left, whose noise in rows with few documents passes for variance of their prior. Where a policy orders
    lists, that is about what intervals lack, as measured on simulated logs; in random order both fits are the same.

    Args:
        model: A fitted model, its posteriors refined.
        trained: The model as training has left it.
        impressions: Training impressions by id.
        lists: From `lists_shown`.

    Returns:
        What makes the two models, since each has a table of its own; both return the model itself where its attraction
        is no whole table of one number per query-document pair with a learned prior by rank, or the log shows few
        documents.
    """
    rows, noisy = (learned_rows(tower_of(each, ROLES["attraction"])) for each in (model, trained))
    shown_ids = np.flatnonzero(impressions)
    if rows is None or noisy is None or rows.prior is None or lists is None:
        return lambda: model, lambda: model
    if len(shown_ids) < LEAST_DOCUMENTS:
        return lambda: model, lambda: model
    unseen = len(rows.values) - len(impressions)
    number = np.pad(impressions, (0, unseen)) if unseen else impressions
    x = np.asarray(rows.values)[:, rows.numbers]

    def shown(chosen: Integer[np.ndarray, " chosen"] | slice) -> Shown:
        lists_of_chosen = np.maximum(lists[chosen], number[chosen])
        finite = np.where(np.isfinite(x[chosen]), x[chosen], 0.0)
        return Shown(number[chosen], lists_of_chosen, finite)

    if len(shown_ids) > _SAMPLE:
        shown_ids = np.random.default_rng(0).choice(shown_ids, _SAMPLE, replace=False)
    scale = math.exp(float(rows.prior.log_precision) / 2)
    samples = [_in_units(each.values[shown_ids], scale) for each in (rows, noisy)]
    fits = [fit(*sample, shown(shown_ids)) for sample in samples]

    def under(variances: Callable[[Shown], Numbers]) -> Model:
        def of_block(values: np.ndarray, part: slice) -> np.ndarray:
            some = shown(part)
            clicks = _in_units(values, scale)
            offsets, spreads = recombined(*clicks, fits[0].means(some), variances(some))
            return np.column_stack([offsets / scale, np.log(spreads) / 2, values[:, 2:]])

        changed = nnx.clone(model)
        tower = cast(EmbeddingParameter, tower_of(changed, ROLES["attraction"]))
        tower.table.set_value(rows.recomputed(of_block))
        return changed

    def for_probabilities(some: Shown) -> Numbers:
        # documents that no list shows have the probability that training gives them: they may be new
        return np.where(some.lists > 0, fits[0].variances(some), 1.0)

    def for_intervals(some: Shown) -> Numbers:
        return np.maximum(*(each.variances(some) for each in fits))

    return partial(under, for_probabilities), partial(under, for_intervals)


def _in_units(values: Array, scale: float) -> tuple[Numbers, Numbers]:
    """Returns offsets and variances of rows in units of `fit`."""
    numbers = np.asarray(values, np.float64)
    return numbers[:, 0] * scale, np.exp(2 * numbers[:, 1])


def learned_rows(tower: object) -> Rows | None:
    """Returns the rows of a whole table of pairs, one number each, with a learned prior by rank."""
    table = table_of_documents(tower)
    if table is None or not table.get_metadata().get("learns_prior", True):
        return None
    rows = table.get_value()
    return rows if rows.by_rank and rows.dim == 1 else None

"""Posteriors of documents under a prior that knows which lists a policy has shown them in.

The mean of a prior by rank is a line in x, the mean log rank of a document. Where a policy orders lists, more can be
known before any click. A policy shows documents that it ranks high in more of the lists of their query, so that the
share of these tells of attraction what ranks in them do not (Heckman 1979, "Sample selection bias as a specification
error"). And of queries with few lists, ranks and shares are off by chance: they tell less of a document, which varies
the more around the mean (Fuller 1987, "Measurement error models"). For a document in n of the N lists of its query,

    l = log((n + 1/2) / (N - n + 1/2)) - center,    w = N / (N + 8),

the prior is, in units of the standard deviation of the N(mean by rank, 1 / precision) that training learns, normal with

    mean by rank + mean + w (a l + b x) + (1 - w) (c l + d x)    and variance    constant + per_list / N.

In random order a, b, c, d and per_list are near 0.
"""

import dataclasses
from typing import NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Integer
from scipy.optimize import minimize
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from clickexp.data import Sessions
from clickexp.export.posteriors import ROLES, tower_of
from clickexp.models import Model
from clickexp.parameters import EmbeddingParameter, Rows, Table

LEAST_DOCUMENTS = 200
"""Documents of the training log below which the learned prior holds for all."""
_SAMPLE = 200_000
"""Documents that the prior is fitted to; of more, as many by chance."""
_FEW = 8
"""Lists of a query whose shares and ranks count half as those of many lists and half as those of few."""
_BOUNDS = (-3.0, 3.0), (-4.0, 7.0), *[(-9.0, 9.0)] * 5
"""Of log constant, log per_list, mean, a, b, c and d."""
_OF_VARIANCE = ("constant", "per_list")

Numbers = Float[np.ndarray, " documents"]


class Shown(NamedTuple):
    """What the training log shows of documents.

    Attributes:
        impressions: How many lists show each, n.
        lists: How many lists its query has, N; at least n, and 0 for documents that no list shows.
        x: Standardised mean log ranks; 0 where they are unknown.
    """

    impressions: Numbers
    lists: Numbers
    x: Numbers

    def some(self, chosen: Integer[np.ndarray, " chosen"]) -> "Shown":
        """Returns the chosen documents."""
        return Shown(*(each[chosen] for each in self))


class PolicyPrior(NamedTuple):
    """Mean and variance of offsets from the mean by rank, in standard deviations of the learned prior.

    Attributes:
        constant: Variance of documents of queries with very many lists.
        per_list: What documents of queries with one list vary more.
        mean: Of documents of average shares and ranks.
        slopes: a, b, c, d.
        center: Average of the log odds of shares.
        spread: Variance of the mean over the documents of the log.
    """

    constant: float = 1.0
    per_list: float = 0.0
    mean: float = 0.0
    slopes: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    center: float = 0.0
    spread: float = 0.0

    def means(self, shown: Shown) -> Numbers:
        """Returns the means; of documents that no list shows, that of the average one."""
        return self.mean + np.where(shown.lists > 0, np.array(self.slopes) @ _regressors(shown, self.center), 0.0)

    def variances(self, shown: Shown) -> Numbers:
        """Returns the variances; documents that no list shows may be of any share and rank."""
        unknown = np.where(shown.lists > 0, 0.0, self.spread)
        return self.constant + self.per_list / np.maximum(shown.lists, 1) + unknown


def _log_odds(shown: Shown) -> Numbers:
    return np.log((shown.impressions + 0.5) / (shown.lists - shown.impressions + 0.5))


def _regressors(shown: Shown, center: float) -> Float[np.ndarray, "4 documents"]:
    log_odds, many = _log_odds(shown) - center, shown.lists / (shown.lists + _FEW)
    return np.stack([many * log_odds, many * shown.x, (1 - many) * log_odds, (1 - many) * shown.x])


def fit(offsets: Numbers, variances: Numbers, shown: Shown) -> PolicyPrior:
    """Returns the most likely prior, with the logits of documents integrated out.

    The posterior N(m, v) of an offset under the prior N(0, 1) is the product of that prior and of what clicks say, a
    normal factor of precision p = 1 / v - 1 and mean m / (v p). Under N(mu, s), the integral of the product is
    proportional to exp(h mu - p mu^2 / 2 + s (h - p mu)^2 / (2 t)) / sqrt(t) for h = m / v and t = 1 + s p.

    Args:
        offsets: Means of posteriors, from those of the prior, in its standard deviations.
        variances: Of posteriors, over that of the prior.
        shown: What the log shows of the documents, each in a list at least.
    """
    precisions, tilts = _clicks(offsets, variances)
    center = float(_log_odds(shown).mean())
    lines = np.concatenate([np.ones((1, len(offsets))), _regressors(shown, center)])

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        parts = np.stack([np.full(len(offsets), np.exp(point[0])), np.exp(point[1]) / shown.lists])
        mean, variance = point[2:] @ lines, parts.sum(axis=0)
        scale, rest = 1 + variance * precisions, tilts - precisions * mean
        value = np.log(scale) - rest**2 * variance / scale + precisions * mean**2 - 2 * tilts * mean
        by_variance = precisions / scale - (rest / scale) ** 2
        gradient = np.concatenate([parts @ by_variance / 2, -lines @ (rest / scale)])
        return value.mean() / 2, gradient / len(offsets)

    options = {"ftol": 1e-12, "gtol": 1e-8}
    found = minimize(loss, np.zeros(7), jac=True, method="L-BFGS-B", bounds=_BOUNDS, options=options).x
    (constant, per_list), (mean, a, b, c, d) = np.exp(found[:2]).tolist(), found[2:].tolist()
    return PolicyPrior(constant, per_list, mean, (a, b, c, d), center, float(np.var(found[2:] @ lines)))


def _clicks(offsets: Numbers, variances: Numbers) -> tuple[Numbers, Numbers]:
    """What clicks say: p, which the noise of training may leave below 0, and h."""
    precisions = np.maximum(1 / variances - 1, 0.0)
    return precisions, offsets * (precisions + 1)


def recombined(offsets: Numbers, variances: Numbers, shown: Shown, prior: PolicyPrior) -> tuple[Numbers, Numbers]:
    """Returns means and variances of the posteriors under the prior, in the units of `fit`."""
    precisions, tilts = _clicks(offsets, variances)
    means, spreads = prior.means(shown), prior.variances(shown)
    changed = 1 / (precisions + 1 / spreads)
    return changed * (tilts + means / spreads), changed


def lists_of_queries(train: Sessions, rows: int) -> Numbers:
    """Returns for each id how many lists its query has: those with any document that lists link to it.

    Args:
        train: The training sessions.
        rows: One more than the largest id.
    """
    first, links = np.zeros(rows), np.zeros(0, np.int64)
    for chunk in train.chunks(["lengths", "query_doc_ids"]):
        ids = chunk["query_doc_ids"].astype(np.int64)
        ids, lengths = ids[chunk["lengths"] > 0], chunk["lengths"][chunk["lengths"] > 0]
        there = np.arange(ids.shape[1]) < lengths[:, None]
        first += np.bincount(ids[:, 0], minlength=rows)
        links = np.union1d(links, (ids[:, :1] * rows + ids)[there])
    graph = coo_array((np.ones(len(links), bool), np.divmod(links, rows)), shape=(rows, rows))
    _, query = connected_components(graph, directed=False)
    return np.bincount(query, weights=first)[query]


def with_policy_prior(model: Model, impressions: Numbers, lists: Numbers, trained: Model | None = None) -> Model:
    """Returns the model with the posteriors of attraction under the prior by what lists show.

    With the model as training has left it, before its posteriors were settled, each of the two numbers of the variance
    is the larger one of two fits, for intervals. The noise that training leaves in rows with few documents passes for
    variance of their prior. Where a policy orders lists, that is about what intervals lack, as measured on simulated
    logs; in random order both fits are the same.

    Args:
        model: A fitted model.
        impressions: Training impressions by id.
        lists: From `lists_of_queries`.
        trained: The model before its posteriors were settled; None for probabilities.

    Returns:
        The model; itself where its attraction is no whole table of one number per query-document pair with a learned
        prior by rank, or the log shows few documents.
    """
    rows = _rows(tower_of(model, ROLES["attraction"]))
    if rows is None or rows.prior is None:
        return model
    number, of_queries = np.zeros((2, len(rows.values)))
    number[: len(impressions)], of_queries[: len(lists)] = impressions, np.maximum(lists, impressions)
    x = np.asarray(rows.values[:, rows.numbers], np.float64)
    shown = Shown(number, of_queries, np.where(np.isfinite(x), x, 0.0))
    known = np.flatnonzero(number)
    if len(known) < LEAST_DOCUMENTS:
        return model
    scale = np.exp(float(rows.prior.log_precision) / 2)
    if len(known) > _SAMPLE:
        known = np.random.default_rng(0).choice(known, _SAMPLE, replace=False)
    noisy = None if trained is None or trained is model else _rows(tower_of(trained, ROLES["attraction"]))
    units = [_in_units(each, scale) for each in (rows, noisy) if each is not None]
    fits = [fit(offsets[known], variances[known], shown.some(known)) for offsets, variances in units]
    prior = fits[0]._replace(**{name: max(getattr(each, name) for each in fits) for name in _OF_VARIANCE})
    means, spreads = recombined(*units[0], shown, prior)
    columns = np.stack([means / scale, np.log(spreads) / 2], axis=1)
    changed = nnx.clone(model)
    values = rows.values.at[:, :2].set(jnp.asarray(columns, jnp.float32))
    tower = cast(EmbeddingParameter, tower_of(changed, ROLES["attraction"]))
    tower.table.set_value(dataclasses.replace(rows, values=values))
    return changed


def _in_units(rows: Rows, scale: float) -> tuple[Numbers, Numbers]:
    """Returns offsets and variances of all rows in units of `fit`."""
    values = np.asarray(rows.values, np.float64)
    return values[:, 0] * scale, np.exp(2 * values[:, 1])


def _rows(tower: object) -> Rows | None:
    """Returns the rows of a whole table of pairs, one number each, with a learned prior by rank."""
    if not isinstance(tower, EmbeddingParameter) or tower.config.use_feature != "query_doc_ids":
        return None
    table = tower.table
    if not isinstance(table, Table) or not table.get_metadata().get("learns_prior", True):
        return None
    rows = table.get_value()
    return rows if rows.by_rank and rows.dim == 1 else None

"""Posteriors of satisfaction under a prior that knows attraction: what attracts users may satisfy them, or not.

Training learns one normal prior of satisfaction for all documents. Where it depends on attraction, those with few
clicks differ from those with many, and the prior is wrong for both. For a document with the logit z of attraction,
whose posterior is N(m, v), the prior of the logit y of satisfaction is here, in the mean over all z,

    y ~ N(a + b (m - c), t^2 + b^2 v),

with the mean c of m of documents with clicks. With v, estimates of attraction that are pulled to their mean do not make
b too small, or intervals too short (Fuller 1987, "Measurement error models").

A click that another one follows has not satisfied. After the last click of a list nothing follows either where it has
satisfied, or where nothing else attracts users or they have left. If that has the probability 1 - e, k followed and
n last clicks on a document have the log-likelihood

    k log s(-y) + n log(1 - e s(-y)),

which is `clickexp.posteriors.shape.Likelihood` of -y. a, b and t maximise the likelihood of all clicks, the logits
integrated out, times b ~ N(0, 1) and log t ~ N(that of training, 1). What clicks leave open of a and b is a part of the
variance. Where clicks do not tell that b is other than 0, the posteriors of training's prior remain.
"""

import math
from typing import NamedTuple, cast

import numpy as np
import scipy.optimize
from jaxtyping import Float, Integer
from scipy.special import expit, logsumexp

from clickexp.data import Sessions
from clickexp.models import DynamicBayesianNetwork, Model
from clickexp.parameters import EmbeddingParameter, Rows, Table
from clickexp.posteriors.documents import ROLES, table_of_documents, tower_of
from clickexp.posteriors.policy_prior import (
    Numbers,
    in_units,
    read_in_pass,
    recombined,
    scale_of,
    with_posteriors,
    with_rows,
)
from clickexp.posteriors.shape import NO_SHAPE, Known, Likelihood, with_probability
from clickexp.utils.rounding import ceil_div
from clickexp.utils.sums import add_at

_LEAST_DOCUMENTS = 50
"""With clicks, below which the prior of training holds."""
_MOST_DOCUMENTS = 20_000
"""That the prior is fitted to; of more, about as many, spread evenly."""
_BLOCK = 1 << 11
"""Documents whose posteriors are computed at a time."""
_HALVINGS = 24
"""Of the interval of e."""
_SURE = 3.0
"""Standard deviations that b is from 0 at least; else documents keep the prior of training."""
_STEP = 1e-3
"""Of parameters, over which gradients differ for curvatures."""


class Clicks(NamedTuple):
    """Training clicks on documents, by id.

    Attributes:
        followed: Those that another click in the list follows.
        last: Those that none follows.
    """

    followed: Integer[np.ndarray, " ids"]
    last: Integer[np.ndarray, " ids"]

    @classmethod
    def of(cls, train: Sessions, rows: int) -> "Clicks":
        """Counts the clicks of sessions on ids below a number of rows."""
        counts = np.zeros((2, rows), np.int32)
        for chunk in train.chunks():
            clicks = chunk["clicks"].astype(bool) & chunk.shown
            after = np.cumsum(clicks[:, ::-1], axis=1)[:, ::-1]
            ids = chunk["query_doc_ids"]
            add_at(counts[0], ids[clicks & (after > 1)], 1)
            add_at(counts[1], ids[clicks & (after == 1)], 1)
        return cls(*counts)


class SatisfactionPrior(NamedTuple):
    """The normal prior of logits of satisfaction, by those of attraction.

    Attributes:
        mean: a.
        slope: b.
        variance: t^2.
        center: c.
        covariance: Of a and b, as clicks leave them open.
    """

    mean: float
    slope: float
    variance: float
    center: float
    covariance: Float[np.ndarray, "2 2"]

    @property
    def tells(self) -> bool:
        """Whether clicks tell that satisfaction goes with attraction, or against it."""
        is_definite = bool(np.linalg.eigvalsh(self.covariance)[0] > 0)
        return is_definite and abs(self.slope) > _SURE * math.sqrt(self.covariance[1, 1])

    def of(self, means: Numbers, variances: Numbers) -> tuple[Numbers, Numbers]:
        """Returns means and variances, given those of attraction."""
        lines = np.stack([np.ones(len(means)), means - self.center])
        of_mean = np.sum(lines * (self.covariance @ lines), axis=0)
        spread = self.variance + self.slope**2 * variances + of_mean
        return self.mean + self.slope * lines[1], spread


def fit(
    likelihood: Likelihood,
    logits: tuple[Numbers, Numbers],
    attraction: tuple[Numbers, Numbers],
    trained: tuple[float, float],
) -> SatisfactionPrior:
    """Fits the prior to what clicks say.

    Args:
        likelihood: Of -y of documents with clicks.
        logits: Means and deviations of y under the prior of training, around which its nodes lie.
        attraction: Means and variances of its logits.
        trained: Mean and deviation of the prior of training.
    """
    means, deviations = logits
    flat = np.full(len(means), np.inf)
    known = Known(likelihood, np.zeros(len(means)), flat, -means, deviations)
    nodes, _, logs = known.nodes()
    is_finite = np.isfinite(logs).all(axis=1) & np.isfinite(attraction).all(axis=0)
    nodes, logs = nodes[is_finite], logs[is_finite]
    of_mean, of_attraction = (numbers[is_finite] for numbers in attraction)
    center = float(of_mean.mean())
    x = of_mean - center

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """The negative logarithm of the posterior of a, b and log t, and its gradient."""
        a, b, log_t = parameters.tolist()
        own = math.exp(2 * log_t)
        variances = own + b**2 * of_attraction
        residuals = nodes + (a + b * x)[:, None]
        terms = logs - residuals**2 / (2 * variances[:, None])
        totals = np.asarray(logsumexp(terms, axis=1))
        weights = np.exp(terms - totals[:, None])
        by_mean = -np.sum(weights * residuals, axis=1) / variances
        by_variance = np.sum(weights * residuals**2, axis=1) / variances - 1
        by_variance /= 2 * variances
        changed = log_t - math.log(trained[1])
        value = np.sum(totals - np.log(variances) / 2) - (b**2 + changed**2) / 2
        slope_of_b = by_mean @ x + 2 * b * (by_variance @ of_attraction) - b
        slope_of_t = 2 * own * by_variance.sum() - changed
        return -value, -np.array([by_mean.sum(), slope_of_b, slope_of_t])

    start = np.array([trained[0], 0.0, math.log(trained[1])])
    bounds = [(None, None), (None, None), (start[2] - 4, start[2] + 2)]
    best = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    sides = [[loss(best + sign * step)[1] for sign in (1, -1)] for step in np.eye(3) * _STEP]
    information = np.array([(after - before) / (2 * _STEP) for after, before in sides])
    a, b, log_t = best.tolist()
    covariance = np.linalg.pinv((information + information.T) / 2)[:2, :2]
    return SatisfactionPrior(a, b, math.exp(2 * log_t), center, covariance)


class _Satisfaction(NamedTuple):
    """What a log says of satisfaction.

    Attributes:
        rows: Its table after a pass over the log.
        read_at: Offsets and spreads where the pass has read the log.
        clicks: By id.
        level: Logit of rows without offset.
        scale: Of logits, in units of the prior of training.
    """

    rows: Rows
    read_at: Float[np.ndarray, "ids columns"]
    clicks: Clicks
    level: float
    scale: float

    def likelihood(self, ids: Integer[np.ndarray, " documents"]) -> Likelihood:
        """Returns that of -y of documents."""
        values = np.asarray(self.rows.values)[ids]
        before, deviations, slopes, _ = read_in_pass(values, self.read_at[ids], self.scale)
        followed, last = (each[ids].astype(np.float64) for each in self.clicks)
        nodes = -(self.level + before) + deviations * np.array([[-1.0], [1.0]])
        wanted = followed * np.mean(expit(-nodes), axis=0) + slopes
        return Likelihood(followed, last, _examination(nodes, wanted / last))

    def normal(
        self, ids: Integer[np.ndarray, " documents"], means: Numbers, spreads: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Returns means and deviations of normal posteriors of y under normal priors."""
        numbers = in_units(np.asarray(self.rows.values)[ids], self.scale)
        middles, changed = recombined(
            *numbers, (means - self.level) * self.scale, spreads * self.scale**2
        )
        return self.level + middles / self.scale, np.sqrt(changed) / self.scale

    def is_clicked(self, ids: Integer[np.ndarray, " documents"] | slice) -> np.ndarray:
        """Returns whether documents have clicks."""
        return self.clicks.followed[ids] + self.clicks.last[ids] > 0


def _examination(nodes: Float[np.ndarray, "2 documents"], slopes: Numbers) -> Numbers:
    """Returns the e with which -log(1 - e s(x)) has a mean slope over two nodes x, or the nearest from 0 to 1."""
    probabilities = expit(nodes)
    low, high = np.zeros(len(slopes)), np.ones(len(slopes))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        each = middle * probabilities * (1 - probabilities) / (1 - middle * probabilities)
        is_below = each.mean(axis=0) < slopes
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return (low + high) / 2


def rows_of_satisfaction(model: Model) -> Rows | None:
    """Returns the table of satisfaction of DBN, a number for each document, with one normal prior; None of others."""
    if not isinstance(model, DynamicBayesianNetwork):
        return None
    if type(model).probs is not DynamicBayesianNetwork.probs:  # users may go on after satisfaction
        return None
    table = table_of_documents(tower_of(model, ROLES["satisfaction"]))
    rows = None if table is None else cast(Rows, table.get_value())
    if rows is None or rows.dim != 1 or rows.prior is None or rows.by_rank or rows.has_sites:
        return None
    return rows if rows.has_posteriors else None


@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # of documents without clicks
def along_attraction(
    probabilities: Model,
    intervals: Model,
    train: Sessions,
    read_at: Float[np.ndarray, "ids columns"],
) -> tuple[Model, Model]:
    """Returns two models with posteriors of satisfaction under the prior that knows attraction, where clicks tell it.

    Args:
        probabilities: A model with posteriors for probabilities; those of satisfaction are of a pass over the log.
        intervals: The same for intervals.
        train: The training sessions.
        read_at: Offsets and spreads of satisfaction where the pass has read the log.
    """
    rows = cast(Rows, rows_of_satisfaction(probabilities))
    tower = cast(EmbeddingParameter, tower_of(probabilities, ROLES["satisfaction"]))
    without_offset = np.zeros((1, rows.values.shape[1]), np.float32)
    level = float(rows.means(without_offset)[0, 0]) + tower.level
    known = _Satisfaction(rows, read_at, Clicks.of(train, len(rows.values)), level, scale_of(rows))
    attraction = _Attraction.of(intervals)
    clicked = np.flatnonzero(known.is_clicked(slice(None)))
    prior = None
    if len(clicked) >= _LEAST_DOCUMENTS:
        prior = _fitted(known, attraction, clicked[:: ceil_div(len(clicked), _MOST_DOCUMENTS)])
    if prior is None or not prior.tells:
        before = read_at[:, :2].T
        return _with_columns(probabilities, before), _with_columns(intervals, before)
    columns = np.empty((3, len(rows.values)), np.float32)
    ids = np.arange(len(rows.values))
    # even parts, since a small last one would be compiled for
    for part in np.array_split(ids, ceil_div(len(ids), _BLOCK)):
        columns[:, part] = _posteriors(known, part, *prior.of(*attraction.logits(part)))
    likely, means, spreads = columns
    return (
        _with_columns(probabilities, np.stack([likely, spreads])),
        _with_columns(intervals, np.stack([means, spreads])),
    )


class _Attraction(NamedTuple):
    rows: Rows
    baseline: float

    @classmethod
    def of(cls, model: Model) -> "_Attraction":
        tower = cast(EmbeddingParameter, tower_of(model, ROLES["attraction"]))
        return cls(cast(Table, tower.table).get_value(), tower.level)

    def logits(self, ids: Integer[np.ndarray, " documents"]) -> tuple[Numbers, Numbers]:
        """Returns means and variances of the logits of documents."""
        values = np.asarray(self.rows.values)[ids]
        means = np.asarray(self.rows.means(values), np.float64)[:, 0] + self.baseline
        return means, np.asarray(self.rows.deviations(values), np.float64)[:, 0] ** 2


def _fitted(
    known: _Satisfaction, attraction: _Attraction, ids: Integer[np.ndarray, " documents"]
) -> SatisfactionPrior:
    """Fits the prior to some documents."""
    offsets, variances = in_units(np.asarray(known.rows.values)[ids], known.scale)
    logits = known.level + offsets / known.scale, np.sqrt(variances) / known.scale
    trained = known.level, 1 / known.scale
    return fit(known.likelihood(ids), logits, attraction.logits(ids), trained)


def _posteriors(
    known: _Satisfaction,
    ids: Integer[np.ndarray, " documents"],
    means: Numbers,
    spreads: Numbers,
) -> np.ndarray:
    """Returns offsets with the mean probabilities, offsets and spreads under normal priors of y."""
    of_normal, deviations_of_normal = known.normal(ids, means, spreads)
    of_clicks = Known(
        known.likelihood(ids), -means, np.sqrt(spreads), -of_normal, deviations_of_normal
    )
    summary = NO_SHAPE.summary(of_clicks)
    likely = with_probability(-summary.means, summary.deviations, 1 - summary.probability)
    found = np.stack([np.asarray(likely), -summary.means, summary.deviations])
    found = np.where(known.is_clicked(ids), found, np.stack([means, means, np.sqrt(spreads)]))
    normal = np.stack([of_normal, of_normal, deviations_of_normal])
    likely, middles, deviations = np.where(np.isfinite(found).all(axis=0), found, normal)
    return np.stack([likely - known.level, middles - known.level, np.log(deviations * known.scale)])


def _with_columns(model: Model, columns: Float[np.ndarray, "2 ids"]) -> Model:
    """Returns a model with other offsets and spreads of satisfaction, in a separate table."""
    rows = cast(Rows, rows_of_satisfaction(model))
    return with_rows(model, with_posteriors(rows, columns), "satisfaction")

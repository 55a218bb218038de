"""Posteriors of attraction under a prior with a learned shape, on nodes.

The prior of `clickexp.posteriors.policy_prior` is normal, N(M, V) for a document, given what lists show and the clicks
of other documents of its query. Of documents whose attraction is not normal in its logit, it is

    p(z) proportional to N(z; M, V) exp(h((z - M) / sqrt(V))),

with an h alike for all (Efron 2016, "Empirical Bayes deconvolution estimates"): a base, and smooth bumps of the most
likely heights around 0. Documents without clicks hardly tell how small their attraction is, so that the base decides:

    h of a normal base is 0, and of the logit of a Beta(a, b), exp(h(r) - r^2 / 2) = s(y)^a s(-y)^b, y = m + d r,

for the means m and d^2 of M and V. This one has exponential tails (the generalised logistic distribution of type IV,
Johnson, Kotz and Balakrishnan 1995, "Continuous univariate distributions"), with the most likely a and b. The prior is
the mean over both bases and two kinds of bumps by their evidence (Hoeting et al. 1999, "Bayesian model averaging").
What a policy tells of a document stays in M and V.

Clicks are no normal factor, either: where nobody has clicked, a document may attract hardly, or not at all. Of a user
who clicks on what he examines and what attracts him, k clicks and some skips have the logarithm

    k log s(z) + n log(1 - e s(z)).

It has the mean slope and the mean curvature over m -+ sd that the last pass over the log has found, for the N(m, sd^2)
of that pass. With equal examination, n is the number of skips, and e is examination there. A wider N(m, sd^2), as that
under the prior that is fitted after the pass, makes e too large, and the shape of few impressions too narrow.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer, Real
from scipy.special import expit, log_expit, log_softmax, logsumexp, softmax

from clickexp.models import ClickModel, Model
from clickexp.numerics import mean_log_sigmoid_pair, mean_slope
from clickexp.parameters import EmbeddingParameter, Rows, Table
from clickexp.posteriors.documents import ROLES, tower_of
from clickexp.posteriors.policy_prior import (
    Numbers,
    Priors,
    Recombination,
    UnderPolicy,
    in_units,
    learned_rows,
    read_in_pass,
    recombined,
    scale_of,
    with_posteriors,
    with_rows,
)
from clickexp.types import Array
from clickexp.utils.blocks import blocks
from clickexp.utils.rounding import ceil_div
from clickexp.utils.statistics.means import QUANTILE

_MOST_DOCUMENTS = 20_000
"""That the shape is learned of; of more, about as many, spread evenly."""
_SPACING = 0.25
_EVEN = np.arange(-6.0, 6.0 + _SPACING / 2, _SPACING, dtype=np.float32)
"""Nodes before they are stretched."""
_INNER, _STRETCH = 3.0, 0.6
"""Standard deviations from the mean as far as which nodes are even; how fast their distances grow then, for tails."""
_FINE = 0.0025
"""Of residuals where h is tabulated."""
_FARTHEST = 12.0
_TABLE = np.arange(-_FARTHEST, _FARTHEST + _FINE / 2, _FINE)
_SMOOTHNESS = (1.2, 10.0), (0.6, 1.0)
"""Widths of bumps, in standard deviations of the prior, and precisions of their heights around 0."""
_BETA_PRECISION = 1.0
"""Of log a and log b around those of a Beta distribution with the mode and the curvature of the normal prior."""
_FARTHEST_BUMP = 4.0
_PER_WIDTH = 1.2
"""Width of bumps over the distance of their centers."""
_STEPS, _LEAST_GAIN = 30, 1e-2
"""Of a search at most; gain of the last."""
_SHORTEST = 1 / 16
"""Part of a step that a search still tries."""
_HALVINGS = 24
"""Of the interval of examination; with fewer, the last digits of posteriors would decide between two of its values."""
_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
"""The largest number of single precision there."""
_NEWTON = 4
"""Steps to a mean probability."""
_TAILS = 0.025, 0.975
"""Where intervals end."""
_FITS = 2
"""Of the normal prior to the likelihood of clicks; more of them gain little."""
_BLOCK = 1 << 11
"""Documents whose nodes are computed at a time: as many as a cache holds."""
_NORMAL = 1 << 13
"""Documents whose normal posteriors are computed at a time."""
_LEARNED = 1 << 8
"""The same, where the bumps at nodes are needed, too."""

Nodes = Float[np.ndarray, "documents nodes"]
EvenNodes = Float[np.ndarray, "*documents nodes"]
Point = Float[np.ndarray, " bumps"]


class Likelihood(NamedTuple):
    """What clicks say of logits z: clicks log s(z) + skips log(1 - examination s(z)).

    Attributes:
        clicks: Their numbers.
        skips: The same, as far as users have the same examination.
        examination: Of skips.
    """

    clicks: Numbers
    skips: Numbers
    examination: Numbers

    @classmethod
    def matching(
        cls,
        clicks: Numbers,
        means: Numbers,
        deviations: Numbers,
        slopes: Numbers,
        curvatures: Numbers,
    ) -> "Likelihood":
        """Returns the one with given clicks whose mean slope and curvature over two points are given.

        Args:
            clicks: Of documents.
            means: The middle of the two points.
            deviations: Half of their distance.
            slopes: Of the log-likelihood, in the mean over both.
            curvatures: The same, with the opposite sign.
        """
        attraction = expit(np.stack([means - deviations, means + deviations]))
        of_skips = clicks * np.mean(1 - attraction, axis=0) - slopes
        by_logit = attraction * (1 - attraction)
        left = curvatures - clicks * by_logit.mean(axis=0)

        def per_skip(examination: Numbers) -> tuple[Numbers, Numbers]:
            """Slope, with the opposite sign, and curvature of a skip."""
            skip = 1 - examination * attraction
            slope = examination * by_logit / skip
            curvature = slope * ((1 - attraction) / skip - attraction)
            return slope.mean(axis=0), curvature.mean(axis=0)

        low, high = np.zeros(len(means)), np.ones(len(means))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            slope, curvature = per_skip(middle)
            is_above = of_skips * curvature > left * slope
            low, high = np.where(is_above, low, middle), np.where(is_above, middle, high)
        examination = (low + high) / 2
        skips = np.maximum(of_skips, 0.0) / per_skip(examination)[0]
        return cls(clicks, skips, examination)

    def at(self, logits: Numbers, steps: Nodes) -> Nodes:
        """Returns the logarithms at steps from a logit of each document, less those at the logit.

        With many clicks, single precision does for differences alone.
        """
        attraction = expit(logits)
        # s(z + d) = s(z) exp(d) / g for g = 1 - s(z) + s(z) exp(d), whose exponentials do not overflow
        falls = np.expm1(-np.abs(steps))
        is_up = steps > 0
        of_falls = np.where(is_up, 1 - attraction[:, None], attraction[:, None]) * falls
        log_g = np.where(is_up, steps, 0) + np.log1p(of_falls)
        # 1 - e s(z + d) over 1 - e s(z) is 1 - weight (exp(d) - 1) / g, which keeps what a small e says
        weight = self.examination * attraction * (1 - attraction)
        weight /= 1 - self.examination * attraction
        rises = np.where(is_up, -falls, falls) / (1 + of_falls)
        skipped = np.log1p(-np.minimum(weight[:, None] * rises, _BELOW_ONE))
        return self.clicks[:, None] * (steps - log_g) + self.skips[:, None] * skipped


class Known(NamedTuple):
    """What is known of the logits of documents.

    Attributes:
        likelihood: Of their clicks.
        prior_means: Of normal priors.
        prior_deviations: The same.
        means: Of normal posteriors, around which nodes lie.
        deviations: The same.
    """

    likelihood: Likelihood
    prior_means: Numbers
    prior_deviations: Numbers
    means: Numbers
    deviations: Numbers

    def single(self) -> "Known":
        """Returns it in single precision, which is enough at nodes."""
        return self._changed(lambda numbers: numbers.astype(np.float32))

    def some(self, part: slice) -> "Known":
        """Returns it of some documents."""
        return self._changed(lambda numbers: numbers[part])

    def _changed(self, change: Callable[[Numbers], Numbers]) -> "Known":
        likelihood, *others = self
        return Known(Likelihood(*map(change, likelihood)), *map(change, others))

    def nodes(self, even: EvenNodes = _EVEN) -> tuple[Nodes, Nodes, Nodes]:
        """Returns logits at nodes, residuals from the prior there, and log masses of posteriors without a shape."""
        nodes, log_distances = _stretched(even)
        steps = self.deviations[:, None] * nodes
        logits = self.means[:, None] + steps
        residuals = (logits - self.prior_means[:, None]) / self.prior_deviations[:, None]
        logs = self.likelihood.at(self.means, steps) - residuals**2 / 2
        return logits, residuals, logs + log_distances

    def moments(self) -> tuple[Numbers, Numbers]:
        """Returns means and deviations of the posteriors without a shape, in single precision."""
        _, _, logs = self.single().nodes()
        means, deviations = _moments_at_nodes(_weights(logs))
        return self.means + self.deviations * means, self.deviations * deviations

    @property
    def open_share(self) -> float:
        """How much of the variance of logits the means of priors leave open."""
        within = np.mean(self.prior_deviations**2)
        return float(within / (within + self.prior_means.var()))


def _stretched(even: EvenNodes) -> tuple[EvenNodes, EvenNodes]:
    """Returns nodes, in standard deviations of the normal posterior from its mean, and log distances over even ones."""
    beyond = np.maximum(np.abs(even) - _INNER, 0)
    nodes = even + np.sign(even) * _STRETCH * beyond**2
    return nodes, np.log1p(2 * _STRETCH * beyond)


_NODES = _stretched(_EVEN)[0]


def _weights(logs: Nodes) -> Nodes:
    """Returns the masses at nodes whose logarithms are given, which it overwrites."""
    logs -= logs.max(axis=1, keepdims=True)
    weights = np.exp(logs, out=logs)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _moments_at_nodes(weights: Nodes) -> tuple[Numbers, Numbers]:
    """Returns means and deviations of masses at nodes, in the units of nodes."""
    means = np.sum(weights * _NODES, axis=1)
    return means, np.sqrt(np.sum(weights * _NODES**2, axis=1) - means**2)


class Summary(NamedTuple):
    """Of posteriors of logits.

    Attributes:
        means: Of logits.
        deviations: Of logits.
        ends: Of 95% intervals, as deviations from the means.
        probability: Mean probabilities.
    """

    means: Numbers
    deviations: Numbers
    ends: Float[np.ndarray, "2 documents"]
    probability: Numbers


class Shape(NamedTuple):
    """The factor exp(h) of priors.

    Attributes:
        table: h at `_TABLE`.
    """

    table: Float[np.ndarray, " residuals"]

    def summary(self, known: Known) -> Summary:
        """Returns the posteriors of documents, in single precision."""
        logits, residuals, logs = known.single().nodes()
        logs += self.table.take(_places(residuals))
        weights = _weights(logs)
        means, deviations = _moments_at_nodes(weights)
        cumulative = np.cumsum(weights, axis=1) - weights / 2
        ends = np.stack([(_quantile(cumulative, tail) - means) / deviations for tail in _TAILS])
        probability = np.sum(weights * expit(logits), axis=1)
        in_logits = known.means + known.deviations * means
        return Summary(in_logits, known.deviations * deviations, ends, probability)


NO_SHAPE = Shape(np.zeros(len(_TABLE), np.float32))


def _places(residuals: Nodes) -> Integer[np.ndarray, "documents nodes"]:
    """Returns where the table has residuals: the nearest, since those below would seem likelier where h rises."""
    places = (residuals - np.float32(_TABLE[0] - _FINE / 2)) * np.float32(1 / _FINE)
    return np.clip(places, 0, len(_TABLE) - 1).astype(np.int32)


def _quantile(cumulative: Nodes, tail: float) -> Numbers:
    """Returns a quantile, in the units of nodes, by lines between these."""
    after = np.clip(np.sum(cumulative < tail, axis=1), 1, len(_NODES) - 1)
    rows = np.arange(len(after))
    low, high = cumulative[rows, after - 1], cumulative[rows, after]
    share = np.clip((tail - low) / np.maximum(high - low, 1e-30), 0, 1)
    return _NODES[after - 1] + share * (_NODES[after] - _NODES[after - 1])


def learned(known: Known) -> Shape:
    """Returns the mean shape over bases, widths and precisions by their evidence, the heights integrated out."""
    documents = _Documents.of(known)
    share = known.open_share
    fits = [
        _Fit.of(documents, base, width, precision / share**2)
        for base in (np.zeros(len(_TABLE)), _beta(documents, known))
        for width, precision in _SMOOTHNESS
    ]
    probabilities = softmax([fit.evidence for fit in fits])
    normal = -(_TABLE**2) / 2
    log_densities = log_softmax([fit.table + normal for fit in fits], axis=1)
    mean = np.asarray(logsumexp(log_densities, axis=0, b=probabilities[:, None]))
    return Shape((mean - normal).astype(np.float32))


class Shaped(NamedTuple):
    """Posteriors of a model under a prior with a learned shape, as columns of tables, which take less memory.

    Attributes:
        model: The model, with other posteriors.
        columns_of_probabilities: Offsets and spreads by id, with which posteriors have the mean probabilities.
        columns_of_intervals: The same, with which they have the means and deviations of logits.
        ends: Of 95% intervals by id, in standard deviations from the means: a table, since devices share its rows.
    """

    model: Model
    columns_of_probabilities: Float[np.ndarray, "2 ids"]
    columns_of_intervals: Float[np.ndarray, "2 ids"]
    ends: Table

    def probabilities(self) -> Model:
        """Returns the model with posteriors for probabilities."""
        return self._with(self.columns_of_probabilities)

    def intervals(self) -> Model:
        """Returns the model with posteriors for intervals."""
        return self._with(self.columns_of_intervals)

    def _with(self, columns: Float[np.ndarray, "2 ids"]) -> Model:
        rows = cast(Rows, learned_rows(tower_of(self.model, ROLES["attraction"])))
        return with_rows(self.model, with_posteriors(rows, columns))


def has_shape(under: UnderPolicy) -> bool:
    """Whether a model knows the clicks of documents, and users click on what they examine and what attracts them."""
    model = under.model
    clicks_alike = isinstance(model, ClickModel) and (
        type(model).log_examination is ClickModel.log_examination
    )
    return clicks_alike and not under.rows.has_sites


@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # of documents that are left out
def fitted_to_clicks(
    under: UnderPolicy, clicks: Real[np.ndarray, " ids"], read_at: Float[np.ndarray, "ids columns"]
) -> UnderPolicy:
    """Fits the normal prior to the likelihood of clicks; see `shaped` for the arguments.

    Each fit takes for a document the normal factor N(m, v) / N(M, V), for the mean m and the variance v that its clicks
    leave under the prior N(M, V) of the fit before (Minka 2001, "Expectation propagation for approximate Bayesian
    inference"). Factors with the slope and the curvature of the last pass over the log take few skips for a small
    attraction that is known well, and documents for more alike than they are.
    """
    for _ in range(_FITS):
        logits = _Logits.of(under, clicks, read_at, under.documents)
        under = under.fitted_to(*logits.matched(under.documents))
    return under


@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # of documents that are left out
def shaped(
    under: UnderPolicy, clicks: Real[np.ndarray, " ids"], read_at: Float[np.ndarray, "ids columns"]
) -> Shaped:
    """Returns posteriors under the most likely shape.

    Documents that no list shows keep their normal ones, and so do those whose logits are so far out, under a prior that
    a policy leaves very wide, that no likelihood of clicks is finite there.

    Args:
        under: The model, and its normal prior.
        clicks: In training, by id.
        read_at: Offsets and spreads of the rows in whose place the pass over the log has put those of the model.
    """
    under = fitted_to_clicks(under, clicks, read_at)
    logits = _Logits.of(under, clicks, read_at)
    documents, is_shown = under.documents, under.shown.is_shown
    intervals = logits.normal()
    probabilities = np.where(is_shown, intervals, np.asarray(under.rows.values)[:, :2].T)
    ends = np.empty((len(is_shown), 2), np.float32)
    ends[:] = -QUANTILE, QUANTILE
    shape = learned(logits.known(documents[:: ceil_div(len(documents), _MOST_DOCUMENTS)]))
    shown = np.flatnonzero(is_shown).astype(np.int32)
    # even parts, since a small last one would be compiled for
    for ids in np.array_split(shown, ceil_div(len(shown), _BLOCK)):
        found = logits.found(ids, shape)
        is_finite = np.isfinite(found).all(axis=0)
        ids = ids[is_finite]
        offsets, spreads, likely, *ends_of = found[:, is_finite]
        intervals[:, ids] = offsets, spreads
        probabilities[:, ids] = likely, spreads
        ends[ids] = np.transpose(ends_of)
    return Shaped(under.model, probabilities, intervals, Table(Rows(jnp.asarray(ends), 2)))


@jax.jit
def with_probability(
    means: Float[Array, " documents"],
    deviations: Float[Array, " documents"],
    probability: Float[Array, " documents"],
) -> Float[Array, " documents"]:
    """Returns means of normal logits with these deviations and mean probabilities, by Newton steps from some means."""
    wanted, variances = jnp.log(probability), deviations**2
    for _ in range(_NEWTON):
        log = mean_log_sigmoid_pair(means, variances).log
        means = means + (wanted - log) * jnp.exp(log) / mean_slope(means, variances)
    return means


class _Logits(NamedTuple):
    """Logits of the documents of a table.

    Attributes:
        under: The model, and its normal prior.
        priors: Normal priors, in units of `clickexp.posteriors.policy_prior.fit`.
        clicks: In training, by id.
        read_at: See `shaped`.
        scale: Of logits, in these units.
        baseline: Of all logits.
    """

    under: UnderPolicy
    priors: Priors
    clicks: Real[np.ndarray, " ids"]
    read_at: Float[np.ndarray, "ids columns"]
    scale: float
    baseline: float

    @classmethod
    def of(
        cls,
        under: UnderPolicy,
        clicks: Real[np.ndarray, " ids"],
        read_at: Float[np.ndarray, "ids columns"],
        ids: Integer[np.ndarray, " documents"] | slice = slice(None),
    ) -> "_Logits":
        """Returns those of a model, whose queries have some of its documents, by default all."""
        recombination, scale = Recombination.for_intervals(under.prior), scale_of(under.rows)
        rows, shown = np.asarray(under.rows.values)[ids], under.shown.some(ids)
        priors = recombination.priors(rows, scale, shown)
        tower = cast(EmbeddingParameter, tower_of(under.model, ROLES["attraction"]))
        return cls(under, priors, clicks, read_at, scale, tower.level)

    def normal(self) -> Float[np.ndarray, "2 ids"]:
        """Returns offsets and spreads of all documents under the normal priors."""
        rows = np.asarray(self.under.rows.values)
        columns = np.empty((2, len(rows)), np.float32)
        for part in blocks(len(rows), _NORMAL):
            some = self.under.shown.some(part)
            columns[:, part] = self.priors.posteriors(rows[part], self.scale, some)
        return columns

    def found(self, ids: Integer[np.ndarray, " documents"], shape: Shape) -> np.ndarray:
        """Returns offsets, spreads, offsets with the mean probabilities, and both ends of intervals of documents."""
        summary = shape.summary(self.known(ids))
        likely = with_probability(summary.means, summary.deviations, summary.probability)
        return np.stack(
            [
                self.offsets(ids, summary.means),
                np.log(summary.deviations * self.scale),
                self.offsets(ids, np.asarray(likely)),
                *summary.ends,
            ]
        )

    def matched(self, ids: Integer[np.ndarray, " documents"]) -> tuple[Numbers, Numbers]:
        """Returns posteriors under N(0, 1), in the units of `policy_prior.fit`; see `fitted_to_clicks`.

        Where clicks leave a document more open than its prior, or no likelihood is finite, they are of the last pass
        over the log.
        """
        offsets, variances = in_units(np.asarray(self.under.rows.values)[ids], self.scale)
        for part in blocks(len(ids), _BLOCK):
            known, location = self.known(ids[part]), self._location(ids[part])
            means, deviations = known.moments()
            precisions, of_priors = deviations**-2.0, known.prior_deviations**-2
            tilts = precisions * (means - location) - of_priors * (known.prior_means - location)
            factors = (precisions - of_priors) / self.scale**2
            is_normal = factors > 0
            of_part = 1 / (1 + factors)
            offsets[part] = np.where(is_normal, of_part * tilts / self.scale, offsets[part])
            variances[part] = np.where(is_normal, of_part, variances[part])
        return offsets, variances

    def known(self, ids: Integer[np.ndarray, " documents"]) -> Known:
        """Returns what is known of documents."""
        offsets, variances = in_units(np.asarray(self.under.rows.values)[ids], self.scale)
        means, spreads = self.priors.of(offsets, variances, self.under.shown.some(ids))
        middles, changed = recombined(offsets, variances, means, spreads)
        location = self._location(ids)
        return Known(
            self._likelihood(ids, location),
            prior_means=location + means / self.scale,
            prior_deviations=np.sqrt(spreads) / self.scale,
            means=location + middles / self.scale,
            deviations=np.sqrt(changed) / self.scale,
        )

    def _likelihood(self, ids: Integer[np.ndarray, " documents"], location: Numbers) -> Likelihood:
        """Returns what clicks of documents say, of the posteriors that Newton steps have found."""
        values = np.asarray(self.under.rows.values)[ids]
        before, *read = read_in_pass(values, self.read_at[ids], self.scale)
        return Likelihood.matching(self.clicks[ids].astype(np.float64), location + before, *read)

    def offsets(self, ids: Integer[np.ndarray, " documents"], logits: Numbers) -> Numbers:
        """Returns what a table has of logits."""
        return logits - self._location(ids)

    def _location(self, ids: Integer[np.ndarray, " documents"]) -> Numbers:
        """Returns the logits of rows without offset."""
        rows = self.under.rows
        without_offset = _locations(dataclasses.replace(rows, values=np.asarray(rows.values)[ids]))
        return np.asarray(without_offset, np.float64) + self.baseline


@jax.jit
def _locations(rows: Rows) -> Float[Array, " ids"]:
    return (rows.means(rows.values) - rows.values[:, : rows.dim])[:, 0]


class _Documents(NamedTuple):
    """Logarithms of posteriors and priors without a shape at nodes, and where the table has these.

    Attributes:
        logs: Of posteriors of documents.
        places: Of their nodes.
        prior: Of the prior.
        prior_places: Of its nodes.
    """

    logs: Nodes
    places: Integer[np.ndarray, "documents nodes"]
    prior: Float[np.ndarray, "1 nodes"]
    prior_places: Integer[np.ndarray, "1 nodes"]

    @classmethod
    def of(cls, known: Known) -> "_Documents":
        """Returns those of documents, whose residuals have one prior, as far as clicks are likely at all nodes.

        Nodes are shifted by chance, since a prior could have all its mass at those that documents with few impressions
        share.
        """
        rng = np.random.default_rng(0)
        shifts = _SPACING * (rng.random(len(known.means), np.float32) - np.float32(0.5))
        logs, places = [], []
        for part in blocks(len(known.means), _BLOCK):
            _, residuals, of_part = known.some(part).nodes(_EVEN + shifts[part, None])
            is_finite = np.isfinite(of_part).all(axis=1)
            logs.append(of_part[is_finite])
            places.append(_places(residuals[is_finite]))
        prior = np.arange(-_FARTHEST, _FARTHEST, _SPACING / 2)[None]
        return cls(np.concatenate(logs), np.concatenate(places), -(prior**2) / 2, _places(prior))

    def on(self, base: Float[np.ndarray, " residuals"]) -> "_Documents":
        """Returns them with a base, given at the residuals of the table."""
        base = base.astype(np.float32)
        return self._replace(
            logs=self.logs + base[self.places], prior=self.prior + base[self.prior_places]
        )


class _Fit(NamedTuple):
    """A base, with heights of bumps at the largest posterior.

    Attributes:
        table: h at `_TABLE`.
        evidence: Logarithm of the probability of clicks, the heights integrated out (Laplace).
    """

    table: Float[np.ndarray, " residuals"]
    evidence: float

    @classmethod
    def of(
        cls,
        documents: _Documents,
        base: Float[np.ndarray, " residuals"],
        width: float,
        precision: float,
    ) -> "_Fit":
        """Returns the fit of bumps.

        Args:
            documents: With their clicks.
            base: h without bumps.
            width: Of bumps.
            precision: Of heights, around 0.
        """
        bumps = _bumps(width)
        on_base = documents.on(base)

        def evidence(heights: Point) -> _Evidence:
            return _Evidence.at(on_base, bumps, heights).around(heights, precision)

        heights, best = _highest(evidence, np.zeros(bumps.shape[1]), precision)
        _, spread = np.linalg.slogdet(best.curvature(precision) / precision)
        return cls(base + bumps @ heights, best.value - spread / 2)


def _beta(documents: _Documents, known: Known) -> Float[np.ndarray, " residuals"]:
    """Returns the base of the most likely Beta distribution."""
    mean, variance = known.prior_means.mean(), np.mean(known.prior_deviations**2)
    logits = mean + np.sqrt(variance) * _TABLE
    # less what they are at the mean, since single precision has the differences of large numbers
    features = np.stack([log_expit(sign * logits) - log_expit(sign * mean) for sign in (1, -1)])
    features = features.T.astype(np.float32)
    without_normal = documents.on(_TABLE**2 / 2)
    start = -np.log(variance) - log_expit([-mean, mean])
    precision = _BETA_PRECISION / known.open_share**2

    def evidence(logs: Point) -> _Evidence:
        at = _Evidence.at(without_normal, features, np.exp(logs))
        return at.by_logarithms(np.exp(logs)).around(logs - start, precision)

    logs, _ = _highest(evidence, start, precision)
    return _TABLE**2 / 2 + features @ np.exp(logs)


def _highest(
    evidence: Callable[[Point], "_Evidence"], start: Point, precision: float
) -> tuple[Point, "_Evidence"]:
    """Returns the point of the largest posterior that Newton steps find, and the evidence there.

    Args:
        evidence: At a point.
        start: Where the search starts.
        precision: Of the prior of points.
    """
    point, here = start, evidence(start)
    for _ in range(_STEPS):
        step, length = np.linalg.solve(here.curvature(precision), here.gradient), 1.0
        there = evidence(point + step)
        while not there.value >= here.value and length > _SHORTEST:
            length /= 2
            there = evidence(point + length * step)
        gain = there.value - here.value
        if not gain >= 0:
            break
        point, here = point + length * step, there
        if gain < _LEAST_GAIN:
            break
    return point, here


def _bumps(width: float) -> Float[np.ndarray, "residuals bumps"]:
    """Returns bumps at the residuals of the table."""
    number = round(_FARTHEST_BUMP / width * _PER_WIDTH)
    centers = np.arange(-number, number + 1) * width / _PER_WIDTH
    return np.exp(-(((_TABLE[:, None] - centers) / width) ** 2) / 2).astype(np.float32)


class _Evidence(NamedTuple):
    """The logarithm of the likelihood or of the posterior of a point, as the heights of bumps, and its derivatives.

    Attributes:
        value: The logarithm.
        gradient: By coordinates.
        information: The opposite of the second derivatives of the log-likelihood.
    """

    value: float
    gradient: Point
    information: Float[np.ndarray, "bumps bumps"]

    @classmethod
    def at(
        cls, documents: _Documents, bumps: Float[np.ndarray, "residuals bumps"], heights: Point
    ) -> "_Evidence":
        """Returns the likelihood of some heights."""
        logs, places, prior, prior_places = documents
        table = bumps @ heights.astype(np.float32)
        count = len(logs)
        value, gradient, information = _moments(prior, prior_places, table, bumps)
        value, gradient, information = -count * value, -count * gradient, count * information
        for part in blocks(count, _LEARNED):
            of_part = _moments(logs[part], places[part], table, bumps)
            value, gradient = value + of_part[0], gradient + of_part[1]
            information = information - of_part[2]
        return cls(float(value), gradient, information)

    def around(self, apart: Point, precision: float) -> "_Evidence":
        """Returns the posterior under a normal prior, from whose mean the point is apart."""
        value = self.value - precision * apart @ apart / 2
        return self._replace(value=value, gradient=self.gradient - precision * apart)

    def by_logarithms(self, point: Point) -> "_Evidence":
        """Returns the likelihood with derivatives by the logarithms of coordinates."""
        gradient = point * self.gradient
        information = np.outer(point, point) * self.information - np.diag(gradient)
        return self._replace(gradient=gradient, information=information)

    def curvature(self, precision: float) -> Float[np.ndarray, "bumps bumps"]:
        """Returns that of the posterior, where the log-likelihood bends down."""
        values, axes = np.linalg.eigh(self.information)
        return (axes * np.maximum(values, 0.0)) @ axes.T + precision * np.eye(len(values))


def _moments(
    logs: Nodes,
    places: Integer[np.ndarray, "documents nodes"],
    table: Float[np.ndarray, " residuals"],
    bumps: Float[np.ndarray, "residuals bumps"],
) -> tuple[float, Float[np.ndarray, " bumps"], Float[np.ndarray, "bumps bumps"]]:
    """Returns sums over documents of the logarithms of integrals, and of means and covariances of bumps."""
    terms = logs + table[places]
    largest = terms.max(axis=1, keepdims=True)
    weights = np.exp(terms - largest)
    totals = weights.sum(axis=1, keepdims=True)
    weights = (weights / totals).astype(np.float32)
    at_nodes = bumps[places]
    means = np.matmul(weights[:, None], at_nodes)[:, 0].astype(np.float64)
    flat = at_nodes.reshape(-1, at_nodes.shape[-1])
    squares = flat.T @ (weights.reshape(-1, 1) * flat)
    value = float(np.sum(largest + np.log(totals)))
    return value, means.sum(axis=0), squares - means.T @ means

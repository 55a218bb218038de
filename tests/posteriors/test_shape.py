"""Posteriors under a prior with a learned shape against Bayes' rule on a grid in float64, with the true density."""

import dataclasses
import gc
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from flax import nnx
from scipy.special import betaln, expit, log_expit, logit, softmax

from clickexp.data import Dataset, Sessions
from clickexp.data.by_document import ByDocument
from clickexp.export.tables import write_documents
from clickexp.models import PositionBasedModel, TrustBiasModel
from clickexp.posteriors import shape
from clickexp.posteriors.exported import exported, row_tables
from clickexp.posteriors.policy_prior import Queries, UnderPolicy, lists_shown
from clickexp.posteriors.rows import newton_refined
from clickexp.posteriors.shape import (
    Known,
    Likelihood,
    Shape,
    fitted_to_clicks,
    has_shape,
    learned,
    shaped,
)

GRID = np.linspace(-16.0, 10.0, 1301)
EXAMINATION = np.arange(1, 6) ** -0.7


def clicks_of(rng, logits, impressions):
    """Clicks and skips of documents in each position, [positions, documents]."""
    shown = rng.multinomial(impressions, np.full(5, 0.2), len(logits)).T
    clicks = rng.binomial(shown, EXAMINATION[:, None] * expit(logits))
    return clicks, shown - clicks


def log_likelihood(clicks, skips, grid=GRID):
    """Of logits, [documents, grid], without a constant."""
    skipped = np.log1p(-np.outer(EXAMINATION, expit(grid)))
    return np.outer(clicks.sum(axis=0), log_expit(grid)) + skips.T @ skipped


def moments(probabilities):
    means = probabilities @ GRID
    return means, np.sqrt(probabilities @ GRID**2 - means**2)


def quantiles(probabilities):
    cumulative = probabilities.cumsum(axis=1) - probabilities / 2
    return np.stack([
        [np.interp(tail, row, GRID) for row in cumulative] for tail in (0.025, 0.975)
    ])  # fmt: skip


def known_of(clicks, skips, mean, deviation):
    """What is known under a normal prior whose posteriors are the best normal ones by two points, as training's are."""
    total, shown = clicks.sum(axis=0), clicks + skips

    def derivatives(z):
        attraction = expit(z)
        click = EXAMINATION[:, None] * attraction
        odds = np.sum(skips * click / (1 - click), axis=0)
        bent = np.sum(skips * click / (1 - click) ** 2, axis=0) * (1 - attraction) ** 2
        return (total - odds) * (1 - attraction), attraction * (1 - attraction) * (
            total - odds
        ) + bent

    means, deviations = np.full(shown.shape[1], 1.0) * mean, np.full(shown.shape[1], deviation)
    for _ in range(60):
        slopes, curvatures = np.mean([derivatives(means + s * deviations) for s in (-1, 1)], axis=0)
        precisions = np.maximum(curvatures + deviation**-2, 0.25 * deviation**-2)
        means = means + 0.5 * (slopes - (means - mean) / deviation**2) / precisions
        deviations = precisions**-0.5
    likelihood = Likelihood.matching(total.astype(float), means, deviations, slopes, curvatures)
    priors = np.full(len(means), 1.0) * mean, np.full(len(means), deviation)
    return Known(likelihood, *priors, means, deviations)


def beta(a, b):
    """Logarithm of the density of logits."""
    return a * log_expit(GRID) + b * log_expit(-GRID) - betaln(a, b)


def mixture():
    return np.logaddexp(np.log(0.8) + beta(1, 30), np.log(0.2) + beta(5, 3))


def logits_of(rng, family, documents):
    if family == "normal":
        return rng.normal(-1.5, 1.2, documents)
    if family == "beta":
        return logit(rng.beta(1, 3, documents))
    small = rng.random(documents) < 0.8
    return logit(np.where(small, rng.beta(1, 30, documents), rng.beta(5, 3, documents)))


NORMAL = Shape(np.zeros(9601, np.float32))
DENSITIES = {"beta": beta(1, 3), "normal": -((GRID + 1.5) ** 2) / 2 / 1.44, "mixture": mixture()}


def test_a_likelihood_of_equal_examination_is_found_again():
    rng = np.random.default_rng(0)
    shown = rng.integers(2, 60, 200)
    clicks = rng.binomial(shown, 0.3).astype(float)
    means, deviations = rng.normal(-1, 1, 200), rng.uniform(0.2, 1.0, 200)
    examination = rng.uniform(0.1, 0.95, 200)

    def derivatives(z, h=1e-4):
        def log(z):
            skipped = np.log1p(-examination * expit(z))
            return clicks * log_expit(z) + (shown - clicks) * skipped

        return (log(z + h) - log(z - h)) / 2 / h, (2 * log(z) - log(z + h) - log(z - h)) / h**2

    pairs = [derivatives(means + sign * deviations) for sign in (-1, 1)]
    slopes, curvatures = np.mean(pairs, axis=0)
    found = Likelihood.matching(clicks, means, deviations, slopes, curvatures)
    some = shown > clicks
    np.testing.assert_allclose(found.examination[some], examination[some], atol=1e-3)
    np.testing.assert_allclose(found.skips[some], (shown - clicks)[some], rtol=0.02)


@pytest.mark.parametrize("impressions", [3, 300])
def test_posteriors_without_a_shape_are_those_of_the_normal_prior(impressions):
    """Nearly: documents in five positions have one examination, and one number of skips.

    With 300 impressions, two ends of the intervals of very attractive documents are .1 and .15 deviations off.
    """
    rng = np.random.default_rng(1)
    clicks, skips = clicks_of(rng, rng.normal(-1.5, 1.2, 200), impressions)
    exact = softmax(log_likelihood(clicks, skips) + DENSITIES["normal"], axis=1)
    means, deviations = moments(exact)
    known = known_of(clicks, skips, -1.5, 1.2)
    found = NORMAL.summary(known)
    np.testing.assert_allclose(found.means, means, atol=0.01)
    np.testing.assert_allclose(found.deviations, deviations, rtol=0.05)
    ends = found.means + found.ends * found.deviations
    distances = np.abs(ends - quantiles(exact)) / deviations
    assert np.quantile(distances, 0.99) < 0.08
    assert distances.max() < 0.2
    np.testing.assert_allclose(found.probability, exact @ expit(GRID), atol=1e-3)


@pytest.mark.parametrize("impressions", [1e3, 1e9])
def test_posteriors_of_many_clicks_are_as_exact_as_of_few(impressions):
    """In single precision, the likelihood of a billion sessions is a number whose last digit is 64."""
    attraction, examination = np.array([0.02, 0.5, 0.9]), 0.7
    clicks, skips = (impressions * rate for rate in (0.7 * attraction, 1 - 0.7 * attraction))
    means, click = logit(attraction), examination * attraction
    odds = skips * click * (1 - attraction) / (1 - click)
    curvatures = clicks * attraction * (1 - attraction)
    curvatures += odds * ((1 - attraction) / (1 - click) - attraction)
    deviations = curvatures**-0.5
    steps = np.linspace(-20, 20, 16001) * deviations[:, None]
    logs = clicks[:, None] * log_expit(means[:, None] + steps)
    logs += skips[:, None] * np.log1p(-examination * expit(means[:, None] + steps))
    # with a thousand, clicks leave it to the prior whether a document attracts all users
    exact = softmax(logs - (means[:, None] + steps) ** 2 / 2 / 9, axis=1)
    center = np.sum(exact * steps, axis=1)
    likelihood = Likelihood(clicks, skips, np.full(3, examination))
    found = NORMAL.summary(Known(likelihood, np.zeros(3), np.full(3, 3.0), means, deviations))
    spread = np.sqrt(np.sum(exact * (steps - center[:, None]) ** 2, axis=1))
    np.testing.assert_allclose((found.means - means - center) / spread, 0, atol=0.02)
    np.testing.assert_allclose(found.deviations, spread, rtol=0.01)


def test_a_click_among_many_skips_of_little_examination_is_rare():
    """In single precision, 1 - 1e-7 s(z) is 1 or .9999999, and 450 skips in all have either no say or twice as much."""
    examination, clicks = np.array([1e-9, 1e-7, 1e-3, 0.3, 0.999]), np.full(5, 2.0)
    skips = 450 / examination
    means, deviations = np.full(5, -5.4), np.full(5, 0.6)
    logs = clicks[:, None] * log_expit(GRID)
    logs = logs + skips[:, None] * np.log1p(-examination[:, None] * expit(GRID))
    exact = softmax(logs - ((GRID + 3) / 2.4) ** 2 / 2, axis=1)
    known = Known(
        Likelihood(clicks, skips, examination), np.full(5, -3.0), np.full(5, 2.4), means, deviations
    )
    found = NORMAL.summary(known)
    np.testing.assert_allclose(found.probability, exact @ expit(GRID), rtol=0.01)
    middles, spreads = moments(exact)
    np.testing.assert_allclose(found.means, middles, atol=0.01)
    np.testing.assert_allclose(found.deviations, spreads, rtol=0.01)


def test_a_document_without_clicks_has_a_posterior_under_a_prior_of_any_width():
    """Nodes lie where single precision holds no exponential of logits; the oracle is a grid in double precision."""
    grid = np.linspace(-100, 85, 20001)
    likelihood = Likelihood(np.zeros(1), np.array([5.0]), np.array([0.5]))
    exact = softmax(5 * np.log1p(-0.5 * expit(grid)) - (grid / 15) ** 2 / 2)
    mean = exact @ grid
    deviation = np.sqrt(exact @ (grid - mean) ** 2)
    around = np.array([-6.0]), np.array([15.0])
    found = NORMAL.summary(Known(likelihood, np.zeros(1), np.full(1, 15.0), *around))
    np.testing.assert_allclose(found.means, mean, atol=0.05 * deviation)
    np.testing.assert_allclose(found.deviations, deviation, rtol=0.05)
    np.testing.assert_allclose(found.probability, exact @ expit(grid), atol=0.01)


@pytest.mark.parametrize("family", DENSITIES)
def test_a_learned_shape_is_nearly_that_of_the_density(family):
    """Intervals hold the truth as often as those of Bayes' rule with the density, and are as wide; means are those.

    A normal prior has intervals 1.29 times as wide of the mixture, and means six times as far away.
    """
    rng = np.random.default_rng(2)
    logits = logits_of(rng, family, 4000)
    clicks, skips = clicks_of(rng, logits, 30)
    exact = softmax(log_likelihood(clicks, skips) + DENSITIES[family], axis=1)
    known = known_of(clicks, skips, logits.mean(), logits.std())
    found = learned(known).summary(known)
    low, high = expit(found.means + found.ends * found.deviations)
    held = (low < expit(logits)) & (expit(logits) < high)
    assert 0.93 < held.mean() < 0.97
    assert held[found.means < np.log(0.05 / 0.95)].mean() > 0.9
    widths = np.diff(expit(quantiles(exact)), axis=0)[0]
    assert np.mean(high - low) == pytest.approx(widths.mean(), rel=0.06)
    means = exact @ expit(GRID)
    assert np.abs(found.probability - means).mean() < 0.005
    if family != "normal":
        normal = NORMAL.summary(known).probability
        assert np.abs(found.probability - means).mean() < 0.5 * np.abs(normal - means).mean()


@pytest.mark.parametrize("a, b", [(1, 3), (0.5, 5)])
def test_intervals_without_clicks_begin_where_those_of_the_density_do(a, b):
    """The normal prior has four fifths of the deviation, as one has that is fitted to such logs.

    Under bumps on it alone, intervals begin 1.5 and 3.5 logits higher, and hold .12 and .1 less of small attraction.
    """
    rng = np.random.default_rng(2)
    logits = logit(rng.beta(a, b, 4000))
    clicks, skips = clicks_of(rng, logits, 30)
    exact = quantiles(softmax(log_likelihood(clicks, skips) + beta(a, b), axis=1))
    known = known_of(clicks, skips, logits.mean(), 0.8 * logits.std())
    found = learned(known).summary(known)
    low, high = ends = found.means + found.ends * found.deviations
    unclicked, small = clicks.sum(axis=0) == 0, logits < logit(0.05)
    apart = np.mean((ends - exact)[:, unclicked], axis=1)
    np.testing.assert_allclose(apart, 0, atol=0.2)
    held = (low < logits) & (logits < high)
    held_by_exact = (exact[0] < logits) & (logits < exact[1])
    assert held[small].mean() > held_by_exact[small].mean() - 0.02
    assert held_by_exact[small].mean() - 0.02 > 0.87


@pytest.mark.parametrize("family", ["normal", "beta"])
def test_documents_with_two_impressions_tell_little_and_teach_no_wrong_shape(family):
    """At equal nodes, or at residuals that are rounded down, a shape seems likelier than it is, by .001 per document.

    Means of attraction would be .01 away from those under the density; they are .002 away.
    """
    rng = np.random.default_rng(5)
    logits = logits_of(rng, family, 20_000)
    clicks, skips = clicks_of(rng, logits, 2)
    exact = softmax(log_likelihood(clicks, skips) + DENSITIES[family], axis=1) @ expit(GRID)
    known = known_of(clicks, skips, logits.mean(), logits.std())
    found = learned(known).summary(known).probability
    assert np.abs(found - exact).mean() < 0.004


def test_a_policy_that_tells_nearly_all_leaves_no_shape():
    """The density differs from the normal one by .04; with the precisions of lists in random order it would by .21."""
    rng = np.random.default_rng(3)
    prior_means = rng.normal(-1.5, 1.2, 2000)
    clicks, skips = clicks_of(rng, prior_means + rng.exponential(0.4, 2000) - 0.4, 30)
    known = known_of(clicks, skips, prior_means, 0.4)
    assert known.open_share < 0.15
    residuals = np.linspace(-12, 12, 9601)
    normal = -(residuals**2) / 2
    difference = softmax(learned(known).table + normal) - softmax(normal)
    assert np.abs(difference).sum() / 2 < 0.06


def log_of_impressions(rng, logits, impressions):
    """Ids from 0 and clicks of lists of five, in random order, which show each document so often; queries have 20."""
    queries = np.arange(len(logits)).reshape(-1, 20)
    ids = np.concatenate([rng.permuted(queries, axis=1) for _ in range(impressions)]).reshape(-1, 5)
    return ids, rng.random(ids.shape) < EXAMINATION * expit(logits[ids])


def model_of_a_narrow_prior(documents, mean=-1.2, deviation=0.9):
    """PBM that knows examination, with a prior as training finds it in sparse logs: deviation .9, not 1.2."""
    model = PositionBasedModel(positions=5, query_doc_pairs=documents, rngs=nnx.Rngs(0))
    model.examination.weight[1:] = logit(np.minimum(EXAMINATION, 0.999)).astype(np.float32)
    table = model.attraction.table
    rows = table.get_value()
    narrow = jnp.float32(-2 * np.log(deviation))
    prior = dataclasses.replace(rows.prior, mean=jnp.array([mean]), log_precision=narrow)
    table.set_value(dataclasses.replace(rows, prior=prior))
    return model


def logits_in(model):
    """Means and deviations of the logits of all documents."""
    rows = model.attraction.table.get_value()
    moments = rows.means(rows.values), rows.deviations(rows.values)
    return (np.asarray(each, np.float64)[1:, 0] for each in moments)


def test_exports_of_two_impressions_are_near_exact_posteriors():
    """Clicks are matched where a pass has read them.

    Over the wider posteriors under the prior that is fitted after it, .89 of the intervals held, .60 of those of
    documents below .05, and attraction was .022 from the exact mean.
    """
    rng = np.random.default_rng(9)
    logits = rng.normal(-1.5, 1.2, 10_000)
    ids, clicked = log_of_impressions(rng, logits, 2)
    log = Sessions.from_arrays(
        query_doc_ids=(ids + 1).astype(np.int32), clicks=clicked, query_doc_pairs=len(logits)
    )
    counts = ByDocument.of(log)
    model = model_of_a_narrow_prior(len(logits))
    found = exported(model, log, counts.shown, counts.clicks, None)
    assert found.ends is not None
    means, deviations = logits_in(found.intervals)
    low, high = means + np.asarray(found.ends.get_value().values)[1:].T * deviations
    held = (low < logits) & (logits < high)
    assert 0.94 < held.mean() < 0.97
    assert held[expit(logits) < 0.05].mean() > 0.85
    grid = GRID[::10]
    skips, clicks = np.zeros((2, 5, len(logits)))
    np.add.at(clicks, (np.arange(5), ids), clicked)
    np.add.at(skips, (np.arange(5), ids), ~clicked)
    density = -((grid + 1.5) ** 2) / 2 / 1.44
    exact = softmax(log_likelihood(clicks, skips, grid) + density, axis=1) @ expit(grid)
    means, deviations = logits_in(found.probabilities)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    attraction = expit(means[:, None] + deviations[:, None] * nodes) @ weights / weights.sum()
    assert np.abs(attraction - exact).mean() < 0.005


def test_the_prior_of_documents_with_hardly_a_click_is_as_wide_as_they_differ(monkeypatch):
    """Factors with slope and curvature of the likelihood leave a deviation of 1.5, and two fits by moments 1.73."""
    rng, mean, deviation = np.random.default_rng(0), -4.0, 2.0
    logits = rng.normal(mean, deviation, 8000)
    ids, clicked = log_of_impressions(rng, logits, 8)
    log = Sessions.from_arrays(
        query_doc_ids=(ids + 1).astype(np.int32), clicks=clicked, query_doc_pairs=len(logits)
    )
    counts, model = ByDocument.of(log), model_of_a_narrow_prior(len(logits), -3.4, 1.4)
    for _ in range(5):
        model = newton_refined(model, row_tables(model), log)
    by_passes = UnderPolicy.of(model, counts.shown, lists_shown(model, log))
    assert by_passes is not None
    read_at = np.asarray(model.attraction.table.get_value().values)

    def apart(fits):
        """How far mean and deviation of the prior of all documents are from the truth."""
        monkeypatch.setattr(shape, "_FITS", fits)
        under = fitted_to_clicks(by_passes, counts.clicks, read_at)
        means, variances = under.prior.moments(under.shown.some(under.documents))
        found = np.sqrt(variances.mean() + means.var() + under.prior.per_query)
        return np.abs([-3.4 + 1.4 * means.mean() - mean, 1.4 * found - deviation])

    assert (apart(2) < 0.75 * apart(0)).all()
    assert (apart(12) < 0.1).all()


def small_log(rng, documents=240, sessions=400):
    ids = np.stack([rng.choice(documents, 3, replace=False) + 1 for _ in range(sessions)])
    clicks = rng.random(ids.shape) < 0.3 * np.arange(1, 4) ** -0.7
    return Sessions.from_arrays(
        query_doc_ids=ids.astype(np.int32), clicks=clicks, query_doc_pairs=documents
    )


def effective_impressions(tower):
    """Precisions beyond that of the prior over E[s(z) s(-z)], in double precision."""
    rows = tower.table.get_value()
    means = np.asarray(rows.means(rows.values), np.float64) + float(tower.baseline[...])
    deviations = np.asarray(rows.deviations(rows.values), np.float64)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    logits = means + deviations * nodes
    slopes = (expit(logits) * expit(-logits)) @ weights / weights.sum()
    precision = np.exp(float(rows.prior.log_precision))
    return np.maximum(deviations[:, 0] ** -2 - precision, 0) / slopes


def test_exports_have_means_and_ends_of_the_posteriors(tmp_path):
    log = small_log(np.random.default_rng(4))
    impressions = np.bincount(log.column("query_doc_ids").ravel(), minlength=241)
    model = PositionBasedModel(positions=3, query_doc_pairs=240, rngs=nnx.Rngs(0))
    clicks = np.bincount(log.column("query_doc_ids").ravel(), log.column("clicks").ravel(), 241)
    known = exported(model, log, impressions, clicks, None)
    assert known.ends is not None
    file = tmp_path / "documents.parquet"
    write_documents(model, Dataset("d", log, log, log, 240, 3), None, None, file)
    table = pl.read_parquet(file)
    ids = table["query_doc_id"].to_numpy()
    rows = known.intervals.attraction.table.get_value()
    means, deviations = (
        np.asarray(each, np.float64)[ids, 0]
        for each in (rows.means(rows.values), rows.deviations(rows.values))
    )
    means += float(known.intervals.attraction.baseline[...])
    ends = np.asarray(known.ends.get_value().values, np.float64)[ids].T
    np.testing.assert_allclose(table["attraction_sd"], deviations, rtol=1e-5)
    for column, end in zip(("attraction_low", "attraction_high"), ends, strict=True):
        np.testing.assert_allclose(table[column], expit(means + end * deviations), rtol=1e-4)
    assert (ends[0] < -1).all() and (ends[1] > 1).all() and (ends[0] + ends[1] != 0).any()
    assert table["attraction"].is_between(table["attraction_low"], table["attraction_high"]).all()
    effective = effective_impressions(newton_refined(model, row_tables(model), log).attraction)
    np.testing.assert_allclose(table["effective_impressions"], effective[ids], rtol=1e-3)
    np.testing.assert_allclose(table["relevance"], table["attraction"], rtol=1e-6)


def test_exports_keep_no_tables_but_those_that_are_exported():
    """The table under the prior of a policy is freed without a collection of garbage; Flax leaves states in cycles."""
    log = small_log(np.random.default_rng(7), documents=230)
    counts = ByDocument.of(log)
    model = PositionBasedModel(positions=3, query_doc_pairs=230, rngs=nnx.Rngs(0))
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    gc.disable()
    try:
        known = exported(model, log, counts.shown, counts.clicks, None)
        tables = [array for array in jax.live_arrays() if array.shape == (231, 3)]
    finally:
        gc.enable()
    models = known.probabilities, known.intervals
    kept = {id(each.attraction.table.get_value().values) for each in models}
    assert {id(array) for array in tables} - before == kept


def test_posteriors_of_large_tables_are_columns_of_few_numbers():
    """At most 64 bytes of NumPy per row while the shape is learned; tables of posteriors and their sums had 120."""
    rows, shown = 400_000, 300
    rng = np.random.default_rng(8)
    model = PositionBasedModel(positions=3, query_doc_pairs=rows - 1, rngs=nnx.Rngs(0))
    impressions, clicks = np.zeros((2, rows), np.int32)
    impressions[1 : shown + 1] = rng.integers(1, 20, shown)
    clicks[: shown + 1] = rng.binomial(impressions[: shown + 1], 0.2)
    labels = np.arange(rows, dtype=np.int32) // 10 * 10
    lists = np.where(impressions > 0, 20, 0).astype(np.float32)
    under = UnderPolicy.of(model, impressions, Queries(labels, lists))
    assert under is not None
    tracemalloc.start()
    try:
        shaped(under, clicks, np.asarray(under.rows.values))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 * rows


def test_clicks_of_users_who_trust_ranks_have_no_such_likelihood():
    log = small_log(np.random.default_rng(5))
    impressions = np.bincount(log.column("query_doc_ids").ravel(), minlength=241)
    for kind, has in {TrustBiasModel: False, PositionBasedModel: True}.items():
        model = kind(positions=3, query_doc_pairs=240, rngs=nnx.Rngs(0))
        under = UnderPolicy.of(model, impressions, lists_shown(model, log))
        assert under is not None and has_shape(under) == has


def test_documents_of_which_no_likelihood_is_told_do_not_teach_a_shape():
    """Where logits are far out, a click and a skip say nothing, and what they have said is 0 / 0."""
    rng = np.random.default_rng(6)
    number = 300
    clicks = np.append(rng.integers(0, 5, number), 2).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        far = Likelihood.matching(
            clicks[-1:], np.array([212.0]), np.array([9.4]), *np.zeros((2, 1))
        )
    assert np.isnan(far.skips).all()
    skips, examination = (
        np.append(np.full(number, each), far[at]) for at, each in ((1, 9), (2, 0.5))
    )
    ones = np.ones(number + 1)
    middles, widths = np.append(np.full(number, -1.0), 212.0), np.append(np.full(number, 0.7), 9.4)
    parts = clicks, skips, examination, -ones, ones, middles, widths
    with np.errstate(invalid="ignore", divide="ignore"):  # as `shaped` does
        with_far, without = (
            learned(Known(Likelihood(*some[:3]), *some[3:]))
            for some in (parts, [part[:-1] for part in parts])
        )
    np.testing.assert_allclose(with_far.table, without.table, atol=1e-6)
    assert np.isfinite(with_far.table).all() and np.abs(with_far.table).max() > 0

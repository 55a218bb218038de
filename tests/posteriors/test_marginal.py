"""Marginal likelihoods against integration in float64, and examination at their maximum against the truth."""

import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit, log_expit, logit, logsumexp

from clickexp.data import Sessions
from clickexp.errors import DataError
from clickexp.experiment import result
from clickexp.experiment.result import find_queries, refine_shared
from clickexp.models import PositionBasedModel, TrustBiasModel, UserBrowsingModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.posteriors import marginal, population
from clickexp.posteriors.intervals import propensity
from clickexp.posteriors.marginal import (
    Earlier,
    MarginalLikelihood,
    has_marginal_likelihood,
    improve_examination,
    maximum,
)
from clickexp.posteriors.policy_prior import lists_of_queries
from clickexp.posteriors.population import Documents
from clickexp.posteriors.shared import SharedPosterior, shared_posterior
from clickexp.posteriors.smoothing import smoothed
from clickexp.posteriors.towers import Sums, tower_of_examination
from clickexp.training import Trainer
from clickexp.updates.shared import combined, prior_of
from clickexp.utils.progress import no_report
from tests import examined_logs
from tests.examined_logs import (
    BELOW,
    BY_RANK,
    PAIRS,
    RANKS,
    cells_of,
    fitted,
    log_of,
    log_of_devices,
    log_of_trust,
)


def documents_of(rng, number=12, cells=3):
    """Few documents with some clicks, and normal posteriors near those of all clicks."""
    clicks = rng.poisson(2.0, (number, cells)).astype(float)
    skips = rng.poisson(9.0, (number, cells)).astype(float)
    rates = (clicks.sum(1) + 1) / (clicks + skips).sum(1) / 0.6
    deviations = 1 / np.sqrt(clicks.sum(1) + 2)
    known = rng.normal(size=(number, 2))
    precisions = rng.gamma(2.0, 1.0, number)
    tilts = precisions * rng.normal(-1, 1, number)
    means = logit(np.minimum(rates, 0.8))
    means = (means / deviations**2 + tilts) / (1 / deviations**2 + precisions)
    deviations = (1 / deviations**2 + precisions) ** -0.5
    counts = csr_array(clicks), csr_array(skips)
    return Documents(*counts, means, deviations, known, precisions, tilts)


START = Sums.of_cells(logit(np.array([0.7, 0.5, 0.3])))
OF_LAYOUTS = Sums(
    np.array([[1.0, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]),
    start=np.array([0.5, -0.5, 0.4, -0.4, -0.3]),
    centers=np.array([0.5, -0.5, 0.1, 0.1, 0.1]),
    precisions=np.diag([4.0, 4, 2, 2, 2]) + 0.5,
    own=np.array([1e-3, 1e-3, 2, 2, 2]),
)
"""Two cells with a shared number, and one with another; a difference for each."""
EARLIER = Earlier(np.log([0.6, 0.5, 0.2]), np.array([[30.0, -9, 2], [-9, 20, 0], [2, 0, 10]]))


@pytest.mark.parametrize("farthest", [4.0, 300.0, np.nan])
def test_sums_of_many_priors_are_interpolated_to_1e_6(farthest):
    """Logarithms of sums over a grid and the means under them, by slope; sums at all slopes where few lie as far."""
    grid, slopes = np.linspace(-6, 6, 81), np.random.default_rng(0).normal(size=2000)
    slopes[0] = farthest

    def sums(points):
        log_terms = np.multiply.outer(points, grid) - 0.3 * grid**2 + np.sin(grid)
        log_sums = logsumexp(log_terms, axis=1)
        terms = np.exp(log_terms - log_sums[:, None])
        return np.stack([log_sums, terms @ grid, terms @ grid**2], axis=1)

    found = marginal.interpolated(sums, slopes)
    np.testing.assert_allclose(found, sums(slopes), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sums", [START, OF_LAYOUTS])
def test_the_value_is_that_of_integration(sums):
    """With sites of documents, and a prior of examination, of earlier logs; also where cells share numbers."""
    rng = np.random.default_rng(0)
    documents = documents_of(rng)
    likelihood = MarginalLikelihood(documents, sums, EARLIER)
    point = likelihood.start + rng.normal(0, 0.05, len(likelihood.start))
    value = likelihood(point).loss
    numbers, others = point[: len(sums.start)], point[len(sums.start) :]
    logits = sums.design @ numbers
    away = log_expit(logits) - EARLIER.center
    offsets = numbers - sums.centers
    held = offsets @ sums.precisions @ offsets + away @ EARLIER.information @ away
    held += (
        np.array([1e-3] * 2 + [1.0] * 5 + [1e-3] * 2)
        @ (others - likelihood.start[len(numbers) :]) ** 2
    )
    expected = integrated(documents, np.concatenate([logits, others]))
    assert value == pytest.approx(held / 2 - expected, abs=2e-3)


def integrated(documents, point):
    """The log-likelihood of all documents, by sums over a fine grid of logits."""
    center = documents.means.mean()
    scale = np.sqrt(documents.means.var() + np.mean(documents.deviations**2))
    standardised = np.linspace(-6, 6, 4001)
    z = center + scale * standardised
    bumps = [np.exp(-(((standardised - at) / 1.2) ** 2) / 2) for at in (-3.0, -1.5, 0.0, 1.5, 3.0)]
    log_density = point[3:10] @ np.stack([standardised, standardised**2, *bumps])
    log_priors = log_density + np.outer(documents.known @ point[10:], standardised)
    log_priors -= logsumexp(log_priors, axis=1, keepdims=True)
    log_click = log_expit(point[:3])[:, None] + log_expit(z)
    logs = documents.clicks.toarray() @ log_click
    logs += documents.skips.toarray() @ np.log1p(-np.exp(log_click))
    logs += np.outer(documents.tilts, z) - np.outer(documents.precisions, z**2 / 2)
    return logsumexp(log_priors + logs, axis=1).sum()


@pytest.mark.parametrize(
    "density",
    [(-8.3, -9.2, 26.7, -4.7, -39.0, 38.0, -15.2), (2.1, -0.7, 11.0, -6.9, 2.0, -5.9, -5.6)],
    ids=["two peaks", "narrow"],
)
def test_no_prior_wins_at_nodes_that_documents_share(density):
    """Documents with one impression have one posterior. A prior with peaks is no better at its nodes than it is."""
    rng = np.random.default_rng(8)
    number = 1000
    shown = np.eye(3)[rng.integers(0, 3, number)]
    is_clicked = rng.random((number, 1)) < 0.1
    clicks, skips = csr_array(shown * is_clicked), csr_array(shown * ~is_clicked)
    means, known = np.full(number, -1.5), rng.normal(size=(number, 2))
    nothing = np.zeros(number)
    documents = Documents(clicks, skips, means, np.ones(number), known, nothing, nothing)
    likelihood = MarginalLikelihood(documents, START)
    point = likelihood.start.copy()
    point[3:10] = density
    value = likelihood(point).loss
    assert likelihood.held(point) - value < integrated(documents, point)


def test_no_prior_has_its_mass_beyond_all_logits():
    """Of a document far from the others, nodes lie far out; no prior makes its clicks likelier than certain."""
    number = 400
    is_far = np.arange(number) == 0
    clicks, skips = csr_array(np.ones((number, 1))), csr_array((number, 1))
    known = np.stack([np.ones(number), is_far], axis=1)
    nothing = np.zeros(number)
    documents = Documents(clicks, skips, 12.0 * is_far, np.ones(number), known, nothing, nothing)
    likelihood = MarginalLikelihood(documents, Sums.of_cells(np.zeros(1)))
    for tilt in (0.0, 50.0, 5000.0):
        point = likelihood.start.copy()
        point[-1] = tilt
        # examination is 1/2, so that no click is likelier than that
        assert likelihood(point).loss - likelihood.held(point) > number * np.log(2)


@pytest.mark.nightly
def test_examination_comes_near_the_truth_where_documents_are_shown_twice():
    """Of 460,000 documents with two impressions, priors decide."""
    rng, queries = np.random.default_rng(0), 50_000
    query = rng.integers(0, queries, 4 * queries)
    attraction = rng.beta(1, 4, (queries, 12))[query]
    noisy = attraction + rng.gumbel(0, 0.3, attraction.shape)
    order = np.argsort(-noisy, axis=1)[:, :RANKS]
    examination = np.arange(1, RANKS + 1) ** -0.7
    clicks = rng.random(order.shape) < np.take_along_axis(attraction, order, axis=1) * examination
    ids, pairs = (1 + query[:, None] * 12 + order).astype(np.int32), 12 * queries
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=pairs)
    model = PositionBasedModel(positions=RANKS, query_doc_pairs=pairs, rngs=nnx.Rngs(0))
    Trainer(seed=0).train(model, log, log.slice(0, 20_000))
    posterior = improve_examination(model, log, lists_of_queries(log, pairs + 1, no_report))
    ratios, deviations = of_ratios(model, posterior, [*range(1, RANKS + 1)])
    assert (np.abs(ratios - np.log(examination[1:])) < 3 * deviations).all()
    assert deviations.max() < 0.05


def test_a_part_of_the_documents_leads_to_the_end_of_all(monkeypatch):
    documents = documents_of(np.random.default_rng(9), 1600)
    of_all, covariance = maximum(documents, START)
    monkeypatch.setattr(marginal, "_LEAST_PART", 200)
    by_part, wider = maximum(documents, START)
    deviations = np.sqrt(np.diag(covariance))
    # the gain that ends a search is that of a seventh of a deviation, which the scale alone takes
    assert (np.abs(by_part - of_all) < 0.15 * deviations).all()
    ratios, expected = (log_expit(each[1:]) - log_expit(each[0]) for each in (by_part, of_all))
    assert (np.abs(ratios - expected) < 0.02 * deviations[1:]).all()
    np.testing.assert_allclose(np.sqrt(np.diag(wider)), deviations, rtol=0.01)


def test_the_search_ends_at_the_maximum_where_documents_differ_in_impressions():
    """Of two kinds, beside BFGS of SciPy from there: squared scores are no curvature, and scoring ended 27 away."""
    rng, number = np.random.default_rng(0), 1500
    impressions = np.minimum(rng.pareto(0.9, number) + 1, 20_000).astype(int)
    attraction = np.where(rng.random(number) < 0.7, 0.02, 0.7)
    shown = rng.multinomial(impressions, np.full(3, 1 / 3))
    clicks = rng.binomial(shown, attraction[:, None] * [0.8, 0.5, 0.2])
    of_document, nothing = clicks.sum(axis=1), np.zeros(number)
    means = logit(np.minimum((of_document + 0.5) / (impressions + 3) / 0.5, 0.8))
    counts = csr_array(clicks.astype(float)), csr_array((shown - clicks).astype(float))
    known, deviations = rng.normal(size=(number, 2)), 1 / np.sqrt(of_document + 1)
    documents = Documents(*counts, means, deviations, known, nothing, nothing)
    likelihood = MarginalLikelihood(documents, START)
    point, evidence = marginal._search(likelihood, likelihood.start)

    def loss(at):
        there = likelihood(at)
        return there.loss, likelihood.pull(at) - there.score

    best = minimize(loss, point, jac=True, method="BFGS")
    deviations = np.sqrt(np.diag(np.linalg.inv(likelihood.own_information(evidence))))[:3]
    assert evidence.loss - best.fun < 0.05
    assert (np.abs(point - best.x)[:3] < 0.1 * deviations).all()


@pytest.mark.parametrize("sums", [START, OF_LAYOUTS])
def test_scores_are_slopes_of_the_value(sums):
    documents = documents_of(np.random.default_rng(1))
    likelihood = MarginalLikelihood(documents, sums, EARLIER)
    point = likelihood.start + 0.1
    score = likelihood(point).score
    steps = 1e-4 * np.eye(len(point))
    slopes = [
        (likelihood(point + step).loss - likelihood(point - step).loss) / 2e-4 for step in steps
    ]
    np.testing.assert_allclose(likelihood.pull(point) - score, slopes, atol=1e-5)


def improved(model, log):
    return improve_examination(model, log, lists_of_queries(log, PAIRS + 1, no_report))


def of_ratios(model, posterior, cells):
    """Logarithms of examination relative to the first of these cells, and their deviations."""
    examined = expit(np.asarray(model.examination.weight[...], np.float64))[cells]
    slopes = np.diag(1 - examined)
    slopes[:, 0] -= 1 - examined[0]
    deviations = np.sqrt(np.diag(slopes @ posterior.covariance @ slopes.T))
    return np.log(examined / examined[0])[1:], deviations[1:]


@pytest.mark.parametrize("kind", [PositionBasedModel, UserBrowsingModel])
def test_examination_comes_near_the_truth(kind):
    truth, log = log_of(np.random.default_rng(2), kind)
    model = fitted(kind, truth, log)
    posterior = improved(model, log)
    cells = cells_of(kind)
    used = np.flatnonzero(cells)
    assert posterior.names == tuple(f"examination/weight[{cell}]" for cell in used)
    ratios, deviations = of_ratios(model, posterior, used)
    away = ratios - np.log(cells[used] / cells[used][0])[1:]
    assert deviations.max() < (0.06 if kind is PositionBasedModel else 0.15)
    assert (np.abs(away) < 3 * deviations).all()
    assert np.abs(away).mean() < 0.05


def test_examination_of_few_lists_comes_near_the_truth_from_where_training_begins():
    """Training of 500 lists may end near its start, .88 at all positions; rank 4 has 30 clicks."""
    truth, log = log_of(np.random.default_rng(3), PositionBasedModel, 500)
    model = fitted(PositionBasedModel, truth, log)
    model.examination.weight[...] = jnp.full(RANKS + 1, 2.0)
    ratios, deviations = of_ratios(model, improved(model, log), [*range(1, RANKS + 1)])
    assert (np.abs(ratios - np.log(BY_RANK[2:] / BY_RANK[1])) < 2 * deviations).all()
    assert deviations.max() < 0.25


@pytest.mark.parametrize("kind", [PositionBasedModel, UserBrowsingModel])
def test_cells_of_layouts_are_those_that_models_read(kind):
    truth, log = log_of_devices(np.random.default_rng(11), 300)
    model = fitted(kind, truth, log, **kind.with_layouts({}, ["device"]))
    rng = np.random.default_rng(12)
    shared, differences = model.examination.terms.values()
    shared.weight[...] = jnp.float32(rng.normal(size=shared.weight.shape))
    rows = differences.table.get_value()
    values = rows.values.at[:, 0].set(jnp.float32(rng.normal(size=len(rows.values))))
    # without spreads, over which predictions integrate
    rows = dataclasses.replace(rows, values=values.at[:, 1].set(-12.0))
    differences.table.set_value(rows)
    tower = tower_of_examination(model)
    ids, clicks = log.column("query_doc_ids"), log.column("clicks")
    batch = {
        "query_doc_ids": ids,
        "clicks": clicks,
        "mask": ids > 0,
        "device": log.column("device")[:, None],
        "positions": np.arange(1, RANKS + 1, dtype=np.int32)[None],
    }
    expected = np.exp(np.asarray(model.predict_conditional_clicks(batch)))
    (chunk,) = tower.view(log).chunks()
    cells = tower.cells_of(chunk)
    attraction = np.exp(np.asarray(model.attraction.log_prob(batch)))
    np.testing.assert_allclose(expected / attraction, expit(tower.logits()[cells]), rtol=1e-4)
    used = np.unique(cells)
    sums = tower.sums(used, None)
    np.testing.assert_allclose(sums.design @ sums.start, tower.logits()[used], atol=1e-6)
    assert len(tower.names(used)) == len(sums.start)
    tower.move(used, sums.start + 0.25)
    np.testing.assert_allclose(tower.logits()[used], sums.design @ (sums.start + 0.25), atol=1e-5)


def test_examination_of_layouts_comes_near_the_truth_wherever_training_ends():
    """Intervals of ratios to the first rank of the first device, from two starts."""
    truth, log = log_of_devices(np.random.default_rng(2))
    kind, found = PositionBasedModel, []
    for start in (0.0, 0.1):
        model = fitted(kind, truth, log, **kind.with_layouts({}, ["device"]))
        shared = model.examination.terms["shared"]
        shared.weight[...] = jnp.float32(1.5 - 0.5 * np.arange(RANKS + 1) - start)
        posterior = improved(model, log)
        found.append(propensity(model, posterior, log))
    for first, second in zip(*found, strict=True):
        by_device = BY_RANK * (BELOW if first.layout == {"device": "2"} else 1.0)
        ratio = by_device[first.position] / BY_RANK[1]
        assert abs(np.log(first.relative / ratio)) < 3 * first.sd + 1e-9
        assert abs(np.log(first.relative / second.relative)) < 0.25 * first.sd + 1e-9
        assert first.sd < 0.08 and second.sd == pytest.approx(first.sd, rel=0.05)
    assert [each.sd for each in found[0]].count(0) == 1 and len(found[0]) == 2 * RANKS


@pytest.mark.parametrize(
    ("kind", "positions", "layouts"), [(PositionBasedModel, 10, 30), (UserBrowsingModel, 20, 3)]
)
def test_very_many_layouts_stay_as_training_leaves_them(kind, positions, layouts):
    """A search took minutes for 200 layouts, where training took seconds."""
    sizes = {"query_doc_pairs": 50, "positions": positions, "rngs": nnx.Rngs(0)}
    settings = kind.with_layouts({}, ["country"])
    few = kind(**sizes, columns={"country": layouts - 1}, **settings)
    many = kind(**sizes, columns={"country": 199}, **settings)
    assert tower_of_examination(few) is not None
    assert tower_of_examination(many) is None


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_the_scale_is_near_the_truth_wherever_training_ends(factor):
    """Users examine so much of what they do elsewhere, and training ends a third too low or as much too high."""
    rng = np.random.default_rng(3)
    attraction = expit(rng.normal(-1, 1.3, PAIRS + 1))
    ids = 1 + rng.integers(0, PAIRS, (100_000, RANKS))
    clicks = rng.random(ids.shape) < factor * BY_RANK[1:] * attraction[ids]
    log = Sessions.from_arrays(
        query_doc_ids=ids.astype(np.int32), clicks=clicks, query_doc_pairs=PAIRS
    )
    found = []
    for start in (0.7, 1.1 / factor):
        model = fitted(PositionBasedModel, attraction, log)
        model.examination.weight[1:] = jnp.float32(logit(start * factor * BY_RANK[1:]))
        improved(model, log)
        found.append(expit(np.asarray(model.examination.weight[1:], np.float64)))
    np.testing.assert_allclose(found[0] / (factor * BY_RANK[1:]), 1, atol=0.1)
    np.testing.assert_allclose(*found, rtol=0.01)


def test_the_scale_stays_where_logs_go_on():
    truth, log = log_of(np.random.default_rng(3), PositionBasedModel, 5000)
    model = fitted(PositionBasedModel, truth, log)
    give_sites(model, log)
    clicks = log.column("clicks").sum(axis=0)
    before, _ = np.asarray(model.examination.weight[1:]), improved(model, log)
    after = np.asarray(model.examination.weight[1:])
    assert np.abs(after - before).max() > 0.02
    assert clicks @ log_expit(after) == pytest.approx(clicks @ log_expit(before), rel=1e-5)


def test_ratios_are_right_where_the_mean_over_clicks_would_put_examination_above_one():
    truth, log = log_of(np.random.default_rng(3), PositionBasedModel)
    model = fitted(PositionBasedModel, truth, log)
    examined = BY_RANK[1:] * [1.1, 1.3, 1.3, 1.3]
    model.examination.weight[1:] = jnp.float32(logit(examined))
    # the scale is then that of training
    give_sites(model, log_of(np.random.default_rng(4), PositionBasedModel, 500)[1])
    cells = [*range(1, RANKS + 1)]
    ratios, deviations = of_ratios(model, improved(model, log), cells)
    away = ratios - np.log(BY_RANK[2:] / BY_RANK[1])
    assert float(model.examination.weight[1]) > 5
    assert (np.abs(away) < 3 * deviations).all() and deviations.max() < 0.03


@pytest.mark.parametrize("kind", [PositionBasedModel, UserBrowsingModel])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("most", [200, 50_000])
def test_rows_are_posteriors_under_the_examination_that_is_found(kind, goes_on, most, monkeypatch):
    """By integration over a grid; with sites of earlier logs, too, and where some documents stand for others."""
    monkeypatch.setattr(population, "_ENOUGH_DOCUMENTS", most)
    monkeypatch.setattr(population, "_MOST_DOCUMENTS", most)
    truth, log = log_of(np.random.default_rng(3), kind, 5000)
    model = fitted(kind, truth, log)
    model.attraction.baseline[...] = jnp.float32(-0.5)
    before = model.attraction.table.get_value().prior
    if goes_on:
        give_sites(model, log_of(np.random.default_rng(4), kind, 2000)[1])
    improved(model, log)
    rows = model.attraction.table.get_value()
    for name in ("mean", "slopes", "log_precision"):
        changed = jnp.abs(getattr(rows.prior, name) - getattr(before, name))
        assert (changed == 0).all() if goes_on else (changed > 1e-3).any()
    grid = np.linspace(-20, 20, 4001)
    offsets = grid + 0.5  # what rows hold
    ids, clicks = log.column("query_doc_ids"), log.column("clicks").astype(bool)
    values = np.asarray(rows.values, np.float64)
    shown = np.bincount(ids.ravel(), minlength=PAIRS + 1) > 0
    x, prior = np.where(shown, values[:, 2], 0.0), rows.prior
    centers = float(prior.mean[0]) + float(prior.slopes[0, 0]) * x
    centers += float(prior.slopes[1, 0]) * (x**2 - 1)
    logs = -float(jnp.exp(prior.log_precision)) / 2 * (offsets - centers[:, None]) ** 2
    if goes_on:
        logs += values[:, -1:] * offsets - values[:, -2:-1] * offsets**2 / 2
    examined = expit(np.asarray(model.examination.weight[...], np.float64))
    last = np.zeros(log.count, int)
    for rank in range(RANKS):
        cells = 0 * last + rank + 1
        if kind is UserBrowsingModel:
            cells = cells * (RANKS + 1) + last
        for cell in np.unique(cells):
            click = examined[cell] * expit(grid)
            for is_click, of_one in ((True, np.log(click)), (False, np.log1p(-click))):
                used = (cells == cell) & (clicks[:, rank] == is_click)
                number = np.bincount(ids[used, rank], minlength=PAIRS + 1)
                logs += number[:, None] * of_one
        last = np.where(clicks[:, rank], rank + 1, last)
    weights = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    means = weights @ grid
    deviations = np.sqrt(np.sum(weights * (grid - means[:, None]) ** 2, axis=1))
    found = np.asarray(rows.means(rows.values)[:, 0]) - 0.5
    np.testing.assert_allclose(found[shown], means[shown], atol=2e-3)
    found = rows.deviations(rows.values)[shown, 0]
    np.testing.assert_allclose(found, deviations[shown], rtol=5e-3)


def test_rates_of_trust_bias_come_near_the_truth_and_documents_follow():
    """Slopes within their intervals, and predictions as good as those that training leaves."""
    rng = np.random.default_rng(13)
    true, false, log = log_of_trust(rng)
    train, test = log.slice(0, 15_000), log.slice(15_000, 20_000)
    model = TrustBiasModel(positions=RANKS, query_doc_pairs=PAIRS, rngs=nnx.Rngs(0))
    Trainer(seed=0).train(model, train, test)

    def log_likelihood():
        batch = {name: test.column(name) for name in ("query_doc_ids", "clicks")}
        batch["positions"] = np.broadcast_to(np.arange(1, RANKS + 1), batch["clicks"].shape)
        batch["mask"] = np.ones(batch["clicks"].shape, bool)
        logs = np.asarray(model.predict_clicks(batch), np.float64)
        return np.where(batch["clicks"], logs, np.log1p(-np.exp(logs))).mean()

    before = log_likelihood()
    posterior = improved(model, train)
    found = propensity(model, posterior, train)
    for each, truth in zip(found, true - false, strict=True):
        ratio = truth / (true[0] - false[0])
        assert abs(np.log(each.relative / ratio)) < 3 * each.sd + 1e-9
        assert each.sd < 0.1
    assert log_likelihood() > before - 1e-4


def test_rates_of_trust_bias_stay_where_documents_have_few_impressions():
    *_, log = log_of_trust(np.random.default_rng(15), 1000)
    model = TrustBiasModel(positions=RANKS, query_doc_pairs=PAIRS, rngs=nnx.Rngs(0))
    Trainer(seed=0).train(model, log, log.slice(0, 200))
    before = np.asarray(model.true_positive.weight[...])
    assert improved(model, log) is None
    np.testing.assert_array_equal(model.true_positive.weight[...], before)


def test_updates_of_trust_bias_stay_as_training_leaves_them():
    """Earlier logs say of documents what they do under the rates of their day, whose level each log leaves open."""
    *_, log = log_of_trust(np.random.default_rng(14), 2000)
    model = TrustBiasModel(positions=RANKS, query_doc_pairs=PAIRS, rngs=nnx.Rngs(0))
    assert not has_marginal_likelihood(model)
    queries = lists_of_queries(log, PAIRS + 1, no_report)
    prior = prior_of(model, shared_posterior(model, log), 1.0)
    assert improve_examination(model, log, queries, prior=prior) is None


def test_curves_of_a_browsing_model_are_of_a_position_by_the_distance_from_the_last_click():
    truth, log = log_of(np.random.default_rng(4), UserBrowsingModel, 1000)
    tower = tower_of_examination(fitted(UserBrowsingModel, truth, log))
    shown = log.column("clicks").shape[1]
    positions, last = (each.ravel() for each in np.indices((shown + 1, shown)))
    possible = last < positions
    cells = (positions * tower.radix + last)[possible]

    points = tower.points(cells)

    assert points.curves.tolist() == positions[possible].tolist()
    distances = np.where(
        last > 0, positions - last, 0
    )  # those without a click above are in no curve
    assert points.positions.tolist() == distances[possible].tolist()


def as_clicks_tell(points, of_clicks):
    """Stands for smooth curves, whose prior counts once, however many documents and logs there are."""
    return of_clicks


def test_layouts_and_trust_bias_have_no_curves():
    """The numbers of layouts are no rates, and errors of trust bias are larger than a search tells."""
    sizes = dict(positions=RANKS, query_doc_pairs=PAIRS, columns={"device": 2})
    layouts = PositionBasedModel.with_layouts({}, ["device"])
    for model in (
        PositionBasedModel(**sizes, **layouts, rngs=nnx.Rngs(0)),
        TrustBiasModel(positions=RANKS, query_doc_pairs=PAIRS, rngs=nnx.Rngs(0)),
    ):
        assert tower_of_examination(model).points(np.arange(1, RANKS + 1)) is None


def test_smooth_curves_are_nearer_the_truth(monkeypatch):
    """Over logs of few lists with eight positions."""
    by_rank = np.array([0.0, *0.9 * np.arange(1.0, 9.0) ** -1.2])
    monkeypatch.setattr(examined_logs, "RANKS", 8)
    monkeypatch.setattr(examined_logs, "BY_RANK", by_rank)
    errors = {smoothed: [], as_clicks_tell: []}
    for seed in range(6):
        truth, log = log_of(np.random.default_rng(seed), PositionBasedModel, 3000, noise=100.0)
        for function, found in errors.items():
            monkeypatch.setattr(marginal, "smoothed", function)
            model = fitted(PositionBasedModel, truth, log)
            ratios, _ = of_ratios(model, improved(model, log), [*range(1, len(by_rank))])
            found.append(np.abs(ratios - np.log(by_rank[2:] / by_rank[1])))

    assert np.mean(errors[smoothed]) < 0.9 * np.mean(errors[as_clicks_tell])


@pytest.mark.parametrize("positions", [[2, 1, 3, 4], [1, 1, 2, 2]])
def test_positions_may_descend_and_repeat(positions):
    """The distance from the position of the last click is below 1 there."""
    truth, log = log_of(np.random.default_rng(4), UserBrowsingModel)
    columns = {name: log.column(name) for name in ("query_doc_ids", "clicks")}
    shown = np.broadcast_to(np.array(positions, np.int32), columns["clicks"].shape)
    log = Sessions.from_arrays(**columns, positions=shown, query_doc_pairs=PAIRS)
    model = fitted(UserBrowsingModel, truth, log)

    posterior = improved(model, log)

    assert np.isfinite(posterior.covariance).all()
    assert np.isfinite(np.asarray(model.examination.weight[...])).all()


@pytest.mark.parametrize("kind", [PositionBasedModel, UserBrowsingModel])
def test_some_documents_tell_what_all_do(kind, monkeypatch):
    """Without regression, ratios would be 1.7 deviations away, and these twice as large."""
    monkeypatch.setattr(marginal, "smoothed", as_clicks_tell)
    truth, log = log_of(np.random.default_rng(4), kind)
    whole, part = (fitted(kind, truth, log) for _ in range(2))
    of_whole = improved(whole, log)
    monkeypatch.setattr(population, "_MOST_DOCUMENTS", PAIRS // 4)
    of_part = improved(part, log)
    cells = np.flatnonzero(cells_of(kind))
    ratios, deviations = of_ratios(whole, of_whole, cells)
    others, wider = of_ratios(part, of_part, cells)
    np.testing.assert_allclose(wider, 1.1 * deviations, rtol=0.15)
    assert np.sqrt(np.mean((others - ratios) ** 2 / deviations**2)) < 1.2


def test_other_models_stay():
    truth, log = log_of(np.random.default_rng(5), PositionBasedModel, 1000)
    for posterior in ("none", "normal"):
        attraction = EmbeddingParameterConfig(posterior=posterior)
        model = fitted(PositionBasedModel, truth, log, attraction=attraction)
        assert improved(model, log) is None
    few = fitted(PositionBasedModel, truth, log)
    rows = few.attraction.table.get_value()
    values = rows.values.at[49:, -1].set(jnp.inf)  # and row 0
    few.attraction.table.set_value(dataclasses.replace(rows, values=values))
    assert improved(few, log) is None


def test_earlier_logs_count_as_their_clicks_would(monkeypatch):
    """Two halves of a log in random order, one after the other, tell as much of examination as the whole."""
    monkeypatch.setattr(marginal, "smoothed", as_clicks_tell)
    truth, log = log_of(np.random.default_rng(7), PositionBasedModel, noise=100.0)
    half = log.count // 2
    parts = log.slice(0, half), log.slice(half, log.count)
    cells = [*range(1, RANKS + 1)]
    whole, first, second = (fitted(PositionBasedModel, truth, log) for _ in range(3))
    of_whole, of_first = improved(whole, log), improved(first, parts[0])
    queries = lists_of_queries(log, PAIRS + 1, no_report)
    impressions = np.bincount(log.column("query_doc_ids").ravel(), minlength=PAIRS + 1)
    give_sites(second, parts[0])
    prior = prior_of(first, of_first, 1.0)
    monkeypatch.setattr(marginal, "smoothed", None)  # curves of earlier logs are not smoothed twice
    own = improve_examination(second, parts[1], queries, impressions, prior)
    both = combined(second, own, prior)
    places = [both.names.index(name) for name in of_whole.names]
    both = SharedPosterior(of_whole.names, both.covariance[np.ix_(places, places)])
    expected, deviations = of_ratios(whole, of_whole, cells)
    found, of_both = of_ratios(second, both, cells)
    assert (np.abs(found - expected) < 0.5 * deviations).all()  # that of a half is 1 away
    np.testing.assert_allclose(of_both, deviations, rtol=0.1)
    _, wider = of_ratios(second, own, cells)
    assert (wider > 1.2 * deviations).all()


def give_sites(model, log):
    """Gives documents what clicks of a log say of them, to second order around their means."""
    rows = model.attraction.table.get_value()
    z = np.asarray(rows.means(rows.values), np.float64)[:, 0]
    ids, clicks = log.column("query_doc_ids"), log.column("clicks").astype(bool)
    click = BY_RANK[1:] * expit(z)[ids]
    slope = np.where(clicks, expit(-z)[ids], -click * expit(-z)[ids] / (1 - click))
    of_skips = click * expit(-z)[ids] * (1 - expit(z)[ids] - click + click * expit(z)[ids])
    curvature = np.where(clicks, expit(z)[ids] * expit(-z)[ids], of_skips / (1 - click) ** 2)
    precision, slopes = (
        np.bincount(ids.ravel(), each.ravel(), PAIRS + 1) for each in (curvature, slope)
    )
    rows = rows.with_sites()
    sites = np.stack([precision, slopes + precision * z], axis=1)
    values = rows.values.at[:, -2:].set(jnp.float32(sites))
    model.attraction.table.set_value(dataclasses.replace(rows, values=values))


def test_a_run_and_an_update_end_with_it():
    truth, log = log_of(np.random.default_rng(6), PositionBasedModel, 5000)
    fit = SimpleNamespace(documents={})
    earlier = SimpleNamespace(seen=SimpleNamespace(queries=None), shared=None)
    for continued in (None, earlier):
        model = fitted(PositionBasedModel, truth, log)
        before = np.asarray(model.examination.weight[...])
        parts = SimpleNamespace(
            model=model, dataset=SimpleNamespace(train=log), continued=continued
        )
        refined = refine_shared(parts, fit, find_queries(parts))
        assert refined.queries.lists.max() > 1 and refined.shared is not None
        assert np.abs(np.asarray(model.examination.weight[...]) - before).max() > 0
    nothing = SimpleNamespace(documents=None)
    assert refine_shared(parts, nothing, find_queries(parts)) == (None, None)


def test_what_keeps_queries_from_being_found_is_an_error_where_they_are_needed(monkeypatch):
    """Else a thread would fail unseen, and the run wait for ever."""

    def damaged(*_):
        raise DataError("records.npy: cannot be read")

    monkeypatch.setattr(result, "lists_shown", damaged)
    parts = SimpleNamespace(model=None, dataset=SimpleNamespace(train=None), continued=None)
    with pytest.raises(DataError, match="records"):
        find_queries(parts).result(timeout=60)


ENDING = """
import time
from types import SimpleNamespace
from clickexp.experiment import result

def endless(model, train, report, earlier):
    while True:
        report(0, 1)
        time.sleep(0.01)

result.lists_shown = endless
parts = SimpleNamespace(model=None, dataset=SimpleNamespace(train=None), continued=None)
result.find_queries(parts)
raise SystemExit(3)
"""


def test_a_run_that_fails_does_not_wait_for_queries():
    """At 1e9 sessions that would be minutes after an error, or a Ctrl-C."""
    ended = subprocess.run([sys.executable, "-c", ENDING], timeout=120, check=False)
    assert ended.returncode == 3

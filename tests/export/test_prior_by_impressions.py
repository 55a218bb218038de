"""The variance of priors by impressions against integration, and its fit and intervals against the truth."""

import numpy as np
import polars as pl
import pytest
from flax import nnx
from scipy import stats
from scipy.optimize import minimize
from small_logs import sigmoid

from clickexp.data import Dataset, Sessions
from clickexp.export.prior_by_impressions import (
    LEAST_DOCUMENTS,
    PriorByImpressions,
    fit,
    recombined,
    with_prior_by_impressions,
)
from clickexp.export.tables import _write_documents
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.training import Trainer
from clickexp.training.intervals.posterior import shared_posterior

Z = np.linspace(-14, 14, 701)


def posteriors(rng, documents, constant, per_list, slope=0.0):
    """Offsets with that prior, normal clicks, and posteriors under a standard normal prior."""
    impressions = np.minimum(np.ceil(rng.pareto(0.8, documents) + 1), 50)
    truth = rng.normal(slope * np.log(impressions), np.sqrt(constant + per_list / impressions))
    precisions = 0.5 * impressions
    seen = rng.normal(truth, precisions**-0.5)
    return truth, impressions, seen * precisions / (precisions + 1), 1 / (precisions + 1)


def log_integrals(means, variances, prior_means, sd):
    """log of the integral of posterior / N(0, 1) * N(prior_means, sd^2), and mean and variance under it, on a grid."""
    logs = stats.norm.logpdf(Z, means[:, None], variances[:, None] ** 0.5) - stats.norm.logpdf(Z)
    logs += stats.norm.logpdf(Z, prior_means[:, None], sd[:, None])
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    total = weights.sum(axis=1)
    mean = weights @ Z / total
    return np.log(total) + logs.max(axis=1), mean, weights @ Z**2 / total - mean**2


def test_posteriors_are_those_of_integration():
    _, impressions, means, variances = posteriors(np.random.default_rng(0), 50, 0.7, 2.0, 0.3)
    prior = PriorByImpressions(0.6, 3.0, mean=-0.2, slope=0.4, center=1.0)
    of_prior = 0.4 * (np.log(impressions) - 1.0) - 0.2, (0.6 + 3.0 / impressions) ** 0.5
    _, mean, variance = log_integrals(means, variances, *of_prior)
    found = recombined(means, variances, impressions, prior)
    np.testing.assert_allclose(found[0], mean, atol=1e-5)
    np.testing.assert_allclose(found[1], variance, rtol=1e-5)
    same = recombined(means, variances, impressions, PriorByImpressions())
    np.testing.assert_allclose(same, (means, variances), rtol=1e-12)


def test_documents_without_impressions_are_of_any_number_of_lists():
    """Their prior is the mixture, over documents, of those of one list with the mean of each."""
    impressions = np.array([1.0, 2.0, 5.0, 30.0])
    logs = np.log(impressions)
    prior = PriorByImpressions(0.6, 3.0, mean=-0.2, slope=0.4, center=logs.mean(), spread=logs.var())
    means = prior.means(impressions)
    np.testing.assert_allclose(prior.means(np.zeros(1)), means.mean())
    np.testing.assert_allclose(prior.variances(np.zeros(1)), 0.6 + 3.0 + means.var())


def test_the_fit_is_the_most_likely():
    """Against a search over integrals."""
    _, impressions, means, variances = posteriors(np.random.default_rng(1), 200, 0.7, 2.0, 0.3)
    logs = np.log(impressions)

    def loss(point):
        constant, per_list = np.exp(point[:2])
        of_prior = point[2] + point[3] * (logs - logs.mean()), np.sqrt(constant + per_list / impressions)
        return -log_integrals(means, variances, *of_prior)[0].sum()

    options = {"xatol": 1e-5, "fatol": 1e-8, "maxiter": 2000}
    best = minimize(loss, [0.0, 0.0, 0.0, 0.0], method="Nelder-Mead", options=options).x
    found = fit(means, variances, impressions)
    np.testing.assert_allclose([*np.log(found[:2]), *found[2:4]], best, atol=2e-3)
    assert found[4:] == pytest.approx((logs.mean(), logs.var()))


@pytest.mark.parametrize(("constant", "per_list", "slope"), [(0.6, 4.0, 0.0), (1.0, 0.0, 0.0), (0.8, 1.0, 0.5)])
def test_the_fit_finds_what_offsets_were_drawn_from(constant, per_list, slope):
    """To four standard errors: of 8,500 documents of one impression, sqrt(2 / 8500) (1 / 0.5 + 1 + per_list)."""
    truth, impressions, means, variances = posteriors(np.random.default_rng(2), 20_000, constant, per_list, slope)
    prior = fit(means, variances, impressions)
    assert prior.constant == pytest.approx(constant, rel=0.1)
    assert prior.per_list == pytest.approx(per_list, abs=4 * (2 / 8500) ** 0.5 * (3 + per_list))
    # the least squares of 20,000 documents, each with an error of its clicks and its own variance
    error = np.sqrt((constant + per_list / impressions + 2 / impressions).mean() / np.log(impressions).var() / 20_000)
    assert prior.slope == pytest.approx(slope, abs=4 * error)
    assert prior.mean - prior.slope * prior.center == pytest.approx(0, abs=4 * error * (1 + prior.center))
    mean, variance = recombined(means, variances, impressions, prior)
    for few in impressions < 3, impressions >= 3:
        assert 0.94 < (np.abs(mean - truth)[few] < 1.959964 * variance[few] ** 0.5).mean() < 0.96


def test_posteriors_wider_than_their_prior_say_nothing():
    """The noise of training leaves some; they stay near the prior and move no fit."""
    _, impressions, means, variances = posteriors(np.random.default_rng(3), 2000, 0.7, 2.0)
    noisy = np.append(variances, np.full(50, 1.3))
    prior = fit(np.append(means, np.zeros(50)), noisy, np.append(impressions, np.ones(50)))
    expected = fit(means, variances, impressions)

    def line(prior):
        return prior.constant, prior.per_list, prior.slope, prior.mean - prior.slope * prior.center

    np.testing.assert_allclose(line(prior), line(expected), rtol=1e-3)
    mean, variance = recombined(np.zeros(1), np.full(1, 1.3), np.ones(1), prior)
    np.testing.assert_allclose((mean[0], variance[0]), (prior.means(np.ones(1))[0], prior.variances(np.ones(1))[0]))


QUERIES, DOCUMENTS, RANKS, SESSIONS = 150, 12, 6, 12_000
PAIRS = QUERIES * DOCUMENTS
EXAMINATION = np.arange(1, RANKS + 1) ** -0.7


def log_of(rng, policy):
    """PBM users, queries of popularity 1 / rank, lists of the best by a policy that knows so much of attraction."""
    truth = rng.normal(-1.0, 1.2, PAIRS + 1)
    popularity = 1 / np.arange(1, QUERIES + 1)
    query = rng.choice(QUERIES, SESSIONS, p=popularity / popularity.sum())
    candidates = 1 + query[:, None] * DOCUMENTS + np.arange(DOCUMENTS)
    scores = rng.standard_normal(candidates.shape) + policy * (truth[candidates] + 1.0) / 1.2
    ids = np.take_along_axis(candidates, np.argsort(-scores, axis=1)[:, :RANKS], axis=1)
    clicks = rng.random(ids.shape) < EXAMINATION * sigmoid(truth[ids])
    return truth, Sessions.from_arrays(
        query_doc_ids=ids.astype(np.int32), clicks=clicks, query_doc_pairs=PAIRS
    )


@pytest.mark.parametrize("policy", [1.0, 0.0], ids=["ordered", "random"])
def test_exported_intervals_of_attraction_hold_the_truth(policy, tmp_path):
    """Of click rates at rank 1, which clicks identify, where a policy orders lists and where it does not."""
    truth, log = log_of(np.random.default_rng(4), policy)
    click_rate = float(log.column("clicks").mean())
    model = PositionBasedModel(RANKS, PAIRS, click_rate=click_rate, rngs=nnx.Rngs(0))
    Trainer(seed=0).train(model, log, log)
    dataset = Dataset("d", log, log, log, PAIRS, RANKS)
    _write_documents(model, dataset, None, shared_posterior(model, log), tmp_path / "documents.parquet")
    table = pl.read_parquet(tmp_path / "documents.parquet")
    ids, top = table["query_doc_id"].to_numpy(), sigmoid(model.examination.weight[1])
    rate = sigmoid(truth[ids])
    mean, variance = model.attraction.posterior({"query_doc_ids": ids[None]})
    half = 1.959964 * variance[0] ** 0.5
    held = {}
    for name, (low, high) in {
        "exported": (table["attraction_low"].to_numpy(), table["attraction_high"].to_numpy()),
        "as trained": (sigmoid(mean[0] - half), sigmoid(mean[0] + half)),
    }.items():
        held[name] = ((top * low <= rate) & (rate <= top * high)).mean()
    assert 0.92 < held["exported"] < 0.97
    if policy:
        assert held["as trained"] < 0.9
        inside = (table["attraction_low"] < table["attraction"]) & (
            table["attraction"] < table["attraction_high"]
        )
        assert inside.mean() > 0.99
    else:  # where they change by the noise of training alone
        assert 0 < held["exported"] - held["as trained"] < 0.02


def test_what_has_no_such_variance_stays_as_it_is():
    log = np.ones(PAIRS + 1)
    for settings in dict(posterior="normal"), dict(posterior="none"), dict(embedding_features=2):
        config = EmbeddingParameterConfig(**settings)
        model = PositionBasedModel(RANKS, PAIRS, attraction=config, rngs=nnx.Rngs(0))
        assert with_prior_by_impressions(model, log) is None
    model = PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0))
    assert with_prior_by_impressions(model, np.arange(PAIRS + 1) < LEAST_DOCUMENTS - 1) is None
    before = np.asarray(model.attraction.table.get_value().values)
    assert with_prior_by_impressions(model, log) is not None
    np.testing.assert_array_equal(model.attraction.table.get_value().values, before)

"""Posteriors of satisfaction that goes with attraction, against simulated truths and sums over sessions."""

import numpy as np
import pytest
from flax import nnx
from scipy.special import expit, logit, ndtr
from scipy.stats import beta

from clickexp.data import Sessions
from clickexp.data.by_document import ByDocument
from clickexp.models import DynamicBayesianNetwork, PositionBasedModel
from clickexp.posteriors import satisfaction
from clickexp.posteriors.exported import exported
from clickexp.posteriors.rows import newton_refined
from clickexp.posteriors.satisfaction import Clicks, fit, rows_of_satisfaction
from clickexp.posteriors.shape import Likelihood
from clickexp.training import Trainer

QUERIES, DOCUMENTS, RANKS = 60, 12, 8
PAIRS = QUERIES * DOCUMENTS


def test_clicks_are_followed_or_last():
    log = Sessions.from_arrays(
        query_doc_ids=np.array([[1, 2, 3], [2, 1, 3], [3, 2, 1], [1, 2, 0]], np.int32),
        clicks=np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]], bool),
        lengths=np.array([3, 3, 3, 2], np.int32),
        query_doc_pairs=4,
    )
    found = Clicks.of(log, 5)
    np.testing.assert_array_equal(found.followed, [0, 2, 1, 0, 0])
    np.testing.assert_array_equal(found.last, [0, 0, 1, 2, 0])


@pytest.mark.parametrize("slope", [0.0, 0.9])
@pytest.mark.parametrize("clicks", [2, 30])
def test_the_prior_is_that_of_the_users(slope, clicks):
    """Attraction is known with an error, and half of the clicks that do not satisfy are the last."""
    rng = np.random.default_rng(3)
    documents, ends = 20_000, 0.5
    attraction = rng.normal(-1, 1, documents)
    # of a measurement with variance 1, the posterior has half of its distance from the mean, and variance 1 / 2
    means = -1 + (attraction + rng.normal(0, 1, documents) + 1) / 2
    logits = 0.4 + slope * (attraction + 1) + rng.normal(0, 0.7, documents)
    followed = rng.binomial(clicks, (1 - expit(logits)) * (1 - ends))
    likelihood = Likelihood(
        followed.astype(float), (clicks - followed).astype(float), np.full(documents, 1 - ends)
    )
    around = np.full(documents, 0.4), np.full(documents, 1.0)
    found = fit(likelihood, around, (means, np.full(documents, 0.5)), (0.0, 1.0))
    errors = np.sqrt(np.diag(found.covariance))
    assert np.all(errors < 0.05)
    assert abs(found.mean + slope * (-1 - found.center) - 0.4) < 4 * errors[0]
    assert abs(found.slope - slope) < 4 * errors[1]
    assert np.sqrt(found.variance) == pytest.approx(0.7, abs=0.1)


def users(seed, correlation):
    """Sessions of users who go on unless they are satisfied, in the order of a policy, and both probabilities."""
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(2, PAIRS))
    attraction = beta.ppf(ndtr(first), 1, 3)
    both = correlation * first + np.sqrt(1 - correlation**2) * second
    satisfaction = beta.ppf(ndtr(both), 2, 2)
    query = rng.integers(0, QUERIES, 5000)
    candidates = query[:, None] * DOCUMENTS + np.arange(DOCUMENTS)
    known = logit(attraction) + rng.normal(0, 0.7, PAIRS)
    scores = known[candidates] + rng.normal(size=candidates.shape)
    ids = np.take_along_axis(candidates, np.argsort(-scores, axis=1)[:, :RANKS], axis=1)
    clicks, reading = np.zeros(ids.shape, bool), np.ones(len(ids), bool)
    for rank in range(RANKS):
        clicks[:, rank] = reading & (rng.random(len(ids)) < attraction[ids[:, rank]])
        reading &= ~clicks[:, rank] | (rng.random(len(ids)) >= satisfaction[ids[:, rank]])
    log = Sessions.from_arrays(
        query_doc_ids=(ids + 1).astype(np.int32), clicks=clicks, query_doc_pairs=PAIRS
    )
    return log, satisfaction


def test_documents_keep_the_prior_of_training_where_clicks_do_not_tell_a_slope(monkeypatch):
    log, _ = users(1, 0.0)
    model = DynamicBayesianNetwork(query_doc_pairs=PAIRS, positions=RANKS, rngs=nnx.Rngs(0))
    counts = ByDocument.of(log).dense(PAIRS + 1)
    seen = model, log, counts.shown, counts.clicks, None
    found = rows_of_satisfaction(exported(*seen).intervals)
    refined = newton_refined(model, [model.attraction.table, model.satisfaction.table], log)
    expected = rows_of_satisfaction(refined)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
    monkeypatch.setattr(satisfaction, "_SURE", 0.0)
    moved = rows_of_satisfaction(exported(*seen).intervals)
    assert np.isfinite(moved.values).all()
    assert np.abs(moved.values - found.values).max() > 0.01


@pytest.mark.nightly
@pytest.mark.parametrize("correlation", [0.0, 0.95])
def test_intervals_hold_where_what_attracts_satisfies(correlation):
    """With one prior for all documents, .82 held under the correlation, and estimates were .2 off."""
    log, probabilities = users(0, correlation)
    model = DynamicBayesianNetwork(
        query_doc_pairs=PAIRS, positions=RANKS, fix_continuation=True, rngs=nnx.Rngs(0)
    )
    Trainer(seed=0).train(model, log, log)
    counts = ByDocument.of(log).dense(PAIRS + 1)
    found = exported(model, log, counts.shown, counts.clicks, None)
    tower = found.intervals.satisfaction
    rows = tower.table.get_value()
    means = np.asarray(rows.means(rows.values))[1:, 0] + float(tower.baseline[...])
    deviations = np.asarray(rows.deviations(rows.values))[1:, 0]
    shown = counts.shown[1:] > 0
    held = np.abs(logit(probabilities) - means) < 1.96 * deviations
    assert 0.92 < held[shown].mean() < 0.985
    errors = np.abs(expit(means) - probabilities)
    assert errors[shown].mean() < (0.1 if correlation else 0.2)


def test_models_without_such_a_table_have_none():
    sizes = dict(positions=3, query_doc_pairs=9, rngs=nnx.Rngs(0))
    assert rows_of_satisfaction(PositionBasedModel(**sizes)) is None
    assert rows_of_satisfaction(DynamicBayesianNetwork(**sizes)) is not None

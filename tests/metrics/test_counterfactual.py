"""Estimates of rankings from clicks against float64 sums, and against the relevance behind simulated clicks."""

import numpy as np
import pytest
from refusals import refuses

from clickexp.errors import ConfigError
from clickexp.metrics import MultiMetric, SelfNormalizedDCG

PROPENSITY, CLIP, CUTOFFS = [2.0, 1.2, 0.5, 0.0, 0.2], 0.2, [1, 3, 10]


def lists(seed, number=200, ranks=6):
    rng = np.random.default_rng(seed)
    return {
        "scores": np.round(rng.normal(size=(number, ranks)), 1).astype(np.float32),
        "clicks": rng.random((number, ranks)) < 0.3,
        "positions": np.tile(np.arange(1, ranks + 1), (number, 1)),
        "where": np.arange(ranks) < rng.integers(1, ranks + 1, number)[:, None],
    }


def by_hand(scores, clicks, positions, where, cutoff):
    """Weighted mean of discounts, that of tied documents averaged over their places."""
    weights = [0, 1, 1 / 0.6, 1 / 0.25, 0, 1 / CLIP, 0]  # unknown at 4, clipped at 5, none behind
    total = weight = 0.0
    for row in range(len(scores)):
        shown = np.flatnonzero(where[row])
        for document in shown[clicks[row, shown]]:
            score, others = scores[row, document], scores[row, shown]
            places = np.arange((others > score).sum(), (others >= score).sum()) + 1
            discount = np.mean(np.where(places <= cutoff, 1 / np.log2(1 + places), 0))
            total += weights[positions[row, document]] * discount
            weight += weights[positions[row, document]]
    return total / weight


def test_it_is_the_weighted_mean_discount_of_clicks():
    metric = SelfNormalizedDCG(CUTOFFS, propensity=PROPENSITY, clip=CLIP)
    metric.update(**lists(0))
    metric.update(**lists(1))
    both = {name: np.concatenate([lists(0)[name], lists(1)[name]]) for name in lists(0)}
    expected = [by_hand(**both, cutoff=cutoff) for cutoff in CUTOFFS]
    np.testing.assert_allclose(metric.compute(), expected, rtol=1e-5)
    assert metric.suffixes == ("@1", "@3", "@10") and metric.higher_is_better


def test_values_of_lists_and_their_weights_are_kept():
    metric = SelfNormalizedDCG(CUTOFFS, propensity=PROPENSITY, clip=CLIP)
    kept = MultiMetric({"first": metric, "second": metric}).keep_values()
    given = lists(0)
    kept.update(**given)
    values = kept.values()
    has_weight = values["first.weights"] > 0
    assert 0 < has_weight.sum() < len(has_weight)
    for row in np.flatnonzero(has_weight):
        one = {name: columns[row : row + 1] for name, columns in given.items()}
        found = values["second@3"][row] / values["second.weights"][row]
        assert found == pytest.approx(by_hand(**one, cutoff=3), rel=1e-5)
    assert not np.nan_to_num(values["first@3"][~has_weight]).any()


def test_it_estimates_what_relevance_says_of_another_ranking():
    """Clicks on lists in the order of a policy; the naive weights are off by far."""
    rng, number, ranks = np.random.default_rng(3), 40_000, 5
    relevance, examination = rng.random(ranks) ** 2, 1 / np.arange(1, ranks + 1)
    clicks = rng.random((number, ranks)) < relevance * examination
    scores = np.tile(-np.arange(ranks)[::-1].astype(np.float32), (number, 1))  # the last first
    given = {
        "scores": scores,
        "clicks": clicks,
        "positions": np.tile(np.arange(1, ranks + 1), (number, 1)),
    }
    discounts = 1 / np.log2(2 + np.arange(ranks)[::-1])
    expected = (relevance * discounts).sum() / relevance.sum()
    found = {}
    for name, propensity in (("ips", examination), ("naive", np.ones(ranks))):
        metric = SelfNormalizedDCG(None, propensity=list(propensity), clip=0.01)
        metric.update(**given)
        found[name] = metric.compute()
    weighted = clicks / examination
    error = (weighted * (discounts - expected)).sum(axis=1)
    standard_error = error.std() * np.sqrt(number) / weighted.sum()
    assert abs(found["ips"] - expected) < 3 * standard_error
    assert abs(found["naive"] - expected) > 10 * standard_error


def test_without_a_click_there_is_no_estimate():
    metric = SelfNormalizedDCG(3, propensity=[1.0, 0.5])
    assert np.isnan(metric.compute())
    metric.update(**{**lists(0), "clicks": np.zeros((200, 6), bool)})
    assert np.isnan(metric.compute())


def test_propensities_that_make_no_sense_are_refused():
    for propensity in ([], [0.0, 1.0], [1.0, -0.5], [1.0, float("nan")]):
        with refuses(ConfigError, f"propensity={propensity}"):
            SelfNormalizedDCG(3, propensity=propensity)

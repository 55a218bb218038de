"""Calibration, click-rate error and AUC, and the rarer perplexities, against loops in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from metric_updates import updated
from refusals import refuses
from scipy.special import expit

from clickexp.errors import ConfigError
from clickexp.metrics import (
    AUC,
    ClickRateError,
    ConditionalPerplexity,
    ExpectedCalibrationError,
    LogLikelihood,
    MicroPerplexity,
    Perplexity,
)
from clickexp.numerics import LogPair, log_sigmoid_pair

RANKS = 4


@pytest.fixture(scope="module")
def outputs():
    """Predictions that are too high, padded lists of unequal length, no click at the last rank."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 1.5, (300, RANKS)).astype(np.float32)
    clicks = rng.random((300, RANKS)) < 1 / (1 + np.exp(1 - logits))
    clicks[:, 3] = False
    where = np.arange(RANKS) < rng.integers(1, RANKS + 1, 300)[:, None]
    return {
        "log_probs": log_sigmoid_pair(logits),
        "clicks": clicks,
        "where": where,
        "logits": logits,
    }


def probabilities(outputs):
    return 1 / (1 + np.exp(-outputs["logits"].astype(np.float64)))


def shown(outputs, rank=None):
    """(P(click), click) of the documents shown, at one rank or at all."""
    where = outputs["where"] & (np.arange(RANKS) == rank if rank is not None else True)
    return probabilities(outputs)[where], outputs["clicks"][where]


def measured(metric, outputs):
    return updated(metric, **{name: x for name, x in outputs.items() if name != "logits"})


def test_click_rate_error(outputs):
    errors = [p.mean() - c.mean() for p, c in (shown(outputs, rank) for rank in range(RANKS))]
    metric = measured(ClickRateError(), outputs)
    np.testing.assert_allclose(metric.compute_per_rank(), errors, rtol=1e-5)
    assert metric.compute() == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)


def calibration_error(p, c, bins):
    gaps = [c[(i <= p * bins) & (p * bins < i + 1)].sum() - p[(i <= p * bins) & (p * bins < i + 1)].sum()
            for i in range(bins)]  # fmt: skip
    return np.abs(gaps).sum() / len(p)


@pytest.mark.parametrize(
    "bins", [10, *(pytest.param(bins, marks=pytest.mark.nightly) for bins in (1, 20))]
)
def test_expected_calibration_error(outputs, bins):
    metric = measured(ExpectedCalibrationError(bins), outputs)
    assert metric.compute() == pytest.approx(calibration_error(*shown(outputs), bins), abs=1e-6)
    per_rank = [calibration_error(*shown(outputs, rank), bins) for rank in range(RANKS)]
    np.testing.assert_allclose(metric.compute_per_rank(), per_rank, atol=1e-6)


def test_the_reliability_curve_holds_the_rates_of_each_bin(outputs):
    curve = measured(ExpectedCalibrationError(5), outputs).curve()
    p, c = shown(outputs, rank=1)
    inside = (0.4 <= p) & (p < 0.6)
    assert curve["documents"][2, 1] == inside.sum()
    assert curve["predicted"][2, 1] == pytest.approx(p[inside].mean(), abs=1e-6)
    assert curve["observed"][2, 1] == pytest.approx(c[inside].mean())
    assert curve["documents"].sum() == outputs["where"].sum()


def test_certain_predictions_are_counted_in_the_outermost_bins():
    certain = LogPair(np.float32([[0, -1e4]]), np.float32([[-1e4, 0]]))
    metric = updated(ExpectedCalibrationError(10), log_probs=certain, clicks=np.array([[1, 0]]))
    np.testing.assert_array_equal(metric.curve()["documents"][[0, -1]], [[0, 1], [1, 0]])
    assert metric.compute() == 0


def area(p, c):
    won = np.sign(p[c][:, None] - p[~c][None, :])
    return (won.mean() + 1) / 2


def test_area_under_the_roc_curve(outputs):
    p, c = shown(outputs)
    logits = np.log(p / (1 - p))
    metric = measured(AUC(), outputs)
    bins = np.floor((np.arcsinh(logits) / 5.3 + 1) / 2 * 4096)
    tied = bins[c][:, None] == bins[~c]
    assert 0 < abs(metric.compute() - area(p, c)) <= tied.mean() / 2 < 1e-2
    per_rank = metric.compute_per_rank()
    assert per_rank[0] == pytest.approx(area(*shown(outputs, rank=0)), abs=1e-3)
    assert math.isnan(per_rank[3])


@pytest.mark.as_users
def test_area_is_exact_for_predictions_that_are_equal_or_apart():
    rng = np.random.default_rng(1)
    logits = rng.integers(-60, 60, (200, 3)).astype(np.float32) / 10
    clicks = rng.random((200, 3)) < 0.3
    metric = updated(AUC(), log_probs=log_sigmoid_pair(logits), clicks=clicks)
    assert metric.compute() == pytest.approx(area(logits, clicks), rel=1e-12)
    alike = log_sigmoid_pair(np.full((200, 3), -2.0, np.float32))
    constant = updated(AUC(), log_probs=alike, clicks=clicks)
    assert constant.compute() == 0.5


def test_area_tells_predictions_apart_that_are_nearly_certain():
    """Logits beyond those that probabilities of four digits have, as of a model that has diverged."""
    rng = np.random.default_rng(2)
    logits = (rng.choice([-1, 1], (200, 3)) * rng.uniform(10, 80, (200, 3))).round()
    clicks = rng.random((200, 3)) < expit(logits / 20)
    metric = updated(AUC(), log_probs=log_sigmoid_pair(logits.astype(np.float32)), clicks=clicks)
    assert metric.compute() == pytest.approx(area(logits, clicks), rel=1e-12)


@pytest.mark.parametrize("metric", [AUC, ClickRateError, ExpectedCalibrationError, MicroPerplexity])
def test_nothing_seen_is_nan_and_padding_never_counts(metric, outputs):
    assert math.isnan(metric().compute())
    dirty = jax.tree.map(lambda x: jnp.where(outputs["where"], x, jnp.nan), outputs["log_probs"])
    changed = outputs | {"log_probs": dirty, "clicks": outputs["clicks"] | ~outputs["where"]}
    assert measured(metric(), changed).compute() == measured(metric(), outputs).compute()


def test_conditional_predictions_are_read_on_demand(outputs):
    constant = np.full((300, RANKS), math.log(0.25), np.float32)
    both = outputs | {"conditional_log_probs": constant}
    rate = shown(outputs)[1].mean()
    assert measured(ExpectedCalibrationError(conditional=True), both).compute() == pytest.approx(
        0.25 - rate, rel=1e-5
    )
    assert (
        measured(ClickRateError(), both).compute() == measured(ClickRateError(), outputs).compute()
    )


@pytest.mark.parametrize("of", ["clicks", "skips"])
def test_perplexity_of_clicks_or_skips_alone(outputs, of):
    expected = []
    for rank in range(RANKS):
        p, c = shown(outputs, rank)
        observed = p[c] if of == "clicks" else 1 - p[~c]
        expected += [2 ** -np.log2(observed).mean()] if observed.size else []
    metric = measured(Perplexity(of), outputs)
    assert len(expected) == (3 if of == "clicks" else 4)
    np.testing.assert_allclose(metric.compute_per_rank(), expected, rtol=1e-5)
    assert metric.compute() == pytest.approx(np.mean(expected), rel=1e-5)


def test_micro_perplexity_weighs_documents_alike(outputs):
    p, c = shown(outputs)
    expected = 2 ** -np.log2(np.where(c, p, 1 - p)).mean()
    assert measured(MicroPerplexity(), outputs).compute() == pytest.approx(expected, rel=1e-6)


def test_the_convention_of_pyclick(outputs):
    p, c, where = probabilities(outputs), outputs["clicks"], outputs["where"]
    log_prob = np.where(where, np.log(np.where(c, p, 1 - p)), 0)
    by_rank = [
        2 ** (-log_prob[:, r].sum() / math.log(2) / 300) if r < RANKS else 1 for r in range(10)
    ]
    both = outputs | {"conditional_log_probs": outputs["log_probs"]}
    for metric in (Perplexity, ConditionalPerplexity):
        result = measured(metric(rank_normalization="pyclick"), both)
        np.testing.assert_allclose(result.compute_per_rank(), by_rank, rtol=1e-5)
        assert result.compute() == pytest.approx(np.mean(by_rank), rel=1e-5)
    means = log_prob.sum(axis=1) / where.sum(axis=1)
    ll = measured(LogLikelihood(rank_normalization="pyclick"), both)
    assert ll.compute() == pytest.approx(means.mean(), rel=1e-5)


def test_settings_that_do_not_exist_are_refused():
    with refuses(ConfigError, "of='click'", "all, clicks or skips"):
        Perplexity("click")
    with refuses(ConfigError, "rank_normalization='clax'", "own or pyclick"):
        LogLikelihood(rank_normalization="clax")


def test_values_of_single_lists_are_kept_on_demand(outputs):
    metric = Perplexity()
    metric.keep_values = True
    halves = [{k: jax.tree.map(lambda x: x[part], v) for k, v in outputs.items() if k != "logits"}
              for part in (slice(0, 100), slice(100, 300))]  # fmt: skip
    for half in halves:
        metric.update(**half)
    p, c, where = probabilities(outputs), outputs["clicks"], outputs["where"]
    expected = np.where(where, np.log(np.where(c, p, 1 - p)), np.nan)
    np.testing.assert_allclose(metric.values()["observed_log_prob"], expected, rtol=1e-5)
    merged = updated(metric.empty(), **halves[0]).merge(updated(metric, **halves[1]))
    np.testing.assert_array_equal(
        merged.values()["observed_log_prob"], metric.values()["observed_log_prob"]
    )

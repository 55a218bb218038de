"""Intervals and paired tests against closed forms, SciPy and repeated sampling."""

import numpy as np
import pytest
from refusals import refuses
from scipy import stats

from clickexp.errors import UserError
from clickexp.utils.statistics.bootstrap import Samples, bootstrap_interval, paired_test


def mean(sums):
    return sums[..., 0] / sums[..., 1]


def of(values, queries=None):
    queries = np.arange(len(values)) if queries is None else queries
    return Samples.of_lists(queries, np.stack([values, np.ones(len(values))], axis=1), mean)


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(3, 2, 2000)
    interval = bootstrap_interval(of(values), resamples=4000)
    half = 1.96 * values.std() / np.sqrt(2000)
    assert interval.value == pytest.approx(values.mean(), rel=1e-12)
    # quantiles of 4,000 draws have a standard error of some 3% of the interval's half
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(1)
    intervals = [
        bootstrap_interval(of(rng.exponential(1, 80)), resamples=300, seed=i) for i in range(300)
    ]
    held = np.mean([i.low <= 1 <= i.high for i in intervals])
    assert abs(held - 0.93) < 5 * np.sqrt(0.95 * 0.05 / 300)  # skewed: a little below 95%


def test_lists_of_one_query_are_drawn_together():
    values = np.random.default_rng(2).normal(0, 1, 100)
    tenfold = of(np.repeat(values, 10), np.repeat(np.arange(100), 10))
    assert len(tenfold.queries) == 100
    once, repeated = bootstrap_interval(of(values)), bootstrap_interval(tenfold)
    np.testing.assert_allclose([repeated.low, repeated.high], [once.low, once.high], rtol=1e-9)


def test_the_same_seed_gives_the_same_interval():
    samples = of(np.random.default_rng(3).normal(0, 1, 50))
    assert bootstrap_interval(samples, seed=5) == bootstrap_interval(samples, seed=5)
    assert bootstrap_interval(samples, seed=5) != bootstrap_interval(samples, seed=6)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3])
def test_both_p_values_agree_with_the_t_test(shift):
    rng = np.random.default_rng(4)
    a = rng.normal(0, 1, 400)
    b = a + rng.normal(shift, 1, 400)
    result = paired_test(of(b), of(a), resamples=4000)
    expected = stats.ttest_rel(b, a)
    assert result.p_t == pytest.approx(expected.pvalue, rel=1e-9)
    assert result.p_bootstrap == pytest.approx(expected.pvalue, abs=0.03)
    assert result.difference == pytest.approx((b - a).mean(), rel=1e-9)
    low, high = expected.confidence_interval()
    np.testing.assert_allclose([result.low, result.high], [low, high], atol=0.1 * (high - low))
    assert result.queries == 400


@pytest.mark.parametrize("queries, held", [(6, 0.92), (10, 0.94), (30, 0.95)])
def test_the_level_of_the_bootstrap_holds_for_few_queries(queries, held):
    """Without expanded percentiles, 13% of the tests over ten queries reject at 5%."""
    rng = np.random.default_rng(7)
    trials = 1000
    results = [
        paired_test(of(rng.normal(0, 1, queries)), of(np.zeros(queries)), resamples=500, seed=i)
        for i in range(trials)
    ]
    error = np.sqrt(0.05 * 0.95 / trials)
    assert np.mean([each.p_bootstrap < 0.05 for each in results]) < 0.05 + 3 * error
    holds = [each.low <= 0 <= each.high for each in results]
    assert np.mean(holds) > held - 3 * error


def test_p_values_and_intervals_say_the_same():
    """Of six queries, where a degree of freedom more or less shows: p < 5% where the interval leaves 0 out."""
    rng = np.random.default_rng(11)
    differ = 0
    for seed in range(300):
        values = rng.normal(rng.normal(0.6, 0.3), 1, 6)
        test = paired_test(of(values), of(np.zeros(6)), resamples=20_000, seed=seed)
        differ += (test.p_bootstrap < 0.05) != (test.low > 0 or test.high < 0)
    assert differ <= 1  # the p-value counts one resample more


def test_one_query_tells_nothing_of_others():
    interval = bootstrap_interval(of(np.array([0.3])))
    assert interval.value == pytest.approx(0.3)
    assert np.isnan([interval.low, interval.high]).all()
    result = paired_test(of(np.array([0.3])), of(np.array([0.1])))
    assert (result.p_bootstrap, result.p_t) == (1, 1)
    assert np.isnan([result.low, result.high]).all()


def test_equal_runs_do_not_differ():
    samples = of(np.random.default_rng(5).normal(0, 1, 30))
    result = paired_test(samples, samples)
    assert (result.difference, result.low, result.high, result.p_bootstrap, result.p_t) == (
        0,
        0,
        0,
        1,
        1,
    )


def test_only_the_same_queries_can_be_paired():
    with refuses(UserError, "queries", "2 and 3"):
        paired_test(of(np.ones(2)), of(np.ones(3)))

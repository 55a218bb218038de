"""A/B tests: assignment, error rates over a thousand experiments, power, and intervals under daily looks."""

import numpy as np
import pytest
from refusals import refuses
from scipy import optimize, stats

from clickexp.errors import UserError
from clickexp.online import ab_test, assign, interleaving_test
from clickexp.online.ab import METRICS, session_sums
from clickexp.utils.statistics.sequential import anytime_radius, minimum_detectable_effect

EXPERIMENTS, SESSIONS, RANKS, DAYS = 1000, 2000, 4, 14
RATES = np.array([0.4, 0.25, 0.15, 0.1])


def clicks_of(rates, sessions, seed):
    return np.random.default_rng(seed).random((sessions, RANKS)) < rates


def sums_of(clicks):
    return session_sums(clicks, np.full(len(clicks), RANKS))


def some(sums, rows):
    return {name: values[rows] for name, values in sums.items()}


@pytest.fixture(scope="module")
def same():
    """Clicks of a thousand A/A experiments [experiments, sessions, ranks] on lists of 2 to 4 documents, as sums."""
    lengths = np.random.default_rng(1).integers(2, RANKS + 1, EXPERIMENTS * SESSIONS)
    clicks = clicks_of(RATES, EXPERIMENTS * SESSIONS, 0) & (np.arange(RANKS) < lengths[:, None])
    return session_sums(clicks, lengths)


def test_a_share_of_ids_sees_b_whatever_the_ids():
    ids = np.arange(100_000)
    for kind in (ids, 7 * ids - 3, np.array([f"session {i}" for i in ids])):
        for share in (0.5, 0.1):
            assert abs(assign(kind, "x", share).mean() - share) < 5 * np.sqrt(
                share * (1 - share) / len(ids)
            )


def test_an_id_always_sees_the_same_and_another_experiment_deals_anew():
    rng = np.random.default_rng(0)
    ids = np.arange(50_000)
    first, order = assign(ids, "one"), rng.permutation(len(ids))
    assert np.array_equal(assign(ids[order], "one"), first[order])
    assert abs(np.mean(first == assign(ids, "two")) - 0.5) < 5 * 0.5 / np.sqrt(len(ids))
    assert np.array_equal(assign(np.array([3, 3, 3]), "one"), np.repeat(first[3], 3))
    assert abs(np.mean(first[1:] == first[:-1]) - 0.5) < 5 * 0.5 / np.sqrt(len(ids))


def test_sums_of_a_session():
    clicks = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]], bool)
    sums = session_sums(clicks, np.array([3, 2, 3]))
    assert sums["clicks"].tolist() == [2, 0, 1] and sums["documents"].tolist() == [3, 2, 3]
    assert sums["reciprocal_rank"].tolist() == [1 / 2, 0, 1] and sums["abandoned"].tolist() == [
        0,
        1,
        0,
    ]


@pytest.mark.nightly
def test_five_percent_of_a_thousand_tests_of_equal_rankers_are_significant(same):
    significant = dict.fromkeys(METRICS, 0)
    for number in range(EXPERIMENTS):
        rows = np.arange(number * SESSIONS, (number + 1) * SESSIONS)
        test = ab_test(some(same, rows), assign(rows, str(number)))
        for name, metric in test.metrics.items():
            significant[name] += metric.difference.p_value < 0.05
            assert metric.difference.significant == (metric.difference.p_value < 0.05)
    for name, count in significant.items():
        assert abs(count / EXPERIMENTS - 0.05) < 0.014, name


@pytest.mark.nightly
def test_the_anytime_interval_holds_under_daily_looks_where_the_usual_one_does_not(same):
    ends = [SESSIONS * (day + 1) // DAYS for day in range(DAYS)]
    usual = anytime = 0
    for number in range(EXPERIMENTS):
        rows = np.arange(number * SESSIONS, (number + 1) * SESSIONS)
        sums, sees_b = some(same, rows), assign(rows, str(number))
        clicks, of = sums["clicks"], np.arange(SESSIONS)
        left = np.zeros(2, bool)
        for end in ends:
            # the estimate of clicks per session, by hand
            a, b = clicks[~sees_b & (of < end)], clicks[sees_b & (of < end)]
            difference, error = (
                b.mean() - a.mean(),
                np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)),
            )
            left |= [
                abs(difference) > stats.norm.ppf(0.975) * error,
                abs(difference) > anytime_radius(error, end, SESSIONS),
            ]
        usual, anytime = usual + left[0], anytime + left[1]
    assert anytime / EXPERIMENTS <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / EXPERIMENTS)
    assert usual / EXPERIMENTS > 0.15


def test_the_anytime_interval_is_that_of_the_paper_at_its_best_rho():
    alpha, error, units, planned = 0.05, 0.3, 400, 1000

    def radius(rho, t, deviation):  # theorem 2.2
        return deviation * np.sqrt(
            2 * (t * rho**2 + 1) / (t * rho) ** 2 * np.log(np.sqrt(t * rho**2 + 1) / alpha)
        )

    best = optimize.minimize_scalar(
        lambda rho: radius(rho, planned, 1.0), bounds=(1e-4, 1), method="bounded"
    ).x
    assert anytime_radius(error, units, planned, alpha) == pytest.approx(
        radius(best, units, error * np.sqrt(units)), rel=1e-5
    )
    assert 1.5 < anytime_radius(error, planned, planned) / (1.96 * error) < 1.6


def power_of(effect, error):
    """The probability that a two-sided test at 0.05 finds a true difference."""
    z, shift = stats.norm.ppf(0.975), abs(effect) / error
    return stats.norm.cdf(shift - z) + stats.norm.cdf(-shift - z)


@pytest.mark.nightly
def test_power_agrees_with_its_formula():
    lift = 1.1
    clicks = [
        clicks_of(rates, EXPERIMENTS * SESSIONS // 2, seed)
        for rates, seed in ((RATES, 2), (RATES * lift, 3))
    ]
    half = SESSIONS // 2
    sums = [sums_of(each) for each in clicks]
    effect = RATES.sum() * (lift - 1)
    variance = sum((rates * (1 - rates)).sum() for rates in (RATES, RATES * lift))
    expected = power_of(effect, np.sqrt(variance / half))
    found, covered = 0, 0
    for number in range(EXPERIMENTS):
        rows = slice(number * half, (number + 1) * half)
        both = {
            name: np.concatenate([sums[0][name][rows], sums[1][name][rows]]) for name in sums[0]
        }
        own = ab_test(both, np.arange(SESSIONS) >= half).metrics["clicks_per_session"].difference
        found, covered = found + own.significant, covered + (own.low < effect < own.high)
    assert 0.5 < expected < 0.9
    assert abs(found / EXPERIMENTS - expected) < 3 * np.sqrt(
        expected * (1 - expected) / EXPERIMENTS
    )
    assert abs(covered / EXPERIMENTS - 0.95) < 3 * np.sqrt(0.95 * 0.05 / EXPERIMENTS)


def test_the_minimum_detectable_effect_has_the_power_asked_for():
    for power in (0.5, 0.8, 0.95):
        assert power_of(minimum_detectable_effect(0.3, power=power), 0.3) == pytest.approx(
            power, abs=1e-4
        )
    assert power_of(0.0, 0.3) == pytest.approx(0.05)


def test_means_per_session_are_tested_as_scipy_does():
    clicks = np.concatenate([clicks_of(RATES, 600, 0), clicks_of(1.2 * RATES, 400, 1)])
    sees_b = np.arange(1000) >= 600
    metrics = ab_test(sums_of(clicks), sees_b).metrics
    counts = clicks.sum(axis=1)
    expected = stats.ttest_ind(counts[sees_b], counts[~sees_b], equal_var=False)
    own = metrics["clicks_per_session"]
    assert own.difference.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (own.difference.low, own.difference.high) == pytest.approx((interval.low, interval.high))
    assert own.a == pytest.approx(counts[:600].mean()) and own.better == "b"
    assert (
        metrics["abandonment"].better in ("b", None) and not metrics["abandonment"].higher_is_better
    )


def test_sessions_of_a_user_may_depend_on_each_other():
    """Every session comes four times: by user the error is that of one copy, by session half of it."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, RANKS + 1, 500)
    clicks = clicks_of(RATES, 500, 0) & (np.arange(RANKS) < lengths[:, None])
    sums = session_sums(clicks, lengths)
    sees_b = assign(np.arange(500))
    once = ab_test(sums, sees_b)
    copies = {name: np.tile(values, 4) for name, values in sums.items()}
    users = ab_test(copies, np.tile(sees_b, 4), np.tile(np.arange(500), 4))
    assert users.units == once.units and sum(users.sessions) == 2000
    for name, metric in once.metrics.items():
        assert users.metrics[name].difference.standard_error == pytest.approx(
            metric.difference.standard_error
        )
        apart = ab_test(copies, np.tile(sees_b, 4)).metrics[name].difference
        assert apart.standard_error == pytest.approx(metric.difference.standard_error / 2, rel=0.01)


def test_the_error_of_a_ratio_is_that_of_the_bootstrap():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, RANKS + 1, 2000)
    clicks = clicks_of(RATES, 2000, 1) & (np.arange(RANKS) < lengths[:, None])
    sees_b = np.arange(2000) >= 1000
    own = ab_test(session_sums(clicks, lengths), sees_b).metrics["click_rate"]
    drawn = []
    for _ in range(2000):
        a, b = rng.integers(0, 1000, 1000), rng.integers(1000, 2000, 1000)
        drawn.append(clicks[b].sum() / lengths[b].sum() - clicks[a].sum() / lengths[a].sum())
    assert own.difference.value == pytest.approx(clicks[1000:].sum() / lengths[1000:].sum() - own.a)
    assert own.difference.standard_error == pytest.approx(np.std(drawn), rel=0.06)


def test_tests_without_sessions_or_with_mixed_users_are_refused():
    sums = sums_of(clicks_of(RATES, 10, 0))
    with refuses(UserError, "9 units see A and 1 see B", "Give more sessions"):
        ab_test(sums, np.arange(10) == 3)
    with refuses(UserError, "sessions of 0", "Assign units"):
        ab_test(sums, np.arange(10) > 4, np.arange(10) % 2)


def test_equal_numbers_are_no_difference():
    test = ab_test(sums_of(np.zeros((50, RANKS), bool)), np.arange(50) % 2 == 0)
    own = test.metrics["click_rate"].difference
    assert (own.value, own.p_value, own.significant, own.units_needed) == (0.0, 1.0, False, None)


def test_units_that_are_all_alike_are_no_evidence():
    """Two sessions each, all of A clicked and none of B: the spread of others is not known."""
    clicks = np.repeat([[True], [True], [False], [False]], RANKS, axis=1)
    own = (
        ab_test(sums_of(clicks), np.array([False, False, True, True]))
        .metrics["abandonment"]
        .difference
    )
    assert own.value == 1 and own.p_value == 1 and not own.significant and own.units_needed is None
    assert np.isinf([own.low, own.high, own.anytime_low, own.anytime_high]).all()


@pytest.mark.nightly
def test_five_percent_of_interleaved_equal_rankers_are_significant():
    rng = np.random.default_rng(0)
    clicks, by_b = (
        clicks_of(RATES, EXPERIMENTS * 500, 4),
        rng.random((EXPERIMENTS * 500, RANKS)) < 0.5,
    )
    found = 0
    for start in range(0, len(clicks), 500):
        found += interleaving_test(
            clicks[start : start + 500], by_b[start : start + 500]
        ).preference.significant
    assert abs(found / EXPERIMENTS - 0.05) < 0.02  # the sign test is discrete, and below its level

"""Team-draft interleaving against the algorithm as it is printed, and its test."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from clickexp.online import interleaving_test, team_draft


def drafted(a, b, coins):
    """Algorithm 1 of Radlinski, Kurup and Joachims 2008, for given coins; documents and the team of each."""
    shown, teams, coins = [], [], list(coins)
    while len(shown) < len(a):
        size_a, size_b = teams.count("a"), teams.count("b")
        team = "a" if size_a < size_b or (size_a == size_b and coins.pop(0)) else "b"
        shown.append(
            next(document for document in (a if team == "a" else b) if document not in shown)
        )
        teams.append(team)
    return tuple(shown), tuple(teams)


@pytest.mark.parametrize(
    "a, b", [((1, 2, 3, 4), (4, 3, 2, 1)), ((1, 2, 3), (1, 3, 5)), ((1, 2), (3, 4)), ((1,), (1,))]
)
def test_lists_are_drafted_as_often_as_coins_say(a, b):
    expected = {}
    for coins in product((True, False), repeat=len(a)):
        outcome = drafted(a, b, coins)
        expected[outcome] = expected.get(outcome, 0) + 0.5 ** len(a)
    lists = 40_000
    shown, by_b = team_draft(
        np.tile(a, (lists, 1)), np.tile(b, (lists, 1)), np.random.default_rng(0)
    )
    rows, counts = np.unique(np.hstack([shown, by_b]), axis=0, return_counts=True)
    found = {
        (tuple(row[: len(a)]), tuple("ab"[team] for team in row[len(a) :])): count / lists
        for row, count in zip(rows.tolist(), counts, strict=True)
    }
    assert found.keys() == expected.keys()
    for outcome, probability in expected.items():
        error = np.sqrt(probability * (1 - probability) / lists)
        assert abs(found[outcome] - probability) <= 5 * error


def test_short_lists_stay_short_and_no_document_comes_twice():
    rng = np.random.default_rng(0)
    first = np.array([rng.permutation(20)[:6] + 1 for _ in range(200)])
    second = np.array([rng.permutation(row) for row in first])
    length = rng.integers(1, 7, 200)
    first[np.arange(6) >= length[:, None]] = 0
    second = np.array(
        [np.pad(rng.permutation(row[row > 0]), (0, (row == 0).sum())) for row in first]
    )
    shown, by_b = team_draft(first, second, rng)
    assert np.array_equal((shown > 0).sum(axis=1), length) and not by_b[shown == 0].any()
    assert all(
        sorted(one) == sorted(other)
        for one, other in zip(shown.tolist(), first.tolist(), strict=True)
    )
    assert (abs((by_b & (shown > 0)).sum(axis=1) * 2 - length) <= 1).all()


def test_a_session_is_won_by_more_clicks():
    by_b = np.array([[0, 1, 1], [0, 1, 0], [1, 0, 1], [0, 1, 0]], bool)
    clicks = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 1]], bool)
    test = interleaving_test(clicks, by_b)
    assert (test.sessions, test.wins_a, test.wins_b, test.ties) == (4, 1, 1, 2)
    assert test.preference.value == 0 and test.preference.p_value == 1 and test.better is None


def test_the_test_is_the_sign_test():
    rng = np.random.default_rng(0)
    won = rng.choice([-1, 0, 1], 400, p=[0.2, 0.5, 0.3])
    clicks, by_b = np.abs(won)[:, None].astype(bool), (won > 0)[:, None]
    test = interleaving_test(clicks, by_b)
    expected = stats.binomtest(int((won > 0).sum()), int((won != 0).sum())).pvalue
    assert test.preference.p_value == pytest.approx(expected)
    assert test.preference.value == pytest.approx(won.mean())
    assert test.preference.standard_error == pytest.approx(won.std(ddof=1) / np.sqrt(400))


def size_of_sign_test(decided):
    """P(two-sided p-value of the sign test < .05) without a preference, by enumeration of its outcomes."""
    chances = stats.binom.pmf(np.arange(decided + 1), decided, 0.5)
    # by symmetry, up to the middle
    below = np.array([min(1, 2 * tail) for tail in np.cumsum(chances)])
    return 2 * chances[: decided // 2][below[: decided // 2] < 0.05].sum()


@pytest.mark.nightly
@pytest.mark.parametrize("alike", [True, False], ids=["one ranker twice", "equally good rankers"])
def test_drafts_of_equal_rankers_are_significant_as_often_as_the_sign_test_allows(alike):
    """A thousand A/A tests from rankings to clicks: users examine by rank, and documents attract by their id."""
    tests, sessions, ranks = 1000, 1000, 4
    rng = np.random.default_rng(3)
    attraction, examination = np.array([0, 0.7, 0.5, 0.3, 0.2]), np.array([0.95, 0.6, 0.4, 0.3])
    noise = rng.normal(size=(2, tests * sessions, ranks))
    first, second = np.argsort(-attraction[1:] - 0.3 * noise, axis=2) + 1
    shown, by_b = team_draft(first, first if alike else second, rng)
    clicks = rng.random(shown.shape) < attraction[shown] * examination
    significant = expected = 0
    for rows in np.arange(tests * sessions).reshape(tests, sessions):
        found = interleaving_test(clicks[rows], by_b[rows])
        significant += found.preference.p_value < 0.05
        expected += size_of_sign_test(found.wins_a + found.wins_b)
    assert abs(significant / tests - 0.05) < 0.014
    assert abs(significant - expected) < 3 * np.sqrt(expected * (1 - expected / tests))


def test_sessions_of_a_user_count_once():
    rng = np.random.default_rng(0)
    clicks, by_b = rng.random((300, 5)) < 0.3, rng.random((300, 5)) < 0.5
    once = interleaving_test(clicks, by_b, np.arange(300))
    users = interleaving_test(
        np.tile(clicks, (3, 1)), np.tile(by_b, (3, 1)), np.tile(np.arange(300), 3)
    )
    assert users.preference.p_value == pytest.approx(once.preference.p_value)
    assert users.preference.standard_error == pytest.approx(once.preference.standard_error)
    assert users.sessions == 900 and users.wins_b == 3 * once.wins_b
    won = np.sign((clicks & by_b).sum(axis=1) - (clicks & ~by_b).sum(axis=1))
    assert once.preference.p_value == pytest.approx(stats.ttest_1samp(won, 0).pvalue)


def test_a_user_with_most_sessions_does_not_turn_the_test_against_its_estimate():
    """Twenty users of one session each prefer A, one of a hundred sessions B: all numbers are of the same ratio."""
    users = np.concatenate([np.arange(20), np.full(100, 20)])
    by_b = (users == 20)[:, None]
    test = interleaving_test(np.ones((120, 1), bool), by_b, users)
    assert test.preference.value == pytest.approx(80 / 120)
    own = test.preference
    assert test.better != "a" and own.significant == (own.low > 0) and -1 <= own.low < own.high <= 1


def test_one_user_says_nothing_of_others():
    test = interleaving_test(np.array([[True, False]]), np.array([[True, False]]), np.zeros(1, int))
    assert (
        test.better is None
        and test.preference.units_needed is None
        and test.preference.p_value > 0.9
    )

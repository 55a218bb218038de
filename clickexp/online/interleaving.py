"""Team-draft interleaving: two rankers share each list, and clicks credit the one that placed the document."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from clickexp.online.ab import ratio
from clickexp.runs.online import Interleaving
from clickexp.utils.statistics.sequential import estimate

_BOUNDS = ("low", "high", "anytime_low", "anytime_high")


def team_draft(
    first: np.ndarray, second: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Interleaves rankings.

    Until a list is full, the team with fewer documents adds the highest of its ranking that is not yet there; where
    both have as many, a coin decides. (Radlinski, Kurup and Joachims 2008, "How does clickthrough data reflect
    retrieval quality?")

    Args:
        first: Documents of A by rank, `[lists, ranks]`, 0 beyond the end of a list.
        second: Those of B: as many, of the same candidates, so that lists differ in what is cut off.
        rng: Source of the coins.

    Returns:
        The documents shown `[lists, ranks]`, and whether each was placed by B.
    """
    lists, ranks = first.shape
    shown, by_b = np.zeros_like(first), np.zeros(first.shape, bool)
    picks = np.zeros((2, lists), np.int64)
    free = [first > 0, second > 0]
    row = np.arange(lists)
    for rank in range(ranks):
        behind = picks[1] - picks[0]
        b = np.where(behind == 0, rng.random(lists) < 0.5, behind < 0)
        mask = first[:, rank] > 0
        at = np.where(b, free[1].argmax(axis=1), free[0].argmax(axis=1))
        document = np.where(b, second[row, at], first[row, at])
        shown[:, rank] = np.where(mask, document, 0)
        by_b[:, rank] = b & mask
        picks[0] += ~b & mask
        picks[1] += b & mask
        for team, ranking in enumerate((first, second)):
            free[team] &= ranking != shown[:, rank, None]
    return shown, by_b


def interleaving_test(
    clicks: np.ndarray,
    by_b: np.ndarray,
    units: np.ndarray | None = None,
    *,
    planned: int | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
) -> Interleaving:
    """Tests which ranker users prefer: the one with more clicks on its documents wins a session.

    The p-value is that of the two-sided sign test over sessions with a winner. With units it is Student's, of the same
    ratio of sums over units as the estimate and its intervals.

    Args:
        clicks: `[sessions, ranks]`.
        by_b: Whether B placed each document.
        units: What sessions depend on each other by, such as the user of each; by default the session.
        planned: Units for which the anytime-valid interval is tightest; by default as many as there are.
        alpha: Error rate of interval and test.
        power: That of the minimum detectable effect.
    """
    lead = (clicks & by_b).sum(axis=1) - (clicks & ~by_b).sum(axis=1)
    won = np.sign(lead).astype(np.float64)
    sessions, unit_sessions, unit_won = len(won), np.ones(len(won)), won
    if units is not None:
        at = np.unique(units, return_inverse=True)[1]
        unit_won, unit_sessions = np.bincount(at, won), np.bincount(at).astype(np.float64)
    value, error, count = ratio(unit_won, unit_sessions)
    wins = int((won < 0).sum()), int((won > 0).sum())
    settings: dict[str, Any] = {"planned": planned, "alpha": alpha, "power": power}
    if units is None:
        settings["p_value"] = (
            float(stats.binomtest(wins[1], sum(wins)).pvalue) if sum(wins) else 1.0
        )
    else:
        settings["freedom"] = max(count - 1, 1)
    preference = estimate(value, error, count, **settings)
    bounds = {name: min(max(getattr(preference, name), -1.0), 1.0) for name in _BOUNDS}
    preference = replace(preference, **bounds)
    return Interleaving(sessions, *wins, sessions - sum(wins), preference)

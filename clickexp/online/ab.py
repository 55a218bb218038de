"""A/B test of two rankers: what sessions of each are worth, and whether they differ."""

from collections.abc import Mapping

import numpy as np

from clickexp.errors import DataError
from clickexp.runs.online import ABTest, Difference
from clickexp.utils.statistics.sequential import estimate

METRICS = {
    "click_rate": ("clicks", "documents", True),
    "clicks_per_session": ("clicks", "sessions", True),
    "reciprocal_rank": ("reciprocal_rank", "sessions", True),
    "abandonment": ("abandoned", "sessions", False),
}
"""By name, the sums whose ratio a metric is, and whether higher is better."""
_FEWEST = 2


def session_sums(clicks: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the terms of each session in the sums of metrics.

    Args:
        clicks: `[sessions, ranks]`.
        lengths: Documents shown, `[sessions]`.

    Returns:
        `[sessions]` by name: clicks, documents, sessions (1), the reciprocal rank of the first click (0 without one),
        and abandoned, whether there is no click.
    """
    any_click, rank = np.asarray(clicks.any(axis=1)), np.asarray(clicks.argmax(axis=1)) + 1.0
    return {
        "clicks": clicks.sum(axis=1).astype(np.float64),
        "documents": lengths.astype(np.float64),
        "sessions": np.ones(len(clicks)),
        "reciprocal_rank": any_click / rank,
        "abandoned": (~any_click).astype(np.float64),
    }


def ab_test(
    sums: Mapping[str, np.ndarray],
    sees_b: np.ndarray,
    units: np.ndarray | None = None,
    *,
    planned: int | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
) -> ABTest:
    """Tests whether two rankers differ.

    A metric is a ratio of sums over units, and its error that of the linearised ratio, so that sessions of one user may
    depend on each other (the delta method; Deng, Knoblich and Lu 2018, "Applying the delta method in metric
    analytics"). The test is Welch's.

    Args:
        sums: As `session_sums` returns them.
        sees_b: Whether each session sees B.
        units: What was assigned, such as the user of each session; by default the session.
        planned: Units for which the anytime-valid intervals are tightest; by default as many as there are.
        alpha: Error rate of intervals and tests.
        power: That of the minimum detectable effect.

    Raises:
        DataError: A ranker has fewer than two units, or sessions of a unit see both rankers.
    """
    if units is None:
        by_unit, of_b = dict(sums), np.asarray(sees_b, bool)
    else:
        distinct, at = np.unique(units, return_inverse=True)
        by_unit = {name: np.bincount(at, values, len(distinct)) for name, values in sums.items()}
        share = np.bincount(at, sees_b, len(distinct)) / np.bincount(at, minlength=len(distinct))
        if not np.isin(share, (0.0, 1.0)).all():
            unit = distinct[~np.isin(share, (0.0, 1.0))][0]
            raise DataError(f"sessions of {unit} see both rankers. Assign units, not sessions.")
        of_b = share == 1
    counts = int((~of_b).sum()), int(of_b.sum())
    if min(counts) < _FEWEST:
        what = f"{counts[0]} units see A and {counts[1]} see B"
        raise DataError(f"{what}. Give more sessions, or fewer days: each needs two.")
    sessions = int((~sees_b).sum()), int(np.sum(sees_b))
    metrics = {
        name: _difference(by_unit[over], by_unit[under], of_b, higher, planned, alpha, power)
        for name, (over, under, higher) in METRICS.items()
    }
    return ABTest(sessions, counts, metrics)


def _difference(
    over: np.ndarray,
    under: np.ndarray,
    of_b: np.ndarray,
    higher: bool,
    planned: int | None,
    alpha: float,
    power: float,
) -> Difference:
    (a, error_a, n_a), (b, error_b, n_b) = (ratio(over[of], under[of]) for of in (~of_b, of_b))
    squared = error_a**2 + error_b**2
    freedom = (
        squared**2 / (error_a**4 / (n_a - 1) + error_b**4 / (n_b - 1)) if squared > 0 else np.inf
    )
    difference = estimate(
        b - a,
        float(np.sqrt(squared)),
        n_a + n_b,
        freedom=freedom,
        planned=planned,
        alpha=alpha,
        power=power,
    )
    return Difference(a, b, difference, higher)


def ratio(over: np.ndarray, under: np.ndarray) -> tuple[float, float, int]:
    """Returns sum(over) / sum(under), its standard error, which is infinite for a single unit, and the units."""
    value, count = over.sum() / under.sum(), len(over)
    linear = (over - value * under) / under.mean()
    error = linear.std(ddof=1) / np.sqrt(count) if count > 1 else np.inf
    return float(value), float(error), count

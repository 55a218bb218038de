"""Means over few values, such as runs with several seeds: their spread, and paired tests of groups."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

QUANTILE = 1.959964
"""Standard deviations between the mean of a normal distribution and the bounds of its central 95%."""
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation and 95% interval of a number over runs; arrays where the runs have vectors.

    Missing values are left out.

    Attributes:
        mean: Mean over the runs that have a value; nan without one.
        sd: Standard deviation; nan from fewer than two values.
        low: Lower end of Student's t-interval: mean - t sd / sqrt(count), t being the quantile with count - 1 degrees
            of freedom.
        high: Upper end of it.
        count: Number of runs that have a value.
    """

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, values: Sequence[Any] | np.ndarray) -> "Spread":
        """Sums up values [run, ...], nan or None where there is none."""
        array = np.array(values, np.float64)
        is_known = np.isfinite(array)
        count = np.asarray(is_known.sum(axis=0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # nan from no values is what is wanted
            mean = np.nanmean(array, axis=0, where=is_known)
            sd = np.nanstd(array, axis=0, ddof=1, where=is_known)
        half = sd if len(array) < 2 else t_quantile(count) * sd / np.sqrt(np.maximum(count, 1))
        return cls(mean, sd, mean - half, mean + half, count)


def ratio_bounds(ratios: np.ndarray, log_variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of 95% intervals of ratios whose logarithms have these variances."""
    spread = QUANTILE * np.sqrt(log_variances)
    return ratios * np.exp(-spread), ratios * np.exp(spread)


def t_quantile(count: np.ndarray) -> np.ndarray:
    """Returns the quantile of Student's t for 95% intervals of means of so many values, at least two."""
    # here, since the report on a single run needs none, and should not wait for SciPy
    from scipy import special

    return special.stdtrit(np.maximum(count - 1, 1), (1 + _CONFIDENCE) / 2)


def paired_t(differences: Float[np.ndarray, "*tests unit"]) -> Float[np.ndarray, "*tests"]:
    """Returns two-sided p-values of Student's paired t-test.

    Args:
        differences: Differences of pairs; pairs with nan or inf are left out.

    Returns:
        One for each test: nan from fewer than two pairs, 1 where all differences are 0.
    """
    from scipy import stats  # as above

    differences = np.where(np.isfinite(differences), differences, np.nan)
    with warnings.catch_warnings():
        # scipy warns of few pairs and of differences that are all alike
        warnings.simplefilter("ignore")
        result: Any = stats.ttest_1samp(differences, 0.0, axis=-1, nan_policy="omit")
    p = np.where(np.nan_to_num(differences).any(axis=-1), result.pvalue, 1.0)
    return np.where(np.isfinite(differences).sum(axis=-1) < 2, np.nan, p)


def paired_tests(
    values: Float[np.ndarray, "group unit"], baseline: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tests each group against a baseline.

    Args:
        values: A number per group and unit, nan where there is none; units (queries or seeds) that either group lacks
            are left out.
        baseline: The baseline's row.

    Returns:
        Two-sided p-values of Student's paired t-test, and half the 95% interval of the mean difference, [group]: nan
        from fewer than two units and for the baseline itself.
    """
    differences = values - values[baseline]
    p, spread = paired_t(differences), Spread.of(differences.T)
    half = np.array((spread.high - spread.low) / 2)
    p[baseline] = half[baseline] = np.nan
    return p, half


def holm(p: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """Returns p-values corrected for their number: the i-th smallest of n times n - i + 1, never below a smaller one's.

    nan stays nan and does not count. (Holm 1979, "A simple sequentially rejective multiple test procedure".)
    """
    adjusted = np.full(p.shape, np.nan)
    order = np.argsort(p)[: np.isfinite(p).sum()]
    scaled = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return adjusted

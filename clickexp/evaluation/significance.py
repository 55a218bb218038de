"""How sure a metric is: bootstrap intervals over queries, and paired tests of two runs on the same test set."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer
from scipy import stats

from clickexp.errors import UserError
from clickexp.types import Array

CELLS = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A value and the bounds that hold it with the given confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedTest:
    """How much the first of two runs is above the second, and how likely chance alone explains as much.

    difference         value of the first run minus that of the second
    low, high          bootstrap interval of the difference
    p_bootstrap, p_t   two-sided p-values of the paired bootstrap and of the paired t-test
    queries            how many queries were paired
    """

    difference: float
    low: float
    high: float
    p_bootstrap: float
    p_t: float
    queries: int


@dataclass(frozen=True)
class Samples:
    """A metric as a function of sums over queries, which can be drawn anew.

    sums: [query, n], what each query adds to n sums. value: maps sums [..., n] to the metric [...].
    queries: [query], which query each row is.
    """

    queries: Integer[Array, " query"]
    sums: Float[Array, "query n"]
    value: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of_lists(
        cls, queries: Integer[Array, " list"], sums: Float[Array, "list n"], value: Callable
    ) -> "Samples":
        """Adds up the lists of each query, which are not independent of each other."""
        distinct, row = np.unique(queries, return_inverse=True)
        order = np.argsort(row, kind="stable")
        starts = np.flatnonzero(np.diff(row[order], prepend=-1))
        return cls(distinct, np.add.reduceat(np.asarray(sums, np.float64)[order], starts, axis=0), value)

    def total(self) -> float:
        """The metric over all queries."""
        return float(self.value(self.sums.sum(axis=0)))

    def pseudo_values(self) -> Float[np.ndarray, " query"]:
        """What each query adds to the metric, which may be no mean over queries, such as a perplexity.

            n metric(all queries) - (n - 1) metric(all but this one)

        Of a mean over queries these are the queries' own values. (Tukey 1958; Miller 1974, "The jackknife".)
        """
        total, count = self.sums.sum(axis=0), len(self.queries)
        with np.errstate(invalid="ignore", divide="ignore"):
            return count * self.value(total) - (count - 1) * self.value(total - self.sums)


def bootstrap_interval(
    samples: Samples, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Percentile bootstrap: the metric over as many queries drawn with replacement, `resamples` times.

    (Efron and Tibshirani 1993; for retrieval: Sakai 2006, "Evaluating evaluation metrics based on the bootstrap".)
    """
    drawn = np.concatenate(
        [samples.value(w @ samples.sums) for w in _weights(len(samples.queries), resamples, seed)]
    )
    return Interval(samples.total(), *_bounds(drawn, confidence))


def paired_test(
    first: Samples, second: Samples, *, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> PairedTest:
    """Compares a metric of two runs on the same queries.

    Bootstrap: both metrics over the same queries drawn with replacement; the p-value is twice the share of draws on
    the far side of 0, counting one more (Davison and Hinkley 1997). t: Student's paired t-test over queries (Smucker,
    Allan and Carterette 2007), of their pseudo-values. UserError where the queries differ.
    """
    if not np.array_equal(first.queries, second.queries):
        raise UserError(
            f"the runs were tested on different queries ({len(first.queries):,} and {len(second.queries):,}); "
            "only runs on the same test set can be compared in pairs"
        )
    drawn = np.concatenate(
        [
            first.value(weights @ first.sums) - second.value(weights @ second.sums)
            for weights in _weights(len(first.queries), resamples, seed)
        ]
    )
    tail = int(min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0)))
    singles = first.pseudo_values() - second.pseudo_values()
    singles = singles[np.isfinite(singles)]
    return PairedTest(
        first.total() - second.total(),
        *_bounds(drawn, confidence),
        p_bootstrap=min(2 * (tail + 1) / (resamples + 1), 1.0),
        p_t=_paired_t(singles),
        queries=len(first.queries),
    )


def _weights(queries: int, resamples: int, seed: int) -> Iterator[Float[np.ndarray, "resample query"]]:
    """How often each query is drawn, a few resamples at a time."""
    rng = np.random.default_rng(seed)
    at_once = max(CELLS // queries, 1)
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        drawn = rng.integers(0, queries, (count, queries)) + queries * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * queries).reshape(count, queries).astype(np.float64)


def _bounds(drawn: np.ndarray, confidence: float) -> tuple[float, float]:
    low, high = np.nanquantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _paired_t(differences: np.ndarray) -> float:
    """1 where all differences are 0, which the test itself leaves undefined."""
    if differences.size < 2 or not differences.any():
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)

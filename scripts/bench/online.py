"""Sessions that an A/B test and team-draft interleaving need for the same power, by user and pair of rankers.

    python scripts/bench/online.py                                 about a minute on 2 cores
    python scripts/bench/online.py --users DBN --sessions 400000

Rankers order 20 candidates by the true attraction plus noise, six are shown. Both tests have as many sessions; what
each needs is the number with which it finds the difference that it observed with power .8 at level .05
(`units_needed`). Ratios are of metrics for which both tests are significant.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
from flax import nnx
from report import machine, print_table

from clickexp.data import Dataset
from clickexp.models import (
    ClickModel,
    DynamicBayesianNetwork,
    PositionBasedModel,
    UserBrowsingModel,
)
from clickexp.online import OnlineComparison, compare_rankers
from clickexp.online.ab import METRICS
from clickexp.simulation import simulate
from clickexp.simulation.towers import FixedParameter

USERS: dict[str, type[ClickModel]] = {
    "PBM": PositionBasedModel,
    "UBM": UserBrowsingModel,
    "DBN": DynamicBayesianNetwork,
}
PAIRS = (0.0, 1.0), (0.0, 2.0), (0.5, 1.5), (1.0, 2.0), (3.0, 0.5), (2.0, 1.0)
"""Standard deviations of the noise of rankers A and B, in logits."""
SIZES: dict[str, Any] = {
    "sessions": 1000,
    "queries": 100,
    "documents_per_query": 20,
    "positions": 10,
}
SHOWN = 6


def ranker(log: Dataset, noise: float, seed: int) -> PositionBasedModel:
    """Orders by the true attraction plus noise."""
    truth = np.asarray(log.truth.attraction.values[...])
    scores = truth + noise * np.random.default_rng((11, seed)).normal(size=truth.shape)
    return PositionBasedModel(
        10, log.query_doc_pairs, attraction=FixedParameter(scores), rngs=nnx.Rngs(0)
    )


def compared(log: Dataset, number: int, sessions: int) -> OnlineComparison:
    """One pair, judged by the user of the log."""
    first, second = (
        ranker(log, noise, 2 * number + which) for which, noise in enumerate(PAIRS[number])
    )
    settings: dict[str, Any] = {"sessions": sessions, "days": 1, "positions": SHOWN, "seed": number}
    assert log.ranking is not None  # as simulated logs have it
    return compare_rankers(first, second, log.truth, log.ranking, **settings)


def needs(result: OnlineComparison) -> tuple[int | None, dict[str, int]]:
    """Sessions that interleaving needs, None where it is not significant, and those of the A/B test by metric."""
    own = result.interleaving
    by_metric = {
        name: metric.difference.units_needed
        for name, metric in result.ab.metrics.items()
        if metric.better and metric.difference.units_needed
    }
    return own.preference.units_needed if own.better else None, by_metric


def ratios(found: list[tuple[int | None, dict[str, int]]], metric: str) -> Iterator[float]:
    """Sessions of the A/B test over those of interleaving, where both are significant."""
    for shared, by_metric in found:
        if shared and metric in by_metric:
            yield by_metric[metric] / shared


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", nargs="+", choices=USERS, default=list(USERS))
    parser.add_argument("--sessions", type=int, default=200_000, help="of each test")
    given = parser.parse_args()
    print(machine())
    rows, summary, agree = [], [], []
    for user in given.users:
        log = simulate(USERS[user], seed=7, **SIZES)
        results = [compared(log, number, given.sessions) for number in range(len(PAIRS))]
        found = [needs(result) for result in results]
        for (a, b), (shared, by_metric) in zip(PAIRS, found, strict=True):
            rows.append(
                (
                    f"{user}, {a:g} and {b:g}",
                    shared or "",
                    *(by_metric.get(metric, "") for metric in METRICS),
                )
            )
        cells = []
        for metric in METRICS:
            each = [*ratios(found, metric)]
            cells.append(f"{statistics.median(each):.3g} ({min(each):.3g})" if each else "")
        shared = [need for need, _ in found if need]
        summary.append((user, statistics.median(shared) if shared else "", *cells))
        agree += [
            metric.better == result.interleaving.better
            for result in results
            for metric in result.ab.metrics.values()
            if metric.better and result.interleaving.better
        ]
    title = (
        "Sessions needed by interleaving, and by the A/B test with each metric; noise of A and B"
    )
    print_table(title, ("user, pair", "interleaving", *METRICS), rows)
    title = "Median sessions of interleaving; sessions of the A/B test over those of interleaving, median (least)"
    print_table(title, ("user", "interleaving", *METRICS), summary)
    print(f"Both tests are significant for {len(agree)} metrics and agree in sign in {sum(agree)}.")


if __name__ == "__main__":
    main()

"""Ranking metrics of many lists: seconds from the first call to the last value, compilation included.

    python scripts/bench/metrics.py

All metrics at four cutoffs, then those of pairs, too. Lists of graded labels come in batches, several a dispatch, as
the evaluator feeds them. Every run has a separate process, so that none finds what another compiled; the least of
the repeated times is the one that other work on the machine disturbed least.
"""

import argparse
import multiprocessing
import time

import jax
import numpy as np

from clickexp.metrics import ListsWithoutRelevant, MultiMetric, ranking_metrics
from clickexp.metrics.base import outputs_by_rank
from clickexp.metrics.ranking.registry import AT_CUTOFFS, OF_PAIRS

CUTOFFS = (1, 3, 5, 10)
BATCH = 8192
STEPS = 16
CASES = {"at cutoffs": tuple(AT_CUTOFFS), "with pairs": (*AT_CUTOFFS, *OF_PAIRS)}


def lists(count: int, documents: int, tied: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """Batches [step, list, document], the last ones filled up with lists that have no document."""
    rng = np.random.default_rng(seed)
    padded = -(-count // (BATCH * STEPS)) * BATCH * STEPS
    lengths = rng.integers(documents // 2, documents + 1, (padded, 1))
    lengths[count:] = 0
    arrays = dict(
        scores=np.round(rng.normal(size=(padded, documents)), 1 if tied else 6).astype(np.float32),
        labels=rng.choice(
            np.arange(5, dtype=np.float32), (padded, documents), p=(0.5, 0.3, 0.1, 0.05, 0.05)
        ),
        where=np.arange(documents) < lengths,
    )
    return {name: x.reshape(-1, STEPS, BATCH, documents) for name, x in arrays.items()}


def measure(
    names: tuple[str, ...], arguments: argparse.Namespace
) -> tuple[float, float, float, int]:
    """Wall seconds in all, of compilation among them, and CPU seconds; how many values came out."""
    batches = lists(arguments.lists, arguments.documents, arguments.tied)
    jax.block_until_ready(jax.numpy.zeros(()) + 1)  # starts the backend
    wall, cpu = time.perf_counter(), time.process_time()
    metrics = MultiMetric({**ranking_metrics(names, CUTOFFS), "without": ListsWithoutRelevant()})
    run = jax.jit(
        lambda stacked: jax.lax.map(
            lambda batch: metrics.statistics(**outputs_by_rank(batch)), stacked
        )
    )
    compiled = run.lower({name: x[0] for name, x in batches.items()}).compile()
    compiling = time.perf_counter() - wall
    for step in range(len(batches["where"])):
        metrics.add(compiled({name: x[step] for name, x in batches.items()}), stacked=True)
    values = metrics.compute()
    return time.perf_counter() - wall, compiling, time.process_time() - cpu, len(values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lists", type=int, default=100_000)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--tied", action="store_true", help="scores with one decimal")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for case, names in CASES.items():
        runs = []
        for _ in range(arguments.repeats):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                runs.append(pool.apply(measure, (names, arguments)))
        wall, compiling, _, values = min(runs)
        cpu = min(run[2] for run in runs)
        print(
            f"{case:12} {len(names):2} metrics, {values:2} values: {wall:.1f} s, of which compiling "
            f"{compiling:.1f} s; {cpu:.1f} s of CPU"
        )


if __name__ == "__main__":
    main()

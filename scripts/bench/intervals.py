"""Sums behind the intervals of shared parameters: CPU us per session by documents and by directions, side by side.

    python scripts/bench/intervals.py --sessions 16384

Logs of random clicks; models have ten positions. By directions is what models with chains in a list take.
"""

import argparse
import time

import jax
import numpy as np
from flax import nnx

from clickexp import models
from clickexp.data import Sessions
from clickexp.data.feed import Data
from clickexp.posteriors.derivatives import Passes, State, Sums
from clickexp.posteriors.information import prepared

RANKS, PAIRS, REPEATS = 10, 5_000, 3
MODELS = {
    "PBM": models.PositionBasedModel,
    "UBM": models.UserBrowsingModel,
    "trust bias": models.TrustBiasModel,
}


def log(sessions: int) -> Sessions:
    """Random documents and clicks."""
    rng = np.random.default_rng(0)
    shape = (sessions, RANKS)
    ids, clicks = rng.integers(1, PAIRS + 1, shape), rng.random(shape) < 0.3
    return Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=PAIRS)


def measured(passes: Passes, state: State, used: np.ndarray, data: Data) -> tuple[float, Sums]:
    """Processor seconds of sums over a log, and the sums."""
    rows = {path: np.arange(len(t.get_value().values)) for path, t in nnx.to_flat_state(state[1])}
    sums = passes.sums(state, used, rows, data)  # compiles
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        jax.block_until_ready(passes.sums(state, used, rows, data))
        times.append(time.process_time() - start)
    return float(np.median(times)), sums


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=1 << 14)
    count = parser.parse_args().sessions
    print(f"{'':12} {'numbers':>8} {'directions':>11} {'documents':>10} {'largest difference':>19}")
    for name, model_class in MODELS.items():
        model = model_class(
            query_doc_pairs=PAIRS, positions=RANKS, click_rate=0.3, rngs=nnx.Rngs(0)
        )
        model.eval()
        passes, state, data = prepared(model, log(count))
        used = np.flatnonzero(passes.reads(state, data)[0])
        others = Passes(passes.graphdef)
        seconds, sums = zip(
            *(measured(each, state, used, data) for each in (others, passes)), strict=True
        )
        matrices = [np.asarray(each.information) for each in sums]
        apart = np.abs(matrices[0] - matrices[1]).max() / np.abs(matrices[0]).max()
        rates = [f"{1e6 * each / count:.1f}" for each in seconds]
        print(f"{name:12} {len(used):8} {rates[0]:>11} {rates[1]:>10} {apart:19.0e}")


if __name__ == "__main__":
    main()

"""What click metrics add to a pass over test sessions: its time with one, with the three of validation, with all.

    python scripts/bench/click_metrics.py

The passes of a model take turns; the least CPU and wall time of each is the one that other work disturbed least.
Parameters are drawn at random, so that predictions differ as those of a fitted model do.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np
from flax import nnx

from clickexp.evaluation.evaluator import Evaluator
from clickexp.evaluation.groups import HeldOut
from clickexp.metrics import (
    AUC,
    ClickRateError,
    ConditionalPerplexity,
    Examination,
    ExpectedCalibrationError,
    LogLikelihood,
    MicroPerplexity,
    Perplexity,
)
from clickexp.models import DynamicBayesianNetwork, PositionBasedModel, UserBrowsingModel
from clickexp.simulation import simulate

ONE = {"ll": LogLikelihood()}
THREE = {**ONE, "ppl": Perplexity(), "cond_ppl": ConditionalPerplexity()}
ALL = {
    **THREE,
    "micro_ppl": MicroPerplexity(),
    "click_ppl": Perplexity("clicks"),
    "skip_ppl": Perplexity("skips"),
    "auc": AUC(),
    "ece": ExpectedCalibrationError(),
    "click_rate_error": ClickRateError(),
    "examination": Examination(),
}
GROUPS = {"one": ONE, "three": THREE, "all": ALL}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=500_000)
    parser.add_argument("--queries", type=int, default=50_000, help="with 20 pairs each")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    parts: dict[str, Any] = dict(train_sessions=0.05, val_sessions=0.05, test_sessions=0.9)
    data = simulate(
        UserBrowsingModel, sessions=arguments.sessions, queries=arguments.queries, **parts
    )
    print(f"{data.test.count:,} sessions of 10 documents, {data.query_doc_pairs:,} pairs")
    print(
        "| model | metrics | wall ms | CPU ms | CPU ns a document | to one | to three |\n|---|---|---|---|---|---|---|"
    )
    for kind in (PositionBasedModel, UserBrowsingModel, DynamicBayesianNetwork):
        sizes: dict[str, Any] = (
            dict(positions=data.positions) if kind is not DynamicBayesianNetwork else {}
        )
        model = kind(query_doc_pairs=data.query_doc_pairs, rngs=nnx.Rngs(0), **sizes)
        model.eval()
        _, state = nnx.split(model)
        rng = np.random.default_rng(0)
        state = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(x.dtype), state)
        passes = {
            name: Evaluator().compiled(model, HeldOut(data.test), {"click": group})
            for name, group in GROUPS.items()
        }
        times = {name: [] for name in GROUPS}
        for _ in range(arguments.repeats + 1):  # the first compiles
            for name, run in passes.items():
                wall, cpu = time.perf_counter(), time.process_time()
                run((state,), "test")
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        least = {
            name: [1000 * min(column) for column in zip(*taken[1:], strict=True)]
            for name, taken in times.items()
        }
        for name, (wall, cpu) in least.items():
            each = 1e6 * cpu / (10 * data.test.count)
            ratios = " | ".join(f"{cpu / least[base][1]:.2f}" for base in ("one", "three"))
            print(f"| {model.name} | {name} | {wall:.0f} | {cpu:.0f} | {each:.1f} | {ratios} |")


if __name__ == "__main__":
    main()

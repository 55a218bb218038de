"""Training steps of every loss and correction of rankers and of two towers, by the size of the table of documents.

    python scripts/bench/ranking_rows.py                      1e5 and 1e7 rows
    python scripts/bench/ranking_rows.py --rows 100000 1000000 --repeats 3

CPU seconds of a step on batches in memory, Zipf ids, a score per document with a posterior; cases take turns.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from log import Log, drawn
from report import machine, print_table

from clickexp.data import Dataset, superbatches
from clickexp.data.feed import Compiled
from clickexp.models import Ranker, TwoTowersModel
from clickexp.models.ranker import debias, learned, losses, pairs
from clickexp.propensities import Propensities
from clickexp.training import Trainer
from clickexp.training.optimizers import optimizer_of
from clickexp.training.step import TrainStep, split_model

KNOWN = Propensities(tuple(1 / np.arange(1.0, 11)), offsets=tuple(0.1 / np.arange(1.0, 11)))
LOSSES = {
    "pointwise": losses.PointwiseLoss(),
    "softmax": losses.SoftmaxLoss(),
    "pairwise": pairs.PairwiseLoss(),
    "lambda": pairs.LambdaLoss(),
    "listmle": losses.ListMLELoss(),
    "poly1": losses.Poly1Loss(),
    "approx_ndcg": losses.ApproxNDCGLoss(),
    "gumbel_ndcg": losses.GumbelNDCGLoss(),
    "warp": pairs.WarpLoss(),
}
CORRECTIONS = {
    "ips": ("softmax", debias.InversePropensity(KNOWN)),
    "affine": ("softmax", debias.AffineCorrection(KNOWN)),
    "policy_aware": ("softmax", debias.PolicyAware(KNOWN)),
    "doubly_robust": ("softmax", learned.DoublyRobust(KNOWN)),
    "dla": ("softmax", learned.DualLearning()),
    "regression_em": ("pointwise", learned.RegressionEM()),
}
METHODS = {
    **{name: (loss, debias.NoDebias()) for name, loss in LOSSES.items()},
    **{
        f"{loss}, {name}": (LOSSES[loss], correction)
        for name, (loss, correction) in CORRECTIONS.items()
    },
    **{
        f"{loss}, pair_debias": (LOSSES[loss], learned.PairDebias())
        for loss in ("pairwise", "lambda")
    },
    "two_towers": None,
}
SUPERBATCHES = 4


class Case:
    """A method on a log."""

    def __init__(self, method: str, log: Log, batch_size: int):
        train, val = log.sessions("train"), log.sessions("val")
        sizes: dict[str, Any] = {
            "positions": log.positions,
            "query_doc_pairs": log.query_doc_pairs,
            "rngs": nnx.Rngs(0),
        }
        if (chosen := METHODS[method]) is None:
            model = TwoTowersModel(**sizes)
        else:
            model = Ranker(loss=chosen[0], debias=chosen[1], **sizes)
        dataset = Dataset("log", train, val, val, log.query_doc_pairs, log.positions)
        train = model.prepare(dataset).train
        trainer = Trainer(batch_size=batch_size)
        optimizer = optimizer_of(trainer.optimizer)
        graphdef, self.state = split_model(model, optimizer)
        carried = train.with_batch_columns({*train.batch_columns, *train.derived})
        self.batches = [
            *itertools.islice(
                superbatches(carried, batch_size, trainer.steps_per_execution), SUPERBATCHES
            )
        ]
        self.step = Compiled(TrainStep(graphdef, optimizer), donate_argnums=0)

    def seconds(self) -> float:
        """CPU seconds of a step."""
        start = time.process_time()
        for batch in self.batches:
            self.state, *_ = self.step(self.state, batch.arrays, np.int32(batch.steps))
        jax.block_until_ready(self.state)
        return (time.process_time() - start) / sum(batch.steps for batch in self.batches)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**7], help="table sizes")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--sessions", type=int, default=300_000)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--logs", type=Path, default=Path("outputs/bench"), help="folder that keeps the logs"
    )
    args = parser.parse_args()
    if len(args.rows) < 2:
        parser.error("--rows: give at least two sizes, to compare")
    print(machine())
    args.rows.sort()
    logs = {
        rows: drawn(args.logs, "zipf", rows, args.sessions, 10_000, parquet=False)
        for rows in args.rows
    }
    table = []
    for method in args.methods:
        times = {rows: [] for rows in args.rows}
        cases = {rows: Case(method, log, args.batch_size) for rows, log in logs.items()}
        for turn in range(args.repeats + 1):
            for rows, case in cases.items():
                seconds = case.seconds()
                times[rows] += [1e3 * seconds] if turn else []  # the first compiles
        low, *_, high = times.values()
        table.append(
            (
                method,
                statistics.median(low),
                statistics.median(high),
                statistics.median(np.divide(high, low)),
            )
        )
    headers = (
        "method",
        f"ms at {min(args.rows):.0e} rows",
        f"ms at {max(args.rows):.0e} rows",
        "ratio",
    )
    print_table(f"Training steps, zipf ids, batches of {args.batch_size}, CPU time", headers, table)


if __name__ == "__main__":
    main()

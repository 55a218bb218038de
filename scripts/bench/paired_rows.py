"""Epochs of DBN, whose two tables are read at the same ids and lie side by side, beside epochs with tables apart.

    python scripts/bench/paired_rows.py --rows 100000 1000000 10000000

Both do the same sums on the same batches, in turn: steps of an epoch with the refit of priors, and a validation of as
many sessions. A learner that does not know its training sessions leaves tables apart. Milliseconds of the processor per
step; ratios are of side by side to apart, turn by turn. Difference: the largest of any learned number after all turns.
Ids are Zipf's in order of popularity, the same shuffled over the table, or uniform.
"""

import argparse
import itertools
import time
from collections.abc import Callable

import jax
import numpy as np
from flax import nnx
from log import IDS, POSITIONS, zipf
from report import machine, print_table

from clickexp.data import Sessions
from clickexp.evaluation.groups import HeldOut
from clickexp.models import DynamicBayesianNetwork
from clickexp.training import Trainer
from clickexp.training.sparse import packing

BATCHES, CLICK_RATE = 64, 0.15


class Epochs:
    """Epochs of a training on some sessions, and its validations.

    Args:
        data: The sessions.
        batch_size: Sessions per step.
        side_by_side: Whether tables may lie side by side.
    """

    def __init__(self, data: Sessions, batch_size: int, *, side_by_side: bool):
        self.data, self.epoch = data, 0
        model = DynamicBayesianNetwork(
            query_doc_pairs=data.query_doc_pairs, click_rate=CLICK_RATE, rngs=nnx.Rngs(0)
        )
        trainer = Trainer(batch_size=batch_size)
        self.learner = trainer.learner(model, data if side_by_side else None)
        self.learner.start(data)
        self.validation = trainer.evaluator.compiled(model, HeldOut(data), {})
        self.steps, self.validations = [], []

    def turn(self) -> None:
        """One epoch and its validation."""
        self.epoch += 1
        self.steps.append(self._spent(lambda: self.learner.run_pass(self.data, self.epoch)))
        self.validations.append(
            self._spent(lambda: self.validation(self.learner.model_state(), "val"))
        )

    def _spent(self, run: Callable[[], object]) -> float:
        """Milliseconds of the processor per step."""
        start = time.process_time()
        run()
        jax.block_until_ready(self.learner.state)
        return 1e3 * (time.process_time() - start) / BATCHES

    def learned(self) -> list[np.ndarray]:
        """All numbers of tables."""
        return [*map(np.asarray, jax.tree.leaves(packing.learned(self.learner.state.tables)))]


def sessions(ids: str, rows: int, batch_size: int) -> Sessions:
    """Documents drawn one by one, and random clicks."""
    rng = np.random.default_rng(0)
    shape = (batch_size * BATCHES, POSITIONS)
    if ids == "uniform":
        documents = rng.integers(1, rows + 1, shape, dtype=np.int32)
    else:
        documents = zipf(rows, rng, shuffled=ids == "shuffled")(shape)
    clicks = rng.random(shape, np.float32) < CLICK_RATE
    return Sessions.from_arrays(query_doc_ids=documents, clicks=clicks, query_doc_pairs=rows)


def row_of(ids: str, rows: int, batch_size: int, turns: int) -> list[object]:
    """A line of the table."""
    data = sessions(ids, rows, batch_size)
    apart, beside = (Epochs(data, batch_size, side_by_side=each) for each in (False, True))
    for _ in range(turns + 1):  # the first compiles
        apart.turn()
        beside.turn()
    pairs = (apart.steps, beside.steps), (apart.validations, beside.validations)
    ratios = [float(np.median(np.divide(one[1:], two[1:]))) for two, one in pairs]
    medians = [float(np.median(each.steps[1:])) for each in (apart, beside)]
    numbers = zip(apart.learned(), beside.learned(), strict=True)
    difference = max(float(np.abs(one - other)[np.isfinite(one)].max()) for one, other in numbers)
    return [f"{ids} {rows:.0e}", f"{batch_size:,}", *medians, *ratios, f"{difference:.1e}"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description="Epochs of DBN with tables apart and side by side."
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[4_096, 16_384])
    parser.add_argument("--ids", nargs="+", default=["zipf"], choices=IDS)
    parser.add_argument("--turns", type=int, default=5)
    chosen = parser.parse_args()
    print(machine())
    cells = itertools.product(chosen.ids, chosen.rows, chosen.batch_size)
    table = [row_of(*cell, chosen.turns) for cell in cells]
    headers = ["ids, rows", "batch", "apart, ms", "side by side, ms", "ratio", "of validation"]
    print_table("Epochs of DBN, per step", [*headers, "difference"], table)


if __name__ == "__main__":
    main()

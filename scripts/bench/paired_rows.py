"""Steps of DBN, whose two tables are read at the same ids, beside steps that find both in one array.

    python scripts/bench/paired_rows.py --rows 1000000 10000000

Both do the same sums on the same batches, in turn. `OneArray` is made for this measurement: two tables of 16 bytes per
row become rows of 32 bytes, with what a step changes of both in front. It gathers and scatters once in place of twice.
Seconds are of the processor; the ratio is that of one array to two tables, turn by turn. Difference: the largest of any
learned number after all steps. Ids are Zipf's in order of popularity, the same shuffled over the table, or uniform.
"""

import argparse
import dataclasses
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from log import IDS, POSITIONS, zipf
from report import machine, print_table

from clickexp.data import Sessions, superbatches
from clickexp.data.feed import Compiled
from clickexp.data.loader import Superbatch
from clickexp.models import DynamicBayesianNetwork
from clickexp.training import natural_gradient
from clickexp.training.sparse.huge_pages import use_huge_pages
from clickexp.training.sparse.placement import (
    Columns,
    FlatPlaces,
    Places,
    Scatter,
    Values,
    Whole,
    first_columns,
    in_rows,
)
from clickexp.training.step import TrainState, TrainStep, split_model

COLUMNS = ((0, 1, 4, 5), (2, 3, 6, 7))
"""Of each table in the array: two learned numbers, then what steps leave as it is."""
WIDTH = 8
SHARE = 3
"""Column of the share of the prior that falls on a document, in each table."""
STEPS, DISPATCHES, CLICK_RATE = 16, 4, 0.15


class OneArray(Whole):
    """Both tables in the array of the second, which a step reads and changes after the first.

    Args:
        rows: Of each table.
    """

    def __init__(self, rows: int):
        self.rows = rows

    def end(self, values: Values) -> int:
        """Returns the first place behind all rows; the first table has none left."""
        return self.rows

    def places(self, ids: Places, values: Values) -> Places:
        """Returns ids, and finds the array."""
        if values.shape[1] == WIDTH:
            self.values = values
        return ids

    def take(self, values: Values, places: FlatPlaces, number: int) -> Columns:
        """Returns rows of a table, which the first one gathers for both."""
        is_first = values.shape[1] != WIDTH
        if is_first:
            self.packed = first_columns(self.values, places, WIDTH, "clip")
        columns = COLUMNS[0 if is_first else 1]
        return jnp.stack([self.packed[:, column] for column in columns], axis=1)

    def scattered(
        self, scatter: Scatter, values: Values, places: FlatPlaces, columns: Columns
    ) -> Values:
        """Returns the array with changes of both tables, which the second one scatters."""
        if values.shape[1] != WIDTH:
            self.first = columns
            return values
        both = jnp.concatenate([self.first, columns], axis=1)
        return in_rows(scatter, values, places, both)


def in_one_array(state: TrainState) -> TrainState:
    """The state with both tables in the array of the second."""
    (first, one), (second, other) = nnx.to_flat_state(state.tables)
    values = np.empty((len(one.get_value().values), WIDTH), np.float32)
    for columns, table in zip(COLUMNS, (one, other), strict=True):
        values[:, columns] = table.get_value().values
    none = dataclasses.replace(one.get_value(), values=jnp.zeros((1, WIDTH // 2)))
    both = dataclasses.replace(other.get_value(), values=jnp.array(values))
    tables = nnx.from_flat_state([(first, one.copy(none)), (second, other.copy(both))])
    for array in jax.tree.leaves(tables):
        use_huge_pages(array)
    return dataclasses.replace(state, tables=tables)


class Steps:
    """Steps on batches that lie in memory.

    Args:
        data: Sessions.
        batch_size: Sessions per step.
        in_one: Whether both tables are in one array.
    """

    def __init__(self, data: Sessions, batch_size: int, *, in_one: bool):
        self.batches: list[Superbatch] = list(superbatches(data, batch_size, STEPS))
        optimizer = natural_gradient()
        model = DynamicBayesianNetwork(
            query_doc_pairs=data.query_doc_pairs, click_rate=CLICK_RATE, rngs=nnx.Rngs(0)
        )
        graphdef, state = split_model(model, optimizer)
        state = with_shares(state, data)
        placement, self.in_one = Whole(), in_one
        if in_one:
            placement, state = OneArray(data.query_doc_pairs + 1), in_one_array(state)
        self.state = state
        self.step = Compiled(TrainStep(graphdef, optimizer, placement), donate_argnums=0)
        self.wall, self.processor = [], []

    def turn(self) -> None:
        """Takes all steps once."""
        wall, processor = time.perf_counter(), time.process_time()
        for batch in self.batches:
            self.state, *_ = self.step(self.state, batch.arrays, np.int32(batch.steps))
        jax.block_until_ready(self.state)
        per_step = 1e3 / sum(batch.steps for batch in self.batches)
        self.wall.append(per_step * (time.perf_counter() - wall))
        self.processor.append(per_step * (time.process_time() - processor))

    def learned(self) -> np.ndarray:
        """Learned numbers of both tables, [rows, 4]."""
        first, second = (
            np.asarray(table.get_value().values)
            for _, table in nnx.to_flat_state(self.state.tables)
        )
        if self.in_one:
            return second[:, : WIDTH // 2]
        return np.concatenate([first[:, :2], second[:, :2]], axis=1)


def with_shares(state: TrainState, data: Sessions) -> TrainState:
    """The state after documents are counted, as before the first epoch."""
    ids = data.column("query_doc_ids").ravel()
    documents = np.bincount(ids, minlength=data.query_doc_pairs + 1)
    share = 1 / np.maximum(documents, 1).astype(np.float32)

    def counted(path: tuple, table: nnx.Variable) -> nnx.Variable:
        rows = table.get_value()
        values = rows.values.at[:, SHARE].set(share)
        return table.copy(dataclasses.replace(rows, values=values))

    tables = nnx.map_state(counted, state.tables)
    return dataclasses.replace(state, tables=tables, steps_per_pass=jnp.float32(STEPS * DISPATCHES))


def sessions(ids: str, rows: int, batch_size: int) -> Sessions:
    """Documents drawn one by one, and random clicks."""
    rng = np.random.default_rng(0)
    shape = (batch_size * STEPS * DISPATCHES, POSITIONS)
    if ids == "uniform":
        documents = rng.integers(1, rows + 1, shape, dtype=np.int32)
    else:
        documents = zipf(rows, rng, shuffled=ids == "shuffled")(shape)
    clicks = rng.random(shape, np.float32) < CLICK_RATE
    return Sessions.from_arrays(query_doc_ids=documents, clicks=clicks, query_doc_pairs=rows)


def row_of(ids: str, rows: int, batch_size: int, turns: int) -> list[object]:
    """A line of the table."""
    data = sessions(ids, rows, batch_size)
    two, one = (Steps(data, batch_size, in_one=in_one) for in_one in (False, True))
    for _ in range(turns + 1):
        two.turn()
        one.turn()
    pairs = ((two.processor, one.processor), (two.wall, one.wall))  # the first turn compiles
    ratios = [float(np.median(np.divide(packed[1:], apart[1:]))) for apart, packed in pairs]
    medians = [float(np.median(each.processor[1:])) for each in (two, one)]
    difference = float(np.abs(two.learned() - one.learned()).max())
    return [f"{ids} {rows:.0e}", f"{batch_size:,}", *medians, *ratios, f"{difference:.1e}"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Steps of DBN with tables apart and in one array.")
    parser.add_argument("--rows", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[4_096, 16_384])
    parser.add_argument("--ids", nargs="+", default=["zipf"], choices=IDS)
    parser.add_argument("--turns", type=int, default=7)
    chosen = parser.parse_args()
    print(machine())
    cells = itertools.product(chosen.ids, chosen.rows, chosen.batch_size)
    table = [row_of(*cell, chosen.turns) for cell in cells]
    headers = ["ids, rows", "batch", "two tables, ms", "one array, ms", "ratio", "of wall time"]
    print_table("Steps of DBN", [*headers, "difference"], table)


if __name__ == "__main__":
    main()

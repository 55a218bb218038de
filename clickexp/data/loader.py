"""Superbatches of fixed shape, filled by a background thread."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from clickexp.data.derived import Rows
from clickexp.data.sessions import Sessions

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Superbatch:
    """Several batches for one dispatch; sessions of length 0 fill up the last one.

    arrays    column name -> [steps, batch, rank], [steps, batch, 1] where it is per session, [steps, batch] for
              lengths; types as in Sessions, but int32 for int64
    steps     batches that hold a session
    sessions  real sessions
    """

    arrays: dict[str, np.ndarray]
    steps: int
    sessions: int


def superbatches(
    sessions: Sessions,
    batch_size: int,
    steps: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    prefetch: int = 2,
) -> Iterator[Superbatch]:
    """One pass over the sessions, in file order, or in the exact random order of (seed, epoch).

    A thread keeps up to `prefetch` superbatches ready (0: none, no thread). It stops when the iterator is
    closed; its errors are raised by the iterator. Arrays are fresh each time, so JAX may alias them.
    """
    if batch_size < 1 or steps < 1 or prefetch < 0:
        raise ValueError(
            f"need batch_size, steps >= 1, prefetch >= 0: got {batch_size, steps, prefetch}"
        )
    filled = _filled(sessions, batch_size, steps, seed, epoch)
    return ahead(filled, prefetch, "superbatches") if prefetch else filled


def _filled(
    sessions: Sessions, batch_size: int, steps: int, seed: int | None, epoch: int
) -> Iterator[Superbatch]:
    size, shape = batch_size * steps, (steps, batch_size)
    order = None
    if seed is not None:  # 64-bit numbers have the same order and take more than twice as long
        numbers = np.arange(
            sessions.count, dtype=np.int32 if sessions.count < 1 << 31 else np.int64
        )
        order = np.random.default_rng((seed, epoch)).permutation(numbers)
    for start in range(0, sessions.count, size):
        stop = min(start + size, sessions.count)
        flat = _read(
            sessions, slice(start, stop) if order is None else order[start:stop], size, stop - start
        )
        arrays = {name: values.reshape(shape + values.shape[1:]) for name, values in flat.items()}
        yield Superbatch(arrays, -(-(stop - start) // batch_size), stop - start)


def _read(sessions: Sessions, rows: Rows, size: int, count: int) -> dict[str, np.ndarray]:
    """The rows' columns with `size` rows each, those from `count` on padding."""
    columns = sessions.batch_columns
    flat = {
        name: np.empty(column.shape_of(size, sessions.ranks), column.dtype)
        for name, column in columns.items()
    }
    sessions.read_into({name: values[:count] for name, values in flat.items()}, rows)
    for name, values in flat.items():
        values[count:] = columns[name].padding
    # Sessions.with_batch_columns has checked that 64-bit integers fit into 32
    return {name: columns[name].in_batch(values) for name, values in flat.items()}


def ahead(items: Iterator[_Item], depth: int, thread: str) -> Iterator[_Item]:
    """The same items, the next `depth` of them made ahead in a thread of this name."""
    with ThreadPoolExecutor(1, thread) as pool:
        pending = deque(pool.submit(next, items, None) for _ in range(depth))
        while (item := pending.popleft().result()) is not None:
            pending.append(pool.submit(next, items, None))
            yield item

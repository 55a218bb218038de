"""Superbatches of fixed shape, filled by a background thread."""

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from clickexp.data.derived import Rows
from clickexp.data.order import ShuffledOrder
from clickexp.data.records import RECORDS
from clickexp.data.schema import REQUIRED
from clickexp.data.sessions import Sessions
from clickexp.utils.rounding import ceil_div

if TYPE_CHECKING:
    from clickexp.types import Array

_Item = TypeVar("_Item")
NUMBERS = "numbers"
"""Key of the numbers of sessions in the arrays of a superbatch, where tables of these stay on the device."""
RESIDENT = "resident."
"""How the keys of such tables begin, in which columns follow."""
_READY = 2
"""Superbatches that are read ahead."""
_PIECE = 1 << 20
"""Sessions that are read at a time for a table."""


@dataclass(frozen=True)
class Superbatch:
    """Several batches for one dispatch; sessions of length 0 fill up the last one.

    arrays    column name -> [steps, batch, rank], [steps, batch, 1] where it is per session, [steps, batch] for
              lengths; types as in Sessions, but int32 for int64. Of a packed log, `records` [steps, batch, number] are
              in place of ids, clicks and lengths; `clickexp.data.batches.with_mask` takes them apart
    steps     batches that hold a session
    sessions  real sessions
    """

    arrays: "Mapping[str, Array]"
    steps: int
    sessions: int


def superbatches(
    sessions: Sessions,
    batch_size: int,
    steps: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
) -> Iterator[Superbatch]:
    """One pass over the sessions, in file order, or in the exact random order of (seed, epoch).

    A thread keeps a few superbatches ready. It stops when the iterator is closed; its errors are raised by the
    iterator. Arrays are fresh each time, so JAX may alias them.
    """
    if batch_size < 1 or steps < 1:
        raise ValueError(f"need batch_size, steps >= 1: got {batch_size, steps}")
    readers = superbatch_readers(sessions, batch_size, steps, seed=seed, epoch=epoch)
    return ahead(readers, _READY, "superbatches")


def superbatch_readers(
    sessions: Sessions,
    batch_size: int,
    steps: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Callable[[], Superbatch]]:
    """Yields a reader of each of the `superbatches`, which any thread may call.

    A share (k, n) has the k-th of n equal parts of each batch, and reads no other sessions.
    """
    order = None if seed is None else ShuffledOrder(sessions.count, seed, epoch)
    size, (part, parts) = batch_size * steps, share
    places = np.arange(size).reshape(steps, parts, -1)[:, part]

    def read(start: int) -> Superbatch:
        stop = min(start + size, sessions.count)
        rows = start + places[places < stop - start]
        if order is not None:
            rows = order.rows(rows)
        elif parts == 1:
            rows = slice(start, stop)
        flat = _read(sessions, rows, places.size)
        arrays = {
            name: values.reshape(places.shape + values.shape[1:]) for name, values in flat.items()
        }
        return Superbatch(arrays, ceil_div(stop - start, batch_size), stop - start)

    return (functools.partial(read, start) for start in range(0, sessions.count, size))


def resident_tables(sessions: Sessions) -> Iterator[dict[str, np.ndarray]]:
    """Yields what batches carry of all sessions, some at a time, and of one more that is padding."""
    for start in range(0, sessions.count + 1, _PIECE):
        stop = min(start + _PIECE, sessions.count)
        size = min(_PIECE, sessions.count + 1 - start)
        read = _read(sessions, slice(start, stop), size)
        yield {f"{RESIDENT}{name}": values for name, values in read.items()}


def resident_bytes(sessions: Sessions) -> int:
    """Returns the bytes of `resident_tables`."""
    row_bytes = sum(values.nbytes for values in padding_session(sessions).values())
    return (sessions.count + 1) * row_bytes


def padding_session(sessions: Sessions) -> dict[str, np.ndarray]:
    """Returns what batches carry of the session that fills them up, [1, ...]."""
    return _read(sessions, slice(0, 0), 1)


def _read(sessions: Sessions, rows: Rows, size: int) -> dict[str, np.ndarray]:
    """The rows' columns with `size` rows each, the last of them padding."""
    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    columns = sessions.batch_columns
    records = {}
    if sessions.records is not None:
        columns = {name: column for name, column in columns.items() if name not in REQUIRED}
        records[RECORDS] = np.empty((size, sessions.records.shape[1]), np.int32)
    flat = {
        name: np.empty(column.shape_of(size, sessions.ranks), column.dtype)
        for name, column in columns.items()
    }
    read = {**records, **flat}
    if count:  # derived columns may read the whole log
        sessions.read_into({name: values[:count] for name, values in read.items()}, rows)
    for name, values in read.items():
        values[count:] = columns[name].padding if name in columns else 0
    # Sessions.with_batch_columns has checked that 64-bit integers fit into 32
    return records | {name: columns[name].in_batch(values) for name, values in flat.items()}


def ahead(
    makers: Iterable[Callable[[], _Item | None]], depth: int, name: str, threads: int = 1
) -> Iterator[_Item]:
    """Items that functions make, up to the first None, the next `depth` made ahead in threads of this name."""
    rest = iter(makers)
    with ThreadPoolExecutor(threads, name) as pool:
        pending = deque(map(pool.submit, itertools.islice(rest, depth)))
        while pending and (item := pending.popleft().result()) is not None:
            pending.extend(map(pool.submit, itertools.islice(rest, 1)))
            yield item


def read_ahead(items: Iterable[_Item], name: str) -> Iterator[_Item]:
    """Items of which none is None, the next one made ahead in a thread of this name."""
    following = functools.partial(next, iter(items), None)
    return ahead(itertools.repeat(following), 1, name)

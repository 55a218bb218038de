"""Feeds compiled steps: superbatches from any source of batches, and functions compiled ahead of time."""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from clickexp.data.devices import FEATURE_TABLE, SINGLE, SingleDevice
from clickexp.data.loader import (
    NUMBERS,
    RESIDENT,
    Superbatch,
    ahead,
    padding_session,
    resident_tables,
    superbatch_readers,
)
from clickexp.data.numbered import numbered
from clickexp.data.sessions import Sessions
from clickexp.types import Array
from clickexp.utils.rounding import ceil_div
from clickexp.utils.threads import end_where_needless

Data = Sessions | Iterable[Mapping[str, Array]]
"""Packed sessions, or batches: anything that yields them each time it is iterated, such as a list."""


_FEEDING_THREADS = 4
"""That read for an accelerator, which trains faster than one reads; the cores of a CPU have other work."""


def feed(
    data: Data,
    batch_size: int,
    steps: int,
    seed: int | None = None,
    epoch: int = 0,
    devices: SingleDevice = SINGLE,
    resident: Mapping[str, jax.Array] | None = None,
) -> Iterator[Superbatch]:
    """Superbatches of the data; batches that come ready-made are dispatched one by one, in their own order.

    All dispatches of packed sessions take equally many steps, at most `steps`, so that hardly any is empty. The threads
    that read sessions also copy them, over several devices or to an accelerator. Of sessions that are
    `resident`, as `resident_on` has copied them, the devices compute the numbers. Processes that share devices each
    read the sessions of their own devices.
    """
    if not isinstance(data, Sessions):
        return (_single(batch, devices) for batch in data)
    batch_size, even = _even_sizes(data, batch_size, steps, devices)
    if resident is None:
        packed = _read(data, batch_size, even, seed, epoch, devices)
    else:
        packed = numbered(data.count, batch_size, even, seed, epoch, devices)
    tables = dict(resident or {})
    if data.features is not None:
        tables[FEATURE_TABLE] = devices.everywhere(jnp.asarray(data.features.on_device))
    return _with_tables(packed, tables) if tables else packed


def _even_sizes(
    sessions: Sessions, batch_size: int, steps: int, devices: SingleDevice
) -> tuple[int, int]:
    """Sessions per batch and batches per superbatch of `feed`."""
    fitting = 1 << max(sessions.count - 1, 0).bit_length()  # a small log is not padded
    batch_size = min(batch_size, devices.even_size(fitting))
    batches = ceil_div(sessions.count, batch_size)
    return batch_size, ceil_div(batches, ceil_div(batches, steps))


def feed_like(sessions: Sessions, batch_size: int, steps: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes and types of the arrays that `feed` has of packed sessions on one device; reads none."""
    batch_size, steps = _even_sizes(sessions, batch_size, steps, SINGLE)
    arrays = {
        name: jax.ShapeDtypeStruct((steps, batch_size, *values.shape[1:]), values.dtype)
        for name, values in padding_session(sessions).items()
    }
    if sessions.features is not None:
        table = sessions.features.values
        arrays[FEATURE_TABLE] = jax.ShapeDtypeStruct(table.shape, table.dtype)
    return arrays


def _read(
    sessions: Sessions,
    batch_size: int,
    steps: int,
    seed: int | None,
    epoch: int,
    devices: SingleDevice,
) -> Iterator[Superbatch]:
    """Superbatches of what is read of the sessions, on the devices."""
    share = devices.share(batch_size)
    readers = superbatch_readers(sessions, batch_size, steps, seed=seed, epoch=epoch, share=share)

    def placed(read: Callable[[], Superbatch]) -> Superbatch:
        return devices.lay(read(), batch_size)

    makers = (functools.partial(placed, read) for read in readers)
    threads = 1 if jax.default_backend() == "cpu" else _FEEDING_THREADS
    return ahead(makers, threads + 1, "feed", threads)


def resident_on(sessions: Sessions, devices: SingleDevice = SINGLE) -> dict[str, jax.Array]:
    """Returns tables of all that batches carry of some sessions, on each device."""
    pieces = [
        {name: devices.everywhere(jnp.asarray(values)) for name, values in piece.items()}
        for piece in resident_tables(sessions)
    ]
    return {name: jnp.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def looked_up(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    """The superbatch with the columns of its sessions, where these are resident."""
    if NUMBERS not in arrays:
        return arrays
    columns = {}
    for name, values in arrays.items():
        if name.startswith(RESIDENT):
            columns[name.removeprefix(RESIDENT)] = values[arrays[NUMBERS]]
        elif name != NUMBERS:
            columns[name] = values
    return columns


def _with_tables(
    batches: Iterator[Superbatch], tables: Mapping[str, jax.Array]
) -> Iterator[Superbatch]:
    for batch in batches:
        yield dataclasses.replace(batch, arrays={**batch.arrays, **tables})


def session_count(data: Data) -> int:
    """Sessions in the data, 0 where only iterating would show it."""
    return data.count if isinstance(data, Sessions) else 0


def fingerprint(data: Data) -> str | None:
    """The fingerprint of packed sessions; None of batches."""
    return data.fingerprint if isinstance(data, Sessions) else None


def _single(batch: Mapping[str, Array], devices: SingleDevice) -> Superbatch:
    """A ready-made batch as a superbatch of one step."""
    sessions = len(batch["mask" if "mask" in batch else "lengths"])
    arrays = {name: np.asarray(values)[None] for name, values in batch.items()}
    return devices.lay(Superbatch(arrays, 1, sessions), sessions)


class Compiled:
    """A function that is compiled once per shape of its arguments, ahead of the first call with it.

    Attributes:
        listener: Called when a call begins to wait for a compilation, with True, and when it has ended, with False.
        seconds: Time that calls waited for compilation, which threads may have begun before.

    Args:
        function: The function.
        options: Options of `jax.jit`.
    """

    listener: ClassVar[Callable[[bool], None] | None] = None

    def __init__(self, function: Callable[..., Any], **options: Any):
        self.jitted = jax.jit(function, **options)
        self.programs: dict[object, Callable[..., Any]] = {}
        self.seconds = 0.0
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        """The function's result; compiles first if the arguments have new shapes."""
        program = self.programs.get(_shapes(args))
        if program is None:
            program = self._awaited(args)
        return program(*args)

    def program(self, *args: Any) -> Callable[..., Any]:
        """The program for arguments of these shapes; where a thread is compiling it already, waits."""
        shapes = _shapes(args)
        with self._lock:
            if shapes not in self.programs:
                end_where_needless()
                self.programs[shapes] = self.jitted.lower(*args).compile()
            return self.programs[shapes]

    def _awaited(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        """The program, which its caller waits for."""
        listener = Compiled.listener or (lambda active: None)
        start = time.perf_counter()
        listener(True)
        try:
            return self.program(*args)
        finally:
            listener(False)
            self.seconds += time.perf_counter() - start


def _shapes(args: tuple[Any, ...]) -> tuple[object, ...]:
    """What programs are made for: the structure of arguments, and the kind of each array."""
    leaves, structure = jax.tree.flatten(args)
    return structure, *map(_kind, leaves)


def _kind(leaf: Array) -> tuple[object, ...]:
    """Shape and type, and where an array lies that is not on one device alone."""
    placed = getattr(leaf, "sharding", None)
    return leaf.shape, leaf.dtype, placed if isinstance(placed, NamedSharding) else None

"""Memory that a process gives back."""

import ctypes
import gc
import os
import sys
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LEAST_ARRAY = 1 << 20
"""Bytes of an array that is returned when it is freed."""
_MOST_LEFT = 32 << 20
"""Bytes that the heap keeps at its end."""


def share_pools() -> None:
    """Makes threads share the pools of memory of the C library of Linux, of which there are then one per processor.

    It otherwise has eight per processor, each of which keeps what threads have freed: 120 MiB at the peak of a run of
    10 million sessions on two processors. Pools that are there stay.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, max(os.cpu_count() or 1, 2))


def return_freed_arrays() -> None:
    """Makes the C library of Linux return each array from a MiB on to the system when it is freed.

    It otherwise raises that size, up to 32 MiB, with the arrays that are freed, and keeps the memory of smaller ones,
    which was 265 MiB at the peak of an export of 5 million documents. Arrow, which kept another 60, takes its memory
    from there, too, where it is not imported yet.

    Smaller ones are freed within the heap, which stays up to 32 MiB larger than it need be: to shrink and to grow it
    again for each was 7 of 67 CPU s there.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LEAST_ARRAY)
        mallopt(_M_TRIM_THRESHOLD, _MOST_LEFT)
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def return_freed_memory() -> None:
    """Makes the C library of Linux return to the system what is free now.

    It keeps 270 MiB of what a training needs to be compiled. To return them takes 0.04 s. With `return_freed_arrays`, a
    run of 2 million sessions took 29 CPU s instead of 21, since the arrays of each step are new memory.
    """
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def break_cycles() -> None:
    """Frees what only cycles of references hold, at once.

    Flax flattens a state by a function that calls itself, `flatten_to_sequence`. That is a cycle, which the tables of
    the state hang on: an export of 5 million documents had two tables too many, 106 MiB.
    """
    gc.collect()


def _of_glibc(name: str) -> Any:
    """Returns a function of the C library of Linux; None elsewhere, and where it has none, as musl."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None

"""Rows of tables that devices have, where the last device of JAX takes the part of the host."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
from places import ROOT

HOST = jax.devices()[-1]
jax.local_devices = lambda backend=None: [HOST]
_CALLS = 8
"""Of each function, at whose end arrays are looked at."""
_PADDED = 64
"""Rows behind those of a table, at most."""


def most_rows(run: Callable[[], Any], rows: int) -> int:
    """Returns how many rows of a table a device has, most, at the end of any function.

    Args:
        run: What is done.
        rows: Of each table.
    """
    calls, most, package = Counter(), 0, str(ROOT / "clickexp")

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal most
        code = frame.f_code
        if event != "return" or not code.co_filename.startswith(package) or calls[code] == _CALLS:
            return
        calls[code] += 1
        sys.setprofile(None)
        for array in jax.live_arrays():
            is_table = array.ndim == 2 and rows <= len(array) <= rows + _PADDED
            if is_table and array.devices() != {HOST}:
                most = max(most, array.sharding.shard_shape(array.shape)[0])
        sys.setprofile(look)

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return most

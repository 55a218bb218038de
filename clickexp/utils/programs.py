"""Compiled programs that a process keeps."""

from pathlib import Path

import jax

_MAPPINGS, _MOST_MAPPINGS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def forget_programs() -> None:
    """Makes JAX forget compiled programs where the process has half of the memory mappings that Linux grants it.

    Programs keep some as long as JAX does; a run of new shapes adds about 100 to those of earlier runs. Where none is
    left, XLA ends the process with a segmentation fault: after some 600 runs.
    """
    if not (_MAPPINGS.exists() and _MOST_MAPPINGS.exists()):  # not Linux
        return
    mappings = _MAPPINGS.read_bytes().count(b"\n")
    if mappings > int(_MOST_MAPPINGS.read_text()) / 2:
        jax.clear_caches()

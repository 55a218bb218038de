"""The folder of compiled programs that all test runs of a user share, so that a second run compiles next to nothing.

JAX names an entry by the program, the versions and the flags, but not by the processor; the folder's name has that.
Several runs may share the folder: an entry is written once and never changes.
"""

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

MOST_BYTES = 2**30
"""More is removed after a run, programs that no run has read for longest first."""


def shared_folder() -> Path:
    """Where programs of this processor and these versions are kept."""
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clickexp-tests"
    cpu = hashlib.sha256(_processor().encode()).hexdigest()[:8]
    return parent / f"jax-{version('jax')}-jaxlib-{version('jaxlib')}-{cpu}"


def _processor() -> str:
    """What the processor can do, which compiled programs rely on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line for line in lines if line.startswith(("flags", "Features"))), platform.machine()
    )


def prune(parent: Path, most_bytes: int = MOST_BYTES) -> None:
    """Removes entries below a folder until they have at most so many bytes; other runs may do the same."""
    entries = []
    for file in parent.rglob("*-cache"):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        entries.append((max(status.st_atime, status.st_mtime), status.st_size, file))
    excess = sum(size for _, size, _ in entries) - most_bytes
    for _, size, file in sorted(entries):
        if excess <= 0:
            return
        file.unlink(missing_ok=True)
        excess -= size

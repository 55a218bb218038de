"""Files that are whole or not there, and locks on places that one process has to itself."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

PART = ".part"
"""Suffix of a file that is being written."""
LOCK = ".lock"


@contextlib.contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yields where to write a file, which takes its name and place once it is complete and on the disk.

    After any other end of the block the file is what it was before.

    Raises:
        OSError: It cannot be written. The error names the file.
    """
    part = file.with_name(file.name + PART)
    try:
        part.unlink(missing_ok=True)  # a link there would lead elsewhere
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(file)
    except OSError as error:
        error.filename = error.filename or str(file)  # a failed write does not name its file
        raise
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def locked(file: Path) -> TextIO | None:
    """Opens a file that only one process can hold open in this way; None if another process holds it.

    The lock ends when the file is closed or the process ends, however it ends.

    Raises:
        OSError: The file cannot be made, or its file system has no locks.
    """
    lock = file.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        lock.close()
        raise
    return lock

"""Hashes of what files hold, so that one log is never taken for another."""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

_WHOLE = 1 << 20
"""Bytes up to which a file is read whole."""
_SAMPLE = 1 << 16
"""Bytes that are read at the head, the middle and the tail of a larger one."""


def content_of(file: Path) -> str:
    """Returns a hash that two files share only where they hold the same.

    Of a file of more than a MiB, it is made of the size, the time of its last change, and the bytes at head, middle and
    tail; the copy of such a file has another hash, unless it keeps the time. Names and folders do not matter.

    Raises:
        OSError: The file cannot be read.
    """
    status = file.stat()
    return _content(file, status.st_size, status.st_mtime_ns, (status.st_ino, status.st_ctime_ns))


@functools.lru_cache(1 << 16)  # jobs of a sweep read the same files
def _content(file: Path, size: int, time: int, _changes: tuple[int, int]) -> str:
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        if size <= _WHOLE:
            digest.update(opened.read())
        else:
            digest.update(str(time).encode())
            for start in (0, (size - _SAMPLE) // 2, size - _SAMPLE):
                opened.seek(start)
                digest.update(opened.read(_SAMPLE))
    return digest.hexdigest()[:20]


def content_of_all(files: Iterable[Path]) -> str:
    """Returns a hash of several files, with their names."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {content_of(file)}\n".encode())
    return digest.hexdigest()[:20]

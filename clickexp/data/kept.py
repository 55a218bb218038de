"""Counts of the sessions of a prepared log, which whoever needs them first keeps in the folder of the sessions."""

import contextlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.data.arrays import UNREADABLE, load_arrays
from clickexp.data.description import is_log
from clickexp.data.folders import NewFolder
from clickexp.data.sessions import Sessions
from clickexp.errors import DataError

_KEY = "of"
_VERSION = 2
"""Of the counts: a change of what they are is a new number."""

Counts = dict[str, np.ndarray]


def kept(sessions: Sessions, name: str, rows: int, count: Callable[[], Counts]) -> Counts:
    """Returns counts of sessions: those in the folder of the sessions or, where it has none of these, counted.

    They are kept of a part of a prepared log, or of a range of it: the last one that was counted. A file that cannot be
    read, or is of other sessions, is replaced; one that cannot be written is not needed.

    Args:
        sessions: The sessions.
        name: Of the counts.
        rows: How many there are of each.
        count: Counts them.
    """
    folder = sessions.folder
    if folder is None or sessions.checksums is None or sessions.index is not None:
        return count()
    if not is_log(folder.parent):
        return count()
    file, key = folder / f"{name}.npz", f"{_VERSION} {rows} {sessions.first} {sessions.fingerprint}"
    counts = _read(file, key)
    if counts is None:
        counts = count()
        _write(file, key, counts)
    return counts


def _read(file: Path, key: str) -> Counts | None:
    """Returns the counts of a file; None where they are not those of the key."""
    if not file.is_file():  # a pipe would be waited for
        return None
    errors = *UNREADABLE, zipfile.BadZipFile
    with contextlib.suppress(*errors), file.open("rb") as stream, load_arrays(stream) as stored:
        if stored[_KEY].item() == key:
            return {name: stored[name] for name in stored if name != _KEY}
    return None


def _write(file: Path, key: str, counts: Counts) -> None:
    """Writes counts in the place of others; a reader has one or the other, whoever writes at the same time."""
    with contextlib.suppress(DataError, OSError):
        new = NewFolder(file)
        try:
            part = new.part / file.name
            arrays: dict[str, Any] = {_KEY: np.array(key), **counts}
            np.savez(part, **arrays)
            os.replace(part, file)
        finally:
            new.discard()

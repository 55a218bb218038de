"""New folders: whole or absent, safe on disk before they get their name, without remains of killed processes."""

import contextlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from clickexp.errors import DataError

_PART = re.compile(r"\..+\.[0-9a-f]{8}\.clickexp")
_DAY = 24 * 3600
"""Seconds after which a folder that nobody writes to is that of a killed process."""


class NewFolder:
    """A hidden folder beside another, to write in until everything is there.

        new = NewFolder(folder)
        (new.part / "data").write_bytes(data)
        new.complete(is_whole)
        new.discard()

    What killed processes left beside it is removed first, once it is a day old.

    Args:
        folder: The folder, which gets its name last.

    Attributes:
        part: The hidden folder.

    Raises:
        DataError: It cannot be written.
    """

    def __init__(self, folder: Path):
        self.folder, self._flushed = folder, False
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            remove_stale(folder.parent)
            self.part = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.clickexp")
            self.part.mkdir()
        except OSError as error:
            where = f"{folder.parent}: cannot be written ({error.strerror})"
            raise DataError(
                f"{where}. Choose another folder, or change its permissions."
            ) from error

    def flush(self) -> None:
        """Waits until all files are on disk, so that after a power failure all of them are there or no folder."""
        _flush(self.part)
        self._flushed = True

    def complete(self, is_whole: Callable[[Path], bool]) -> None:
        """Gives the folder its name.

        Args:
            is_whole: Tells a whole folder, which stays where another process has completed it meanwhile.
        """
        try:
            os.replace(self.part, self.folder)
        except OSError:
            if not is_whole(self.folder):
                raise
        else:
            if self._flushed:
                _flush_entry(self.folder.parent)

    def discard(self) -> None:
        """Removes what was written, unless the folder has its name by now."""
        shutil.rmtree(self.part, ignore_errors=True)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """Yields a folder for a moment that nobody else can read; of a killed process a run removes it a day later."""
    new = NewFolder(Path(tempfile.gettempdir()) / "temporary")
    try:
        new.part.chmod(0o700)
        yield new.part
    finally:
        new.discard()


def remove_stale(parent: Path) -> None:
    """Removes the hidden folders that killed processes left half-written a day ago."""
    with os.scandir(parent) as entries:
        parts = [
            Path(e.path)
            for e in entries
            if _PART.fullmatch(e.name) and e.is_dir(follow_symlinks=False)
        ]
    for part in parts:
        with contextlib.suppress(FileNotFoundError):  # its process has just removed or named it
            newest = max(path.lstat().st_mtime for path in (part, *part.rglob("*")))
            if newest < time.time() - _DAY:
                shutil.rmtree(part, ignore_errors=True)


def remove(folder: Path) -> None:
    """Removes a folder at once, although deleting its files takes a while; another process may have done so."""
    new = NewFolder(folder)
    try:
        os.replace(folder, new.part / folder.name)
    except FileNotFoundError:
        pass
    finally:
        new.discard()


def _flush(folder: Path) -> None:
    """Waits until everything below the folder is on disk."""
    for parent, _, files in os.walk(folder):
        for name in (*files, "."):
            _flush_entry(Path(parent, name))


def _flush_entry(path: Path) -> None:
    entry = os.open(path, os.O_RDONLY)
    try:
        os.fsync(entry)
    except OSError:
        if not path.is_dir():  # which not every file system can flush
            raise
    finally:
        os.close(entry)

"""Files that are whole or absent, and locks that one process holds at a time."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from clickexp.errors import DataError, UserError, with_class
from clickexp.utils.sources import is_remote

PART = ".part"
"""Suffix of a file that is being written."""
LOCK = ".lock"
"""Name of the file in a folder that the process writing there has locked."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Errors of file systems without locks."""


@contextlib.contextmanager
def undamaged(
    file: str | Path, errors: tuple[type[BaseException], ...] = (Exception,)
) -> Iterator[None]:
    """Reads a file of a run in its block: a UserError where that fails; FileNotFoundError where there is none.

    Args:
        file: The file.
        errors: What says that it is damaged.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except errors as error:
        raise UserError(
            f"{file} is damaged ({type(error).__name__}). Run the experiment again."
        ) from error


@contextlib.contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yields the path to write a file to, which gets its name once it is complete and on the disk.

    After any other end of the block the file is what it was before.

    Args:
        file: The file, which may exist.

    Raises:
        OSError: It cannot be written. The error names the file.
        UserError: There is a device or a pipe, which would be replaced.
    """
    if not file.name:  # such as "", which is this folder
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise UserError(f"{file}: this is no file, but a device or a pipe. Choose another place.")
    part = file.with_name(file.name + PART)
    try:
        part.unlink(missing_ok=True)  # a link there would lead elsewhere
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(file)
    except OSError as error:
        if error.filename in (None, str(part)):  # a failed write does not name its file
            error.filename = str(file)
        raise
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def check_source(source: Path, remedy: str = "Check the path.") -> None:
    """Checks that a path to read is that of a file or of a folder; a pipe would be waited for without end.

    Args:
        source: The path.
        remedy: What to do where there is nothing.

    Raises:
        DataError: It is neither, or cannot be reached.
    """
    if is_remote(source):
        _check_remote(source, remedy)
    elif not source.exists():
        raise DataError(f"{source}: no such file or folder. {remedy}")
    elif not (source.is_file() or source.is_dir()):
        raise DataError(
            f"{source}: neither a file nor a folder. Write the data to a file, and give its path."
        )


def _check_remote(source: Any, remedy: str) -> None:
    try:
        source.fs.info(source.path)  # `exists` is false where a store refuses access
    except FileNotFoundError as error:
        raise DataError(f"{source}: no such file or folder. {remedy}") from error
    except Exception as error:  # each protocol has other errors
        what = f"cannot be reached ({with_class(error)})"
        raise DataError(
            f"{source}: {what}. Check the path, and what gives access to it."
        ) from error


def is_inside(path: Path, folder: Path) -> bool:
    """Returns whether no symbolic link leads from a path out of a folder; either may not exist yet."""
    return path.resolve().is_relative_to(folder.resolve())


def check_inside(path: Path, folder: Path) -> None:
    """Checks `is_inside`.

    Raises:
        UserError: A link leads out of the folder.
    """
    if not is_inside(path, folder):
        raise UserError(
            f"{path} leads out of {folder}. Remove the link, or choose another folder (--output)."
        )


def locked(file: Path) -> TextIO | None:
    """Opens a file that only one process can hold open in this way.

    The lock ends when the file is closed or the process ends, however it ends.

    Args:
        file: The file, which is created if necessary. A symbolic link is not followed.

    Returns:
        The open file; None if another process holds it.

    Raises:
        OSError: The file cannot be opened, or its file system has no locks.
    """
    lock = os.fdopen(
        os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+", errors="replace"
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return lock


def claimed(file: Path) -> TextIO | None:
    """Does the same as `locked`, except that on a file system without locks everyone gets the file."""
    try:
        return locked(file)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return file.open("a+")

"""Errors that a user can mend, and how an error is said in one line, which the command shows in place of a trace."""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence

OF_SYSTEM = (OSError, MemoryError)
"""Errors of the operating system."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""Errors of a place that cannot be written."""


class UserError(Exception):
    """Something in the input or the configuration; the message says what is wrong and what to do."""


class ConfigError(UserError, ValueError):
    """A key or value of the configuration that does not fit."""


class DataError(UserError, ValueError):
    """Input that cannot be used. The message says where, what is wrong, and the remedy.

    Attributes:
        options: Options of the reader that are the remedy, by key; `format` is another reader, and None leaves one out.
    """

    def __init__(self, message: str, options: Mapping[str, str | None] | None = None):
        super().__init__(message)
        self.options = dict(options or {})


class FaultyLogError(DataError):
    """A log with faults of some kinds, each in a line of the message; the last line says what options can do.

    Attributes:
        kinds: Their names, of which those of a column end with its name.
    """

    def __init__(
        self,
        lines: Sequence[str],
        end: str,
        options: Mapping[str, str | None],
        kinds: Iterable[str],
    ):
        several = [f"the log has {len(lines)} kinds of faults:", *(f"  {line}" for line in lines)]
        message = f"{lines[0]} {end}" if len(lines) == 1 else "\n".join([*several, end])
        super().__init__(message, options)
        self.kinds = tuple(kinds)

    def concerns(self, column: str) -> bool:
        """Returns whether a packed column of this name has faults."""
        return any(kind.endswith(f"_{column}") for kind in self.kinds)


class DivergedError(UserError, FloatingPointError):
    """Training whose loss is no longer a number."""


def install(extra: str) -> str:
    """The command that installs an extra, in any folder: pip takes the clickexp that is installed."""
    return f"pip install 'clickexp[{extra}]'"


def no_room(error: OSError) -> bool:
    """Returns whether the disk, or the user's share of it, is full."""
    return error.errno in _FULL


def lines_of(error: Exception) -> list[str]:
    """Describes an error in one line, or in those of the faults of a log."""
    return str(error).split("\n") if isinstance(error, FaultyLogError) else [reason(error)]


def reason(error: Exception, *, context: bool = True) -> str:
    """Describes an error in one line.

    Args:
        error: Of the system, or of reading a file.
        context: Name the file before, and the remedy after it where one is known.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):
        return f"the key {error} is missing"
    if isinstance(error, MemoryError):
        return f"{str(error) or 'Out of memory'}. Use less data or smaller batches, or allow more memory."
    if not isinstance(error, OSError) or error.strerror is None:
        return text
    if not context:
        return error.strerror
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror}{_remedy(error)}"


def with_class(error: BaseException) -> str:
    """Describes an error of any kind in one line, which begins with its class."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _remedy(error: OSError) -> str:
    if no_room(error):
        return ". Free some space, or choose another place."
    unreadable = isinstance(error.filename, str) and os.path.exists(error.filename)
    unreadable = unreadable and not os.access(error.filename, os.R_OK)  # so it was read
    return ". Choose another place." if error.errno in _CLOSED and not unreadable else ""

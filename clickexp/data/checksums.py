"""Checksums of stored files: verified once per machine and whenever a file has changed."""

import contextlib
import hashlib
import json
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.schema import DataError
from clickexp.errors import reason
from clickexp.utils.documents import parse_json

_STAMPS = ".verified"
_SEAL = "seal"
_CHUNK = 1 << 22
_LONG = 1 << 26
"""Bytes from which on a verification reports its progress."""
REMEDY = "Delete the folder and prepare the data again."

Progress = Callable[[int, int], None]
"""Called with what is done so far and the total, in sessions, bytes or another unit of the reader."""


class DamagedError(DataError):
    """Stored files that are not as they were written.

    Args:
        what: Names them.
        remedy: Ends the message.
    """

    def __init__(self, what: str, remedy: str | None = None):
        self.what = what
        super().__init__(what if remedy is None else f"{what}. {remedy}")


class Limits(NamedTuple):
    """Numbers of a type within bounds, which nan is not.

    Attributes:
        dtype: Type of the numbers.
        least: The smallest that may be.
        largest: The largest.
    """

    dtype: DTypeLike
    least: float
    largest: float


class Stored(NamedTuple):
    """A file with its checksum.

    Attributes:
        file: The file.
        size: Bytes, in a .npy file those after the header.
        crc32: Their CRC-32; None where there is none.
        limits: What the numbers that they hold may be, where that is known.
    """

    file: Path
    size: int = 0
    crc32: int | None = None
    limits: Limits | None = None


def verify_once(
    folder: Path,
    files: Sequence[Stored],
    cache: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Verifies files, unless a stamp shows that this machine has found these very files sound.

    A stamp holds a hash of names, sizes, times of change and inodes; copies have others.

    Args:
        folder: Holds the files, and the stamp if it can be written.
        files: What to verify.
        cache: Where the stamp lies if the folder cannot be written. Without it such a folder is verified each time.
        progress: Called with the bytes read so far and in all.

    Raises:
        DamagedError: Some files differ from their checksums.
    """
    state, stamps = _state(folder, files), _stamps(folder, cache)
    if state not in map(_read, stamps):
        verify(folder, files, cache, progress)


def verify(
    folder: Path,
    files: Sequence[Stored],
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Sequence[Stored]:
    """Reads all files and returns them.

    Args:
        folder: As in `verify_once`, like the others.
        files: What to verify.
        cache: Where the stamp lies if the folder cannot be written.
        progress: Called with the bytes read so far and in all.

    Raises:
        DamagedError: Some files differ from their checksums. It names all of them, and their stamps are removed.
    """
    state, stamps = _state(folder, files), _stamps(folder, cache)
    total, done, wrong = sum(file.size for file in files), 0, []
    if progress is None or total < _LONG:
        progress = _silent
    for stored in files:
        if (
            problem := _problem(stored, lambda read, done=done: progress(done + read, total))
        ) is not None:
            wrong.append(f"{stored.file.relative_to(folder)} ({problem})")
        done += stored.size
    if wrong:
        for location in stamps:
            _forget(location)
        raise DamagedError(f"{folder}: damaged: {', '.join(wrong)}", REMEDY)
    any(_write(location, state) for location in stamps)
    return files


def _silent(done: int, total: int) -> None: ...


def stamp(folder: Path, files: Sequence[Stored]) -> None:
    """Records that this machine has just written these files."""
    _write(_stamps(folder, None)[0], _state(folder, files))


def checksum(file: Path) -> int:
    """Returns the CRC-32 of a file."""
    crc = 0
    with open(file, "rb") as blocks:
        while block := blocks.read(_CHUNK):
            crc = zlib.crc32(block, crc)
    return crc


def sealed(meta: Mapping[str, Any]) -> str:
    """Returns JSON text with a checksum of its content."""
    return json.dumps({**meta, _SEAL: _seal(meta)}, indent=1)


def unsealed(text: str) -> dict[str, Any]:
    """Returns the content of such a text, or of one without a checksum.

    Raises:
        ValueError: The checksum differs, or it is no such text.
    """
    meta = parse_json(text)
    if not isinstance(meta, dict):
        raise ValueError("it holds no keys")
    if _SEAL in meta and meta.pop(_SEAL) != _seal(meta):
        raise ValueError("the checksum differs")
    return meta


def _seal(meta: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(json.loads(json.dumps(meta)), sort_keys=True).encode())


def _problem(stored: Stored, progress: Callable[[int], Any]) -> str | None:
    """What is wrong with a file."""
    crc, read, wrong = 0, 0, None
    try:
        size = os.stat(stored.file).st_size
        if size == 0:
            return "empty"
        if stored.crc32 is None:
            return None
        if size < stored.size or (size > stored.size and stored.file.suffix != ".npy"):
            return f"it has {size} bytes, {stored.size} were written"
        with open(stored.file, "rb") as file:
            file.seek(size - stored.size)
            while block := file.read(_CHUNK):
                crc, read = zlib.crc32(block, crc), read + len(block)
                wrong = wrong or _outside(block, stored.limits)
                progress(read)
    except OSError as error:
        return f"cannot be read: {reason(error, context=False)}"
    if crc != stored.crc32:
        return "the checksum differs"
    return wrong


def _outside(block: bytes, limits: Limits | None) -> str | None:
    """Names a number of a block that is outside of the limits."""
    if limits is None:
        return None
    values = np.frombuffer(block, limits.dtype)
    for value in (values.min(), values.max()):
        if not limits.least <= value <= limits.largest:
            return f"a number in it is {value}, and they should be {limits.least:g} to {limits.largest:g}"
    return None


def _state(folder: Path, files: Iterable[Stored]) -> str:
    """Changes with any of the files; empty where one is missing."""
    digest = hashlib.sha256()
    for stored in files:
        try:
            stat = os.stat(stored.file)
        except OSError:
            return ""
        name = stored.file.relative_to(folder).as_posix()
        # the time of change, unlike that of modification, is not copied, and no program can set it
        digest.update(
            f"{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}\n".encode()
        )
    return digest.hexdigest()


def _stamps(folder: Path, cache: Path | None) -> list[Path]:
    """Where this machine's stamp of a folder lies, the best place first."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname()) or "_"
    places = [folder / _STAMPS / host]
    if cache is not None:
        path = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:20]
        places.append(cache / "verified" / f"{path}.{host}")
    return places


def _read(stamp: Path) -> str | None:
    try:
        return stamp.read_text() or None
    except (OSError, UnicodeDecodeError):
        return None


def _write(stamp: Path, state: str) -> bool:
    """Whether the stamp could be written; one that is cut off matches no files."""
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(state)
    except OSError:
        return False
    return True


def _forget(stamp: Path) -> None:
    with contextlib.suppress(OSError):
        stamp.unlink(missing_ok=True)

"""Checksums of stored files, and damage that they show."""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clickexp.errors import DataError, reason
from clickexp.utils.documents import parse_json
from clickexp.utils.progress import Progress, no_report

_SEAL = "seal"
_CHUNK = 1 << 22
_ONE, _POLYNOMIAL = 1 << 31, 0xEDB88320
"""The polynomial 1 and that of CRC-32, whose lowest bits are the highest powers."""
_LONG = 1 << 26
"""Bytes from which on a verification reports its progress."""
REMEDY = "Delete the folder and prepare the data again."


class DamagedError(DataError):
    """Stored files that are not as they were written.

    Args:
        what: Names them.
        remedy: Ends the message.
    """

    def __init__(self, what: str, remedy: str | None = None):
        self.what = what
        super().__init__(what if remedy is None else f"{what}. {remedy}")


class Stored(NamedTuple):
    """A file with its checksum.

    Attributes:
        file: The file.
        size: Bytes, in a .npy file those after the header.
        crc32: Their CRC-32.
    """

    file: Path
    size: int
    crc32: int


def verify(folder: Path, files: Sequence[Stored], progress: Progress = no_report) -> None:
    """Reads all files.

    Args:
        folder: Holds the files.
        files: What to verify.
        progress: Called with the bytes read so far and in all.

    Raises:
        DamagedError: Some files differ from their checksums. It names all of them.
    """
    total, done, wrong = sum(stored.size for stored in files), 0, []
    for stored in files:
        if (problem := _problem(stored)) is not None:
            wrong.append(f"{stored.file.relative_to(folder)} ({problem})")
        done += stored.size
        if total >= _LONG:
            progress(done, total)
    if wrong:
        raise DamagedError(f"{folder}: damaged: {', '.join(wrong)}", REMEDY)


def checksum(file: Path, start: int = 0) -> int:
    """Returns the CRC-32 of a file from a byte on."""
    crc = 0
    with open(file, "rb") as blocks:
        blocks.seek(start)
        while block := blocks.read(_CHUNK):
            crc = zlib.crc32(block, crc)
    return crc


def joined_checksum(first: int, second: int, size: int) -> int:
    """Returns the CRC-32 of two contents, one behind the other.

    A CRC-32 is the remainder of a polynomial over GF(2). What follows multiplies that of the first content by x to the
    power of 8 `size`, which repeated squaring finds.

    Args:
        first: CRC-32 of the first content.
        second: That of the second one.
        size: Bytes of the second content.
    """
    power, factor, bits = _ONE, _ONE >> 1, 8 * size
    while bits:
        if bits & 1:
            power = _product(power, factor)
        factor = _product(factor, factor)
        bits >>= 1
    return _product(first, power) ^ second


def _product(first: int, second: int) -> int:
    """Returns the product of two polynomials, whose highest bits are the constants, as a remainder of CRC-32."""
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        first = first << 1 & 0xFFFFFFFF
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product


def sealed(content: Mapping[str, Any]) -> str:
    """Returns JSON text with a checksum of its content."""
    return json.dumps({**content, _SEAL: _seal(content)}, indent=1)


def unsealed(text: str) -> dict[str, Any]:
    """Returns the content of such a text.

    Raises:
        ValueError: The checksum differs, or it is no such text.
    """
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("it holds no keys")
    if content.pop(_SEAL, None) != _seal(content):
        raise ValueError("the checksum differs")
    return content


def _seal(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _problem(stored: Stored) -> str | None:
    """Returns what is wrong with a file."""
    try:
        size = os.stat(stored.file).st_size
        if size < stored.size or (size > stored.size and stored.file.suffix != ".npy"):
            return f"it has {size} bytes, {stored.size} were written"
        crc = checksum(stored.file, size - stored.size)
    except OSError as error:
        return f"cannot be read: {reason(error, context=False)}"
    return None if crc == stored.crc32 else "the checksum differs"

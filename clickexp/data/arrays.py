"""Arrays in .npy files: written block by block, and mapped."""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.checksums import REMEDY, DamagedError
from clickexp.errors import reason

UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OverflowError,
    SyntaxError,
    TokenError,
)
"""Errors of reading a damaged .npy or JSON file."""


class GrowingArray:
    """A .npy file that grows block by block, [rows, *shape], and the CRC-32 of its numbers.

    `np.lib.format.open_memmap` needs the number of rows beforehand, which takes a second pass over the source.
    """

    def __init__(self, path: Path, dtype: DTypeLike, shape: tuple[int, ...] = ()):
        self.dtype, self.shape, self.rows, self.crc = np.dtype(dtype), shape, 0, 0
        self.path, self._file = path, path.open("wb")
        self._write_header()
        self._start = self._file.tell()

    def append(self, values: np.ndarray) -> None:
        """Adds rows, in the type of the file."""
        block = np.ascontiguousarray(values, self.dtype).data
        self._file.write(block)
        self.crc = zlib.crc32(block, self.crc)
        self.rows += len(values)

    def view(self) -> np.ndarray:
        """The rows written so far, mapped."""
        self._file.flush()
        return np.memmap(self.path, self.dtype, "r", self._start, (self.rows, *self.shape))

    def close(self) -> None:
        """Writes the number of rows into the header."""
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        """As long as before for any number of rows: numpy leaves room for its digits."""
        descr = np.lib.format.dtype_to_descr(self.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self._file, header)


def new_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Makes a .npy file of zeros, whose rows `write_rows` writes."""
    array = GrowingArray(path, dtype, shape[1:])
    array.rows = shape[0]
    array.close()
    with path.open("r+b") as file:
        start = file.seek(0, os.SEEK_END)
        file.truncate(start + array_bytes(dtype, shape))


def write_rows(path: Path, first: int, blocks: Iterable[np.ndarray]) -> int:
    """Writes some rows of a .npy file, of which other processes write others, and returns their CRC-32.

    Args:
        path: The file.
        first: The first of the rows.
        blocks: Rows one after another.
    """
    stored = np.lib.format.open_memmap(path, mode="r")
    crc, size = 0, array_bytes(stored.dtype, stored.shape[1:])
    with path.open("r+b") as file:
        file.seek(stored.offset + first * size)
        for block in blocks:
            content = np.ascontiguousarray(block, stored.dtype).data
            file.write(content)
            crc = zlib.crc32(content, crc)
    return crc


def array_bytes(dtype: DTypeLike, shape: tuple[int, ...]) -> int:
    """Returns the bytes of an array, of whatever size."""
    return np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object))


def map_array(file: Path) -> np.ndarray:
    """Maps a .npy file without reading its numbers.

    Raises:
        DamagedError: It cannot be read, or is shorter or longer than its header says.
    """
    try:
        mapped = np.lib.format.open_memmap(file, mode="r")
        size, expected = file.stat().st_size, mapped.offset + mapped.nbytes
        if size != expected:
            raise ValueError(f"it has {size} bytes, its header asks for {expected}")
    except UNREADABLE as error:
        why = reason(error, context=False)
        raise DamagedError(f"{file}: cannot be read ({why})", REMEDY) from error
    return mapped.view(np.ndarray)

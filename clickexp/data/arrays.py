"""Arrays in .npy files: written block by block, and mapped."""

import io
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.checksums import REMEDY, DamagedError, joined_checksum
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
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers of what an array states, by the version of its format."""


class GrowingArray:
    """A .npy file that grows block by block, [rows, *shape], and the CRC-32 of its numbers.

    `np.lib.format.open_memmap` needs the number of rows beforehand, which takes a second pass over the source.

    Args:
        path: The file.
        dtype: Type of the numbers.
        shape: Of a row.
        first: Number of the first row in a file that another array has, which counts all rows by `extend`; None for a
            new file.
    """

    def __init__(
        self,
        path: Path,
        dtype: DTypeLike,
        shape: tuple[int, ...] = (),
        first: int | None = None,
    ):
        self.dtype, self.shape, self.rows, self.crc = np.dtype(dtype), shape, 0, 0
        self.path, self._is_new = path, first is None
        header = self._header()
        self._start = len(header)
        self._file = path.open("wb" if first is None else "r+b")
        if first is None:
            self._file.write(header)
        else:
            self._file.seek(self._start + first * array_bytes(dtype, shape))

    def append(self, values: np.ndarray) -> None:
        """Adds rows, in the type of the file."""
        block = np.ascontiguousarray(values, self.dtype).data
        self._file.write(block)
        self.crc = zlib.crc32(block, self.crc)
        self.rows += len(values)

    def extend(self, rows: int, crc: int) -> None:
        """Counts rows behind these, which others have written, and whose CRC-32 is known."""
        self.crc = joined_checksum(self.crc, crc, rows * array_bytes(self.dtype, self.shape))
        self.rows += rows

    def view(self) -> np.ndarray:
        """The rows written so far, mapped."""
        self._file.flush()
        return np.memmap(self.path, self.dtype, "r", self._start, (self.rows, *self.shape))

    def close(self) -> None:
        """Writes the number of rows into the header of a new file."""
        if self._is_new:
            self._file.seek(0)
            self._file.write(self._header())
        self._file.close()

    def _header(self) -> bytes:
        """As long for any number of rows: numpy leaves room for its digits."""
        descr = np.lib.format.dtype_to_descr(self.dtype)
        header = io.BytesIO()
        shape = (self.rows, *self.shape)
        stated = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, stated)
        return header.getvalue()


def array_bytes(dtype: DTypeLike, shape: tuple[int, ...]) -> int:
    """Returns the bytes of an array, of whatever size."""
    return np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object))


def map_array(file: Path) -> np.ndarray:
    """Maps a .npy file without reading its numbers.

    Raises:
        DamagedError: It cannot be read, or is shorter or longer than its header says.
    """
    try:
        if file.exists() and not file.is_file():
            raise ValueError("it is no file")  # a pipe would be waited for
        mapped = np.lib.format.open_memmap(file, mode="r")
        size, expected = file.stat().st_size, mapped.offset + mapped.nbytes
        if size != expected:
            raise ValueError(f"it has {size} bytes, its header asks for {expected}")
    except UNREADABLE as error:
        why = reason(error, context=False)
        raise DamagedError(f"{file}: cannot be read ({why})", REMEDY) from error
    return mapped.view(np.ndarray)


def load_arrays(stream: BinaryIO) -> np.lib.npyio.NpzFile:
    """Opens an archive of arrays, none of which states another size than it has.

    Args:
        stream: The archive.

    Raises:
        ValueError: An array does, for which memory would be asked, or it is no such archive.
        KeyError: It is of a later version.
    """
    stored = np.load(stream)
    if not isinstance(stored, np.lib.npyio.NpzFile) or stored.zip is None:
        raise ValueError("it is no archive of arrays")
    for entry in stored.zip.infolist():
        with stored.zip.open(entry) as content:
            version = np.lib.format.read_magic(content)
            shape, _, dtype = _HEADERS[version](content)
            size = entry.file_size - content.tell()
            if not dtype.hasobject and array_bytes(dtype, shape) != size:
                raise ValueError(f"{entry.filename} has another size than it states")
    return stored

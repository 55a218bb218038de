"""Bytes of files, wherever they are, unpacked where the ending of a name says that they are compressed."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import pyarrow as pa

from clickexp.data.log_files import COMPRESSIONS
from clickexp.utils.sources import is_remote


class Stream(NamedTuple):
    """An open file.

    Attributes:
        content: Its bytes, unpacked.
        stored: The file as it is, whose `tell` says how much has been read of `size`.
        size: Bytes of the file.
    """

    content: pa.NativeFile
    stored: pa.NativeFile
    size: int


@contextmanager
def opened(file: Path) -> Iterator[Stream]:
    """Opens a file to read its bytes from the first to the last.

    Args:
        file: Path of this machine, or one that `clickexp.utils.sources.source_path` made of a URL.

    Raises:
        OSError: It cannot be read, or is not compressed as its name says.
    """
    codec = COMPRESSIONS.get(file.suffix)
    plain = pa.PythonFile(file.open("rb"), "r") if is_remote(file) else pa.OSFile(str(file))
    with plain as stored:
        size = stored.size()
        if codec is None:
            yield Stream(stored, stored, size)
            return
        with pa.CompressedInputStream(stored, codec) as content:
            yield Stream(content, stored, size)


def whole_lines(stream: Stream, size: int) -> Iterator[bytes]:
    """Yields the content in blocks of whole lines, of at least `size` bytes but for the last one."""
    lines = io.BufferedReader(cast("io.RawIOBase", stream.content))
    while block := lines.read(size) + lines.readline():
        yield block

"""Archives of arrays."""

import math
from typing import BinaryIO

import numpy as np

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers of what an array states, by the version of its format."""


def load_arrays(stream: BinaryIO) -> np.lib.npyio.NpzFile:
    """Opens an archive of arrays, none of which states another size than it has.

    Args:
        stream: The archive.

    Raises:
        ValueError: An array does, for which memory would be asked, or it is no such archive.
        KeyError: It is of a later version.
    """
    stored = np.load(stream)
    if not isinstance(stored, np.lib.npyio.NpzFile):
        raise ValueError("it is no archive of arrays")
    for entry in stored.zip.infolist():
        with stored.zip.open(entry) as content:
            version = np.lib.format.read_magic(content)
            shape, _, dtype = _HEADERS[version](content)
            size = entry.file_size - content.tell()
            if not dtype.hasobject and math.prod(shape) * dtype.itemsize != size:
                raise ValueError(f"{entry.filename} has another size than it states")
    return stored

"""How long lists are, and whether padding all to the longest outweighs them."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from clickexp.data.schema import Column, SourceLocation, declared
from clickexp.utils.text import byte_size

POSITIONS = "set positions to the ranks to keep; longer lists are cut, and counted"
_PADDING = 10
"""Padding that takes more than this many times the data is refused,"""
_FLOOR = 1 << 26
"""unless it takes less than this many bytes."""


def outweighs(padding: int, data: int, size: int) -> bool:
    """Whether so many numbers of padding, of a size in bytes, are too many for so many of data."""
    return padding * size > _FLOOR and padding > _PADDING * data


class Extent:
    """Measures lists, to see what it takes to pad all of them to the longest."""

    def __init__(self):
        self.lists = self.documents = self.longest = 0
        self._error = SourceLocation("lists").error

    def add(self, lengths: np.ndarray, location: Any, rows: np.ndarray | None = None) -> None:
        """Lists of these lengths; `rows`, by default 0, 1, ..., are what the errors of the location name them by."""
        if len(lengths) and lengths.max() > self.longest:
            first = int(lengths.argmax())
            row = first if rows is None else int(rows[first])
            self.longest, self._error = int(lengths[first]), partial(location.error, row=row)
        self.lists += len(lengths)
        self.documents += int(lengths.sum())

    def join(self, later: "Extent") -> None:
        """Adds the lists of later files."""
        if later.longest > self.longest:
            self.longest, self._error = later.longest, later._error
        self.lists += later.lists
        self.documents += later.documents

    def ranks(self, columns: Iterable[str | Column], remedy: str) -> int:
        """The length of the longest list, at least 1; DataError where padding to it outweighs the documents."""
        per_document = [column for column in declared(columns).values() if column.per_document]
        size = sum(np.dtype((column.dtype, column.shape)).itemsize for column in per_document)
        padded = self.lists * self.longest
        if outweighs(padded - self.documents, self.documents, size):
            what = (
                f"the list has {self.longest} documents, lists on average {self.documents / self.lists:.1f}; "
                f"to pad all {self.lists} to it takes {byte_size(padded * size)}, "
                f"the documents {byte_size(self.documents * size)}"
            )
            raise self._error(what, remedy)
        return max(self.longest, 1)

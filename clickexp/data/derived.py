"""Columns that follow from packed ones: computed where they are read, and never packed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import numpy as np

from clickexp.data.schema import Column, Columns

Rows = slice | np.ndarray
"""Session numbers: a range of them or an array."""


class DerivedColumn(ABC):
    """A column that sessions compute for the rows that are read.

    Attributes:
        column: Its declaration.
        reads: Packed columns that it is computed from.
        is_standardized: Whether it holds feature vectors that are standardised.
    """

    column: Column
    reads: tuple[str, ...] = ()
    is_standardized: bool = False

    @abstractmethod
    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        """Returns the values of some sessions.

        Args:
            packed: The columns that it `reads`, of these sessions.
            rows: Their numbers in the whole log.
        """

    @abstractmethod
    def bounds(self) -> tuple[int, int]:
        """Returns numbers that no value lies outside of."""


class LookedUp(DerivedColumn):
    """A number of each pair in a table, such as its document; 0 where no document is shown.

    Args:
        column: Declaration, of integers per document.
        table: Makes the table `[pairs + 1]` when it is first needed; its row 0 is that of no pair.
    """

    reads = ("query_doc_ids",)

    def __init__(self, column: Column, table: Callable[[], np.ndarray]):
        self.column, self._table = column, table

    @cached_property
    def table(self) -> np.ndarray:
        """The number of each id of a pair, from 0."""
        return np.asarray(self._table(), self.column.dtype)

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        """Returns the numbers of the documents."""
        return self.table[packed["query_doc_ids"]]

    def bounds(self) -> tuple[int, int]:
        """Returns the smallest and the largest value of the table."""
        return int(self.table.min(initial=0)), int(self.table.max(initial=0))

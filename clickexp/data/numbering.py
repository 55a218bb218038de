"""Ids of any kind, integers or text, numbered 1, 2, ... in the order in which they appear."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.ids import IdTable, pair_keys
from clickexp.data.ragged import is_text
from clickexp.data.schema import DataError

PAIR_KEYS = ("query_document", "document")
"""What has a row in the tables: a document under a query, or a document."""


def keys_of(values: pa.Array) -> np.ndarray:
    """uint64 keys: integers as they are, text or bytes by a 64-bit hash.

    Two of n distinct texts share a key with probability n^2 / 2^65: 3e-8 for a million, 3e-4 for a hundred million.
    """
    if pa.types.is_integer(values.type):
        return values.to_numpy(zero_copy_only=False).astype(np.uint64)
    return pl.from_arrow(values).hash().to_numpy()


def keyed_lists(lists: pa.Array, values: pa.Array, lengths: np.ndarray) -> pa.Array:
    """Lists of keys in place of lists of integers or text, whose values and lengths are given."""
    if not is_text(values.type):
        return lists
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(offsets, pa.array(keys_of(values)))


class PairIds:
    """The tables' rows of the documents of a log, and the numbers of its queries, from 1 and across all its files."""

    def __init__(self, pair_key: str):
        self.pair_key = check_pair_key(pair_key, PAIR_KEYS)
        self._queries, self._documents, self._pairs = IdTable(), IdTable(), IdTable()

    def queries(self, keys: np.ndarray) -> np.ndarray:
        """The number of each query."""
        return self._queries.ids(keys)

    def pairs(self, documents: np.ndarray, queries: np.ndarray | None) -> np.ndarray:
        """The row of each document, given by its key, under a query, given by its number."""
        numbers = self._documents.ids(documents)
        return numbers if self.pair_key == "document" else self._pairs.ids(pair_keys(queries, numbers))


def check_pair_key(pair_key: str | None, allowed: Sequence[str | None]) -> str | None:
    """The same; DataError if it is none of those allowed."""
    if pair_key not in allowed:
        raise DataError(f"pair_key is {pair_key!r}. It must be one of {tuple(allowed)}.")
    return pair_key

"""Ids of any kind, integers or text, numbered 1, 2, ... in the order in which they appear."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.ingest.id_table import IdTable, pair_keys
from clickexp.data.ingest.names import NamesWriter
from clickexp.data.schema import DataError

PAIR_KEYS = ("query_document", "document")
"""What has a row in the tables: a document under a query, or a document."""


def as_ids(values: pa.Array) -> pl.Series:
    """Ids as text, as uint64 where they are that, else as int64."""
    ids = pl.Series(values)
    return ids if ids.dtype in (pl.String, pl.UInt64) else ids.cast(pl.Int64)


def keys_of(values: pl.Series) -> np.ndarray:
    """uint64 keys: integers as they are, text or bytes by a 64-bit hash.

    Two of n distinct texts share a key with probability n^2 / 2^65: 3e-8 for a million, 3e-4 for a hundred million.
    """
    return (values if values.dtype.is_integer() else values.hash()).to_numpy().astype(np.uint64, copy=False)


class PairIds:
    """The tables' rows of the documents of a log, and the numbers of its queries, from 1 and across all its files.

    Rows get the names of their query and document; where documents alone have rows, of these. To number the names of
    a log in their order gives its ids again.
    """

    def __init__(self, pair_key: str, names: NamesWriter | None = None):
        self.pair_key, self._names = check_pair_key(pair_key, PAIR_KEYS), names
        self._queries, self._documents, self._pairs = IdTable(), IdTable(), IdTable()

    def number(
        self, documents: pl.Series, lengths: np.ndarray, queries: pl.Series | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Numbers the documents and queries of some lists.

        Args:
            documents: `[documents]`, one list after another.
            lengths: `[lists]`, documents of each list.
            queries: `[lists]`; None only where documents alone have rows.

        Returns:
            The rows `[documents]` and the numbers of the queries `[lists]`.
        """
        rows = self._documents.ids(keys_of(documents))
        numbers = None if queries is None else self._queries.ids(keys_of(queries))
        lists, of_pairs = np.repeat(np.arange(len(lengths)), lengths), self.pair_key == "query_document"
        if of_pairs and numbers is not None:
            rows = self._pairs.ids(pair_keys(numbers[lists], rows))
        if self._names is not None:
            new = self._names.unnamed(rows)
            under = {"query": queries[lists[new]]} if of_pairs and queries is not None else {}
            self._names.append(**under, document=documents[new])
        return rows, numbers


def check_pair_key(pair_key: str | None, allowed: Sequence[str | None]) -> str | None:
    """The same; DataError if it is none of those allowed."""
    if pair_key not in allowed:
        raise DataError(f"pair_key is {pair_key!r}. It must be one of {tuple(allowed)}.")
    return pair_key

"""Ids of any kind, integers or text, numbered 1, 2, ... in the order in which they appear."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from clickexp.data.id_table import IdTable, pair_keys, second_pair_keys
from clickexp.data.ingest.lists import Lists
from clickexp.data.names import NamesWriter, keys_of, second_keys_of
from clickexp.errors import DataError

PAIR_KEYS = ("query_document", "document")
"""Things with a row in the tables: a document under a query, or a document."""


class PairIds:
    """The tables' rows of the documents of a log, and the numbers of its queries, from 1 and across all its files.

    Rows get the names of their query and document; where documents alone have rows, of these. To number the names of
    a log in their order gives its ids again.

    Args:
        pair_key: One of PAIR_KEYS.
        names: Receives the names; where it has earlier ones, they keep their ids, and others come behind.
        own_queries: Queries keep the ids of the log, which are integers.

    Raises:
        DataError: The earlier names are of another pair_key.
    """

    def __init__(
        self, pair_key: str, names: NamesWriter | None = None, *, own_queries: bool = False
    ):
        self.pair_key, self._names, self._own = (
            check_pair_key(pair_key, PAIR_KEYS),
            names,
            own_queries,
        )
        self._queries, self._rows = IdTable(), IdTable()
        if names is not None and names.earlier is not None:
            self.continue_from(names.earlier)

    @property
    def tables(self) -> dict[str, IdTable]:
        """Tables that number packed columns, by column."""
        queries = {} if self._own else {"query_ids": self._queries}
        return {"query_doc_ids": self._rows, **queries}

    def __len__(self) -> int:
        return len(self._rows)

    def number(self, lists: Lists) -> Lists:
        """Returns the lists with rows for documents; queries may be missing where documents alone have rows."""
        documents, sessions = pl.Series(lists.documents["query_doc_ids"]), dict(lists.sessions)
        keys, second, named = keys_of(documents), second_keys_of(documents), {"document": documents}
        if "query_ids" in sessions:
            queries = pl.Series(sessions["query_ids"])
            query_keys, second_query_keys = keys_of(queries), second_keys_of(queries)
            if not self._own:
                sessions["query_ids"] = self._queries.ids(query_keys, second_query_keys)
            if self.pair_key == "query_document":
                others = query_keys if second_query_keys is None else second_query_keys
                second = second_pair_keys(others[lists.rows], keys if second is None else second)
                keys = pair_keys(query_keys[lists.rows], keys)
                named = {"query": queries, **named}
        rows = self._rows.ids(keys, second)
        if self._names is not None:
            new = self._names.unnamed(rows)
            at = {"query": lists.rows[new], "document": new}
            self._names.append(**{name: values[at[name]] for name, values in named.items()})
        return replace(lists.with_documents(query_doc_ids=rows), sessions=sessions)

    def continue_from(self, earlier: pl.DataFrame) -> None:
        """Numbers the names of another log, which come first, in their order.

        Raises:
            DataError: They are of another pair_key.
        """
        pair_key = "query_document" if "query" in earlier.columns else "document"
        if pair_key != self.pair_key:
            raise DataError(
                f"pair_key is {self.pair_key!r}, and {pair_key!r} in the log whose ids this one takes. Set "
                f"pair_key={pair_key}, or leave out ids=."
            )
        sessions = {"query_ids": earlier["query"]} if "query" in earlier.columns else {}
        documents = {"query_doc_ids": earlier["document"]}
        self.number(Lists(np.ones(len(earlier), np.int64), documents, sessions))


def with_session_keys(lists: Lists) -> Lists:
    """Returns the lists with 64-bit integers for search sessions, where they have them; see `keys_of`."""
    if "session_ids" not in lists.sessions:
        return lists
    keys = keys_of(pl.Series(lists.sessions["session_ids"])).view(np.int64)
    return replace(lists, sessions={**lists.sessions, "session_ids": keys})


def check_pair_key(pair_key: str | None, allowed: Sequence[str | None]) -> str | None:
    """The same; DataError if it is none of those allowed."""
    if pair_key not in allowed:
        names = ", ".join(name or "null" for name in allowed)
        raise DataError(f"pair_key is {pair_key!r}. It must be one of {names}.")
    return pair_key

"""Tables with one row a session and lists of documents and clicks in it."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from clickexp.data.log import LogWriter
from clickexp.data.numbering import PAIR_KEYS, PairIds, check_pair_key, keyed_lists, keys_of
from clickexp.data.ragged import check_nulls, flat, longest, padded
from clickexp.data.schema import COLUMNS, Column, Place
from clickexp.data.tabular import ANY_ID, Table, check_keys

COLUMN_NAMES = {name: name for name in ("query_doc_ids", "clicks", "query_id", "positions", "labels")}
"""What each column is called in the files unless told otherwise. The first two must be there."""

REQUIRED = ("query_doc_ids", "clicks")
ID_COLUMNS = ("query_doc_ids", "query_ids")


def table_options(columns: Mapping[str, str | None] | None, pair_key: str | None) -> dict[str, object]:
    """How a Table of such rows is opened: fields, names, required; DataError for options that mean nothing."""
    check_keys("columns", columns or {}, COLUMN_NAMES)
    check_pair_key(pair_key, (None, *PAIR_KEYS))
    fields: dict[str, Column] = dict(COLUMNS)
    if pair_key:
        fields |= {name: ANY_ID._replace(per_document=COLUMNS[name].per_document) for name in ID_COLUMNS}
    required = (*REQUIRED, "query_id") if pair_key == "query_document" else REQUIRED
    return dict(fields=fields, names={**COLUMN_NAMES, **(columns or {})}, required=required)


def read_lists(
    tables: Sequence[Table],
    log: LogWriter,
    pair_key: str | None = None,
    positions: int | None = None,
    query_doc_pairs: int | None = None,
) -> None:
    """Appends the rows to the part "sessions"; lists longer than `positions` are cut and counted.

    With a pair_key, ids are of any kind and numbered; query_doc_pairs is the largest id allowed.
    """
    ranks = _longest(tables) if positions is None else positions
    total, read = sum(table.size for table in tables), 0
    ids = PairIds(pair_key) if pair_key else None
    with log.part("sessions", ranks, ["lengths", *tables[0].columns], query_doc_pairs) as pack:
        for table in tables:
            for columns, place, done in table.batches():
                if ids:
                    columns = _keyed(columns, place)
                chunk, cut = padded(columns, ranks, place)
                if ids:
                    _number(chunk, ids)
                pack.append(chunk, place)
                log.note("cut_lists", cut)
                log.progress(read + done, total)
            read += table.size
        pack.query_doc_pairs = query_doc_pairs or pack.query_doc_pairs


def _longest(tables: Sequence[Table]) -> int:
    name = "query_doc_ids"
    batches = (batch.columns for table in tables for batch in table.batches([name]))
    return max((longest(columns[name]) for columns in batches), default=1) or 1


def _keyed(columns: Mapping[str, pa.Array], place: Place) -> dict[str, pa.Array]:
    """The columns with keys in place of ids of any kind."""
    lists = columns["query_doc_ids"]
    keyed = {"query_doc_ids": keyed_lists(lists, *flat("query_doc_ids", lists, ANY_ID.rule, place))}
    if "query_ids" in columns:
        check_nulls("query_ids", columns["query_ids"], ANY_ID.rule, place)
        keyed["query_ids"] = pa.array(keys_of(columns["query_ids"]))
    return {**columns, **keyed}


def _number(chunk: dict[str, np.ndarray], ids: PairIds) -> None:
    """Replaces the keys by numbers."""
    lengths, queries = chunk["lengths"], None
    if "query_ids" in chunk:
        chunk["query_ids"] = ids.queries(chunk["query_ids"])
        queries = np.repeat(chunk["query_ids"], lengths)
    keys, shown = chunk["query_doc_ids"], np.arange(chunk["query_doc_ids"].shape[1]) < lengths[:, None]
    chunk["query_doc_ids"] = np.zeros(keys.shape, np.int64)
    chunk["query_doc_ids"][shown] = ids.pairs(keys[shown], queries)

"""Tables with one row a session and lists of documents and clicks in it."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.ingest.numbering import PAIR_KEYS, PairIds, as_ids, check_pair_key
from clickexp.data.ingest.ragged import check_nulls, flat, list_lengths, numbered, padded, scatter
from clickexp.data.ingest.tables import ANY_ID, Table, check_keys
from clickexp.data.prepared import LogWriter
from clickexp.data.schema import COLUMNS, POSITIONS, Column, Extent, Place

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
    ranks = _longest(tables, tables[0].columns) if positions is None else positions
    total, read = sum(table.size for table in tables), 0
    ids = PairIds(pair_key, log.names) if pair_key else None
    with log.part("sessions", ranks, ["lengths", *tables[0].columns], query_doc_pairs) as pack:
        for table in tables:
            for columns, place, done in table.batches():
                chunk, cut, _ = read_chunk(columns, ranks, place, ids)
                pack.append(chunk, place)
                log.note("cut_lists", cut)
                log.progress(read + done, total)
            read += table.size
        pack.query_doc_pairs = query_doc_pairs or pack.query_doc_pairs


def _longest(tables: Sequence[Table], columns: Iterable[str]) -> int:
    name, extent = "query_doc_ids", Extent()
    for table in tables:
        for batch in table.batches([name]):
            extent.add(list_lengths(batch.columns[name]), batch.place)
    return extent.ranks(columns, POSITIONS)


def read_chunk(
    columns: Mapping[str, pa.Array], ranks: int, place: Place, ids: PairIds | None = None
) -> tuple[dict[str, np.ndarray], int, dict[str, pl.Series]]:
    """The lists as arrays, how many were cut at `ranks`, and with `ids`, which number documents and queries, their
    names: `document`, one list after another, and `query`, if there."""
    if ids is None:
        return *padded(columns, ranks, place), {}
    documents, lengths = flat("query_doc_ids", columns["query_doc_ids"], ANY_ID.rule, place)
    others = {name: column for name, column in columns.items() if name != "query_ids"}
    chunk, cut = padded({**others, "query_doc_ids": numbered(lengths)}, ranks, place)
    lengths, names = chunk["lengths"], {"document": as_ids(documents)}
    if cut:
        shown = np.arange(ranks) < lengths[:, None]
        names["document"] = names["document"][chunk["query_doc_ids"][shown]]
    if "query_ids" in columns:
        check_nulls("query_ids", columns["query_ids"], ANY_ID.rule, place)
        names["query"] = as_ids(columns["query_ids"])
    rows, queries = ids.number(names["document"], lengths, names.get("query"))
    chunk["query_doc_ids"] = scatter(rows, lengths, ranks)
    return chunk | ({} if queries is None else {"query_ids": queries}), cut, names

"""Tables with one row per session and lists of documents and clicks in it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.ingest.columns import ANY_ID, Field, named_columns
from clickexp.data.ingest.numbering import PAIR_KEYS, PairIds, as_ids, check_pair_key
from clickexp.data.ingest.ragged import check_nulls, flat, numbered, padded, scatter
from clickexp.data.ingest.tables import SourceTable, batches_of, longest_list
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import COLUMNS, POSITIONS, Column, SourceLocation

KEYS = ("query_doc_ids", "clicks", "query_id", "positions", "labels")
"""Keys of the option `columns`, and names of the columns in the files by default. The first two must be there."""

REQUIRED = ("query_doc_ids", "clicks")
ID_COLUMNS = ("query_doc_ids", "query_ids")


def table_options(columns: Mapping[str, Any] | None, pair_key: str | None) -> dict[str, Any]:
    """How a SourceTable of such rows is opened: fields, names, required; DataError for options that mean nothing."""
    names, extra = named_columns(columns, KEYS)
    check_pair_key(pair_key, (None, *PAIR_KEYS))
    fields: dict[str, Column | Field] = {**COLUMNS, **extra}
    if pair_key:
        fields |= {name: ANY_ID._replace(per_document=COLUMNS[name].per_document) for name in ID_COLUMNS}
    required = (*REQUIRED, *extra) + ("query_id",) * (pair_key == "query_document")
    return {"fields": fields, "names": names, "required": required}


def read_lists(
    tables: Sequence[SourceTable],
    log: LogWriter,
    pair_key: str | None = None,
    positions: int | None = None,
    query_doc_pairs: int | None = None,
) -> None:
    """Appends the rows to the part "sessions"; lists longer than `positions` are cut and counted.

    With a pair_key, ids are of any kind and numbered; query_doc_pairs is the largest id allowed.
    """
    schema = packed_columns(tables[0])
    ranks = (
        longest_list(tables, "query_doc_ids", schema.values(), POSITIONS) if positions is None else positions
    )
    ids = PairIds(pair_key, log.names) if pair_key else None
    with log.part("sessions", ranks, ["lengths", *schema.values()], query_doc_pairs) as pack:
        for batch in batches_of(tables, log.progress):
            chunk, cut, _ = read_chunk(batch.columns, ranks, batch.location, ids, schema)
            pack.append(chunk, batch.location)
            log.note("cut_lists", cut)
        pack.query_doc_pairs = query_doc_pairs or pack.query_doc_pairs


def packed_columns(table: SourceTable) -> dict[str, Column]:
    """The packed columns of a table."""
    fields = {name: COLUMNS.get(name, table.fields[name]) for name in table.columns}
    return {name: field for name, field in fields.items() if isinstance(field, Column)}


def read_chunk(
    columns: Mapping[str, pa.Array],
    ranks: int,
    location: SourceLocation,
    ids: PairIds | None = None,
    schema: Mapping[str, Column] = COLUMNS,
) -> tuple[dict[str, np.ndarray], int, dict[str, pl.Series]]:
    """The lists as arrays, how many were cut at `ranks`, and the names of what was numbered.

    Args:
        columns: Columns of a table.
        ranks: Documents to keep of each list.
        location: Where the rows are.
        ids: Numbers documents and queries; None: they are numbers already.
        schema: Declarations of the columns.

    Returns:
        Arrays, lists cut, and with `ids` the names `document`, one list after another, and `query`, if there.
    """
    if ids is None:
        return *padded(columns, ranks, location, schema), {}
    documents, lengths = flat("query_doc_ids", columns["query_doc_ids"], ANY_ID.rule, location)
    others = {name: column for name, column in columns.items() if name != "query_ids"}
    chunk, cut = padded({**others, "query_doc_ids": numbered(lengths)}, ranks, location, schema)
    lengths, names = chunk["lengths"], {"document": as_ids(documents)}
    if cut:
        shown = np.arange(ranks) < lengths[:, None]
        names["document"] = names["document"][chunk["query_doc_ids"][shown]]
    if "query_ids" in columns:
        check_nulls("query_ids", columns["query_ids"], ANY_ID.rule, location)
        names["query"] = as_ids(columns["query_ids"])
    rows, queries = ids.number(names["document"], lengths, names.get("query"))
    chunk["query_doc_ids"] = scatter(rows, lengths, ranks)
    return chunk | ({} if queries is None else {"query_ids": queries}), cut, names

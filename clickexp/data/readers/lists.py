"""Sessions from tables with one row per session: lists of documents and clicks in its cells."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.data.encoding import FEATURES
from clickexp.data.ingest.columns import (
    NORMALIZED,
    SEARCH_SESSION,
    Normalize,
    Readable,
    ValueForms,
    id_field,
    named_columns,
)
from clickexp.data.ingest.faults import Faults, Invalid
from clickexp.data.ingest.features import FeatureColumns, FeatureForm
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.numbering import PAIR_KEYS, PairIds, check_pair_key, with_session_keys
from clickexp.data.ingest.packing import PART, ReadLog, ReadPart
from clickexp.data.ingest.shown import (
    SEEN,
    check_seen,
    from_one,
    rank_rule,
    seen_alone,
)
from clickexp.data.ingest.source_table import SourceTable, TextForm
from clickexp.data.ingest.tables import batches_of, open_tables, pieces_of_tables
from clickexp.data.ingest.vectors import VECTORS
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import COLUMNS, Column, check_ids
from clickexp.utils.bounds import FirstRank, Ids, PositiveInt

_KEYS = (
    "query_doc_ids",
    "clicks",
    "query_id",
    "search_session",
    "time",
    "positions",
    "labels",
    "seen",
    "query_doc_features",
)
"""Keys of the option `columns`, and but for time names of the columns in the files. The first two must be there."""

REQUIRED = ("query_doc_ids", "clicks")
_ID_COLUMNS = {"query_doc_ids": "document", "query_ids": "query"}
"""The things that the ids of a column name."""


@log_format("lists", has_features=True, pieces=pieces_of_tables)
def open_lists(
    source: Path,
    log: LogWriter,
    *,
    files: str | None = None,
    columns: Mapping[str, Any] | None = None,
    text: TextForm,
    first_rank: FirstRank = 1,
    forms: ValueForms,
    vectors: FeatureForm,
    pair_key: str | None = None,
    positions: PositiveInt | None = None,
    query_doc_pairs: Ids | None = None,
    invalid: Invalid = "error",
    normalize: Normalize = None,
) -> ReadLog:
    """The dataset in a table, CSV, TSV or parquet, or in those of a folder in the order of their names.

    A cell of text holds a list as words between commas, semicolons or spaces, in square brackets or in none, each in
    quotes or in none: [3, 5, 8]  3 5 8  ['a', 'b']. Lines that are blank are left out and not counted.

    files            pattern of the files in a folder, default all of these kinds
    columns          file's name for query_doc_ids, clicks, query_id, search_session, time, positions, labels,
                     query_doc_features; None leaves one out. time, a number or a date and time, orders the lists of a
                     search session; None, the default, takes the order of the rows. Any other key declares a column
                     that models may read: {dtype: float32, per: document, fill: null, name: KEY}; dtype may be category
    text, forms, vectors  options of `TextForm`, `ValueForms` and `FeatureForm`, each under its own name
    first_rank       1 or 0, the position of the first document
    pair_key         None: the ids are rows of the tables, from 0. "document" or "query_document": they are integers
                     or text of any kind, numbered from 1 in the order of appearance, the latter under their query
    positions        ranks to keep, default the longest list; longer lists are cut and counted
    query_doc_pairs  largest id allowed, default the largest found
    invalid          "error": DataError once all is read, which names each kind of fault with its count, first rows and
                     remedy: a value that is missing or no such value, an empty list, lists of a row that differ in
                     length, positions that descend. "drop": leaves the row out, counted
    normalize        "query", "document" or "all": with a pair_key, text that differs by case or blanks names one
    """
    fields, names, required = list_columns(columns, pair_key, normalize, forms)
    extra = {
        name: field
        for name, field in fields.items()
        if isinstance(field, Column) and name not in COLUMNS
    }
    if normalize is not None:
        log.notes[NORMALIZED] = normalize
    rule = rank_rule("positions", first_rank)
    fields["positions"] = replace(COLUMNS["positions"], least=first_rank, rule=rule)
    feature_columns = FeatureColumns(vectors, extra, _KEYS, by_row=False)
    required = [name for name in (*required, *feature_columns.required) if name not in log.may_lack]
    described = {**fields, **feature_columns.fields()}, feature_columns.names(names), required
    tables = open_tables(source, *described, files=files, text=text, share=log.share)
    return read_lists(
        tables, log, pair_key, positions, query_doc_pairs, first_rank, invalid, feature_columns
    )


def list_columns(
    columns: Mapping[str, Any] | None,
    pair_key: str | None,
    normalize: Normalize,
    forms: ValueForms,
) -> tuple[dict[str, Readable], dict[str, str | None], tuple[str, ...]]:
    """Fields, names and required columns of tables with a row per session; DataError for options that mean nothing."""
    names, extra = named_columns({"time": None, **(columns or {})}, _KEYS)
    check_pair_key(pair_key, (None, *PAIR_KEYS))
    fields: dict[str, Readable] = {
        **COLUMNS,
        **extra,
        "clicks": forms.clicks(),
        "labels": forms.labels(),
        "session_ids": SEARCH_SESSION,
        "times": forms.time(),
        FEATURES: VECTORS,
        "seen": SEEN,
    }
    if not pair_key:
        rule = (
            f"{COLUMNS['query_doc_ids'].rule}; pair_key=document or query_document numbers others"
        )
        fields["query_doc_ids"] = replace(COLUMNS["query_doc_ids"], rule=rule)
        rule = f"{COLUMNS['query_ids'].rule}; pair_key=document or query_document numbers text"
        fields["query_ids"] = replace(COLUMNS["query_ids"], rule=rule)
    else:
        for name, what in _ID_COLUMNS.items():
            fields[name] = id_field(what, normalize, COLUMNS[name].per_document)
    required = (*REQUIRED, *extra, *("query_id",) * (pair_key == "query_document"))
    return fields, names, (*required, *("time",) * (names["time"] is not None))


def read_lists(
    tables: Sequence[SourceTable],
    log: LogWriter,
    pair_key: str | None,
    positions: int | None,
    query_doc_pairs: int | None,
    first_rank: int,
    invalid: Invalid,
    feature_columns: FeatureColumns,
) -> ReadLog:
    """Returns the rows as the part "sessions"; lists longer than `positions` are cut and counted.

    Positions must not descend in a list. With a pair_key, ids are of any kind and numbered; query_doc_pairs is the
    largest id allowed. `invalid` says what becomes of rows with faults; `feature_columns` are those of features
    and categories.
    """
    declarations = feature_columns.declare(tables)
    ids = PairIds(pair_key, log.names) if pair_key else None
    columns = ["lengths", *(_schema(tables[0]) | declarations).values()]
    fields = {**tables[0].fields, **declarations}
    faults, part = Faults(first_rank), ReadPart(log, PART, columns, positions)
    for batch in batches_of(tables, log.progress, faults=faults):
        location = batch.location
        lists = Lists.of(batch.columns, location, fields).completed()
        lists.check_order(location)
        faults.first_rank.add(np.asarray(lists.documents.get("positions", ())))
        lists = from_one(lists, first_rank, location)
        check_seen(lists, location)
        if query_doc_pairs is not None and ids is None:
            documents = np.asarray(lists.documents["query_doc_ids"])
            check_ids(documents, query_doc_pairs, location, lists.lengths)
        sound, rows = lists.sound(location, log)
        seen = seen_alone(sound, log)
        lists = seen.head(positions, log)
        lists = feature_columns.encoded(with_session_keys(lists), log, location)
        lists = lists if ids is None else ids.number(lists)
        part.append(lists, location, rows if seen is sound else None)
    feature_columns.finish(log)
    tables_of_ids = {} if ids is None else ids.tables
    return ReadLog({PART: part}, faults, invalid, tables_of_ids, query_doc_pairs)


def _schema(table: SourceTable) -> dict[str, Column]:
    """The packed columns of lists: those of a table, and what lists to predict may lack."""
    columns = {name: COLUMNS[name] for name in REQUIRED} | packed_columns(table)
    if "seen" in table.columns:  # those left keep their places
        columns["positions"] = COLUMNS["positions"]
    return columns


def packed_columns(table: SourceTable) -> dict[str, Column]:
    """The packed columns of a table."""
    fields = {name: COLUMNS.get(name, table.fields[name]) for name in table.columns}
    return {name: field for name, field in fields.items() if isinstance(field, Column)}

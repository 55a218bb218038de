"""Sessions from tables with one row per session: lists of documents and clicks in its cells."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.data.ingest.columns import (
    NORMALIZED,
    SEARCH_SESSION,
    Fields,
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
from clickexp.data.ingest.source_table import Batch, SourceTable, TextForm
from clickexp.data.ingest.tables import batches_of, open_tables, pieces_of_tables
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import COLUMNS, Column, Remedy, check_ids
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
_ID_COLUMNS = {"query_doc_ids": ("document", "others"), "query_ids": ("query", "text")}
"""What the ids of a column name, and what they may not be where nobody numbers them."""
_IDS_TO_PREDICT = {
    "query_doc_ids": "in the place of names write the ids of the log of the run, which had no names",
    "query_ids": "leave others out: columns.query_id=null",
}
"""What to do about text in lists to predict by a run that has ids and no names."""


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
    names, extra = named_columns({"time": None, **(columns or {})}, _KEYS)
    check_pair_key(pair_key, (None, *PAIR_KEYS))
    if normalize is not None:
        log.notes[NORMALIZED] = normalize
    feature_columns = FeatureColumns(vectors, extra, _KEYS, by_row=False)
    rule = rank_rule("positions", first_rank)
    has_query = (columns or {}).get("query_id") is not None
    pair_key_of_others = "query_document" if has_query else "document"
    fields: dict[str, Readable] = {
        **COLUMNS,
        **_id_fields(pair_key, normalize, log, pair_key_of_others),
        **extra,
        "clicks": forms.clicks(),
        "labels": forms.labels(),
        "positions": replace(COLUMNS["positions"], least=first_rank, rule=rule),
        "session_ids": SEARCH_SESSION,
        "times": forms.time(),
        "seen": SEEN,
        **feature_columns.fields(),
    }
    required = {*REQUIRED, *extra, *feature_columns.required, "query_id", "time"}
    required -= {"query_id"} if pair_key != "query_document" else set()
    required -= {"time"} if names["time"] is None else set()
    named = feature_columns.names(names), required - log.may_lack
    tables = open_tables(source, fields, *named, files=files, text=text, share=log.share)
    declarations = feature_columns.declare(tables)
    ids = PairIds(pair_key, log.names) if pair_key else None
    schema = ["lengths", *(_schema(tables[0]) | declarations).values()]
    faults, part = Faults(first_rank), ReadPart(log, PART, schema, positions)
    largest = query_doc_pairs if ids is None else None
    for batch in batches_of(tables, log.progress, faults=faults):
        sound, rows = _sound(batch, fields | declarations, faults, largest, log)
        seen = seen_alone(sound, log)
        lists = with_session_keys(seen.head(positions, log))
        lists = feature_columns.encoded(lists, log, batch.location)
        lists = lists if ids is None else ids.number(lists)
        part.append(lists, batch.location, rows if seen is sound else None)
    feature_columns.finish(log)
    tables_of_ids = {} if ids is None else ids.tables
    return ReadLog({PART: part}, faults, invalid, tables_of_ids, query_doc_pairs)


def _id_fields(
    pair_key: str | None, normalize: Normalize, log: LogWriter, of_others: str
) -> dict[str, Readable]:
    """How ids are read: of any kind where there is a `pair_key`, which numbers them; else `of_others` does others."""
    fields: dict[str, Readable] = {}
    for name, (what, other) in _ID_COLUMNS.items():
        column = COLUMNS[name]
        if pair_key:
            fields[name] = id_field(what, normalize, column.per_document)
            continue
        rule = f"{column.rule}; pair_key=document or query_document numbers {other}"
        rule = Remedy(rule, {"pair_key": of_others})
        if log.may_lack:
            rule = f"{column.rule}; {_IDS_TO_PREDICT[name]}"
        fields[name] = replace(column, rule=rule)
    return fields


def _sound(
    batch: Batch, fields: Fields, faults: Faults, largest: int | None, log: LogWriter
) -> tuple[Lists, np.ndarray]:
    """The lists of a batch that its location does not refuse, and their rows; `largest` is the largest id allowed."""
    location = batch.location
    lists = Lists.of(batch.columns, location, fields).completed()
    lists.check_order(location)
    faults.first_rank.add(np.asarray(lists.documents.get("positions", ())))
    lists = from_one(lists, faults.first_rank.first, location)
    check_seen(lists, location)
    if largest is not None:
        documents = np.asarray(lists.documents["query_doc_ids"])
        check_ids(documents, largest, location, lists.lengths)
    return lists.sound(location, log)


def _schema(table: SourceTable) -> dict[str, Column]:
    """The packed columns of lists: those of a table, and what lists to predict may lack."""
    names = dict.fromkeys((*REQUIRED, *table.columns))
    columns = {name: COLUMNS.get(name, table.fields[name]) for name in names}
    if "seen" in table.columns:  # those left keep their places
        columns["positions"] = COLUMNS["positions"]
    return {name: field for name, field in columns.items() if isinstance(field, Column)}

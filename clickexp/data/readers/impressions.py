"""Sessions from tables with one row an impression, a document shown at a rank."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data.checksums import Progress
from clickexp.data.encoding import FEATURES
from clickexp.data.id_table import IdTable
from clickexp.data.ingest.columns import ANY_ID, SEARCH_SESSION, TIME, Field, named_columns
from clickexp.data.ingest.extent import Extent
from clickexp.data.ingest.features import FeatureColumns, Missing
from clickexp.data.ingest.lists import Lists, cells
from clickexp.data.ingest.numbering import PairIds, with_session_keys
from clickexp.data.ingest.shown import CONTRADICTION, NOT_SEEN, SEEN, from_one, rank_rule
from clickexp.data.ingest.source_table import SourceTable, TextForm
from clickexp.data.ingest.tables import batches_of, open_tables
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import keys_of
from clickexp.data.schema import COLUMNS, Column, SourceLocation, declared
from clickexp.errors import DataError
from clickexp.utils.bounds import FirstRank, PositiveInt

_FIELDS: dict[str, Column | Field] = {
    **dict.fromkeys(("session", "query", "document"), ANY_ID._replace(per_document=False)),
    "search_session": SEARCH_SESSION,
    "time": TIME,
    "rank": Column("rank", "int32", per="session", least=1),
    "click": replace(COLUMNS["clicks"], name="click", per="session"),
    "label": replace(COLUMNS["labels"], name="label", per="session"),
    "seen": Column("seen", "bool", per="session", rule=SEEN.rule),
}
"""What each cell of a row is read as."""
_REQUIRED = ("session", "document", "rank", "click")
_PACKED = {
    "document": "query_doc_ids",
    "click": "clicks",
    "rank": "positions",
    "label": "labels",
    "query": "query_ids",
    "session_ids": "session_ids",
    "times": "times",
}
"""The packed column of a field, where it has another name."""

_Rows = pl.DataFrame
"""A row per impression: the fields that are there; `place`, where it stands; `page`, the number of its session here."""


@log_format("impressions", has_features=True)
def open_impressions(
    source: Path,
    log: LogWriter,
    *,
    files: str | None = None,
    columns: Mapping[str, Any] | None = None,
    separator: str | None = None,
    header: Sequence[str] | None = None,
    first_rank: FirstRank = 1,
    features: Sequence[str] | None = None,
    missing: Missing | None = None,
    standardize: bool = True,
    pair_key: str = "query_document",
    positions: PositiveInt | None = None,
) -> None:
    """The dataset in a table of impressions, CSV, TSV or parquet, or in those of a folder in the order of their names.

    A session is one result page. Its rows stand together, in any order, also across files; ranks may have gaps and
    become the positions. Sessions, queries and documents are integers or text; queries and documents are numbered
    from 1 in the order of appearance. Memory holds a batch of rows, and 12 to 30 bytes for each distinct session,
    query, and document or pair.

    files      pattern of the files in a folder, default all of these kinds
    columns    file's name for session, query, document, rank, click, label, search_session, time; the last three are
               optional, and so is the query where pair_key is "document". search_session is what the lists of a user
               have in common; time, a number or a date and time, one per page, orders them, default the order of the
               rows. Any other key declares a column that models may read:
               {dtype: float32, per: document, fill: null, name: KEY}; one per session has one value in all its rows;
               dtype may be category
    features   columns that the feature vectors of documents are made of: numbers, true and false, categories, and
               vectors; None takes query_doc_features, a list of numbers, where the files have it
    missing    what stands for a missing feature: "mean", "zero", or "indicator", the mean and a further feature that
               says so; None refuses it
    standardize  numbers get mean 0 and standard deviation 1 over the training documents
    separator  of text columns, default the first of tab, comma, semicolon and bar in the first line
    pair_key   what has a row in the tables: "query_document", a document under a query, or "document"
    positions  lowest rank to keep, default all; what is shown below is dropped and counted

    DataError names file, row and remedy: a session that comes back after another, with two queries, or with two
    documents at a rank.
    """
    names, extra = named_columns({"time": None, **(columns or {})}, (*_FIELDS, FEATURES))
    made = FeatureColumns(features, missing, standardize, extra, _FIELDS, by_row=True)
    names = made.names(names)
    fields = _FIELDS | made.fields() | _by_row(extra)
    fields |= {"session_ids": fields["search_session"], "times": fields["time"]}
    fields["rank"] = Column(
        "rank", "int32", per="session", least=first_rank, rule=rank_rule("ranks", first_rank)
    )
    required = (*_REQUIRED, *extra, *made.required) + ("query",) * (pair_key == "query_document")
    required = tuple(key for key in required if key != "session" or names[key] is not None)
    text = TextForm(separator, header)
    tables = open_tables(source, fields, names, required, files=files, text=text)
    own = made.settle(tables)
    packed = [
        own[name] if name in own else _PACKED[name]
        for name in tables[0].columns
        if name not in ("session", "seen")
    ]
    schema = declared(["lengths", *packed])
    ranks = _longest(tables, schema.values()) if positions is None else positions
    reading = _Reading(tables, log.progress, _by_row(own))
    sessions, ids = IdTable(), PairIds(pair_key, log.names)
    place = SourceLocation(str(source))
    with log.part("sessions", ranks, schema.values()) as pack:
        for rows in _whole_sessions(_seen(reading, log)):
            lists = from_one(_lists(rows, schema, sessions, reading), first_rank, place)
            lists = lists.down_to(positions, log)
            if len(lists.lengths):
                lists = made.encoded(lists, log, place)
                pack.append(ids.number(lists).padded(ranks, schema), place)
    made.finish(log)


def _by_row(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Returns columns as they are read where a row is a document."""
    return {name: replace(column, per="session") for name, column in columns.items()}


class _Reading:
    """Reads the rows of tables, one after the other, and knows where each of them stands."""

    def __init__(
        self,
        tables: Sequence[SourceTable],
        progress: Progress | None = None,
        fields: Mapping[str, Column] | None = None,
    ):
        self.tables, self.progress = tables, progress
        self._fields = {**tables[0].fields, **(fields or {})}
        self._locations: list[SourceLocation] = []

    def rows(self, keys: Sequence[str] | None = None) -> Iterator[_Rows]:
        """The rows batch by batch."""
        for batch in batches_of(self.tables, self.progress, keys):
            columns = {
                name: self._cells(name, values, batch.location, batch.lengths)
                for name, values in batch.columns.items()
            }
            place = (len(self._locations) << 32) + batch.rows
            if "session" not in self.tables[0].columns:  # each row of the file is one
                columns["session"] = pl.Series(place)
            self._locations.append(batch.location)
            yield pl.DataFrame({**columns, "place": place})

    def _cells(
        self,
        name: str,
        values: pl.Series,
        location: SourceLocation,
        lengths: np.ndarray | None,
    ) -> pl.Series:
        field = self._fields[name]
        values = cells(name, values, field, location, lengths)
        if isinstance(field, Column) and not field.is_category:
            return pl.Series(field.convert(values.to_numpy(), location, lengths))
        return values

    def error(self, what: str, remedy: str, row: int) -> DataError:
        """The error to raise about the row at a place."""
        return self._locations[row >> 32].error(what, remedy, row & 0xFFFFFFFF)

    def reject(self, bad: pl.Series, rows: _Rows, what: str, remedy: str) -> None:
        """DataError for the first of the rows where `bad` is true; `what` may name columns in braces."""
        if bad.any():
            row = rows.filter(bad).row(0, named=True)
            raise self.error(what.format(**row), remedy, row["place"])


def _seen(reading: _Reading, log: LogWriter) -> Iterator[_Rows]:
    """The rows of documents that were seen; the log counts the others."""
    for rows in reading.rows():
        if "seen" not in rows.columns:
            yield rows
            continue
        unseen_click = rows["click"] & ~rows["seen"]
        reading.reject(unseen_click, rows, "seen holds false for a click", CONTRADICTION)
        log.note(NOT_SEEN, int((~rows["seen"]).sum()))
        yield rows.filter("seen").drop("seen")


def _longest(tables: Sequence[SourceTable], columns: Iterable[Column]) -> int:
    """Rows of the longest session."""
    extent, reading = Extent(), _Reading(tables)
    key = "session" if "session" in tables[0].columns else "document"
    for rows in _whole_sessions(reading.rows([key])):
        pages = rows.group_by("page", maintain_order=True).agg(pl.len(), pl.first("place"))
        extent.add(pages["len"].to_numpy().astype(np.int64), reading, pages["place"].to_numpy())
    return extent.ranks(columns, "set positions to the lowest rank to keep")


def _whole_sessions(blocks: Iterable[_Rows]) -> Iterator[_Rows]:
    """The same rows cut between sessions: the last session of a block waits for what follows."""
    held = None
    for rows in filter(len, blocks):
        rows = rows if held is None else pl.concat([held, rows])
        page = rows["session"].rle_id()
        cut = int(page.search_sorted(page[-1]))
        if cut:
            yield rows[:cut].with_columns(page=page[:cut])
        held = rows[cut:]
    if held is not None:
        yield held.with_columns(page=pl.lit(0))


def _lists(
    rows: _Rows, schema: Mapping[str, Column], sessions: IdTable, reading: _Reading
) -> Lists:
    """Whole sessions as lists in the order of ranks.

    Raises:
        DataError: A session is not new, has two values of what is per session, or two documents at a rank.
    """
    first, earlier = rows["page"].is_first_distinct(), len(sessions)
    begun = rows.filter(first)
    back = pl.Series(
        sessions.ids(keys_of(begun["session"])) != earlier + np.arange(1, len(begun) + 1)
    )
    reading.reject(
        back, begun, "a session goes on after another one has begun", "sort the table by session"
    )
    by_name = {
        key: schema[_PACKED.get(key, key)]
        for key in rows.columns
        if _PACKED.get(key, key) in schema
    }
    for name in (name for name, column in by_name.items() if not column.per_document):
        remedy = "a session is one result page: give every page its own session"
        other = (rows[name] != rows[name].shift()) & ~first
        reading.reject(other, rows, f"its {name} differs from the one above in its session", remedy)
    rows = rows.sort("page", "rank", maintain_order=True)
    twice = (rows["page"] == rows["page"].shift()) & (rows["rank"] == rows["rank"].shift())
    remedy = "a rank shows one document: drop one of the two rows"
    reading.reject(twice, rows, "its session has another document at rank {rank}", remedy)
    lengths = rows["page"].rle().struct.field("len").to_numpy().astype(np.int64)
    documents = {column.name: rows[name] for name, column in by_name.items() if column.per_document}
    per_session = {
        column.name: begun[name] for name, column in by_name.items() if not column.per_document
    }
    return with_session_keys(Lists(lengths, documents, per_session))

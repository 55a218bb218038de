"""Sessions from tables with one row an impression, a document shown at a rank."""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.checksums import Progress
from clickexp.data.ingest.columns import ANY_ID, Field, named_columns
from clickexp.data.ingest.id_table import IdTable
from clickexp.data.ingest.numbering import PairIds, as_ids, keys_of
from clickexp.data.ingest.ragged import check_nulls, filled, scatter
from clickexp.data.ingest.tables import SourceTable, batches_of, find_files, open_tables
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.readers.csv import TextTable
from clickexp.data.readers.parquet import ParquetTable
from clickexp.data.schema import COLUMNS, Column, Extent, SourceLocation
from clickexp.errors import DataError
from clickexp.utils.bounds import PositiveInt

FIELDS: dict[str, Column | Field] = {
    **dict.fromkeys(("session", "query", "document"), ANY_ID._replace(per_document=False)),
    "rank": Column("rank", "int32", per="session", least=1, rule="ranks are integers from 1"),
    "click": replace(COLUMNS["clicks"], name="click", per="session"),
    "label": replace(COLUMNS["labels"], name="label", per="session"),
}
"""What each cell of a row is read as."""
REQUIRED = ("session", "document", "rank", "click")

Rows = pl.DataFrame
"""A row an impression: the fields that are there, and `row`, its number over all files."""


@log_format("impressions")
def open_impressions(
    source: Path,
    log: LogWriter,
    *,
    files: str | None = None,
    columns: Mapping[str, Any] | None = None,
    separator: str | None = None,
    pair_key: str = "query_document",
    positions: PositiveInt | None = None,
) -> None:
    """The dataset in a table of impressions, CSV, TSV or parquet, or in those of a folder in the order of their names.

    A session is one result page. Its rows stand together, in any order, also across files; ranks may have gaps and
    become the positions. Sessions, queries and documents are integers or text; queries and documents are numbered
    from 1 in the order of appearance. Memory holds a batch of rows, and 12 to 30 bytes for each distinct session,
    query, document and pair.

    files      pattern of the files in a folder, default all of these kinds
    columns    file's name for session, query, document, rank, click, label; the label is optional, and so is the
               query where pair_key is "document". Any other key declares a column that models may read:
               {dtype: float32, per: document, fill: null, name: KEY}; one per session has one value in all its rows
    separator  of text columns, default a tab if the first line has one, else a comma
    pair_key   what has a row in the tables: "query_document", a document under a query, or "document"
    positions  lowest rank to keep, default all; what is shown below is dropped and counted

    DataError names file, row and remedy: a session that comes back after another, with two queries, or with two
    documents at a rank.
    """
    ids = PairIds(pair_key, log.names)
    tables, extra = _tables(source, files, columns, separator, pair_key)
    if positions is not None and positions < 1:
        raise DataError(f"positions is {positions}: no rank is left. Set it to at least 1.")
    names: list[str | Column] = ["query_doc_ids", "clicks", "lengths", "positions"]
    names += ["query_ids"] * ("query" in tables[0].columns) + ["labels"] * ("label" in tables[0].columns)
    names += extra.values()
    ranks = _longest(tables, names) if positions is None else positions
    reading, sessions = Reading(tables, log.progress), IdTable()
    with log.part("sessions", ranks, names) as pack:
        for rows in _whole_sessions(reading.rows()):
            _check_sessions(rows, sessions, reading, extra)
            rows = _down_to(_by_rank(rows, reading), positions, log)
            if len(rows):
                pack.append(_lists(rows, ids, ranks, extra), SourceLocation(str(source)))


class Reading:
    """Reads the rows of tables, one after the other, and knows where each of them stands."""

    def __init__(self, tables: Sequence[SourceTable], progress: Progress = lambda done, total: None):
        self.tables, self.progress = tables, progress
        self._starts: list[int] = []
        self._locations: list[SourceLocation] = []

    def rows(self, keys: Sequence[str] | None = None) -> Iterator[Rows]:
        """The rows batch by batch."""
        count = 0
        for batch in batches_of(self.tables, self.progress, keys):
            self._starts.append(count)
            self._locations.append(batch.location)
            columns = {
                name: self._checked(name, values, batch.location) for name, values in batch.columns.items()
            }
            size = len(columns["session"])
            if size:
                yield pl.DataFrame({**columns, "row": np.arange(count, count + size)})
            count += size

    def _checked(self, name: str, values: pa.Array, location: SourceLocation) -> pl.Series:
        """A column as ids or numbers; DataError names the first row that breaks its rule."""
        field = self.tables[0].fields[name]
        values = filled(values, field.fill)
        check_nulls(name, values, field.rule, location)
        if isinstance(field, Field):
            return as_ids(values)
        numbers = field.convert(values.to_numpy(zero_copy_only=False), location)
        return pl.Series(numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers)

    def error(self, what: str, remedy: str, row: int) -> DataError:
        """The error to raise about the row with this number."""
        batch = bisect(self._starts, row) - 1
        return self._locations[batch].error(what, remedy, row - self._starts[batch])


def _tables(
    source: Path,
    files: str | None,
    columns: Mapping[str, Any] | None,
    separator: str | None,
    pair_key: str,
) -> tuple[list[SourceTable], dict[str, Column]]:
    names, extra = named_columns(columns, FIELDS)
    fields = FIELDS | {name: replace(column, per="session") for name, column in extra.items()}
    required = (*REQUIRED, *extra) + ("query",) * (pair_key == "query_document")

    def opened(file: Path) -> SourceTable:
        if file.suffix in ParquetTable.suffixes:
            return ParquetTable(file, fields, names, required)
        return TextTable(file, fields, names, required, separator)

    return open_tables(find_files(source, files, TextTable.suffixes + ParquetTable.suffixes), opened), extra


def _longest(tables: Sequence[SourceTable], columns: Iterable[str | Column]) -> int:
    """Rows of the longest session."""
    extent, reading = Extent(), Reading(tables)
    for rows in _whole_sessions(reading.rows(["session"])):
        extent.add(_sizes(rows), reading, rows["row"].to_numpy()[_starts(rows)])
    return extent.ranks(columns, "set positions to the lowest rank to keep")


def _whole_sessions(blocks: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows cut between sessions: the last session of a block waits for what follows."""
    held = None
    for rows in blocks:
        if held is not None:
            rows = pl.concat([held, rows])
        cut = int(_starts(rows)[-1])
        if cut:
            yield rows[:cut]
        held = rows[cut:]
    if held is not None:
        yield held


def _starts(rows: Rows) -> np.ndarray:
    """Index of the first row of each session."""
    return np.flatnonzero(_changes(rows["session"]))


def _changes(values: pl.Series) -> np.ndarray:
    """Where a value differs from the one above it; the first one does."""
    return np.append(True, values[1:] != values[:-1])


def _sizes(rows: Rows) -> np.ndarray:
    """Rows of each session."""
    return np.diff(_starts(rows), append=len(rows))


def _check_sessions(rows: Rows, sessions: IdTable, reading: Reading, extra: Mapping[str, Column]) -> None:
    """DataError unless every session is new and has one query, and one value of what is per session."""
    starts, known = _starts(rows), len(sessions)
    numbers = sessions.ids(keys_of(rows["session"][starts]))
    back = numbers != known + np.arange(1, len(starts) + 1)
    if back.any():
        what = "a session goes on after another one has begun"
        raise reading.error(what, "sort the table by session", rows["row"][starts.item(back.argmax())])
    per_session = [name for name, column in extra.items() if not column.per_document]
    for name in ["query"] * ("query" in rows.columns) + per_session:
        other = _changes(rows[name])
        other[starts] = False
        if other.any():
            what = f"its {name} differs from the one above in its session"
            remedy = "a session is one result page: give every page its own session"
            raise reading.error(what, remedy, rows["row"][int(other.argmax())])


def _by_rank(rows: Rows, reading: Reading) -> Rows:
    """The rows of each session in the order of their ranks, with the number of their session."""
    sizes = _sizes(rows)
    page = pl.Series("page", np.repeat(np.arange(len(sizes)), sizes))
    rows, order = rows.with_columns(page), np.lexsort((rows["rank"], page))
    if (np.diff(order) < 0).any():
        rows = rows[order]
    twice = (np.diff(rows["page"]) == 0) & (np.diff(rows["rank"]) == 0)
    if twice.any():
        at = int(twice.argmax()) + 1
        what = f"its session has another document at rank {rows['rank'][at]}"
        raise reading.error(what, "a rank shows one document: drop one of the two rows", rows["row"][at])
    return rows


def _down_to(rows: Rows, positions: int | None, log: LogWriter) -> Rows:
    """The rows down to a rank."""
    if positions is None:
        return rows
    kept = rows["rank"] <= positions
    left = rows.filter(kept)
    log.note("cut_lists", rows.filter(~kept)["page"].n_unique())
    log.note("dropped_lists_without_documents", rows["page"].n_unique() - left["page"].n_unique())
    return left


def _lists(rows: Rows, ids: PairIds, ranks: int, extra: Mapping[str, Column]) -> dict[str, np.ndarray]:
    """One row per session."""
    _, first, lengths = np.unique(rows["page"], return_index=True, return_counts=True)
    asked = rows["query"][first] if "query" in rows.columns else None
    documents, queries = ids.number(rows["document"], lengths, asked)
    flat = {"query_doc_ids": documents, "clicks": rows["click"], "positions": rows["rank"]}
    flat |= {"labels": rows["label"]} if "label" in rows.columns else {}
    lists = {name: scatter(np.asarray(values), lengths, ranks) for name, values in flat.items()}
    for name, column in extra.items():
        values = rows[name].to_numpy()
        lists[name] = (
            scatter(values, lengths, ranks, column.padding) if column.per_document else values[first]
        )
    return lists | {"lengths": lengths} | ({"query_ids": queries} if queries is not None else {})

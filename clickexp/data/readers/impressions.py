"""Sessions from tables with one row an impression, a document shown at a rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data.encoding import FEATURES
from clickexp.data.ingest.columns import (
    ANY_ID,
    NORMALIZED,
    SEARCH_SESSION,
    TIME,
    Normalize,
    Readable,
    ValueForms,
    id_field,
    named_columns,
)
from clickexp.data.ingest.faults import Faults, Invalid
from clickexp.data.ingest.features import FeatureColumns, FeatureForm
from clickexp.data.ingest.lists import Lists, Values, cells
from clickexp.data.ingest.numbering import PairIds, with_session_keys
from clickexp.data.ingest.packing import PART, ReadLog, ReadPart
from clickexp.data.ingest.pages import (
    LEAVES_GAP,
    PAGES,
    SOUND,
    SPOILS_PAGE,
    ApartError,
    Pages,
    Rows,
    gathered,
    starts_of,
    whole_sessions,
)
from clickexp.data.ingest.shown import (
    CONTRADICTION,
    NOT_SEEN,
    SEEN,
    from_one,
    rank_rule,
)
from clickexp.data.ingest.source_table import SourceTable, TextForm
from clickexp.data.ingest.tables import batches_of, open_tables, pieces_of_files
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import COLUMNS, Column, SourceLocation, declared
from clickexp.errors import DataError
from clickexp.utils.bounds import FirstRank, PositiveInt

_FIELDS: dict[str, Readable] = {
    **dict.fromkeys(("session", "query", "document"), ANY_ID._replace(per_document=False)),
    "search_session": SEARCH_SESSION,
    "time": TIME,
    "rank": Column("rank", "int32", per="session", least=1),
    "click": replace(COLUMNS["clicks"], name="click", per="session"),
    "label": replace(COLUMNS["labels"], name="label", per="session"),
    "seen": Column("seen", "bool", per="session", rule=SEEN.rule),
}
"""The fields that cells of a row are read as."""
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

_UNSEEN = "clicks_on_what_was_not_seen"
_STATES = {"click": SPOILS_PAGE}
"""State of a row with a fault in some field, where it is not LEAVES_GAP."""


@log_format("impressions", has_features=True, pieces=pieces_of_files)
def open_impressions(
    source: Path,
    log: LogWriter,
    *,
    files: str | None = None,
    columns: Mapping[str, Any] | None = None,
    text: TextForm,
    first_rank: FirstRank = 1,
    forms: ValueForms,
    vectors: FeatureForm,
    pair_key: str = "query_document",
    positions: PositiveInt | None = None,
    invalid: Invalid = "error",
    normalize: Normalize = None,
) -> ReadLog:
    """The dataset in a table of impressions, CSV, TSV or parquet, or in those of a folder in the order of their names.

    A session is one result page. Its rows may stand in any order and apart, also across files; sessions come in the
    order in which they begin. Ranks may have gaps and become the positions. Rows of one document at a rank of a page
    are merged and counted; it was clicked if one of them was. Sessions, queries and documents are integers or text;
    queries and documents are numbered from 1 in the order of appearance. Memory holds a batch of rows, or those of
    8,192 sessions where rows lie apart, and 12 to 30 bytes for each distinct session, query, and document or pair.

    files      pattern of the files in a folder, default all of these kinds
    columns    file's name for session, query, document, rank, click, label, search_session, time; the last three are
               optional, and so is the query where pair_key is "document". search_session is what the lists of a user
               have in common; time, a number or a date and time, orders them, default the order of the rows; of the
               rows of a page the earliest counts. Any other key declares a column that models may read:
               {dtype: float32, per: document, fill: null, name: KEY}; one per session has one value in all its rows;
               dtype may be category
    text, forms, vectors  options of `TextForm`, `ValueForms` and `FeatureForm`, each under its own name
    first_rank   1 or 0, the rank of the first document of a page
    pair_key   what has a row in the tables: "query_document", a document under a query, or "document"
    positions  lowest rank to keep, default all; what is shown below is dropped and counted
    invalid    "error": DataError once all is read, which names each kind of fault with its count, first rows and
               remedy: a value that is missing or no such value, a session with two queries or two documents at a
               rank. "drop": leaves these out, counted. A row without a session goes alone, and so does one that was not
               clicked, whose rank stays empty; any other takes its page with it
    normalize  "query", "document" or "all": text that differs by case or blanks names one query or document
    """
    names, extra = named_columns({"time": None, **(columns or {})}, (*_FIELDS, FEATURES))
    feature_columns = FeatureColumns(vectors, extra, _FIELDS, by_row=True)
    names = feature_columns.names(names)
    fields = _FIELDS | feature_columns.fields() | _by_row(extra)
    fields |= {
        "click": replace(forms.clicks(), name="click", per="session"),
        "label": replace(forms.labels(), name="label", per="session"),
        "session_ids": fields["search_session"],
        "times": forms.time(),
    }
    fields["rank"] = Column(
        "rank", "int32", per="session", least=first_rank, rule=rank_rule("ranks", first_rank)
    )
    fields |= {name: id_field(name, normalize) for name in ("query", "document")}
    needed = [*_REQUIRED, *extra, *feature_columns.required]
    needed += ["query"] if pair_key == "query_document" else []
    if pair_key == "query_document" and names["query"] is None and "query" not in log.may_lack:
        raise DataError(
            f"{source}: columns.query=null leaves out what pair_key=query_document needs, a document under each query. "
            "Set pair_key=document, or name the column of queries.",
            {"pair_key": "document"},
        )
    left_out = {key for key in ("session", "time") if names[key] is None}
    required = {*needed, "time"} - left_out - log.may_lack
    tables = open_tables(source, fields, names, required, files=files, text=text, share=log.share)
    schema = _schema(tables[0], feature_columns.declare(tables))
    arguments = (tables, log, schema, pair_key, first_rank, feature_columns)
    try:
        read = _Reading(*arguments).read(positions, invalid)
    except ApartError:
        log.restart()
        read = _Reading(*arguments, gather=True).read(positions, invalid)
    if normalize is not None:
        log.notes[NORMALIZED] = normalize
    feature_columns.finish(log)
    return read


def _schema(table: SourceTable, declarations: Mapping[str, Column]) -> dict[str, Column]:
    """Returns the packed columns of a table, and those that rows to predict may lack."""
    columns = {**_PACKED, **declarations}
    names = dict.fromkeys(("document", "click", *table.columns))
    packed = [columns[name] for name in names if name not in ("session", "seen")]
    return declared(["lengths", *packed])


def _by_row(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Returns columns as they are read where a row is a document."""
    return {name: replace(column, per="session") for name, column in columns.items()}


class _Reading:
    """Reads the rows of tables into lists that wait on disk, until the longest of them is known.

    Args:
        tables: The tables.
        log: Gets names and counts, and has room for the lists.
        schema: The packed columns.
        pair_key: What has a row in the tables.
        first_rank: What ranks count from.
        feature_columns: Those of features and categories.
        gather: Put the rows of a session together that lie apart.
    """

    def __init__(
        self,
        tables: Sequence[SourceTable],
        log: LogWriter,
        schema: Mapping[str, Column],
        pair_key: str,
        first_rank: int,
        feature_columns: FeatureColumns,
        gather: bool = False,
    ):
        self._tables, self._log, self._gather = tables, log, gather
        self._first_rank, self._place = first_rank, SourceLocation(str(log.source))
        self._schema = schema
        self._columns = {
            name: schema[_PACKED.get(name, name)]
            for name in {**dict.fromkeys(("document", "click")), **tables[0].columns}
            if _PACKED.get(name, name) in schema
        }
        self._feature_columns, self._fields = (
            feature_columns,
            {**tables[0].fields, **_by_row(feature_columns.columns)},
        )
        self._ids = PairIds(pair_key, log.names)
        self._locations: list[SourceLocation] = []
        self._shown, self._faults = 0, Faults(first_rank)

    def read(self, positions: int | None, invalid: Invalid) -> ReadLog:
        """Reads all rows.

        Args:
            positions: Lowest rank to keep, None for all.
            invalid: What becomes of faulty rows.

        Raises:
            ApartError: Rows of a session lie apart, and are not to be gathered.
        """
        per_session = [
            name
            for name, column in self._columns.items()
            if not column.per_document and name != "times"  # rows have their own, the first counts
        ]
        pages = Pages(per_session, self._locations, self._faults, self._log)
        remedy = "set positions to the lowest rank to keep"
        part = ReadPart(self._log, PART, self._schema.values(), positions, remedy)
        blocks = self._rows()
        if self._gather:
            blocks = gathered(blocks, self._log.scratch, self._log.note)
        for block in whole_sessions(blocks):
            rows = pages.sound(block)
            starts = starts_of(rows)
            lists = from_one(self._lists(rows, starts), self._first_rank, self._place)
            lists = lists.down_to(positions, self._log)
            if len(lists.lengths):
                places = rows["place"].to_numpy()[starts]
                longest = self._locations[places[lists.lengths.argmax()] >> 32]
                lists = self._feature_columns.encoded(lists, self._log, self._place)
                part.append(self._ids.number(lists), longest, places & 0xFFFFFFFF)
        tables = self._ids.tables
        if "session" in self._tables[0].columns:  # else a page is a row
            tables[PAGES] = pages.sessions
        return ReadLog({PART: part}, self._faults, invalid, tables)

    def _rows(self) -> Iterator[Rows]:
        """The rows batch by batch, without those of no session."""
        for batch in batches_of(self._tables, self._log.progress, faults=self._faults):
            of_file = batch.rows  # several where a row of the file holds lists
            stored = len(of_file) if batch.lengths is None else len(batch.lengths)
            state, kept = np.zeros(len(of_file), np.int8), np.ones(len(of_file), bool)
            columns: dict[str, Values] = {}
            for name, values in batch.columns.items():
                field = self._fields[name]
                columns[name] = cells(name, values, field, batch.location, batch.lengths)
                if (refused := batch.location.refused(stored)) is not None:
                    refused = refused[of_file]
                    if name == "session":
                        kept &= ~refused
                        self._log.note("dropped_rows", int(refused.sum()))
                    state[refused] = np.maximum(state[refused], _STATES.get(name, LEAVES_GAP))
            numbers = self._shown + 1 + np.arange(len(of_file))
            nothing = np.zeros(len(numbers), bool)
            columns = {"rank": numbers, "document": numbers, "click": nothing, **columns}
            self._shown += len(of_file)
            self._faults.first_rank.add(np.asarray(columns["rank"]))
            state[(state == LEAVES_GAP) & np.asarray(columns["click"])] = SPOILS_PAGE
            place = (len(self._locations) << 32) + of_file
            self._locations.append(batch.location)
            if "session" not in columns:  # each row of the file is one
                columns["session"] = pl.Series(place)
            if "seen" in columns:
                kept &= self._seen(columns, state, of_file, batch.location)
            rows = pl.DataFrame({**columns, "place": place, "state": state})
            if not kept.all():
                rows = rows.filter(pl.Series(kept))
            yield rows

    def _seen(
        self,
        columns: dict[str, Values],
        state: np.ndarray,
        of_file: np.ndarray,
        location: SourceLocation,
    ) -> np.ndarray:
        """Which rows were seen, or spoil their page; the log counts the others, and `columns` loses the field."""
        seen, clicks = np.asarray(columns.pop("seen")), np.asarray(columns["click"])
        contradicts = clicks & ~seen & (state == SOUND)
        rows = of_file[contradicts]
        location.refuse(rows, lambda _: "seen holds false for a click", CONTRADICTION, _UNSEEN)
        state[contradicts] = SPOILS_PAGE
        left = seen | (state != SOUND)
        self._log.note(NOT_SEEN, int((~left).sum()))
        return left

    def _lists(self, rows: Rows, starts: np.ndarray) -> Lists:
        """The lists of pages that start at these rows, and are sorted by rank."""
        lengths = np.diff(np.append(starts, len(rows)))
        documents, sessions = {}, {}
        for name, column in self._columns.items():
            if column.per_document:
                documents[column.name] = rows[name]
            elif name == "times":
                sessions[name] = (
                    np.minimum.reduceat(rows[name].to_numpy(), starts)
                    if len(starts)
                    else np.zeros(0)
                )
            else:
                sessions[column.name] = rows[name].gather(starts)
        return with_session_keys(Lists(lengths, documents, sessions))

"""Files to predict or to rank: those with a row per document shown become files with a row per page."""

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data.encoding import FEATURES
from clickexp.data.ingest.columns import ANY_ID, SEARCH_SESSION, Field, ValueForms
from clickexp.data.ingest.faults import Faults
from clickexp.data.ingest.layouts import Kind, guess, guessed_columns
from clickexp.data.ingest.lists import cells
from clickexp.data.ingest.pages import (
    LEAVES_GAP,
    SOUND,
    SPOILS_PAGE,
    gathered,
    whole_sessions,
)
from clickexp.data.ingest.shown import FirstRankCheck, rank_rule
from clickexp.data.ingest.source_table import SourceTable, TextForm
from clickexp.data.ingest.tables import batches_of, open_tables
from clickexp.data.ingest.text_table import TextTable
from clickexp.data.ingest.vectors import VECTORS
from clickexp.data.schema import Column, SourceLocation
from clickexp.errors import UserError

_IN_LISTS = {
    "document": "query_doc_ids",
    "rank": "positions",
    "click": "clicks",
    "query": "query_id",
    "session_ids": "search_session",
    "times": "time",
}
"""What a column of rows is called where a row is a page."""
_OF_PAGES = ("query", "session_ids", "times")
_KEYS = ("session", "query", "document", "rank", "click")
_CONTEXT = ("search_session", "time")
_ANY = Field("iufbUt", "columns hold numbers, true or false, times, or text", per_document=False)


@dataclass(frozen=True)
class Source:
    """Files of sessions or lists, parquet, text or JSON lines, compressed or not.

    Attributes:
        path: A file, or a folder of them.
        columns: What columns are called, as options say.
        files: Pattern of the files in a folder.
        text: How text is written.
        first_rank: What positions count from.
        forms: How values are written.
        invalid: "drop" leaves out what is faulty, as readers of logs do.
        named: What the log of the run calls its columns.
        rows_of: The files with a row per document that this one, with a row per page, was made of.
    """

    path: Path
    columns: Mapping[str, Any] = field(default_factory=dict)
    files: str | None = None
    text: TextForm = field(default_factory=TextForm)
    first_rank: int = 1
    forms: ValueForms = field(default_factory=ValueForms)
    invalid: str = "error"
    named: Mapping[str, Any] = field(default_factory=dict)
    rows_of: "Source | None" = None

    def open(self, fields: Mapping[str, Any], names: Any, required: Any) -> list[SourceTable]:
        """Opens the tables; errors name the files that these were made of.

        Args:
            fields: What each column is read as.
            names: The file's name of each.
            required: Those that must be there.
        """
        tables = open_tables(self.path, fields, names, required, files=self.files, text=self.text)
        if self.rows_of is not None:
            first = 1
            for table in tables:
                table.origin = SourceLocation(str(self.rows_of.path), first, "page")
                first += table.size
        return tables

    def left_out(self, kind: str, count: int) -> None:
        """Says how many rows were left out for a kind of fault."""
        path = (self.rows_of or self).path
        sys.stderr.write(f"{path}: {count:,} left out: {kind.replace('_', ' ')}\n")

    @property
    def is_text(self) -> bool:
        """Whether the files distinguish no text from numbers."""
        origin = self.rows_of or self
        kinds = open_tables(origin.path, {}, {}, (), files=origin.files, text=origin.text)
        return isinstance(kinds[0], TextTable)


def by_page(source: Source, read: Mapping[str, Column], scratch: Path, *, to_rank: bool) -> Source:
    """Returns the files themselves, or files with a row per page where they have a row per document.

    The layout is found as `clickexp-data inspect` finds it; columns that options or the log of the run name come first.
    Pages come in the order in which they begin, and their documents in that of their ranks, if there are ranks. A row
    that is there twice is one. Memory holds the rows of 8,192 pages.

    Args:
        source: The files.
        read: Declarations of the columns that a model reads.
        scratch: An empty folder for the pages.
        to_rank: Lists of candidates: without a column of pages, those of a query are one.

    Raises:
        UserError: No column says which rows are a page.
        DataError: Values do not parse; it names file, row and remedy.
    """
    opened = open_tables(source.path, {}, {}, (), files=source.files, text=source.text)
    kinds = opened[0].kinds()
    of_run = _of_run(source, kinds)
    names = {name: source.columns.get(name) or name for name in read}
    given = {key: source.columns[key] for key in _KEYS if key in source.columns}
    layout = guess(kinds)
    of_lists = {key: name for key, name in of_run.items() if key not in _KEYS}
    if layout is not None and layout.format == "lists" and not given:
        return replace(source, columns={**layout.columns, **of_lists, **source.columns})
    of_bandits = {"session": None} if source.named.get("session", "") is None else {}
    found = {**of_bandits, **guessed_columns("impressions", kinds), **of_run}
    has_rows = layout is not None and layout.format == "impressions"
    if layout is not None and has_rows:
        found = {**layout.columns, **of_run}
        found = {"session": None, **found} if "columns.session" in layout.options else found
    keys = [key for key in _KEYS if key in found and not (to_rank and key == "click")]
    found = {key: found[key] for key in keys} | given
    if not given and not has_rows and not _has_rows(found, names, kinds, to_rank):
        return replace(source, columns={**of_lists, **source.columns})
    if "session" not in found and to_rank and "query" in found:
        found["session"] = found["query"]
    if "session" not in found:
        columns = ", ".join(kinds)
        raise UserError(
            f"{source.path}: no column among {columns} says which rows are one page. Name it: columns.session=NAME; or "
            "columns.session=null, where each row is one."
        )
    names |= {key: source.columns.get(key, of_run.get(key)) for key in _CONTEXT}
    _write_pages(source, {**found, **names}, read, scratch)
    own = {name: name for name in read} | {key: key if names[key] else None for key in _CONTEXT}
    return Source(
        scratch / "pages",
        own,
        forms=source.forms,
        first_rank=source.first_rank,
        invalid=source.invalid,
        rows_of=source,
    )


def _of_run(source: Source, kinds: Mapping[str, Kind]) -> dict[str, str]:
    """Returns the columns of a file that are called as in the log of the run, by key."""
    context = source.columns.get("search_session", "") is not None
    keys = (*_KEYS, "query_doc_ids", "query_id", "positions", "clicks", *_CONTEXT * context)
    named = {key: name for key, name in source.named.items() if isinstance(name, str)}
    return {key: name for key, name in named.items() if key in keys and name in kinds}


def _has_rows(
    found: Mapping[str, str | None],
    names: Mapping[str, str],
    kinds: Mapping[str, Kind],
    to_rank: bool,
) -> bool:
    """Returns whether a file has a row per document: a column of pages, and others that hold no lists."""
    single = {name: kind for name, kind in kinds.items() if not kind.is_list}
    vectors = kinds.get(names.get(FEATURES, FEATURES))
    is_vector = vectors is not None and vectors.is_list and not vectors.is_nested
    described = [name for key, name in names.items() if key != FEATURES and name in kinds]
    if "query_doc_ids" in kinds or any(kinds[name].is_list for name in described):
        return False
    has_pages = "session" in found or (to_rank and "query" in found)
    has_documents = found.get("document") in single or bool(described) or is_vector
    return has_pages and has_documents


def _write_pages(
    source: Source, names: Mapping[str, str | None], read: Mapping[str, Column], scratch: Path
) -> None:
    fields: dict[str, Any] = dict.fromkeys(read, _ANY)
    fields[FEATURES] = VECTORS._replace(per_document=False)
    fields |= dict.fromkeys(("session", "query", "document"), ANY_ID._replace(per_document=False))
    least, rule = source.first_rank, rank_rule("ranks", source.first_rank)
    fields["rank"] = Column("rank", "int32", per="session", least=least, rule=rule)
    fields["click"] = replace(source.forms.clicks(), name="click", per="session")
    fields |= {"search_session": SEARCH_SESSION, "time": source.forms.time()}
    fields |= {"session_ids": fields["search_session"], "times": fields["time"]}
    stated = [key for key in (*_KEYS, "search_session", "time") if names.get(key) is not None]
    tables = open_tables(source.path, fields, names, stated, files=source.files, text=source.text)
    pages, spool = scratch / "pages", scratch / "rows"
    pages.mkdir()
    spool.mkdir()
    per_page = {*_OF_PAGES, *(name for name, column in read.items() if not column.per_document)}
    faults, first_rank, left = Faults(), FirstRankCheck(source.first_rank), 0
    rows = gathered(_rows(tables, faults, first_rank), spool, lambda name, count: None)
    for number, block in enumerate(whole_sessions(rows)):
        listed = _listed(_sound(block), per_page)
        listed.write_parquet(pages / f"{number:08}.parquet")
        left += len(listed)
    faults.end(source.invalid, source.left_out, left, first_rank.options)


def _sound(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows without faulty ones, and without pages that these spoil."""
    spoilt = rows.filter(pl.col("state") == SPOILS_PAGE)["page"].unique()
    is_whole = ~pl.col("page").is_in(spoilt.implode())
    return rows.filter(is_whole, pl.col("state") == SOUND).drop("state")


def _rows(
    tables: list[SourceTable], faults: Faults, first_rank: FirstRankCheck
) -> Iterator[pl.DataFrame]:
    """The rows batch by batch: what names pages and documents is parsed, and columns are as the files have them."""
    done = 0
    for batch in batches_of(tables, faults=faults):
        columns, of_file = {}, batch.rows
        stored = len(of_file) if batch.lengths is None else len(batch.lengths)
        state, known = np.zeros(len(of_file), np.int8), np.ones(len(of_file), bool)
        gap = LEAVES_GAP if "rank" in batch.columns else SPOILS_PAGE
        for key, values in batch.columns.items():
            field = tables[0].fields[key]
            if field is _ANY or key == FEATURES:
                columns[key] = values
            else:
                columns[key] = cells(key, values, field, batch.location, batch.lengths)
            if (refused := batch.location.refused(stored)) is not None:
                refused = refused[of_file]
                known &= ~(refused & (key == "session"))
                state[refused] = np.maximum(state[refused], SPOILS_PAGE if key == "click" else gap)
        first_rank.add(np.asarray(columns.get("rank", ())))
        state[(state == LEAVES_GAP) & np.asarray(columns.get("click", False))] = SPOILS_PAGE
        if "session" not in columns:  # each row of the file is a page
            columns["session"] = pl.Series(done + of_file)
        done += stored
        yield pl.DataFrame({**columns, "state": state}).filter(pl.Series(known))


def _listed(rows: pl.DataFrame, per_page: Collection[str]) -> pl.DataFrame:
    """The rows of whole pages as a row per page."""
    if {"document", "rank"} <= {*rows.columns}:
        place = ["page", "rank", "document"]
        if "click" in rows.columns:
            rows = rows.with_columns(pl.col("click").max().over(place))
        rows = rows.unique(place, keep="first", maintain_order=True)
    if "rank" in rows.columns:
        rows = rows.sort("page", "rank", maintain_order=True)
    of_pages = [name for name in rows.columns if name in per_page]
    listed = [name for name in rows.columns if name not in (*of_pages, "page", "session")]
    first = [pl.col(name).min() if name == "times" else pl.col(name).first() for name in of_pages]
    pages = rows.group_by("page", maintain_order=True).agg(*first, pl.col(listed))
    return pages.drop("page").rename({k: v for k, v in _IN_LISTS.items() if k in pages.columns})

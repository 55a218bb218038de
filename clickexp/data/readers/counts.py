"""Sessions from counts: a row per query, document and rank, with its impressions and clicks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data.ingest.columns import (
    ANY_ID,
    Fields,
    Grades,
    Readable,
    ValueForms,
    named_columns,
)
from clickexp.data.ingest.faults import Faults, Invalid
from clickexp.data.ingest.lists import Lists, cells
from clickexp.data.ingest.numbering import PairIds
from clickexp.data.ingest.shown import rank_rule
from clickexp.data.ingest.source_table import Batch, SourceTable, TextForm
from clickexp.data.ingest.tables import batches_of, open_tables
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import COLUMNS, Column, Columns, SourceLocation
from clickexp.errors import DataError
from clickexp.utils.bounds import FirstRank, Seed

_MOST = 10**9
"""Impressions below this number can be drawn in a random order."""
_CHUNK = 1 << 16
_MEAN = (
    "ranks are integers; a mean over impressions mixes the clicks of several ranks: export counts by rank, or single "
    "impressions, which dataset=impressions reads"
)
_COUNTS = "impressions and clicks are integers from 0"
_FIELDS: dict[str, Readable] = {
    "query": ANY_ID._replace(per_document=False),
    "document": ANY_ID._replace(per_document=False),
    "rank": Column("rank", "int32", per="session"),
    "impressions": Column("impressions", "int64", per="session", least=0, rule=_COUNTS),
    "clicks": Column("clicks", "int64", per="session", least=0, rule=_COUNTS),
    "label": replace(COLUMNS["labels"], name="label", per="session"),
}
_REQUIRED = ("document", "rank", "impressions", "clicks")


@log_format("counts")
def open_counts(
    source: Path,
    log: LogWriter,
    *,
    files: str | None = None,
    columns: Mapping[str, Any] | None = None,
    text: TextForm,
    first_rank: FirstRank = 1,
    grades: Grades = None,
    null_is_no_click: bool = False,
    pair_key: str = "query_document",
    seed: Seed = 0,
    invalid: Invalid = "error",
) -> None:
    """The dataset in a table of counts, or in those of a folder: each impression becomes a list of one document.

    A row with 20 impressions and 9 clicks becomes 20 lists, 9 of them clicked, at its position. They are exactly these,
    in a random order, so that each part of a split is a random part of each row. What else was on a page is not known:
    PBM, trust bias and click rates have the likelihood of whole pages; models that read what stands above a document do
    not. Memory holds the rows, 100 bytes each and their names, and a chunk of 65,536 lists or four per row.

    files       pattern of the files in a folder, default all kinds of tables
    columns     file's name for query, document, rank, impressions, clicks and label; label is optional, and so is the
                query where pair_key is "document"
    text        options of `TextForm`, each under its own name
    first_rank  1 or 0, the rank of the first document of a page
    grades      numbers of the words that labels are written as: {bad: 0, good: 1}
    null_is_no_click  a row whose clicks are missing has none
    pair_key    what has a row in the tables: "query_document", a document under a query, or "document"
    seed        of the order
    invalid     "error": DataError once all is read, which names each kind of fault with its count, first rows and
                remedy. "drop": leaves the rows out, counted
    """
    names, extra = named_columns(columns, _FIELDS)
    if extra:
        raise DataError(f"columns has {[*extra]}. The keys are {[*_FIELDS]}.")
    required = (*_REQUIRED, *("query",) * (pair_key == "query_document"))
    rank = Column(
        "rank", "int32", per="session", least=first_rank, rule=rank_rule("ranks", first_rank)
    )
    labels = ValueForms(grades=grades).labels()
    fields = {**_FIELDS, "rank": rank, "label": replace(labels, name="label", per="session")}
    if null_is_no_click:
        fields["clicks"] = replace(fields["clicks"], fill=0)  # pyright: ignore[reportArgumentType]  # a column
    tables = open_tables(source, fields, names, required, files=files, text=text)
    rows = _rows(tables, log, PairIds(pair_key, log.names), first_rank, invalid)
    _pack(rows, source, log, np.random.default_rng(seed))


def _rows(
    tables: Sequence[SourceTable], log: LogWriter, ids: PairIds, first_rank: int, invalid: Invalid
) -> dict[str, np.ndarray]:
    """The packed columns of the rows that were shown, and how often each was clicked and not."""
    chunks: list[dict[str, np.ndarray]] = []
    faults, total = Faults(first_rank), 0
    for batch in batches_of(tables, log.progress, faults=faults):
        columns = _sound(batch, tables[0].fields, faults, log)
        ranks, clicked = columns["rank"].to_numpy(), columns["clicks"].to_numpy()
        queries = {"query_ids": columns["query"]} if "query" in columns else {}
        ones = np.ones(len(ranks), np.int64)
        lists = ids.number(Lists(ones, {"query_doc_ids": columns["document"]}, queries))
        chunk = {**lists.documents, **lists.sessions, "positions": ranks + 1 - first_rank}
        chunk |= {"clicked": clicked, "skipped": columns["impressions"].to_numpy() - clicked}
        if "label" in columns:
            chunk["labels"] = columns["label"]
        chunks.append({name: np.asarray(values) for name, values in chunk.items()})
        total += len(ranks)
    faults.end(invalid, log, total)
    log.note("rows_without_impressions", sum(_unshown(chunk).sum() for chunk in chunks))
    return {
        name: np.concatenate([chunk[name][~_unshown(chunk)] for chunk in chunks])
        for name in (chunks[0] if chunks else ())
    }


def _sound(batch: Batch, fields: Fields, faults: Faults, log: LogWriter) -> dict[str, pl.Series]:
    """The values of the rows of a batch that its location does not refuse; the log counts the others."""
    _check_no_mean(batch)
    columns = {}
    for name, values in batch.columns.items():
        columns[name] = pl.Series(cells(name, values, fields[name], batch.location, batch.lengths))
    faults.first_rank.add(columns["rank"].to_numpy())
    clicks, shown = columns["clicks"].to_numpy(), columns["impressions"].to_numpy()
    place, unread = batch.location, batch.location.refused(len(clicks))
    read = np.ones(len(clicks), bool) if unread is None else ~unread
    remedy = "each impression has one click at most: count the impressions that were clicked"
    place.reject((clicks > shown) & read, clicks, "clicks", remedy)
    contradicts = place.refused(len(clicks))
    sound = read if contradicts is None else read & ~contradicts
    log.note("dropped_rows", int((~sound).sum()))
    return {name: values.filter(pl.Series(sound)) for name, values in columns.items()}


def _check_no_mean(batch: Batch) -> None:
    """DataError for a rank that is a mean. Whole numbers may be means, too, so that no row is good."""
    ranks = batch.columns["rank"].cast(pl.Float64, strict=False)
    fractions = (ranks != ranks.round()).fill_null(False)
    if fractions.any():
        row = int(fractions.arg_max() or 0)
        what = f"rank holds {batch.columns['rank'][row]!r}"
        raise batch.location.error(what, _MEAN, int(batch.rows[row]))


def _unshown(rows: Columns) -> np.ndarray:
    return (rows["clicked"] == 0) & (rows["skipped"] == 0)


def _pack(
    rows: dict[str, np.ndarray], source: Path, log: LogWriter, rng: np.random.Generator
) -> None:
    clicked, skipped = (rows.pop(name, np.zeros(0, np.int64)) for name in ("clicked", "skipped"))
    per_list = [name for name in rows if not COLUMNS[name].per_document]
    place = SourceLocation(str(source))
    with log.part("sessions", 1, ["lengths", "clicks", *rows]) as pack:
        for drawn in _in_random_order(np.concatenate([clicked, skipped]), source, rng):
            row, click = drawn % max(len(clicked), 1), drawn < len(clicked)
            chunk = {name: values[row] for name, values in rows.items()}
            chunk |= {"clicks": click, "lengths": np.ones(len(row), np.int64)}
            lists = {
                name: values if name in (*per_list, "lengths") else values[:, None]
                for name, values in chunk.items()
            }
            pack.append(lists, place)


def _in_random_order(
    counts: np.ndarray, source: Path, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Each number 0, 1, ... as often as it counts, in a uniformly random order, some at a time.

    How often each is among the next ones is drawn from what is left of it, the multivariate hypergeometric
    distribution; so no permutation of all is held.
    """
    left, total = counts.copy(), int(counts.sum())
    if total >= _MOST:
        what = f"there are {total:,} impressions, and no order of {_MOST:,} or more is drawn"
        raise DataError(f"{source}: {what}. Read the counts of some queries or days alone.")
    size = max(_CHUNK, 2 * len(counts))
    while total:
        drawn = rng.multivariate_hypergeometric(left, min(size, total), method="marginals")
        left, total = left - drawn, total - int(drawn.sum())
        yield rng.permutation(np.repeat(np.arange(len(counts)), drawn))

"""The sessions to predict: those of the run's log, or of parquet files with the ids of that log."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from clickexp.data import Dataset, Sessions
from clickexp.data.id_table import IdTable
from clickexp.data.ingest.columns import NORMALIZED, Field
from clickexp.data.ingest.extent import Extent
from clickexp.data.ingest.lists import Lists, Values
from clickexp.data.ingest.numbering import PairIds, with_session_keys
from clickexp.data.ingest.parquet_table import ParquetTable
from clickexp.data.ingest.source_table import SourceTable, TypedTable
from clickexp.data.ingest.tables import KINDS, batches_of, open_tables
from clickexp.data.names import keys_of
from clickexp.data.pairs import DOCUMENTS, QUERIES
from clickexp.data.readers.lists import list_columns, packed_columns
from clickexp.data.schema import COLUMNS, Column, SourceLocation
from clickexp.errors import UserError
from clickexp.export.context import with_context
from clickexp.export.predict import of_pairs
from clickexp.utils.files import check_source
from clickexp.utils.progress import Steps

_PIECE = 1 << 16
"""Sessions that are read at a time."""
_NAMES = {"query_doc_ids": "document", "query_ids": "query"}
_INTEGER = Field("i", "the ids of the log are integers")
_PARQUET = b"PAR1"
"""How every parquet file starts."""


class Piece(NamedTuple):
    """Some sessions.

    Attributes:
        sessions: The sessions.
        names: Where a reader numbered the ids of the log, these as they came: `document`, of what is shown, one list
            after another, and `query`, of each session, where it is known.
    """

    sessions: Sessions
    names: Mapping[str, pl.Series]


def own_sessions(sessions: Sessions, id_names: pl.DataFrame | None) -> Iterator[Piece]:
    """Yields the sessions of a log in pieces of bounded size.

    Args:
        sessions: A part of the log.
        id_names: Names of the ids from 1; None where the log came with these ids.
    """
    with Steps("predicting") as progress:
        for start in range(0, sessions.count, _PIECE):
            piece = sessions.slice(start, start + _PIECE)
            ids = piece.column("query_doc_ids")
            names = {}
            if id_names is not None:
                names["document"] = _named(id_names["document"], ids[piece.chunk().shown])
            if id_names is not None and "query" in id_names.columns:
                names["query"] = _named(
                    id_names["query"], ids.max(axis=1)
                )  # of a document that has a name
            yield Piece(piece, names)
            progress(start + piece.count, sessions.count)


def _named(names: pl.Series, ids: np.ndarray) -> pl.Series:
    """Returns the names of ids; null for 0, which has none."""
    return names.gather(pl.Series(ids.astype(np.int64) - 1).replace(-1, None))


def read_sessions(
    dataset: Dataset,
    id_names: pl.DataFrame | None,
    source: Path,
    columns: Mapping[str, str | None],
    *,
    to_rank: bool = False,
    context: bool = False,
    time: str | None = None,
) -> tuple[set[str], Iterator[Piece]]:
    """Reads sessions from parquet files or, to rank them, also from text.

    They have lists of query_doc_ids, as the log of the run has them, and optionally clicks, positions, the columns that
    the log declares itself, and query_id, which is required where ids are of pairs. Where a reader numbered the log's
    ids, those that are not in it have the row 0, that of no document, and are counted on stderr; pairs among them keep
    the numbers of their document and query, as far as the log has these.

    Args:
        dataset: That of the run.
        id_names: As in `own_sessions`.
        source: A file, or a folder of them.
        columns: What columns are called.
        to_rank: Lists of candidates: they may be longer than those that users see, and any ids beyond those of the log
            are unknown ones, too.
        context: Read what came before each list in its search session, which takes the memory of all lists at once.
        time: What the log of the run calls the column that orders the lists of a search session.

    Returns:
        The packed columns that the files have, and the sessions in pieces of one width.

    Raises:
        UserError: Ids or positions are beyond those that the model knows, or the files are no such sessions, or do not
            say what came before in search sessions.
    """
    check_source(source)
    if source.is_file() and not to_rank:
        with source.open("rb") as file:
            if file.read(len(_PARQUET)) != _PARQUET:
                raise UserError(
                    f"{source}: --predict reads parquet files, or a folder of them, and this is none"
                )
    ids = None if id_names is None else _numbered(id_names)
    tables = _opened(
        dataset, ids, source, columns if context else {**columns, "search_session": None}, to_rank
    )
    context = "session_ids" in tables[0].columns
    if context and "clicks" not in tables[0].columns:
        raise UserError(
            f"{source}: the model reads the context of search sessions, which follows from clicks. Add them as the "
            "column clicks, or read all lists as the first ones of their users, with columns.search_session=null."
        )
    if context and "times" in dataset.train.columns and "time" not in columns:
        if time is None:
            raise UserError(
                f"{source}: times order the search sessions of the run's log. Name their column by columns.time=NAME, "
                "or take the order of the rows, with columns.time=null."
            )
        tables = _opened(dataset, ids, source, {**columns, "time": time}, to_rank)
    if id_names is not None and isinstance(tables[0], TypedTable):  # text says nothing of kinds
        _check_kinds(source, tables[0].layout, id_names)
    read = _read(dataset, source, tables, ids, id_names, to_rank)
    return {*tables[0].columns}, _with_context(read) if context else (piece for _, piece in read)


def _opened(
    dataset: Dataset,
    ids: PairIds | None,
    source: Path,
    columns: Mapping[str, str | None],
    to_rank: bool,
) -> list[SourceTable]:
    declared = _declared(dataset, columns)
    normalize = dataset.notes.get(NORMALIZED)
    fields, names, required = list_columns(
        {**columns, **declared},
        None if ids is None else ids.pair_key,
        None if normalize is None else str(normalize),
    )
    required = [name for name in required if name not in ("clicks", *declared)]
    kinds = KINDS if to_rank else [ParquetTable]
    return open_tables(source, fields, names, required, kinds=kinds)


def _with_context(read: Iterator[tuple[Lists, Piece]]) -> Iterator[Piece]:
    whole = [*read]  # since the lists of a search session may stand anywhere
    sessions = with_context([lists for lists, _ in whole], [piece.sessions for _, piece in whole])
    for (_, piece), each in zip(whole, sessions, strict=True):
        yield piece._replace(sessions=each)


def _read(
    dataset: Dataset,
    source: Path,
    tables: Sequence[SourceTable],
    ids: PairIds | None,
    id_names: pl.DataFrame | None,
    to_rank: bool,
) -> Iterator[tuple[Lists, Piece]]:
    """Yields the lists as the file has them, and by the ids of the log."""
    numbers = {} if id_names is None else _numberings(dataset, id_names)
    schema = packed_columns(tables[0]) | {column.name: column for column in numbers}
    ranks = _ranks(dataset, tables, to_rank)
    fields = {**tables[0].fields}
    if id_names is not None:
        fields |= {
            key: _INTEGER._replace(per_document=fields[key].per_document)
            for key in _integers(id_names)
        }
    shown = unknown = 0
    with Steps("ranking" if to_rank else "predicting") as progress:
        for batch in batches_of(tables, progress):
            lists = with_session_keys(Lists.of(batch.columns, batch.location, fields))
            if not to_rank:
                lists.check_order(batch.location)
            numbered = lists if ids is None else ids.number(lists)
            for column, number in numbers.items():
                numbered = numbered.with_documents(**{column.name: number(lists)})
            chunk = numbered.padded(ranks, schema)
            chunk.pop("session_ids", None)  # of which this batch may have a part
            names = {}
            if id_names is not None or to_rank:
                if id_names is not None:
                    chunk.pop("query_ids", None)  # numbers of this command
                new = chunk["query_doc_ids"] > (
                    dataset.query_doc_pairs if id_names is None else len(id_names)
                )
                if (
                    id_names is None
                    and new.any()
                    and any(part.documents_zero for part in dataset.parts.values())
                ):
                    raise UserError(
                        f"{source}: {new.sum():,} documents are not in the log of the run, and would have the score of "
                        "its document 0. Leave them out, or train with ids from 1, or with dataset.pair_key=document."
                    )
                chunk["query_doc_ids"][new] = 0
                shown, unknown = shown + chunk["lengths"].sum(), unknown + new.sum()
                given = {
                    "document": lists.documents["query_doc_ids"],
                    "query": lists.sessions.get("query_ids"),
                }
                names = {
                    name: pl.Series(values) for name, values in given.items() if values is not None
                }
            chunk.setdefault("clicks", np.zeros(chunk["query_doc_ids"].shape, bool))
            extra = {schema[name]: chunk.pop(name) for name in schema.keys() - COLUMNS.keys()}
            own: dict[str, Any] = {"extra": extra, "query_doc_pairs": dataset.query_doc_pairs}
            sessions = Sessions.from_arrays(**chunk, **own, location=batch.location)
            if not to_rank:
                _check_known(sessions.positions, dataset, batch.location)
            sessions = sessions.with_features(dataset.train.features).deriving(*of_pairs(dataset))
            yield lists, Piece(sessions, names)
    if unknown:
        what = f"{unknown:,} of the {shown:,} documents shown are not in the log of the run"
        sys.stderr.write(f"{source}: {what}, and have query_doc_ids 0\n")


def _ranks(dataset: Dataset, tables: Sequence[SourceTable], to_rank: bool) -> int:
    """Returns the width that all lists are padded to; a UserError where that takes too much."""
    extent = Extent()
    for batch in batches_of(tables, keys=["query_doc_ids"]):
        lengths = batch.columns["query_doc_ids"].list.len().fill_null(0).to_numpy()
        if "positions" not in tables[0].columns and not to_rank:
            _check_known(int(lengths.max(initial=0)), dataset, batch.location)
        extent.add(lengths, batch.location)
    if extent.longest <= dataset.train.ranks:  # as wide as the log itself is
        return max(extent.longest, 1)
    return extent.ranks(packed_columns(tables[0]).values(), "cut the list")


def _check_known(position: int, dataset: Dataset, location: SourceLocation) -> None:
    if position > dataset.positions:
        what = f"position {position}, of which the model knows {dataset.positions}"
        raise location.error(f"there are documents at {what}", "cut the lists")


def _numbered(id_names: pl.DataFrame) -> PairIds:
    """Gives names the ids that they have in the log."""
    queries = id_names["query"] if "query" in id_names.columns else None
    ids = PairIds("document" if queries is None else "query_document")
    sessions = {} if queries is None else {"query_ids": queries}
    ids.number(
        Lists(np.ones(len(id_names), np.int64), {"query_doc_ids": id_names["document"]}, sessions)
    )
    return ids


def _numberings(
    dataset: Dataset, id_names: pl.DataFrame
) -> dict[Column, Callable[[Lists], np.ndarray]]:
    """Returns what numbers documents and queries by their names as the log does; what it lacks has the number 0."""

    def numbering(name: str) -> Callable[[Values], np.ndarray]:
        table = IdTable()
        known = table.ids(keys_of(id_names[name])).max(initial=0)

        def number(values: Values) -> np.ndarray:
            numbers = table.ids(keys_of(pl.Series(values)))
            return np.where(numbers > known, 0, numbers)

        return number

    numbers: dict[Column, Callable[[Lists], np.ndarray]] = {}
    if DOCUMENTS.name in dataset.train.derived:
        document = numbering("document")
        numbers[DOCUMENTS] = lambda lists: document(lists.documents["query_doc_ids"])
    if QUERIES.name in dataset.train.derived and "query" in id_names:
        query = numbering("query")
        numbers[QUERIES] = lambda lists: query(lists.sessions["query_ids"])[lists.rows]
    return numbers


def _declared(dataset: Dataset, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the declarations of the log's additional columns, under the names that these columns have in the file."""
    declared = {}
    for column in map(
        dataset.train.schema.__getitem__, dataset.train.columns.keys() - COLUMNS.keys()
    ):
        given = columns.get(column.name, column.name)
        if not column.shape and isinstance(given, str):
            options = {"dtype": column.batch_type.name, "per": column.per, "fill": column.fill}
            declared[column.name] = {**options, "name": given}
    return declared


def _integers(id_names: pl.DataFrame) -> list[str]:
    """Returns the columns of ids that are numbers in the log."""
    return [
        key
        for key, name in _NAMES.items()
        if name in id_names.columns and id_names[name].dtype.is_integer()
    ]


def _check_kinds(source: Path, layout: Mapping[str, str], id_names: pl.DataFrame) -> None:
    """Raises a UserError where ids are text and the log of the run has numbers, or the other way round."""
    integers = _integers(id_names)
    for key, name in _NAMES.items():
        if name in id_names.columns and (layout[key] == "text") != (key not in integers):
            kind = "numbers" if key in integers else "text"
            what = f"{key} holds {layout[key]}, and the log of the run has {kind} there"
            raise UserError(f"{source}: {what}. Write them as {kind}, too.")

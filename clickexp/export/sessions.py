"""The sessions to predict: those of the run's log, or of files with the ids of that log."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from clickexp.data import Dataset, Sessions
from clickexp.data.encoding import FEATURES
from clickexp.data.id_table import IdTable
from clickexp.data.ingest.columns import NORMALIZED, Field
from clickexp.data.ingest.extent import Extent
from clickexp.data.ingest.faults import Faults
from clickexp.data.ingest.lists import Lists, Values
from clickexp.data.ingest.numbering import PairIds, with_session_keys
from clickexp.data.ingest.shown import FirstRankCheck, from_one, rank_rule
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.ingest.tables import batches_of
from clickexp.data.names import keys_of
from clickexp.data.pairs import DOCUMENTS, QUERIES
from clickexp.data.readers.lists import list_columns, packed_columns
from clickexp.data.schema import COLUMNS, Column, SourceLocation
from clickexp.errors import UserError
from clickexp.export.context import with_context
from clickexp.export.needs import Needs
from clickexp.export.pages import Source, by_page
from clickexp.export.predict import of_pairs
from clickexp.utils.files import check_source
from clickexp.utils.progress import Steps

_PIECE = 1 << 16
"""Sessions that are read at a time."""
_NAMES = {"query_doc_ids": "document", "query_ids": "query"}
_INTEGER = Field("i", "the ids of the log are integers")


class Piece(NamedTuple):
    """Some sessions.

    Attributes:
        sessions: The sessions.
        names: Where a reader numbered the ids of the log, or the model reads none, these as they came: `document`, of
            what is shown, one list after another, and `query`, of each session, where it is known.
        has_ids: Whether documents have the ids of the log.
    """

    sessions: Sessions
    names: Mapping[str, pl.Series]
    has_ids: bool = True


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
    source: Source,
    scratch: Path,
    *,
    read: Collection[str] = ("query_doc_ids",),
    to_rank: bool = False,
    context: bool = False,
    transform: str = "none",
) -> tuple[set[str], Iterator[Piece]]:
    """Reads sessions from files, with a row per page or, as `by_page` has it, a row per document.

    They have what the model reads: lists of query_doc_ids, as the log of the run has them, with query_id where ids are
    of pairs, and features and columns of the log; optionally clicks and positions. Where a reader numbered the log's
    ids, those that are not in it have the row 0, that of no document, and are counted on stderr; pairs among them keep
    the numbers of their document and query, as far as the log has these.

    Args:
        dataset: That of the run.
        id_names: As in `own_sessions`.
        source: The files.
        scratch: A folder for what files become meanwhile; it stays until all sessions are read.
        read: Keys of a batch that the model reads.
        to_rank: Lists of candidates: they may be longer than those that users see, and any ids beyond those of the log
            are unknown ones, too.
        context: Read what came before each list in its search session, which takes the memory of all lists at once.
        transform: What the reader of the log has applied to features.

    Returns:
        The packed columns that the files have, and the sessions in pieces of one width.

    Raises:
        UserError: Ids or positions are beyond those that the model knows, or the files are no such sessions, or do not
            say what came before in search sessions.
    """
    check_source(source.path)
    needs = Needs.of(dataset, read, transform)
    id_names = id_names if needs.ids else None
    ids = None if id_names is None else _numbered(id_names)
    if not context:
        source = replace(source, columns={**source.columns, "search_session": None})
    if to_rank:
        source = replace(source, columns={**source.columns, "clicks": None})
    time = source.named.get("time")
    source = by_page(source, needs.columns, scratch, to_rank=to_rank)
    tables = _opened(dataset, needs, ids, source)
    context = "session_ids" in tables[0].columns
    if context and "clicks" not in tables[0].columns:
        raise UserError(
            f"{source.path}: the model reads the context of search sessions, which follows from clicks. Add them as "
            "the column clicks, or read all lists as the first ones of their users, with columns.search_session=null."
        )
    if context and "times" in dataset.train.columns and "time" not in source.columns:
        if time is None:
            raise UserError(
                f"{source.path}: times order the search sessions of the run's log. Name their column by "
                "columns.time=NAME, or take the order of the rows, with columns.time=null."
            )
        source = replace(source, columns={**source.columns, "time": time})
        tables = _opened(dataset, needs, ids, source)
    if id_names is not None and not source.is_text:
        _check_kinds(source.path, tables[0].layout, id_names)
    lists = _read(dataset, source, tables, ids, id_names, needs, to_rank)
    return {*tables[0].columns}, _with_context(lists) if context else (piece for _, piece in lists)


def own_names(columns: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the columns that a log declares itself are called in its files.

    Args:
        columns: The option `columns` of the run's dataset.
    """
    declared = {name: each for name, each in columns.items() if isinstance(each, Mapping)}
    return {name: str(each["name"]) for name, each in declared.items() if "name" in each}


def _opened(
    dataset: Dataset,
    needs: Needs,
    ids: PairIds | None,
    source: Source,
) -> list[SourceTable]:
    declared = needs.declarations(source.columns)
    normalize = dataset.notes.get(NORMALIZED)
    fields, names, required = list_columns(
        {**source.columns, **declared},
        None if ids is None else ids.pair_key,
        None if normalize is None else str(normalize),
        source.forms,
    )
    names["labels"] = None  # which a model does not read
    optional = {"clicks", *declared} | (set() if needs.ids else {"query_doc_ids"})
    required = [*(name for name in required if name not in optional), *needs.required]
    rule = rank_rule("positions", source.first_rank)
    positions = replace(COLUMNS["positions"], least=source.first_rank, rule=rule)
    fields = {**needs.fields(fields), "positions": positions}
    if FEATURES not in needs.columns:
        names[FEATURES] = None
    return source.open(fields, names, required)


def _with_context(read: Iterator[tuple[Lists, Piece]]) -> Iterator[Piece]:
    whole = [*read]  # since the lists of a search session may stand anywhere
    sessions = with_context([lists for lists, _ in whole], [piece.sessions for _, piece in whole])
    for (_, piece), each in zip(whole, sessions, strict=True):
        yield piece._replace(sessions=each)


def _read(
    dataset: Dataset,
    source: Source,
    tables: Sequence[SourceTable],
    ids: PairIds | None,
    id_names: pl.DataFrame | None,
    needs: Needs,
    to_rank: bool,
) -> Iterator[tuple[Lists, Piece]]:
    """Yields the lists as the file has them, and by the ids of the log."""
    numbered = _Numbered(dataset, source.path, ids, id_names, needs, to_rank)
    own = {name: each for name, each in needs.columns.items() if name in tables[0].columns}
    schema = {**packed_columns(tables[0]), **own, **numbered.columns}
    ranks = _ranks(dataset, tables, schema, to_rank)
    fields = {**tables[0].fields, **own, **numbered.fields(tables[0].fields)}
    faults, first_rank, left = Faults(), FirstRankCheck(source.first_rank), 0
    with Steps("ranking" if to_rank else "predicting") as progress:
        for batch in batches_of(tables, progress, faults=faults):
            lists = with_session_keys(Lists.of(batch.columns, batch.location, fields))
            first_rank.add(np.asarray(lists.documents.get("positions", ())))
            lists = from_one(lists, source.first_rank, batch.location)
            if not to_rank:
                lists.check_order(batch.location)
            lists = lists.without(batch.location.refused(len(lists.lengths)))
            if not len(lists.lengths):  # all of these were faulty
                continue
            left += len(lists.lengths)
            lists = needs.encoded(lists)
            chunk = numbered.known(numbered.lists(lists).padded(ranks, schema))
            chunk.setdefault("clicks", np.zeros(chunk["query_doc_ids"].shape, bool))
            extra = {schema[name]: chunk.pop(name) for name in schema.keys() - COLUMNS.keys()}
            arguments: dict[str, Any] = {"extra": extra, "location": batch.location}
            sessions = Sessions.from_arrays(
                **chunk, **arguments, query_doc_pairs=dataset.query_doc_pairs
            )
            if not to_rank:
                _check_known(sessions.positions, dataset, batch.location)
            sessions = needs.applied(sessions).deriving(*numbered.derived)
            yield lists, Piece(sessions, numbered.names(lists), needs.ids)
    faults.end(source.invalid, source.left_out, left, first_rank.options)
    needs.report(source.path)
    numbered.report()


class _Numbered:
    """Gives the documents of a file the ids of the log, and counts those that it lacks.

    Args:
        dataset: That of the run.
        source: The file.
        ids: Numbers of the names of the log; None where it came with these ids.
        id_names: Names of the ids from 1; None as well.
        needs: What the model reads.
        to_rank: Any ids beyond those of the log are unknown ones.
    """

    def __init__(
        self,
        dataset: Dataset,
        source: Path,
        ids: PairIds | None,
        id_names: pl.DataFrame | None,
        needs: Needs,
        to_rank: bool,
    ):
        self._dataset, self._source, self._ids, self._id_names = dataset, source, ids, id_names
        self._has_ids, self._to_rank = needs.ids, to_rank
        self._numbers = {} if id_names is None else _numberings(dataset, id_names)
        self._shown = self._unknown = 0
        self.columns = {column.name: column for column in self._numbers}
        self.columns["query_doc_ids"] = COLUMNS["query_doc_ids"]
        self.derived = of_pairs(dataset) if needs.ids else []

    def fields(self, fields: Mapping[str, Column | Field]) -> dict[str, Field]:
        """Returns what columns of ids are read as, where the log has integers there."""
        names = [] if self._id_names is None else _integers(self._id_names)
        return {name: _INTEGER._replace(per_document=fields[name].per_document) for name in names}

    def lists(self, lists: Lists) -> Lists:
        """Returns lists by the ids of the log, or by 0 where the model reads none."""
        if not self._has_ids:
            kept = {name: each for name, each in lists.sessions.items() if name != "query_ids"}
            ids = np.zeros(len(lists.rows), np.int32)
            return replace(lists.with_documents(query_doc_ids=ids), sessions=kept)
        numbered = lists if self._ids is None else self._ids.number(lists)
        for column, number in self._numbers.items():
            numbered = numbered.with_documents(**{column.name: number(lists)})
        return numbered

    def known(self, chunk: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns columns whose documents have the id 0 where the log does not have them.

        Raises:
            UserError: 0 is the id of a document.
        """
        chunk.pop("session_ids", None)  # of which this batch may have a part
        largest, by_name = self._dataset.query_doc_pairs, False
        if self._id_names is not None:
            largest, by_name = len(self._id_names), True
            chunk.pop("query_ids", None)  # numbers of this command
        if not self._has_ids or not (by_name or self._to_rank):
            return chunk
        new = chunk["query_doc_ids"] > largest
        has_zero = any(part.documents_zero for part in self._dataset.parts.values())
        if not by_name and new.any() and has_zero:
            raise UserError(
                f"{self._source}: {new.sum():,} documents are not in the log of the run, and would have the score of "
                "its document 0. Leave them out, or train with ids from 1, or with dataset.pair_key=document."
            )
        chunk["query_doc_ids"][new] = 0
        self._shown += int(chunk["lengths"].sum())
        self._unknown += int(new.sum())
        return chunk

    def names(self, lists: Lists) -> dict[str, pl.Series]:
        """Returns documents, or else their places in their lists, and queries as the file has them."""
        if self._has_ids and self._id_names is None and not self._to_rank:
            return {}
        starts = np.cumsum(lists.lengths) - lists.lengths
        places = 1 + np.arange(len(lists.rows)) - starts[lists.rows]
        names = {"document": pl.Series(lists.documents.get("query_doc_ids", places))}
        if "query_ids" in lists.sessions:
            names["query"] = pl.Series(lists.sessions["query_ids"])
        return names

    def report(self) -> None:
        """Says how many documents the log lacks."""
        if self._unknown:
            what = f"{self._unknown:,} of the {self._shown:,} documents shown are not in the log of the run"
            sys.stderr.write(f"{self._source}: {what}, and have query_doc_ids 0\n")


def _ranks(
    dataset: Dataset,
    tables: Sequence[SourceTable],
    schema: Mapping[str, Column],
    to_rank: bool,
) -> int:
    """Returns the width that all lists are padded to; a UserError where that takes too much."""
    extent = Extent()
    key = next(name for name in tables[0].columns if tables[0].fields[name].per_document)
    for batch in batches_of(tables, keys=[key], faults=Faults()):
        lengths = batch.columns[key].list.len().fill_null(0).to_numpy()
        if "positions" not in tables[0].columns and not to_rank:
            _check_known(int(lengths.max(initial=0)), dataset, batch.location)
        extent.add(lengths, batch.location)
    if extent.longest <= dataset.train.ranks:  # as wide as the log itself is
        return max(extent.longest, 1)
    return extent.ranks(schema.values(), "cut the list")


def _check_known(position: int, dataset: Dataset, location: SourceLocation) -> None:
    if position > dataset.positions:
        what = f"position {position}, of which the model knows {dataset.positions}"
        raise location.error(f"there are documents at {what}", "cut the lists")


def _numbered(id_names: pl.DataFrame) -> PairIds:
    """Gives names the ids that they have in the log."""
    ids = PairIds("document" if "query" not in id_names.columns else "query_document")
    ids.continue_from(id_names)
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

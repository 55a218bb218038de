"""Files to predict or to rank: logs whose documents and categories are those of a run, by their names."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from clickexp.data import Dataset, Sessions
from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.encoding import FEATURES, EncodedColumn, Encoding, FeatureVectors, Recoded
from clickexp.data.history import history_columns
from clickexp.data.ingest.columns import NORMALIZED
from clickexp.data.ingest.layouts import Kind, Layout, guess, guessed_columns
from clickexp.data.ingest.source_table import TextForm
from clickexp.data.ingest.tables import open_tables
from clickexp.data.log_format import LogFormat, written
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import NamesFile, read_names
from clickexp.data.pairs import DOCUMENTS, QUERIES
from clickexp.data.prepared import Log
from clickexp.data.readers.impressions import open_impressions
from clickexp.data.readers.lists import open_lists
from clickexp.data.schema import CATEGORY, COLUMNS, Column, Columns
from clickexp.data.search_sessions import SessionOrder
from clickexp.errors import UserError
from clickexp.simulation.svmlight import TRANSFORMS
from clickexp.utils.files import check_source
from clickexp.utils.progress import Steps
from clickexp.utils.signatures import check_arguments

ALIKE = (*TextForm._fields, "first_rank", "time_format", "time_zone", "null_is_no_click")
"""Options of the reader that files to predict or to rank have as the log of the run, where none is given."""
OPTIONS = ("columns", "files", *ALIKE, "invalid")
"""All that they have."""
_PIECE = 1 << 16
"""Sessions that are predicted at a time."""


class _Keys(NamedTuple):
    """Keys of the columns of a format.

    Attributes:
        reader: Its reader.
        columns: Those that a file is looked through for.
        documents: That of ids of documents.
        query: That of queries.
        clicks: That of clicks.
        unread: Those that candidates to rank do without.
        others: Those that are not read of any file.
    """

    reader: LogFormat
    columns: tuple[str, ...]
    documents: str
    query: str
    clicks: str
    unread: tuple[str, ...]
    others: tuple[str, ...]


_OF_ROWS = _Keys(
    open_impressions,
    ("session", "query", "document", "rank", "click"),
    documents="document",
    query="query",
    clicks="click",
    unread=("click", "rank"),
    others=("seen", "label"),
)
_OF_LISTS = _Keys(
    open_lists,
    ("query_doc_ids", "clicks", "query_id", "positions"),
    documents="query_doc_ids",
    query="query_id",
    clicks="clicks",
    unread=("clicks", "positions"),
    others=("seen", "labels"),
)
_CONTEXT = ("search_session", "time")
_MAY_LACK = ("clicks", "click", "rank")
_IDS = ("query_doc_ids", "document")
_ID_COLUMNS = {"document": "query_doc_ids", "query": "query_id"}
"""The keys of ids, by what their names are called."""


class Piece(NamedTuple):
    """Some sessions, and the names of what they show.

    Attributes:
        sessions: The sessions.
        names: Where they are known, `document`, of what is shown, one list after another, and `query`, of each session.
    """

    sessions: Sessions
    names: Mapping[str, pl.Series]


@dataclass(frozen=True)
class ShownLists:
    """Lists to predict or to rank.

    Attributes:
        sessions: As the model reads them.
        named: The same by ids that names go by.
        names: Names of these ids from 1; None where documents are called by their ids.
        has_ids: Whether documents have the ids of the log of the run.
        has_clicks: Whether clicks are known.
    """

    sessions: Sessions
    named: Sessions
    names: pl.DataFrame | None
    has_ids: bool = True
    has_clicks: bool = True

    @classmethod
    def of_log(cls, sessions: Sessions, names: NamesFile | None) -> "ShownLists":
        """Returns those of the log of a run, with the names of what they show."""
        if names is None:
            return cls(sessions, sessions, None)
        is_shown = np.zeros(sessions.query_doc_pairs + 1, bool)
        for chunk in sessions.chunks():
            is_shown[chunk.of_documents("query_doc_ids")] = True
        ids = np.flatnonzero(is_shown[1:]) + 1
        numbers = np.zeros(len(is_shown), np.int32)
        numbers[ids] = np.arange(1, len(ids) + 1)
        numbered = _Numbers(COLUMNS["query_doc_ids"], numbers.__getitem__, len(ids))
        return cls(sessions, sessions.replacing(numbered), names.of(ids))

    def pieces(self) -> Iterator[Piece]:
        """Yields the lists in pieces of bounded size."""
        for start in range(0, self.sessions.count, _PIECE):
            piece = self.sessions.slice(start, start + _PIECE)
            yield Piece(piece, self._names(start, start + piece.count))

    def _names(self, start: int, stop: int) -> dict[str, pl.Series]:
        chunk = self.named.chunk(start, stop)
        ids = chunk["query_doc_ids"]
        if self.names is None:
            return {"document": pl.Series(ids[chunk.shown])}
        names = {"document": _named(self.names["document"], ids[chunk.shown])}
        if "query" in self.names.columns:  # that of a document that has a name
            names["query"] = _named(self.names["query"], ids.max(axis=1))
        return names


def _named(names: pl.Series, ids: np.ndarray) -> pl.Series:
    """Returns the names of ids; null for 0, which has none."""
    return names.gather(pl.Series(ids.astype(np.int64) - 1).replace(-1, None))


@dataclass(frozen=True)
class Source:
    """Files of lists, parquet, text or JSON lines, compressed or not, with a row per page or per document shown.

    Attributes:
        path: A file, or a folder of them.
        options: Those of the reader; see `OPTIONS`.
        columns: What the log of the run calls its columns.
    """

    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, Any]:
        """The names of columns that options state."""
        return dict(self.options.get("columns") or {})

    @property
    def named(self) -> dict[str, Any]:
        """The names of the columns of the run's log, its own ones among them."""
        stated = {
            key: name["name"] if isinstance(name, Mapping) and "name" in name else name
            for key, name in self.columns.items()
        }
        return {key: name for key, name in stated.items() if not isinstance(name, Mapping)}

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each column of the first file."""
        text = TextForm(
            **{name: self.options[name] for name in TextForm._fields if name in self.options}
        )
        files = self.options.get("files")
        return open_tables(self.path, {}, {}, (), files=files, text=text)[0].kinds()

    @cached_property
    def layout(self) -> Layout | None:
        """The layout that the columns show; None where they show none."""
        return guess(self.kinds)


@dataclass(frozen=True)
class Reading:
    """Reads files as the model of a run needs them.

    Attributes:
        source: The files.
        dataset: That of the run.
        names: Names of its ids from 1; None where its log came with these ids.
        read: Keys of a batch that the model reads.
        transform: What the reader of its log has applied to features.
        to_rank: Lists of candidates: they may be longer than those that users see, and without pages those of a query
            are one list.
        context: Whether the model reads what came before in search sessions.
    """

    source: Source
    dataset: Dataset
    names: pl.DataFrame | None
    read: Collection[str]
    transform: str = "none"
    to_rank: bool = False
    context: bool = False

    @cached_property
    def has_ids(self) -> bool:
        """Whether the model looks documents up by their ids."""
        derived = self.dataset.train.derived
        by_ids = {
            name
            for name, column in derived.items()
            if not isinstance(column, FeatureVectors | Recoded)
        }
        return "query_doc_ids" in self.read or not by_ids.isdisjoint(self.read)

    @cached_property
    def encoding(self) -> Encoding:
        """The encoding of the columns that the model reads."""
        encoding = self.dataset.encoding
        return encoding if FEATURES in self.read else encoding.model_copy(update={"features": None})

    def lists(self, scratch: Path) -> ShownLists:
        """Reads the lists of the files.

        Documents are those of the run by their names, or else by their ids. Those that it does not know have the id 0,
        that of no document, and are counted on stderr; pairs among them keep the numbers of their document and query,
        as far as the run has these.

        Args:
            scratch: An empty folder for what is read of them.

        Raises:
            UserError: The files are no such lists, or ids and positions are beyond those that the model knows.
        """
        path = self.source.path
        check_source(path)
        reader, columns = self._keys.reader, self._columns()
        options = self._options(columns)
        check_arguments(reader, options, "")
        lacking = {*_MAY_LACK} | (set() if self.has_ids else {*_IDS})
        with Steps("reading") as progress:
            writing = {"source": path, "durable": False, "may_lack": lacking}
            log = LogWriter(scratch / "log", "file", reader.format, progress, **writing)
            written(reader.read, path, log, **options)
        opened = Log.open(scratch / "log")
        counts = [
            f"{name.replace('_', ' ')} {count:,}"
            for name, count in log.notes.items()
            if isinstance(count, int) and count
        ]
        if counts:
            self._say(", ".join(counts))
        names = None if opened.names is None else self._alike(read_names(opened.names))
        named = opened.parts["sessions"]
        self._check(named)
        sessions = replace(self._encoded(named, opened), records=None)
        if self.has_ids:
            sessions = self._numbered(sessions, names)
        if names is not None:  # which say more than the numbers of queries here
            packed = {
                name: sessions.columns[name] for name in sessions.columns if name != "query_ids"
            }
            sessions = replace(sessions, columns=packed)
        return ShownLists(sessions, named, names, self.has_ids, self._has_clicks(columns))

    def _say(self, text: str) -> None:
        """Writes a line about the files to stderr."""
        sys.stderr.write(f"{self.source.path}: {text}\n")

    def _fault(self, text: str) -> UserError:
        """Returns the error that files cannot be read as the model needs them."""
        return UserError(f"{self.source.path}: {text}")

    def _options(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of the reader, which reads these columns."""
        options = {name: value for name, value in self.source.options.items() if name in OPTIONS}
        options |= {"columns": {**columns, **self._declared()}}
        options |= {"normalize": self.dataset.notes.get(NORMALIZED)}
        return options | self._numbering(columns) | self._features()

    def _numbering(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Returns how a reader numbers documents: by the names that the run has, or not at all where it has none."""
        if self._keys is _OF_LISTS and self.has_ids and self.names is None:
            largest = None if self.to_rank else self.dataset.query_doc_pairs
            return {"pair_key": None, "query_doc_pairs": largest}
        by_query = columns.get(self._keys.query) is not None
        if self.has_ids and self.names is not None:
            by_query |= "query" in self.names.columns
        return {"pair_key": "query_document" if by_query else "document"}

    def _features(self) -> dict[str, Any]:
        """Returns what a reader makes feature vectors of."""
        encoder = self.encoding.features
        if encoder is not None:
            names = [column.name for column in encoder.columns]
            return {"features": names, "missing": encoder.missing, "standardize": False}
        return {"features": [FEATURES]} if FEATURES in self.read else {}

    @cached_property
    def _keys(self) -> _Keys:
        """The keys of the format of the files."""
        stated, layout = self.source.given.keys(), self.source.layout
        if stated & {*_OF_ROWS.columns}:
            return _OF_ROWS
        if stated & {*_OF_LISTS.columns}:
            return _OF_LISTS
        for keys in (_OF_LISTS, _OF_ROWS):
            if self._has_documents(keys, self.source.named.get(keys.documents)):
                return keys
        has_lists = self._reads_lists() if layout is None else layout.format == "lists"
        return _OF_LISTS if has_lists else _OF_ROWS

    def _has_documents(self, keys: _Keys, name: str | None) -> bool:
        """Returns whether a column of the files, or a field of its structs, has documents as a format does."""
        kind = self.source.kinds.get(name or "")
        is_list = keys is _OF_LISTS
        return kind is not None and (kind.is_list == is_list or "." in (name or ""))

    def _reads_lists(self) -> bool:
        """Returns whether what the model reads holds lists, so that a row is a page."""
        kinds = self.source.kinds
        documents = guessed_columns("lists", kinds).get("query_doc_ids")
        described = [kinds[name] for name in self._described.values() if name in kinds]
        vectors = kinds.get(self.source.given.get(FEATURES, FEATURES))
        has_vectors = vectors is not None and vectors.is_list and vectors.is_nested
        if "query_doc_ids" in kinds or self._has_documents(_OF_LISTS, documents):
            return True
        return has_vectors or any(kind.is_list for kind in described)

    def _columns(self) -> dict[str, Any]:
        """Returns the names of the columns that readers know, of a file as options, the run or guesses have them."""
        source, keys = self.source, self._keys
        named = {key: name for key, name in source.named.items() if name in source.kinds}
        stated = _guessed(keys.reader.format, source) | named
        columns: dict[str, Any] = {key: stated[key] for key in keys.columns if key in stated}
        columns |= {key: name for key, name in source.given.items() if key not in self._described}
        if self.to_rank:
            columns |= dict.fromkeys(keys.unread)
        if FEATURES not in self.read:
            columns[FEATURES] = None
        context = self._context(has_clicks=self._has_clicks(columns))
        return self._with_page(columns | dict.fromkeys(keys.others) | context)

    def _has_clicks(self, columns: Mapping[str, Any]) -> bool:
        """Returns whether the files have the column that their format reads clicks from."""
        clicks = self._keys.clicks
        return columns.get(clicks, clicks) in self.source.kinds

    def _context(self, *, has_clicks: bool) -> dict[str, Any]:
        """Returns the names of the columns of search sessions and times; None of those that are not read."""
        stated = self.source.named | self.source.given
        session = stated.get("search_session", "search_session")
        if not self.context or session is None:
            return dict.fromkeys(_CONTEXT)
        if session not in self.source.kinds and "search_session" not in self.source.given:
            self._say(
                "the model reads what came before in a search session, which the file does not have, so that each list "
                "is predicted as the first of its user; name their column by columns.search_session=NAME, or say "
                "columns.search_session=null"
            )
            return dict.fromkeys(_CONTEXT)
        if not has_clicks:
            raise self._fault(
                "the model reads the context of search sessions, which follows from clicks. Add them as the column "
                "clicks, or read all lists as the first ones of their users, with columns.search_session=null."
            )
        if "times" in self.dataset.train.columns and "time" not in stated:
            raise self._fault(
                "times order the search sessions of the run's log. Name their column by columns.time=NAME, or take the "
                "order of the rows, with columns.time=null."
            )
        return {"search_session": session, "time": stated.get("time")}

    def _with_page(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Returns columns with that whose rows of one value are a page, None where each row is one.

        Args:
            columns: Names of columns, of which one may say so.
        """
        if self._keys is _OF_LISTS or "session" in columns:
            return columns
        layout = self.source.layout
        in_one_row = layout is not None and layout.options.get("columns.session") == "null"
        if in_one_row or self.source.columns.get("session", "") is None:  # as in the log of the run
            return columns | {"session": None}
        if self.to_rank and columns.get("query") is not None:
            return columns | {"session": columns["query"]}
        raise self._fault(
            f"no column among {', '.join(self.source.kinds)} says which rows are one page. Name it: "
            "columns.session=NAME; or columns.session=null, where each row is one."
        )

    @cached_property
    def _described(self) -> dict[str, str]:
        """What the files call the columns that describe documents and lists, by their names in the log."""
        train, encoder = self.dataset.train, self.encoding.features
        of_encoder = [] if encoder is None else [column.name for column in encoder.columns]
        columns = {*train.columns.keys() - COLUMNS.keys(), *of_encoder} - {FEATURES}
        names = self.source.named | self.source.given
        return {name: names.get(name) or name for name in columns}

    def _declared(self) -> dict[str, dict[str, Any]]:
        """Returns the declarations of these columns: of those that the model reads, and others that are there."""
        encoder = self.encoding.features
        encoded = {} if encoder is None else {column.name: column for column in encoder.columns}
        declared = {}
        for name, called in self._described.items():
            if name not in (*self.read, *encoded) and called not in self.source.kinds:
                continue
            column = self.dataset.train.schema.get(name) or Column(name, np.float32)
            if not column.shape:
                dtype = _dtype(column, encoded.get(name))
                options = {"dtype": dtype, "per": column.per, "fill": column.fill}
                declared[name] = {**options, "name": called}
        return declared

    def _check(self, sessions: Sessions) -> None:
        """Raises a UserError for vectors of another width, or positions that the model does not know."""
        encoder, train = self.encoding.features, self.dataset.train
        if FEATURES in sessions.columns and FEATURES in self.read:
            width = train.feature_lengths[FEATURES] if encoder is None else encoder.width(FEATURES)
            numbers = sessions.schema[FEATURES].numbers
            if numbers != width:
                what = f"{FEATURES} has vectors of {numbers} numbers, and the model reads {width}"
                raise self._fault(f"{what}. Give those that the run was fitted to.")
        reads_positions = "positions" in self.read and not self.to_rank
        if reads_positions and sessions.positions > self.dataset.positions:
            raise self._fault(
                f"there are documents at position {sessions.positions}, of which the model knows "
                f"{self.dataset.positions}. Cut the lists."
            )

    def _encoded(self, sessions: Sessions, log: Log) -> Sessions:
        """Returns sessions with categories by their numbers in training, and with feature vectors."""
        encoded = self.encoding.applied(sessions, log.categories)
        for name in log.categories:
            pairs = zip(sessions.chunks(), encoded.chunks(), strict=True)
            unknown = sum(
                int(((read[name] > 0) & (numbered[name] == 0)).sum()) for read, numbered in pairs
            )
            if unknown:
                what = f"{unknown:,} values of {name} are categories that training does not show"
                self._say(f"{what}, and count as none")
        if self.transform == "none" or FEATURES not in sessions.columns:
            return encoded
        vectors = encoded.derived.get(FEATURES)
        vectors = vectors if isinstance(vectors, FeatureVectors) else None
        column = sessions.schema[FEATURES]
        return encoded.replacing(_Transformed(column, self.transform, vectors))

    def _numbered(self, sessions: Sessions, names: pl.DataFrame | None) -> Sessions:
        """Returns sessions with the ids of the run, and counts the documents that it does not know."""
        if names is not None and self.names is not None:
            numbered = sessions.replacing(*_by_name(names, self.names))
        else:
            numbered = sessions.replacing(self._by_id(names))
        unknown = numbered.documents_zero - (sessions.documents_zero if names is None else 0)
        if unknown:
            what = f"{unknown:,} of the {numbered.documents:,} documents shown are not in the log of the run"
            if self.names is None and any(p.documents_zero for p in self.dataset.parts.values()):
                raise self._fault(
                    f"{what}, and would have the score of its document 0. Leave them out, or train with "
                    "ids from 1, or with dataset.pair_key=document."
                )
            self._say(f"{what}, and have query_doc_ids 0")
        if "session_ids" in sessions.columns:  # earlier clicks go by the ids of the run
            numbered = numbered.replacing(*history_columns(SessionOrder(numbered)))
        return numbered

    def _by_id(self, names: pl.DataFrame | None) -> "_Numbers":
        """Returns the ids of a run whose log came with them: those of the file, or what it calls its documents."""
        largest, ids = self.dataset.query_doc_pairs, None
        if names is not None:
            if not names["document"].dtype.is_integer():
                raise self._fault("document holds text. The ids of the log are integers.")
            ids = np.append(0, names["document"].to_numpy())
            if not self.to_rank and ids.max() > largest:
                raise self._fault(
                    f"document holds {ids.max()}, above the largest id of the run, {largest}."
                )

        def number(rows: np.ndarray) -> np.ndarray:
            numbers = rows if ids is None else ids[rows]
            return np.where(numbers > largest, 0, numbers).astype(np.int32)

        return _Numbers(COLUMNS["query_doc_ids"], number, largest)

    def _alike(self, names: pl.DataFrame) -> pl.DataFrame:
        """Returns names of documents and queries in the types that those of the run have.

        Raises:
            UserError: They are text and those of the run numbers, or the other way round.
        """
        if self.names is None or not self.has_ids:
            return names
        for column in reversed(self.names.columns):
            values, dtype = names[column], self.names[column].dtype
            alike = values.cast(dtype, strict=False)
            wrong = values.filter(alike.is_null()) if dtype.is_integer() else values
            if dtype.is_integer() != values.dtype.is_integer() and len(wrong):
                kind = "numbers" if dtype.is_integer() else "text"
                raise self._fault(
                    f"{_ID_COLUMNS[column]} holds {wrong[0]!r}, and the log of the run has {kind} "
                    f"there. Write them as {kind}, too."
                )
            names = names.with_columns(alike)
        return names


def _guessed(format: str, source: Source) -> dict[str, str]:
    """Returns the likely names of the columns of a format, those of the layout where it is of the format."""
    if source.layout is not None and source.layout.format == format:
        return source.layout.columns
    return guessed_columns(format, source.kinds)


def _dtype(column: Column, encoded: EncodedColumn | None) -> str:
    """Returns the type that a column is declared with: as its encoding states, else as batches hold it."""
    if encoded is not None:
        return "float32" if encoded.categories is None else CATEGORY
    return CATEGORY if column.is_category else column.batch_type.name


class _Numbers(DerivedColumn):
    """Numbers of documents that follow from the ids that a file has.

    Args:
        column: Declaration.
        number: Of ids.
        largest: Number.
    """

    reads = ("query_doc_ids",)

    def __init__(self, column: Column, number: Callable[[np.ndarray], np.ndarray], largest: int):
        self.column, self._number, self._largest = column, number, largest

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        """Returns the numbers of the documents."""
        return self._number(packed["query_doc_ids"])

    def bounds(self) -> tuple[int, int]:
        """Returns 0 and the largest number, which the file need not show."""
        return 0, self._largest


def _by_name(names: pl.DataFrame, of_run: pl.DataFrame) -> list[_Numbers]:
    """Returns the ids, and the numbers of documents and queries, that a run has for names."""
    keys = {COLUMNS["query_doc_ids"]: of_run.columns, DOCUMENTS: ["document"], QUERIES: ["query"]}
    return [
        _looked_up(column, names.select(key), of_run.select(key))
        for column, key in keys.items()
        if {*key} <= {*of_run.columns}
    ]


def _looked_up(column: Column, names: pl.DataFrame, of_run: pl.DataFrame) -> _Numbers:
    """Returns the numbers that names have among those known, in the order in which these appear; 0 for others."""
    numbered = of_run.unique(maintain_order=True).with_row_index("number", offset=1)
    numbers = names.join(numbered, on=names.columns, how="left", maintain_order="left")["number"]
    table = np.append(0, numbers.fill_null(0).to_numpy()).astype(np.int32)
    return _Numbers(column, table.__getitem__, len(numbered))


class _Transformed(DerivedColumn):
    """Feature vectors of a file, transformed and encoded as those of training are.

    Args:
        column: Declaration of the vectors in the file.
        transform: Name of the transform.
        vectors: What encodes them; None where the model reads them as they are.
    """

    def __init__(self, column: Column, transform: str, vectors: FeatureVectors | None):
        self.column = column if vectors is None else vectors.column
        self.reads = (FEATURES,) if vectors is None else vectors.reads
        self.is_standardized = vectors is not None and vectors.is_standardized
        self._transform, self._vectors = TRANSFORMS[transform], vectors

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        """Returns the vectors of the documents."""
        packed = {**packed, FEATURES: self._transform(packed[FEATURES])}
        return packed[FEATURES] if self._vectors is None else self._vectors.compute(packed, rows)

    def bounds(self) -> tuple[int, int]:
        """Vectors have none."""
        return 0, 0

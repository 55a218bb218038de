"""Files of rows, read under the names that a reader uses as streams of columns; each kind of file is a class."""

import codecs
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.ingest.columns import (
    Decimal,
    Fields,
)
from clickexp.data.ingest.faults import Faults
from clickexp.data.ingest.layouts import ROWS, Kind, guess, guessed_columns, restated
from clickexp.data.ingest.lists import list_lengths
from clickexp.data.schema import Remedy, SourceLocation
from clickexp.errors import DataError
from clickexp.utils.suggest import nearest

PACKED_NAMES = {"query_id": "query_ids", "search_session": "session_ids", "time": "times"}
"""Keys of `columns` whose packed column has another name."""
_KEYS = {packed: key for key, packed in PACKED_NAMES.items()}
_KEY_OF_FORMAT = {"impressions": "session", "lists": "query_doc_ids", "counts": "impressions"}
"""A key that a format has, and no other."""
_OTHERWISE = (
    "write it again, or leave the ending of compressed files out of its name where it is none"
)
_DAMAGED = {
    "Truncated compressed stream": "its end is missing: copy or write it again",
    "inflate failed": _OTHERWISE,
    "decompress failed": _OTHERWISE,
}
"""What to do about a compressed file, by what Arrow says of it."""
_OF_ACCESS = "ask for the right to read it; stores at URLs take credentials from their own settings"
_UNREADABLE = (pa.ArrowException, pl.exceptions.PolarsError, OSError, UnicodeDecodeError)
"""Errors of libraries about a file."""
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
)
_LISTS_OF_TEXT = (
    "; lists in cells of text are read in CSV: polars.read_parquet(FILE).write_csv(OTHER)"
)
_IDS = ("query_doc_ids", "query_ids")
"""Columns where text is no number, but a name."""
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


class TextForm(NamedTuple):
    """Options of readers on how tables of text are written, where their first lines do not show it.

    Attributes:
        separator: Of the columns; None for the one of tab, comma, semicolon and bar that finds the names.
        header: Names of the columns, in a file whose first line is a row.
        encoding: Of the characters, as Python calls it, such as cp1252; None for UTF-8, or UTF-16 with a mark.
        decimal: The mark of fractions, "," or "."; None for both, where columns are not separated by commas.
    """

    separator: str | None = None
    header: Sequence[str] | None = None
    encoding: str | None = None
    decimal: Decimal | None = None

    def check(self) -> None:
        """DataError for a separator, an encoding or a mark of fractions that there is not."""
        if self.decimal not in (None, ",", "."):
            raise DataError(f"decimal is {self.decimal!r}. Give ',' or '.', or null for both.")
        separator = self.separator
        if separator not in (None, r"\t") and (len(separator) != 1 or not separator.isascii()):
            raise DataError(f"separator is {separator!r}. It must be one ASCII character, or null.")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError as error:
            raise DataError(
                f"encoding is {self.encoding!r}. Give one that Python knows, such as cp1252, or null."
            ) from error


def option_key(packed: str) -> str:
    """Returns the key of the option `columns` for a packed column, as messages name it."""
    return _KEYS.get(packed, packed)


class Batch(NamedTuple):
    """The next rows of a table.

    Attributes:
        columns: Their values, by key.
        location: Where they are.
        done: How much of the table's size has been read.
        lengths: Where rows of the file hold lists that have become rows, how many of each; else None.
    """

    columns: dict[str, pl.Series]
    location: SourceLocation
    done: int
    lengths: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        """The row of the file that each row here is of, from 0."""
        if self.lengths is None:
            return np.arange(next((len(values) for values in self.columns.values()), 0))
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


class Leaf(NamedTuple):
    """A column of a file, or a field of a struct in it.

    Attributes:
        column: Name of the column.
        fields: Names of the fields down to this one; none for the column itself.
        type: Of its values: a list where any of the columns above is one.
    """

    column: str
    fields: tuple[str, ...]
    type: pa.DataType

    @property
    def name(self) -> str:
        """The name of the column with those of the fields, such as shown.id."""
        return ".".join([self.column, *self.fields])

    def of(self, values: pl.Series) -> pl.Series:
        """Returns the values of this leaf in those of the column, lists of one length as any others."""
        values = values.arr.to_list() if isinstance(values.dtype, pl.Array) else values
        for name in self.fields:
            if isinstance(values.dtype, pl.List):
                values = values.list.eval(pl.element().struct.field(name))
            else:
                values = values.struct.field(name)
        return values


class SourceTable(ABC):
    """A file of rows.

    A name such as shown.id is that of a field of a struct, or of the structs in a list. Where no field is per document,
    as in the layout of impressions, columns of lists become rows, one per document.

    Args:
        file: The file.
        fields: What each column is read as.
        names: The file's name of each, by its key in `columns`; None leaves one out.
        required: Keys of the columns that must be there. Others may be missing unless they have a name of their own.
        text: How text is written.
        folders: Columns that the names of folders state, as date=2025-11-01; those of the file come first.
        ids_as_text: Whether whole numbers that are ids are read as their digits, as beside files of text.

    Attributes:
        columns: Those that are there, by key.
        layout: What these hold: "text", "numbers", "dates", "times", "times in a time zone" or, where these are ids of
            any kind, "unsigned numbers"; "nothing" where the file shows only missing values.
        size: Rows, bytes or whatever progress is counted in.
        batch_rows: Rows of typed columns that are read at a time.
        vector_rows: The same where there are vectors among them.
        block_bytes: Bytes of text that are read at a time; Arrow has up to 32 such blocks in memory.
        faults: Counts the faults of rows; None makes the first an error.
    """

    batch_rows, vector_rows, block_bytes = 1 << 16, 1 << 10, 1 << 21
    faults: Faults | None = None
    kind: str
    suffixes: tuple[str, ...]
    remedy = "write the file again"

    def __init__(
        self,
        file: Path,
        fields: Fields,
        names: Mapping[str, str | None],
        required: Iterable[str],
        text: TextForm | None = None,
        folders: Mapping[str, str | None] | None = None,
        ids_as_text: bool = False,
    ):
        self._ids_as_text = ids_as_text
        self.file, self.fields, self.source = file, fields, SourceLocation(str(file))
        self.text, self._names = text or TextForm(), names
        self.columns: dict[str, Leaf] = {}
        with self._reading():
            self._schema, self.size = self._open()
        stored = self._schema.names
        self._folders = {
            name: value for name, value in (folders or {}).items() if name not in stored
        }
        self._add_all(names, required)
        self._folded = self._keys_of_folded()
        self.layout = {key: self._checked(key, leaf.type) for key, leaf in self.columns.items()}

    def batches(self, keys: Iterable[str] | None = None) -> Iterator[Batch]:
        """The columns of these keys, default all."""
        wanted = [*(keys or self.columns)]
        stored = [key for key in self.columns if not self._is_stated(key)]
        counted = self._folded[:1] or stored[:1]
        read = {key: self.columns[key] for key in (*wanted, *counted) if key in stored}
        with self._reading():
            for batch in self._batches(read):
                yield self._completed(batch, wanted)

    def _completed(self, batch: Batch, wanted: Sequence[str]) -> Batch:
        """The wanted columns of a batch, with those that folders state, and a row per document."""
        rows = next(map(len, batch.columns.values()), 0)
        for key in filter(self._is_stated, wanted):
            batch.columns[key] = self._stated(key, rows)
        batch = self._unfolded(batch) if self._folded else batch
        return batch._replace(columns={key: batch.columns[key] for key in wanted})

    def _is_stated(self, key: str) -> bool:
        """Whether the file itself lacks a column, which a folder states, or whose values are missing."""
        return self.columns[key].column in ("", *self._folders)

    def _keys_of_folded(self) -> list[str]:
        """Keys of columns whose cells hold lists of documents where no field is per document."""
        if any(self.fields[key].per_document for key in self.columns):
            return []
        return [key for key, leaf in self.columns.items() if self._is_folded(key, leaf)]

    def _is_folded(self, key: str, leaf: Leaf) -> bool:
        """Whether cells hold lists of documents; of vectors, lists of lists."""
        is_vector = self.fields[key].kinds == "v" and is_any(leaf.type, _LISTS)
        return is_any(leaf.type.value_type if is_vector else leaf.type, _LISTS)

    def add_missing(self, key: str) -> None:
        """Reads the file as if it had a column without values, in the place where other files have it."""
        columns = {**self.columns, key: Leaf("", (), pa.null())}
        order = [PACKED_NAMES.get(name, name) for name in self._names]
        self.columns = {other: columns[other] for other in order if other in columns}
        self.layout[key] = "nothing"

    def _stated(self, key: str, rows: int) -> pl.Series:
        """The values of such a column."""
        value = self._folders.get(self.columns[key].column)
        dtype = pl.List(pl.Float64) if self.fields[key].per_document else pl.String
        return pl.repeat(value, rows, eager=True, dtype=dtype)

    @abstractmethod
    def _open(self) -> tuple[pa.Schema, int]:
        """The schema of the file and its size."""

    @abstractmethod
    def _batches(self, columns: Mapping[str, Leaf]) -> Iterator[Batch]: ...

    def _checked(self, key: str, kind: pa.DataType) -> str:
        """The kind of values of a column; DataError unless it is read from these."""
        return "text"

    def at(self, first: int, unit: str = "row") -> SourceLocation:
        """Where the rows from the first one on are."""
        names = {key: self._called(key) for key in self.columns}
        location = SourceLocation(str(self.file), first, unit, names=names)
        return location if self.faults is None else self.faults.at(location)

    def _called(self, key: str) -> str:
        """The name of a column in the file; its key where the file lacks it."""
        return self.columns[key].name or option_key(key)

    def kinds(self) -> dict[str, Kind]:
        """The kind of each column by its name; DataError where the file cannot be read."""
        with self._reading():
            return self._kinds()

    def _kinds(self) -> dict[str, Kind]:
        """The same, also of fields of structs and of what folders state."""
        kinds = {}
        for name in [*_names(self._schema), *self._folders]:
            if (leaf := self._leaf(name, self._schema)) is not None:
                kinds[name] = _kind_of(leaf.type)
        return kinds

    def _add_all(self, names: Mapping[str, str | None], required: Iterable[str]) -> None:
        """Adds the columns by their keys; DataError where one is missing."""
        missing = {
            key: name for key, name in names.items() if not self._add(key, name, key in required)
        }
        if missing:
            raise self._missing(missing, required)

    def _add(self, key: str, name: str | None, required: bool) -> bool:
        """Adds a column; returns whether it is there, or may be missing."""
        schema = self._schema
        if name is not None and schema.names.count(name) > 1:
            raise self.source.error(f"two columns are called {name!r}", "rename one of them")
        leaf = None if name is None else self._leaf(name, schema)
        if leaf is not None:
            self.columns[PACKED_NAMES.get(key, key)] = leaf
        return leaf is not None or not (required or name not in (None, key))

    def _missing(self, missing: Mapping[str, str | None], required: Iterable[str]) -> DataError:
        """The error about columns that are missing, with the names that they may have."""
        present = [*_names(self._schema), *self._folders]
        if None in missing.values():
            keys = " and ".join(f"columns.{key}" for key, name in missing.items() if name is None)
            remedy = f"name it, or leave {keys} out; the columns are {', '.join(present)}"
            return self.source.error(f"{keys}=null leaves out what the format needs", remedy)
        called = " and ".join(f"{name!r} for {key}" for key, name in missing.items())
        what = f"no column {called} among {present}"
        try:
            kinds = self.kinds()
        except DataError as error:
            return error
        format = next((name for name, key in _KEY_OF_FORMAT.items() if key in self._names), "")
        layout = guess(kinds)
        if layout is not None and format not in ("", layout.format):
            remedy = f"it seems to have {ROWS[layout.format]}, which dataset={layout.format} reads"
            options = restated(self._names, kinds, layout)
            return DataError(str(self.source.error(what, remedy)), options)
        if (remedy := remedy_for_header(present)) is not None:
            return self.source.error(what, remedy)
        names = self._likely_names(missing, kinds, format)
        remedy = "; ".join(_set_column(key, names.get(key), key in required) for key in missing)
        options = {f"columns.{key}": name for key, name in names.items()}
        are_known = len(names) == len(missing)
        return DataError(str(self.source.error(what, remedy)), options if are_known else {})

    def _likely_names(
        self, missing: Mapping[str, str | None], kinds: Mapping[str, Kind], format: str
    ) -> dict[str, str]:
        """The names that columns seem to have, by key, of those that no other column has."""
        taken = {name for key, name in self._names.items() if key not in missing}
        free = {name: kind for name, kind in kinds.items() if name not in taken}
        likely = guessed_columns(format, free)
        names = {
            key: likely.get(key) or next(iter(nearest(str(name), free)), None)
            for key, name in missing.items()
        }
        return {key: name for key, name in names.items() if name is not None}

    def _leaf(self, name: str, schema: pa.Schema) -> Leaf | None:
        if name in schema.names:
            # by place: names may be there twice, which those who read them refuse
            return Leaf(name, (), schema.field(schema.names.index(name)).type)
        if name in self._folders:
            return Leaf(name, (), pa.string())
        column, *fields = name.split(".")
        if not fields or schema.names.count(column) != 1:
            return None
        kind, in_list = schema.field(column).type, False
        for field in fields:
            if is_any(kind, _LISTS):
                kind, in_list = kind.value_type, True
            if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
                return None
            kind = kind.field(field).type
        return Leaf(column, tuple(fields), pa.large_list(kind) if in_list else kind)

    def _unfolded(self, batch: Batch) -> Batch:
        """The same with a row per document where cells hold lists of them."""
        columns = dict(batch.columns)
        folded = {key: columns[key] for key in self._folded if key in columns}
        lengths = list_lengths(folded, batch.location, self.fields)
        for key, values in folded.items():
            columns[key] = values.filter(lengths > 0).explode()
        rows = np.repeat(np.arange(len(lengths)), lengths)
        for key in columns.keys() - set(folded):
            columns[key] = columns[key].gather(rows)
        return batch._replace(columns=columns, lengths=lengths)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Makes errors of libraries about the file a DataError."""
        try:
            yield
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> DataError:
        if isinstance(error, PermissionError):  # of the system, or of a store
            return self.source.error(f"cannot be read ({error.strerror or error})", _OF_ACCESS)
        of_compressed = (remedy for said, remedy in _DAMAGED.items() if said in str(error))
        remedy = next(of_compressed, self.remedy)
        return self.source.error(f"cannot be read as {self.kind} ({error})", remedy)


class TypedTable(SourceTable):
    """A file whose columns have types."""

    def _checked(self, key: str, kind: pa.DataType) -> str:
        field = self.fields[key]
        what = f"{self._called(key)} holds {_words(kind)}"
        if field.per_document and not is_any(kind, _LISTS):
            cast = _LISTS_OF_TEXT if is_any(kind, _TEXT) else ""
            raise self.source.error(what, f"it must hold one list per row; {field.rule}{cast}")
        values = _values_of(kind, field.per_document or key in self._folded)
        if pa.types.is_null(values):
            return "nothing"
        if not _is_read(values, field.kinds, is_parsed=key not in _IDS):
            options = field.rule.options if isinstance(field.rule, Remedy) else {}
            raise DataError(str(self.source.error(what, field.rule)), options)
        if pa.types.is_integer(values) and self._is_written_as_text(key):
            return "text"
        # as 64-bit keys, 2^64 - 1 would be -1
        is_key = "U" in field.kinds and pa.types.is_uint64(values)
        return "unsigned numbers" if is_key else _content(values)

    def _is_written_as_text(self, key: str) -> bool:
        """Whether numbers of a column are ids that other files write as text."""
        return self._ids_as_text and "U" in self.fields[key].kinds

    def _converted(self, key: str, values: pl.Series) -> pl.Series:
        """The values of a column in a type that its field is read from."""
        is_list = isinstance(values.dtype, pl.List)
        kind = values.dtype.inner if isinstance(values.dtype, pl.List) else values.dtype
        if kind is not None and kind.is_integer() and self._is_written_as_text(key):
            return values.cast(pl.List(pl.String) if is_list else pl.String)
        if "f" in self.fields[key].kinds and isinstance(kind, pl.Decimal):
            to_float = pl.element().cast(pl.Float64)
            return values.list.eval(to_float) if is_list else values.cast(pl.Float64)
        return values


def _words(kind: pa.DataType) -> str:
    """Returns what a column of a type holds, for a message."""
    if is_any(kind, _LISTS):
        return f"lists of {_words(kind.value_type)}"
    words = {
        "text": _TEXT,
        "integers": (pa.types.is_integer,),
        "fractions": _FRACTIONS,
        "true and false": (pa.types.is_boolean,),
        "structs": (pa.types.is_struct,),
    }
    return next((word for word, tests in words.items() if is_any(kind, tests)), f"type {kind}")


def _content(values: pa.DataType) -> str:
    """Returns what values of a type are, as in `SourceTable.layout`."""
    if pa.types.is_timestamp(values):
        return "times" if values.tz is None else "times in a time zone"
    if pa.types.is_date(values):
        return "dates"
    return "text" if is_any(values, _TEXT) else "numbers"


def _set_column(key: str, likely: str | None, required: bool) -> str:
    """Returns how the column of a key is named, for a message."""
    meant = " to one of them" if likely is None else f", perhaps to {likely!r}"
    return f"set columns.{key}{meant}{'' if required else ', or to null'}"


def _values_of(kind: pa.DataType, in_list: bool) -> pa.DataType:
    """Returns the type of single values of a column, or of those in its lists."""
    values = kind.value_type if in_list else kind
    return values.value_type if pa.types.is_dictionary(values) else values


def _is_read(values: pa.DataType, kinds: str, is_parsed: bool) -> bool:
    """Returns whether columns of these kinds are read from a type; numbers also from text, where it `is_parsed`."""
    if is_parsed and is_any(values, _TEXT) and {*kinds} & {*"ifb"}:
        return True
    return is_any(values, [test for letter in kinds for test in _READ_FROM[letter]])


def _is_vector(kind: pa.DataType) -> bool:
    return is_any(kind, _LISTS) and is_any(kind.value_type, _NUMBERS)


_NUMBERS = (pa.types.is_integer, pa.types.is_floating)
_FRACTIONS = (pa.types.is_floating, pa.types.is_decimal)
_READ_FROM = {
    "i": (pa.types.is_integer, *_FRACTIONS),
    "f": _FRACTIONS,
    "b": (pa.types.is_boolean,),
    "t": (pa.types.is_timestamp, pa.types.is_date, *_TEXT),
    "u": (),
    "U": _TEXT,
    "v": (_is_vector,),
}
"""Types that columns of a kind are read from."""


def is_any(kind: pa.DataType, tests: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    """Returns whether a type passes any of some tests."""
    return any(is_kind(kind) for is_kind in tests)


def _names(schema: pa.Schema) -> list[str]:
    """Returns the names of all leaves."""
    return [name for field in schema for name in _names_in(field.name, field.type)]


def _names_in(name: str, kind: pa.DataType) -> list[str]:
    inner = kind.value_type if is_any(kind, _LISTS) else kind
    if not pa.types.is_struct(inner):
        return [name]
    return [
        inner_name
        for field in inner
        for inner_name in _names_in(f"{name}.{field.name}", field.type)
    ]


def remedy_for_header(present: Sequence[str]) -> str | None:
    """Returns what to do where the first line of a file seems to name no columns; None where it may.

    Args:
        present: What it names, as the file is read.
    """
    if len(present) == 1:
        return "if the columns of the file have another separator, name it: separator=';'"
    if not all(map(_is_name, present)):
        return "if the first line is a row, name the columns: header=[NAME,NAME,...]"
    return None


def _kind_of(values: pa.DataType) -> Kind:
    """Returns the kind of a column of this type."""
    is_list = is_any(values, _LISTS)
    inner = _values_of(values, is_list)
    return Kind(is_list, is_any(inner, _TEXT), is_list and is_any(inner, _LISTS))


def _is_name(text: str) -> bool:
    return not text.removeprefix("-").replace(".", "", 1).isdigit() and text != ""

"""Tables in files, parquet or text, read under the names that a reader uses as streams of columns."""

import codecs
import difflib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from clickexp.data.checksums import Progress
from clickexp.data.ingest.columns import Field
from clickexp.data.ingest.extent import Extent
from clickexp.data.ingest.times import TimeCheck
from clickexp.data.schema import Column, SourceLocation
from clickexp.errors import DataError

_PACKED_NAMES = {"query_id": "query_ids", "search_session": "session_ids", "time": "times"}
"""Keys of `columns` whose packed column has another name."""
_BATCH_ROWS, _VECTOR_ROWS = 1 << 16, 1 << 10
_BLOCK_BYTES = 1 << 23

_WORD = r"""[^\[\](){}<>,;'"\s]+"""
_IMPRESSIONS = {"session", "document", "rank", "click"}
"""Columns of a file with a row per impression."""
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_FEW_FILES = 10_000
"""Files that are looked at for a remedy."""
_SEPARATORS = ("\t", ",", ";", "|")
_NO_TABLES = {
    b"{": ("holds JSON", "convert it, with polars.read_ndjson(FILE).write_parquet(OTHER)"),
    b"[": ("holds JSON", "convert it, with polars.read_json(FILE).write_parquet(OTHER)"),
    b"\xff\xfe": ("is UTF-16 text", "save it as UTF-8"),
    b"\xfe\xff": ("is UTF-16 text", "save it as UTF-8"),
    b"sep=": ("begins with a line for Excel", "delete the line"),
}
"""What other files begin with, what they are, and the remedy."""
_BINARY = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
_GAPS = ["null", "None", "nan", "NaN", "NA"]
"""Words of a vector for a number that it lacks."""
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_CELL = r"""^(\s*\[[^\[\]]*\]\s*|[^\[\]]*)$"""
"""A list in a cell: words in square brackets or in none."""


class Batch(NamedTuple):
    """The next rows of a table, where they stand, and how much of the table's size has been read."""

    columns: dict[str, pl.Series]
    location: SourceLocation
    done: int


class SourceTable(ABC):
    """A file of rows.

    fields   what each column is read as
    names    the file's name of each, by its key in `columns`; None leaves one out
    columns  those that are there: key -> the file's name
    layout   what these hold: key -> "text", "numbers", "dates", "times", "times in a time zone" or, where these are ids
             of any kind, "unsigned numbers"
    size     rows, bytes or whatever progress is counted in

    The separator of columns concerns only files that are text. Columns that nobody asked for by name may be missing
    unless they are `required`.
    """

    kind: str
    suffixes: tuple[str, ...]
    remedy = "write the file again"

    def __init__(
        self,
        file: Path,
        fields: Mapping[str, Column | Field],
        names: Mapping[str, str | None],
        required: Iterable[str],
        separator: str | None = None,
    ):
        if separator is not None and (len(separator) != 1 or not separator.isascii()):
            raise DataError(f"separator is {separator!r}. It must be one ASCII character, or null.")
        self.separator = separator
        self.file, self.fields, self.source = file, fields, SourceLocation(str(file))
        try:
            schema, self.size = self._open()
            present = schema.names
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error
        self.columns = self._named(present, names, required)
        self.layout = {
            key: self._checked(key, schema.field(name).type) for key, name in self.columns.items()
        }

    def batches(self, keys: Iterable[str] | None = None) -> Iterator[Batch]:
        """The columns of these keys, default all."""
        columns = {key: self.columns[key] for key in (keys or self.columns)}
        try:
            yield from self._batches(columns)
        except (
            pa.ArrowException,
            pl.exceptions.ComputeError,
            OSError,
            UnicodeDecodeError,
        ) as error:
            raise self._unreadable(error) from error

    @abstractmethod
    def _open(self) -> tuple[pa.Schema, int]:
        """The schema of the file and its size."""

    @abstractmethod
    def _batches(self, columns: Mapping[str, str]) -> Iterator[Batch]: ...

    def _checked(self, key: str, kind: pa.DataType) -> str:
        """The kind of values of a column; DataError unless it is read from these."""
        return "text"

    def _named(
        self, present: list[str], names: Mapping[str, str | None], required: Iterable[str]
    ) -> dict[str, str]:
        columns = {}
        for key, name in names.items():
            if name in present:
                if present.count(name) > 1:
                    raise self.source.error(
                        f"two columns are called {name!r}", "rename one of them"
                    )
                columns[_PACKED_NAMES.get(key, key)] = name
            elif key in required or name not in (None, key):
                hint = _remedy(key, name, present) + ("" if key in required else ", or to null")
                raise self.source.error(f"no column {name!r} for {key} among {present}", hint)
        return columns

    def _unreadable(self, error: Exception) -> DataError:
        return self.source.error(f"cannot be read as {self.kind} ({error})", self.remedy)


def _remedy(key: str, name: str | None, present: list[str]) -> str:
    """Returns what to do where a file has no column of a name."""
    if key == "query_doc_ids" and {*present} >= _IMPRESSIONS:
        return "rows seem to be impressions, which dataset=impressions (format=impressions) reads"
    near = difflib.get_close_matches(str(name), present, 1, cutoff=0.5)
    return f"set columns.{key}" + (f", perhaps to {near[0]}" if near else " to one of them")


class ParquetTable(SourceTable):
    """A parquet file."""

    kind = "parquet"
    suffixes = (".parquet",)

    def _open(self) -> tuple[pa.Schema, int]:
        with pq.ParquetFile(self.file) as parquet:
            return parquet.schema_arrow, parquet.metadata.num_rows

    def _batches(self, columns: Mapping[str, str]) -> Iterator[Batch]:
        done = 0
        size = (
            _VECTOR_ROWS if any(self.fields[key].kinds == "v" for key in columns) else _BATCH_ROWS
        )
        with pq.ParquetFile(self.file) as parquet:
            for batch in parquet.iter_batches(size, columns=list(columns.values())):
                location, done = SourceLocation(str(self.file), done), done + batch.num_rows
                yield Batch(
                    {key: _series(batch.column(name)) for key, name in columns.items()},
                    location,
                    done,
                )

    def _checked(self, key: str, kind: pa.DataType) -> str:
        field, types = self.fields[key], pa.types
        if field.per_document and not _is_any(kind, _LISTS):
            raise self.source.error(
                f"{key} has type {kind}", f"it must hold one list per row; {field.rule}"
            )
        values = kind.value_type if field.per_document else kind
        values = values.value_type if types.is_dictionary(values) else values
        is_text = (
            types.is_string(values) or types.is_large_string(values) or types.is_string_view(values)
        )
        kinds = {
            "i": types.is_integer(values),
            "f": types.is_floating(values),
            "b": types.is_boolean(values),
        }
        kinds |= {"t": is_text or types.is_timestamp(values) or types.is_date(values)}
        kinds |= {
            "U": is_text,
            "v": _is_any(values, _LISTS) and _is_number(values.value_type),
        }
        if not any(kinds.get(letter) for letter in field.kinds):
            is_castable = "U" in field.kinds and (
                _is_any(values, _BINARY) or types.is_decimal(values)
            )
            cast = ": cast the column to text" if is_castable else ""
            raise self.source.error(f"{key} has type {kind}", f"{field.rule}{cast}")
        if "U" in field.kinds and types.is_uint64(values):  # as 64-bit keys, 2^64 - 1 would be -1
            return "unsigned numbers"
        if types.is_timestamp(values):
            return "times" if values.tz is None else "times in a time zone"
        if types.is_date(values):
            return "dates"
        return "text" if is_text else "numbers"


class TextTable(SourceTable):
    """A CSV or TSV file, plain or compressed, whose first line names the columns.

    The separator is by default the first of tab, comma, semicolon and bar that the first line has.
    """

    kind = "a table of text"
    suffixes = tuple(
        f"{ending}{packed}"
        for packed in ("", *_COMPRESSIONS)
        for ending in (".csv", ".tsv", ".txt")
    )
    remedy = "mend it, and save the file as UTF-8 text whose first line names the columns"

    def _open(self) -> tuple[pa.Schema, int]:
        with pa.input_stream(str(self.file), self._compression) as stream:
            start = stream.read(1 << 16)
        for mark, (what, remedy) in _NO_TABLES.items():
            if start.removeprefix(codecs.BOM_UTF8).startswith(mark):
                raise self.source.error(what, remedy)
        if self.separator is None:
            names = start.partition(b"\n")[0].decode("latin-1")
            self.separator = next((mark for mark in _SEPARATORS if mark in names), ",")
        with pa.input_stream(str(self.file), self._compression) as stream:
            return self._reader(stream, None).schema, self.file.stat().st_size

    @property
    def _compression(self) -> str | None:
        return _COMPRESSIONS.get(self.file.suffix)

    def _batches(self, columns: Mapping[str, str]) -> Iterator[Batch]:
        first, compression = 2, self._compression  # the line below the names
        with pa.OSFile(str(self.file)) as file, pa.input_stream(file, compression) as stream:
            for batch in self._reader(stream, columns.values()):
                location, first = (
                    SourceLocation(str(self.file), first, "line"),
                    first + batch.num_rows,
                )
                texts = {key: pl.Series(batch.column(name)) for key, name in columns.items()}
                words = {key: self._words(key, text, location) for key, text in texts.items()}
                yield Batch(words, location, file.tell())

    def _words(self, key: str, text: pl.Series, location: SourceLocation) -> pl.Series:
        """The word of each cell, or a list of them."""
        broken = text.str.contains("\n", literal=True)
        location.reject(broken, text, key, "it goes over two lines: close its quote")
        if self.fields[key].kinds == "v":
            return self._vectors(key, text, location)
        if self.fields[key].per_document:
            location.reject(~text.str.contains(_CELL), text, key, "close its bracket")
            return text.str.extract_all(_WORD)
        return text.str.strip_chars()

    def _vectors(self, key: str, text: pl.Series, location: SourceLocation) -> pl.Series:
        """The vector in each cell, words as in a list, or a JSON list of vectors."""
        if self.fields[key].per_document:
            kind, rule = pl.List(pl.List(pl.Float64)), "write [[1, 0.5], [2, 0]], in quotes"
            bad = pl.Series([_is_no_json(cell) for cell in text], dtype=pl.Boolean)
            location.reject(bad, text, key, rule)
            return text.str.json_decode(kind)
        location.reject(~text.str.contains(_CELL), text, key, "close its bracket")
        words = text.str.extract_all(_WORD)
        single = words.explode()
        bad = single.cast(pl.Float64, strict=False).is_null() & ~single.is_in(_GAPS)
        lengths = words.list.len().clip(1).to_numpy()  # an empty list gives a null
        location.reject(bad.fill_null(False), single, key, self.fields[key].rule, lengths)
        numbers = words.cast(pl.List(pl.Float64), strict=False)
        return pl.select(pl.when(words.list.len() > 0).then(numbers)).to_series()

    def _reader(
        self, stream: pa.NativeFile, wanted: Iterable[str] | None
    ) -> pa_csv.CSVStreamingReader:
        """Batches of the wanted columns as text; None only looks at the names."""
        wanted = (
            None if wanted is None else list(dict.fromkeys(wanted))
        )  # two keys may name one column
        types = {name: pa.string() for name in wanted or ()}
        return pa_csv.open_csv(
            stream,
            pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            pa_csv.ParseOptions(delimiter=self.separator),
            pa_csv.ConvertOptions(
                column_types=types, include_columns=wanted, strings_can_be_null=False
            ),
        )


KINDS: tuple[type[SourceTable], ...] = (ParquetTable, TextTable)
"""The kinds of files that hold tables."""


def _find_files(source: Path, files: str | None, suffixes: Iterable[str]) -> list[Path]:
    """The file itself, or those of a folder that match the pattern `files`, default all with such an ending."""
    if not source.is_dir():
        return [source]
    patterns = [files] if files else [f"*{suffix}" for suffix in suffixes]
    matching = sorted(
        {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}
    )
    if not matching:
        remedy = "Check the path of the dataset, or name the files to read in `files`."
        below = [*itertools.islice(source.rglob("*"), _FEW_FILES)]
        deeper = [pattern for pattern in patterns if any(file.match(pattern) for file in below)]
        if deeper:
            remedy = f"Those in the folders inside are read with files='**/{deeper[0]}'."
        plain = [pattern for pattern in patterns if not pattern.endswith((*_COMPRESSIONS,))]
        raise DataError(
            f"{source}: no {' or '.join(plain or patterns)} file in this folder. {remedy}"
        )
    return matching


def open_tables(
    source: Path,
    *columns: Any,
    files: str | None = None,
    kinds: Sequence[type[SourceTable]] = KINDS,
    separator: str | None = None,
) -> list[SourceTable]:
    """Opens the tables in a file or folder.

    Args:
        source: File, or folder of files, read in the order of their names.
        columns: Fields, names and required columns of the tables.
        files: Pattern of the files in a folder.
        kinds: Kinds of table that are read.
        separator: Of the columns of text.

    Raises:
        DataError: A table cannot be read, or they have different columns.
    """
    tables: list[SourceTable] = []
    for file in _find_files(source, files, [suffix for kind in kinds for suffix in kind.suffixes]):
        table = _kind_of(file, kinds)(file, *columns, separator=separator)
        tables.append(table)
        if table.layout != tables[0].layout:
            what = f"there are {table.layout}, in {tables[0].file} there are {tables[0].layout}"
            remedy = "give all files the same columns, or leave one out with columns.NAME=null"
            raise table.source.error(what, remedy)
    return tables


def _kind_of(file: Path, kinds: Sequence[type[SourceTable]]) -> type[SourceTable]:
    """Returns the kind of table in a file, by the ending of its name."""
    for kind in kinds:
        if file.name.endswith(kind.suffixes):
            return kind
    endings = ", ".join(suffix for kind in kinds for suffix in kind.suffixes)
    raise DataError(
        f"{file}: the ending of the name is of no kind of table. Rename it; the endings are {endings}."
    )


def batches_of(
    tables: Sequence[SourceTable],
    progress: Progress | None = None,
    keys: Iterable[str] | None = None,
) -> Iterator[Batch]:
    """The batches of some tables, one after another.

    Args:
        tables: The tables.
        progress: Called after each batch with how much was read of their sizes.
        keys: Columns to read, default all.
    """
    total, read, times = sum(table.size for table in tables), 0, TimeCheck()
    for table in tables:
        for batch in table.batches(keys):
            if "times" in batch.columns:
                times.check(batch.columns["times"], batch.location)
            yield batch
            if progress is not None:
                progress(read + batch.done, total)
        read += table.size


def longest_list(
    tables: Sequence[SourceTable], key: str, columns: Iterable[str | Column], remedy: str
) -> int:
    """The longest list of a column; DataError where padding all columns to it outweighs the documents."""
    extent = Extent()
    for batch in batches_of(tables, keys=[key]):
        extent.add(batch.columns[key].list.len().fill_null(0).to_numpy(), batch.location)
    return extent.ranks(columns, remedy)


def _is_no_json(cell: str) -> bool:
    """Whether a cell holds no JSON list of lists of numbers."""
    try:
        vectors = json.loads(cell)
        return not all(
            number is None or type(number) in (int, float) for each in vectors for number in each
        )
    except (ValueError, TypeError):
        return True


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _is_any(kind: pa.DataType, tests: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    return any(is_kind(kind) for is_kind in tests)


def _series(values: pa.Array) -> pl.Series:
    """List views, which polars does not read, become lists; Arrow's own cast goes wrong where they are a slice."""
    if pa.types.is_list_view(values.type) or pa.types.is_large_list_view(values.type):
        lengths = pl.Series(values.value_lengths()).fill_null(0).to_numpy()
        offsets = np.append(0, np.cumsum(lengths))
        values = pa.LargeListArray.from_arrays(offsets, values.flatten(), mask=values.is_null())
    series = pl.Series(values)
    return series.arr.to_list() if isinstance(series.dtype, pl.Array) else series

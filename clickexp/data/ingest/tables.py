"""Tables in files, read under the names that a reader uses as streams of Arrow batches."""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from clickexp.data.checksums import Progress
from clickexp.data.ingest.columns import ANY_ID, Field
from clickexp.data.ingest.ragged import check_type, is_list, is_text, list_lengths
from clickexp.data.schema import Column, Extent, SourceLocation
from clickexp.errors import DataError

PACKED_NAMES = {"query_id": "query_ids"}
"""Keys of `columns` whose packed column has another name."""


class Batch(NamedTuple):
    """The next rows of a table, where they stand, and how much of the table's size has been read."""

    columns: dict[str, pa.Array]
    location: SourceLocation
    done: int


class SourceTable(ABC):
    """A file of rows.

    fields   what each column is read as
    names    the file's name of each, by its key in `columns`; None leaves one out
    columns  those that are there: key -> the file's name
    layout   what these hold: key -> "text", "numbers" or, where these are ids of any kind, "unsigned numbers"
    size     rows, bytes or whatever progress is counted in

    Columns that nobody asked for by name may be missing unless they are `required`.
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
    ):
        self.file, self.fields = file, fields
        try:
            found, self.size = self._open()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error
        self.columns = _columns(file, list(found.names), names, fields, required)
        types = {key: found.field(name).type for key, name in self.columns.items()}
        self.layout = {key: _layout(fields[key], kind) for key, kind in types.items()}
        for key, kind in types.items():
            self._check(key, kind)

    def batches(self, keys: Iterable[str] | None = None) -> Iterator[Batch]:
        """The columns of these keys, default all, of the types that the fields ask for."""
        columns = {key: self.columns[key] for key in (keys or self.columns)}
        try:
            yield from self._batches(columns)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    @abstractmethod
    def _open(self) -> tuple[pa.Schema, int]:
        """The schema of the file and its size."""

    @abstractmethod
    def _batches(self, columns: Mapping[str, str]) -> Iterator[Batch]: ...

    def _check(self, key: str, kind: pa.DataType) -> None:
        check_type(key, self.fields[key], kind, SourceLocation(str(self.file)))

    def _unreadable(self, error: Exception) -> DataError:
        return SourceLocation(str(self.file)).error(f"cannot be read as {self.kind} ({error})", self.remedy)


def find_files(source: Path, files: str | None, suffixes: Iterable[str]) -> list[Path]:
    """The file itself, or those of a folder that match the pattern `files`, default all with such an ending."""
    if not source.is_dir():
        return [source]
    patterns = [files] if files else [f"*{suffix}" for suffix in suffixes]
    found = sorted({file for pattern in patterns for file in source.glob(pattern) if file.is_file()})
    if not found:
        remedy = "Check the path of the dataset, or name the files to read in `files`."
        raise DataError(f"{source}: no {' or '.join(patterns)} file in this folder. {remedy}")
    return found


def batches_of(
    tables: Sequence[SourceTable], progress: Progress | None = None, keys: Iterable[str] | None = None
) -> Iterator[Batch]:
    """The batches of some tables, one after another.

    Args:
        tables: The tables.
        progress: Called after each batch with how much was read of their sizes.
        keys: Columns to read, default all.
    """
    total, read = sum(table.size for table in tables), 0
    for table in tables:
        for batch in table.batches(keys):
            yield batch
            if progress is not None:
                progress(read + batch.done, total)
        read += table.size


def longest_list(tables: Sequence[SourceTable], key: str, columns: Iterable[str | Column], remedy: str) -> int:
    """The longest list of a column; DataError where padding all columns to it outweighs the documents."""
    extent = Extent()
    for batch in batches_of(tables, keys=[key]):
        extent.add(list_lengths(batch.columns[key]), batch.location)
    return extent.ranks(columns, remedy)


def open_tables(files: Iterable[Path], table: Callable[[Path], SourceTable]) -> list[SourceTable]:
    """The tables in some files; DataError unless they have the same columns."""
    tables = [table(file) for file in files]
    first = tables[0]
    for other in tables:
        if other.layout != first.layout:
            what = f"there are {other.layout}, in {first.file} there are {first.layout}"
            remedy = "give all files the same columns, or leave one out with columns.NAME=null"
            raise SourceLocation(str(other.file)).error(what, remedy)
    return tables


def _layout(column: Column | Field, kind: pa.DataType) -> str:
    values = kind.value_type if is_list(kind) else kind
    if is_text(values):
        return "text"
    # As 64-bit keys, 2^64 - 1 would be -1.
    return "unsigned numbers" if column.kinds == ANY_ID.kinds and pa.types.is_uint64(values) else "numbers"


def _columns(
    file: Path,
    found: list[str],
    names: Mapping[str, str | None],
    fields: Mapping[str, Column | Field],
    required: Iterable[str],
) -> dict[str, str]:
    columns = {}
    for key, name in names.items():
        if name in found:
            if found.count(name) > 1:
                raise SourceLocation(str(file)).error(
                    f"two columns are called {name!r}", "rename one of them"
                )
            columns[PACKED_NAMES.get(key, key)] = name
        elif key in required or name not in (None, key):
            near = difflib.get_close_matches(str(name), found, 1, cutoff=0.5)
            hint = f"set columns.{key}" + (f", perhaps to {near[0]}" if near else " to one of them")
            raise SourceLocation(str(file)).error(f"no column {name!r} for {key} among {found}", hint)
    return columns

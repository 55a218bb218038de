"""The tables in a file or folder: the kinds of files, which of them are read, and their rows one after another."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from clickexp.data.ingest.faults import Faults
from clickexp.data.ingest.json_table import JsonTable
from clickexp.data.ingest.parquet_table import ParquetTable, row_groups
from clickexp.data.ingest.source_table import Batch, SourceTable, TextForm, option_key
from clickexp.data.ingest.text_table import TextTable
from clickexp.data.ingest.times import TimeCheck
from clickexp.data.log_files import (
    COMPRESSIONS,
    WHOLE,
    Piece,
    Share,
    UnknownKindError,
    log_files,
)
from clickexp.utils.progress import Progress, no_report
from clickexp.utils.sources import parts_below

Kinds = Sequence[type[SourceTable]]
KINDS: Kinds = (ParquetTable, TextTable, JsonTable)
"""The kinds of files that hold tables."""
_MAY_LACK = {"labels", "label"}
"""Columns that some of the files may not have."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def open_tables(
    source: Path,
    *columns: Any,
    files: str | None = None,
    kinds: Kinds = KINDS,
    text: TextForm | None = None,
    share: Share = WHOLE,
) -> list[SourceTable]:
    """Opens the tables in a file or folder, or a share of them.

    Where only some of the files have labels, those of the others are missing.

    Args:
        source: File, or folder of files and folders, read in the order of their names.
        columns: Fields, names and required columns of the tables.
        files: Pattern of the files in a folder; ** stands for folders inside.
        kinds: Kinds of table that are read.
        text: How text is written.
        share: Those to open of the files that match the pattern.

    Raises:
        DataError: A table cannot be read, or they have different columns.
    """
    present = log_files(source, files)
    wanted = [file for file in present if share.has(file)]
    # ids in text are text, so those of the other files are, too
    as_text = any(issubclass(_kind_of(file, kinds), TextTable) for file in present)
    tables: list[SourceTable] = []
    for file in dict.fromkeys((present[0], *wanted)):  # all have the columns of the first
        folders = _folder_columns(source, file) if file != source else {}
        kind = _kind_of(file, kinds)
        tables.append(kind(file, *columns, text=text, folders=folders, ids_as_text=as_text))
    _check_alike(tables)
    read = tables[len(tables) - len(wanted) :]
    for table in read:
        span = share.span(table.file)
        if isinstance(table, ParquetTable) and span is not None:
            table.keep(span)
    return read


def pieces_of_files(
    source: Path, shares: int, *, files: str | None = None, **_: Any
) -> list[Piece]:
    """Returns whole files, as where rows of a page may lie anywhere in one; see `LogFormat`."""
    return [Piece.of(file) for file in log_files(source, files)]


def pieces_of_tables(source: Path, shares: int, **options: Any) -> list[Piece]:
    """Returns files, and the row groups of large Parquet files apart; see `LogFormat`."""
    whole = pieces_of_files(source, shares, **options)
    large = sum(piece.size for piece in whole) / shares
    pieces = []
    for piece in whole:
        groups = row_groups(piece.file) if piece.size > large else 0
        spans = [range(number, number + 1) for number in range(groups)]
        if groups > 1:
            pieces += [Piece(piece.file, piece.size / groups, span) for span in spans]
        else:
            pieces.append(piece)
    return pieces


def _check_alike(tables: Sequence[SourceTable]) -> None:
    somewhere = {key for table in tables for key in table.columns} & _MAY_LACK
    for table in tables:
        for key in somewhere.difference(table.columns):
            table.add_missing(key)
    for table in tables:
        _check_columns(table, tables[0])


def _check_columns(table: SourceTable, first: SourceTable) -> None:
    """DataError where a table has other columns than the first one."""
    _check_has_columns(table, first)
    _check_has_columns(first, table)
    for key, kind in table.layout.items():
        if not _is_alike(table, first, key):
            option = option_key(key)
            what = f"{option} holds {kind}, in {first.file} {first.layout[key]}"
            remedy = f"write it alike in all files, or leave it out with columns.{option}=null"
            raise table.source.error(what, remedy)


def _is_alike(table: SourceTable, other: SourceTable, key: str) -> bool:
    """Whether values of a column are read alike from two tables: numbers also from a file of text."""
    kinds = {table.layout[key], other.layout[key]}
    if len(kinds) == 1 or "nothing" in kinds:
        return True
    is_id = "U" in table.fields[key].kinds
    one_is_text = any(isinstance(each, TextTable) for each in (table, other))
    return one_is_text and not is_id and kinds == {"text", "numbers"}


def _check_has_columns(table: SourceTable, other: SourceTable) -> None:
    """DataError where a table lacks a column of another one."""
    missing = [key for key in other.columns if key not in table.columns]
    if missing:
        names = " and ".join(repr(other.columns[key].name) for key in missing)
        left_out = " ".join(f"columns.{option_key(key)}=null" for key in missing)
        remedy = f"give all files the same columns, or leave out what some lack: {left_out}"
        raise table.source.error(f"no column {names}, which {other.file} has", remedy)


def _folder_columns(source: Path, file: Path) -> dict[str, str | None]:
    """Returns what folders such as date=2025-11-01 below a source state."""
    folders = parts_below(source, file)[:-1]
    stated = dict(folder.split("=", 1) for folder in folders if "=" in folder)
    return {name: None if value == _NO_VALUE else unquote(value) for name, value in stated.items()}


def _kind_of(file: Path, kinds: Kinds) -> type[SourceTable]:
    """Returns the kind of table in a file, by the ending of its name."""
    for kind in kinds:
        if file.name.lower().endswith(kind.suffixes):
            return kind
    plain = [end for kind in kinds for end in kind.suffixes if not end.endswith((*COMPRESSIONS,))]
    packed = ", ".join(COMPRESSIONS)
    raise UnknownKindError(
        f"{file}: the ending of the name shows no kind of file. Write or rename it as one of these: "
        f"{', '.join(plain)}; text may be compressed, as .csv{packed.split(',')[0]} ({packed})."
    )


def batches_of(
    tables: Sequence[SourceTable],
    progress: Progress = no_report,
    keys: Iterable[str] | None = None,
    faults: Faults | None = None,
) -> Iterator[Batch]:
    """The batches of some tables, one after another.

    Args:
        tables: The tables.
        progress: Called after each batch with how much was read of their sizes, and where.
        keys: Columns to read, default all.
        faults: Counts the faults of rows; by default the first is an error.
    """
    total, read, rows = sum(table.size for table in tables), 0, 0
    field = tables[0].fields.get("times") if tables else None
    form = None if field is None else field.form
    times = TimeCheck() if faults is None else faults.times
    for number, table in enumerate(tables, 1):
        table.faults = faults
        for batch in table.batches(keys):
            if "times" in batch.columns:
                times.check(batch.columns["times"], batch.location, batch.lengths, form)
            read_rows = len(next(iter(batch.columns.values())))
            if faults is not None:
                faults.count(batch.location, read_rows)
            yield batch
            rows += read_rows
            progress(read + batch.done, total, *_where(table, number, len(tables), rows))
        read += table.size


def _where(table: SourceTable, number: int, files: int, rows: int) -> list[str]:
    """Says where the reader of several files is."""
    return [f"file {number:,} of {files:,} ({table.file.name}), {rows:,} rows"] * (files > 1)

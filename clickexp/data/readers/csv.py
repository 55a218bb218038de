"""Sessions from CSV or TSV: one row per session, lists of documents and clicks in its cells."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv

from clickexp.data.ingest.columns import Field
from clickexp.data.ingest.lists import read_lists, table_options
from clickexp.data.ingest.tables import Batch, SourceTable, find_files, open_tables
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import Column, SourceLocation
from clickexp.errors import DataError
from clickexp.utils.bounds import Ids, PositiveInt

BLOCK_BYTES = 1 << 23
WORD = r"""[^\[\](){}<>,;'"\s]+"""
CELL = r"""^(\s*\[[^\[\]]*\]\s*|[^\[\]]*)$"""
"""A list in a cell: words in square brackets or in none."""

TRUTH = {"true": "1", "false": "0"}
OLDEST = pl.CompatLevel.oldest()


class TextTable(SourceTable):
    """A CSV or TSV file, plain or gzipped, whose first line names the columns.

    separator  of the columns, default a tab if the first line has one, else a comma
    """

    kind = "a table of text"
    suffixes = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
    remedy = "mend it, and save the file as UTF-8 text whose first line names the columns"

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
        self._separator = separator
        super().__init__(file, fields, names, required)

    def _open(self) -> tuple[pa.Schema, int]:
        if self._separator is None:
            with pa.input_stream(str(self.file), "detect") as stream:
                self._separator = "\t" if b"\t" in stream.read(1 << 16).partition(b"\n")[0] else ","
        with pa.input_stream(str(self.file), "detect") as stream:
            names = self._reader(stream, None).schema.names
        return pa.schema([(name, pa.string()) for name in names]), self.file.stat().st_size

    def _check(self, key: str, kind: pa.DataType) -> None:
        """Every column is text at first."""

    def _batches(self, columns: Mapping[str, str]) -> Iterator[Batch]:
        first = 2  # the line below the names
        with pa.OSFile(str(self.file)) as file, pa.input_stream(file, self._compression()) as stream:
            for batch in self._reader(stream, columns.values()):
                location, first = SourceLocation(str(self.file), first, "line"), first + batch.num_rows
                parsed = {
                    key: parsed_cells(batch.column(name), self.fields[key], key, location)
                    for key, name in columns.items()
                }
                yield Batch(parsed, location, file.tell())

    def _compression(self) -> str | None:
        return "gzip" if self.file.suffix == ".gz" else None

    def _reader(self, stream: pa.NativeFile, wanted: Iterable[str] | None) -> pa_csv.CSVStreamingReader:
        """Batches of the wanted columns as text; None only looks at the names."""
        wanted = None if wanted is None else list(dict.fromkeys(wanted))  # two keys may name one column
        types = {name: pa.string() for name in wanted or ()}
        return pa_csv.open_csv(
            stream,
            pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            pa_csv.ParseOptions(delimiter=self._separator),
            pa_csv.ConvertOptions(column_types=types, include_columns=wanted, strings_can_be_null=False),
        )


@log_format("csv")
def open_csv(
    source: Path,
    log: LogWriter,
    *,
    files: str | None = None,
    columns: Mapping[str, Any] | None = None,
    separator: str | None = None,
    pair_key: str | None = None,
    positions: PositiveInt | None = None,
    query_doc_pairs: Ids | None = None,
) -> None:
    """The dataset in a CSV or TSV file, or in those of a folder in the order of their names; .gz is unpacked.

    A cell holds a list as words between commas, semicolons or spaces, in square brackets or in none, each in
    quotes or in none: [3, 5, 8]  3 5 8  ['a', 'b'].

    files      pattern of the files in a folder, default those that end in .csv, .tsv or .txt, plain or gzipped
    separator  of columns, default a tab if the first line has one, else a comma

    The other options are those of open_parquet. DataError names file, line and remedy; lines that are blank are
    left out and not counted.
    """
    options = table_options(columns, pair_key)
    table = functools.partial(TextTable, **options, separator=separator)
    tables = open_tables(find_files(source, files, TextTable.suffixes), table)
    read_lists(tables, log, pair_key, positions, query_doc_pairs)


def parsed_cells(cells: pa.Array, column: Column | Field, name: str, location: SourceLocation) -> pa.Array:
    """The values of cells of text, or their lists, as the column is read; DataError for the first that is neither."""
    text = pl.Series(cells)
    _reject(
        text.str.contains("\n", literal=True), text, name, "it goes over two lines: close its quote", location
    )
    if not column.per_document:
        words = text.str.strip_chars()
        return _values(words, column, name, location, np.arange(len(words))).to_arrow(compat_level=OLDEST)
    _reject(~text.str.contains(CELL), text, name, "close its bracket", location)
    lists = text.str.extract_all(WORD).to_arrow(compat_level=OLDEST)
    offsets = lists.offsets.to_numpy()
    rows = np.repeat(np.arange(len(lists)), np.diff(offsets))
    values = _values(pl.Series(lists.flatten(), dtype=pl.String), column, name, location, rows)
    return pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), values.to_arrow(compat_level=OLDEST))


def _values(
    words: pl.Series, column: Column | Field, name: str, location: SourceLocation, rows: np.ndarray
) -> pl.Series:
    if "U" in column.kinds:
        bad, values = words == "", words
    else:
        numbers = pl.Int64
        if "f" in column.kinds:
            numbers, words = pl.Float64, words.str.to_lowercase().replace(TRUTH)
        values = words.cast(numbers, strict=False)
        if column.fill is not None:
            values = values.set(words == "", column.fill)
        bad = values.is_null()
    _reject(bad, words, name, column.rule, location, rows)
    return values


def _reject(
    bad: pl.Series,
    text: pl.Series,
    name: str,
    remedy: str,
    location: SourceLocation,
    rows: np.ndarray | None = None,
) -> None:
    """DataError for the first bad text; `rows` holds the row of each."""
    if bad.any():
        first = int(bad.to_numpy().argmax())
        row = first if rows is None else int(rows[first])
        raise location.error(f"{name} holds {text[first][:80]!r}", remedy, row)

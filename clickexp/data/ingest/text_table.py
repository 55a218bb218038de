"""Files of text as tables: CSV, TSV and those with other separators."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv

from clickexp.data.ingest.layouts import Kind
from clickexp.data.ingest.source_table import Batch, Leaf, SourceTable
from clickexp.data.ingest.streams import Stream, opened
from clickexp.data.log_files import TEXT, also_compressed
from clickexp.data.schema import SourceLocation
from clickexp.errors import DataError

_START_BYTES = 1 << 16
_SEPARATORS = ("\t", ",", ";", "|")
_UTF8_MARK = b"\xef\xbb\xbf"
_ENCODINGS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
"""Encodings other than UTF-8, by the mark that a file begins with."""
_SEPARATOR_LINE = "sep="
"""How a first line begins that tells Excel the separator."""
_NO_TABLES = {
    b"{": ("holds JSON", "end its name in .jsonl, or .jsonl.gz where it is compressed"),
    b"[": ("holds JSON", "write JSON lines, with polars.read_json(FILE).write_ndjson(OTHER)"),
    b"PAR1": ("is parquet", "end its name in .parquet"),
    b"PK\x03\x04": ("is an archive or a workbook", "unpack it, or save the sheet as CSV"),
    b"\x1f\x8b": ("is compressed by gzip", "end its name in .gz"),
    b"BZh": ("is compressed by bzip2", "end its name in .bz2"),
    b"\x28\xb5\x2f\xfd": ("is compressed by zstd", "end its name in .zst"),
    b"\x04\x22\x4d\x18": ("is compressed by lz4", "end its name in .lz4"),
    b"\xfd7zXZ": ("is compressed by xz", "compress it by gzip or zstd"),
}
"""First bytes of other files, their kinds, and the remedy."""
_WORD = r"""[^\[\](){}<>,;'"\s]+"""
_WORD_WITH_COMMA = r"""[^\[\](){}<>;'"\s]+"""
_GAPS = ["null", "None", "nan", "NaN", "NA"]
"""Words of a vector for a number that it lacks."""
_LIST = r"""^\s*(\[.*\]|\(.*\)|\S+([\s,;]+\S+)+)\s*$"""
"""A cell that seems to hold a list."""
_NUMBERS = r"^[\d\s,;.eE+-]*$"
_FRACTION = r"^\s*[+-]?\d+(,\d+)?\s*$"
"""A number that may have a decimal comma."""
_LOOKED_AT = 1000
"""Cells that show whether a column has lists."""
_CELL = r"""^(\s*\[[^\[\]]*\]\s*|[^\[\]]*)$"""
"""A list in a cell: words in square brackets or in none."""
_COMMA, _GROUPED = r"^([+-]?\d+),(\d+)$", r"^[+-]?[1-9]\d{0,2}(,\d{3})+$"
"""A decimal comma; and what may be that or a comma between thousands."""


class TextTable(SourceTable):
    """A CSV or TSV file, plain or compressed, in UTF-8, in UTF-16 with a byte order mark, or in a stated encoding.

    The first line names the columns, unless a header is given. The separator is the one of tab, comma, semicolon and
    bar that finds most of the names in it, and where the file begins with a line sep=, that one. Where columns are not
    separated by commas, numbers may have decimal commas.
    """

    kind = "a table of text"
    suffixes = also_compressed(*TEXT)
    remedy = "mend it: the first line names the columns, and the text is UTF-8, or that of the option encoding"
    _encoding: str | None = None

    def _open(self) -> tuple[pa.Schema, int]:
        self.text.check()
        separator = "\t" if self.text.separator == r"\t" else self.text.separator
        with opened(self.file) as stream:
            start, size = stream.content.read(_START_BYTES), stream.size
        text = start.removeprefix(_UTF8_MARK)
        for sign, (what, remedy) in _NO_TABLES.items():
            if text.startswith(sign):
                raise self.source.error(what, remedy)
        self._encoding = self.text.encoding or _ENCODINGS.get(start[:2])
        lines = text.decode(self._encoding or "utf-8", "ignore").splitlines()
        stated = _stated_separator(lines)
        self._skipped = 0 if stated is None else 1
        first = "".join(lines[self._skipped : self._skipped + 1])
        self.separator = separator or stated or self._found_separator(first)
        self.names = self._header(first)
        return pa.schema([(name, pa.string()) for name in self.names]), size

    def _found_separator(self, line: str) -> str:
        wanted = {*self.text.header} if self.text.header else {*self._names.values()}
        marks = [mark for mark in _SEPARATORS if mark in line] or [","]

        def matches(mark: str) -> tuple[int, int]:
            cells = _cells(line, mark)
            return len(wanted.intersection(cells)), len(cells)

        return max(marks, key=matches)

    def _header(self, line: str) -> list[str]:
        """Returns the names of the columns; one without a name is called column_N, as the N-th."""
        if self.text.header is not None:
            return list(self.text.header)
        self._skipped += 1
        cells = _cells(line, self.separator)
        return [cell or f"column_{number}" for number, cell in enumerate(cells, 1)]

    def _unreadable(self, error: Exception) -> DataError:
        if self._encoding is None and "invalid UTF8" in str(error):
            remedy = "name its encoding; that of Windows in Western Europe is encoding=cp1252"
            shown = str(self.source.error("the text is not UTF-8", remedy))
            return DataError(shown, {"encoding": "cp1252"})
        return super()._unreadable(error)

    def _kinds(self) -> dict[str, Kind]:
        """The kind of each column by its name, from the first rows."""
        kinds = {}
        with self._opened() as (content, _):
            rows = next(iter(self._reader(content, self.names)), None)
        for name in dict.fromkeys(self.names):
            cells = pl.Series([] if rows is None else rows.column(name), dtype=pl.String)
            words = cells.filter(cells != "").head(_LOOKED_AT)
            is_bracketed = words.str.contains(r"^\s*[\[(]").all()
            is_list = words.str.contains(_LIST) & (is_bracketed | words.str.contains(_NUMBERS))
            if self.separator != "," and words.str.contains(_FRACTION).all():
                is_list &= False
            inner = words.str.extract_all(_WORD).list.join(" ")
            is_text = not inner.str.contains(_NUMBERS).all()
            is_nested = bool(words.str.contains(r"^\s*\[\s*\[").any())
            kinds[name] = Kind(bool(is_list.any()), is_text, is_nested)
        return kinds

    @contextmanager
    def _opened(self) -> Iterator[tuple[pa.NativeFile, Stream]]:
        """The text in UTF-8, and the stream that it comes from."""
        with opened(self.file) as stream:
            content = stream.content
            if self._encoding is not None:
                content = pa.transcoding_input_stream(content, self._encoding, "utf-8")
            yield content, stream

    def _batches(self, columns: Mapping[str, Leaf]) -> Iterator[Batch]:
        first, unit = self._skipped + 1, "line"
        if not columns:
            return
        with self._opened() as (content, stream):
            for batch in self._reader(content, [leaf.column for leaf in columns.values()]):
                broken = [name for name in batch.schema.names if _has_breaks(batch.column(name))]
                unit = "record" if broken else unit  # no longer the number of its line
                location = self.at(first, unit)
                first += batch.num_rows
                words = {}
                for key, leaf in columns.items():
                    text = pl.Series(batch.column(leaf.column))
                    if leaf.column in broken:
                        self._check_quotes(key, text, location)
                    words[key] = self._words(key, text, location)
                yield Batch(words, location, stream.stored.tell())

    def _words(self, key: str, text: pl.Series, location: SourceLocation) -> pl.Series:
        """The word of each cell, or a list of them."""
        field = self.fields[key]
        if field.kinds == "v":
            return self._vectors(key, text, location)
        if field.per_document:
            location.reject(~text.str.contains(_CELL), text, key, "close its bracket")
            if self.text.decimal != ",":
                return text.str.extract_all(_WORD)
            word = pl.element().str.strip_chars(",").str.replace(_COMMA, "${1}.${2}")
            return text.str.extract_all(_WORD_WITH_COMMA).list.eval(word)
        words = text.str.strip_chars()
        is_number = "f" in field.kinds or "U" not in field.kinds
        is_comma = self.text.decimal == ","
        if is_number and (is_comma or (self.separator != "," and self.text.decimal is None)):
            words = self._with_points(key, words, location)
        return words

    def _vectors(self, key: str, text: pl.Series, location: SourceLocation) -> pl.Series:
        """The vector in each cell, words as in a list, or a JSON list of vectors."""
        if self.fields[key].per_document:
            bad = pl.Series([_is_no_json(cell) for cell in text], dtype=pl.Boolean)
            remedy = "write [[1, 0.5], [2, 0]], in quotes"
            location.reject(bad, text, key, remedy, kind=f"missing_{key}")
            return text.set(bad, None).str.json_decode(pl.List(pl.List(pl.Float64)))
        location.reject(~text.str.contains(_CELL), text, key, "close its bracket")
        words = text.str.extract_all(_WORD)
        single = words.explode()
        bad = single.cast(pl.Float64, strict=False).is_null() & ~single.is_in(_GAPS)
        lengths = words.list.len().clip(1).to_numpy()  # an empty list gives a null
        location.reject(bad.fill_null(False), single, key, self.fields[key].rule, lengths)
        number = pl.element().cast(pl.Float64, strict=False)
        is_gap = pl.element().is_in(_GAPS)
        numbers = words.list.eval(
            pl.when(number.is_null() & ~is_gap).then(float("nan")).otherwise(number)
        )
        return pl.select(pl.when(words.list.len() > 0).then(numbers)).to_series()

    def _check_quotes(self, key: str, text: pl.Series, location: SourceLocation) -> None:
        """DataError for a cell of several lines that has the cells behind it, too, as without its closing quote."""
        broken = text.str.contains("\n", literal=True)
        if "U" in self.fields[key].kinds and not self.fields[key].per_document:
            behind = len(self.names) - 1 - self.names.index(self.columns[key].column)
            marks = text.str.count_matches(self.separator, literal=True)
            broken &= marks >= max(behind, 1)
        remedy = "it goes over two lines: close its quote, or write cells without line breaks"
        location.reject(broken, text, key, remedy)

    def _with_points(self, key: str, words: pl.Series, location: SourceLocation) -> pl.Series:
        """The same with points in place of decimal commas."""
        if not words.str.contains(",", literal=True).any():
            return words
        if self.text.decimal is None:
            unclear = "it may be a fraction or thousands: say decimal=',' where it is a fraction"
            grouped = words.str.contains(_GROUPED)
            location.reject(grouped, words, key, unclear)
            words = words.set(grouped, "0")  # one fault is enough
        return words.str.replace(_COMMA, "${1}.${2}")

    def _reader(self, stream: pa.NativeFile, wanted: Iterable[str]) -> pa_csv.CSVStreamingReader:
        """Batches of the wanted columns as text."""
        included = list(dict.fromkeys(wanted))  # two keys may name one column
        return pa_csv.open_csv(
            stream,
            pa_csv.ReadOptions(
                use_threads=False,
                block_size=self.block_bytes,
                column_names=self.names,
                skip_rows=self._skipped,
            ),
            pa_csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(included, pa.string()),
                include_columns=included,
                strings_can_be_null=False,
            ),
        )


def _stated_separator(lines: Sequence[str]) -> str | None:
    """Returns the separator that a first line such as sep=; states; None where it states none."""
    if lines and lines[0].lower().startswith(_SEPARATOR_LINE):
        return lines[0][len(_SEPARATOR_LINE) :][:1]
    return None


def _is_no_json(cell: str) -> bool:
    """Whether a cell holds no JSON list of lists of numbers."""
    try:
        vectors = json.loads(cell)
        return not all(
            number is None or type(number) in (int, float)
            for vector in vectors
            for number in vector
        )
    except (ValueError, TypeError):
        return True


def _has_breaks(cells: pa.Array) -> bool:
    """Returns whether a cell goes over several lines; in the bytes of all, ten times as fast as cell by cell."""
    characters = cells.buffers()[2]
    return characters is not None and b"\n" in characters.to_pybytes()


def _cells(line: str, separator: str) -> Sequence[str]:
    """Returns the cells of a line, without the blanks around them."""
    cells = next(csv.reader([line], delimiter=separator), [])
    return [cell.strip() for cell in cells]

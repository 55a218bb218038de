"""Files of JSON lines as tables: an object per line, whose keys are columns."""

import json
from collections.abc import Iterator, Mapping

import polars as pl
import pyarrow as pa

from clickexp.data.ingest.source_table import Batch, Leaf, TypedTable
from clickexp.data.ingest.streams import opened, whole_lines
from clickexp.data.log_files import JSON_LINES, also_compressed
from clickexp.data.names import OLDEST
from clickexp.data.schema import SourceLocation

_LARGE = pl.Decimal(38, 0)
"""Type of integers beyond 64 bits."""


class JsonTable(TypedTable):
    """A file with a JSON object in each line, plain or compressed.

    The types are those of the first block; where those of another block differ, ids would be read as others.
    """

    kind = "JSON lines"
    suffixes = also_compressed(*JSON_LINES, ".json")
    remedy = (
        "write the file again, or drop the line: each holds one whole JSON object in UTF-8, with values of one type "
        "for a key"
    )

    def _open(self) -> tuple[pa.Schema, int]:
        with opened(self.file) as stream:
            size = stream.size
        first = next(self._frames(), None)
        if first is None:
            raise self.source.error("holds no line", self.remedy)
        return _schema(first[0]), size

    def _frames(self) -> Iterator[tuple[pl.DataFrame, SourceLocation, int]]:
        line = 1
        with opened(self.file) as stream:
            for block in whole_lines(stream, self.block_bytes):
                location = self.at(line, "line")
                if block.strip():
                    yield self._parsed(block, location), location, stream.stored.tell()
                line += block.count(b"\n")

    def _parsed(self, block: bytes, location: SourceLocation) -> pl.DataFrame:
        if block.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[" and location.first == 1:
            remedy = "write a line per object, with polars.read_json(FILE).write_ndjson(OTHER)"
            raise self.source.error("holds one JSON array", remedy)
        try:
            frame = pl.read_ndjson(block, infer_schema_length=None)
            lists = pl.col(pl.List(pl.Int128)).cast(pl.List(_LARGE))
            return frame.with_columns(pl.col(pl.Int128).cast(_LARGE), lists)
        except pl.exceptions.PolarsError as error:
            for number, text in enumerate(block.split(b"\n")):
                if text.strip() and not _is_object(text):
                    shown = text[:80].decode("utf-8", "backslashreplace")
                    raise location.error(f"{shown!r} is no object", self.remedy, number) from error
            raise

    def _batches(self, columns: Mapping[str, Leaf]) -> Iterator[Batch]:
        for frame, location, done in self._frames():
            schema, values = _schema(frame), {}
            for key, leaf in columns.items():
                name = ".".join((leaf.column, *leaf.fields))
                present = self._leaf(name, schema)
                if present is None:
                    values[key] = pl.repeat(None, len(frame), eager=True, dtype=pl.Null)
                    continue
                self._check_kind(key, self._checked(key, present.type), location)
                values[key] = self._converted(key, present.of(frame[leaf.column]))
            yield Batch(values, location, done)

    def _check_kind(self, key: str, kind: str, location: SourceLocation) -> None:
        above = self.layout[key]
        if "nothing" in (kind, above):
            self.layout[key] = above if kind == "nothing" else kind
        elif kind != above:
            what = f"{key} holds {kind} from here on, and {above} above"
            raise location.error(what, "write all values of a key alike", 0)


def _schema(frame: pl.DataFrame) -> pa.Schema:
    return frame.clear().to_arrow(compat_level=OLDEST).schema


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):  # which nesting without end raises
        return False

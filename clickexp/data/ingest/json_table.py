"""Files of JSON lines as tables: an object per line, whose keys are columns."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.ingest.faults import Faults
from clickexp.data.ingest.source_table import Batch, Leaf, TypedTable
from clickexp.data.ingest.streams import opened
from clickexp.data.log_files import JSON_LINES, also_compressed
from clickexp.data.schema import SourceLocation
from clickexp.errors import DataError

_SIMPLE = {
    pl.Null: pa.null(),
    pl.Boolean: pa.bool_(),
    pl.Float64: pa.float64(),
    pl.String: pa.large_string(),
    pl.Int128: pa.decimal128(38, 0),  # beyond 64 bits
}


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
        refused: list[DataError] = []
        first = next(self._frames(refused.append), None)
        if first is None:
            raise refused[0] if refused else self.source.error("holds no line", self.remedy)
        types = {name: _arrow(dtype) for name, dtype in first[0].schema.items()}
        return pa.schema(types), size

    def _frames(
        self, refuse: Callable[[DataError], None] | None = None
    ) -> Iterator[tuple[pl.DataFrame, SourceLocation, int]]:
        """Yields objects, where they are, and how much was read; lines that are none are for `refuse`, or counted."""
        line, rest, size = 1, b"", self.block_bytes
        with opened(self.file) as stream:
            while True:
                read = stream.content.read(size)
                text = rest + read
                end = text.rfind(b"\n") + 1 if read else len(text)
                block, rest = text[:end], text[end:]
                size = self.block_bytes if block else 2 * size  # a line that is longer than a block
                location = self.at(line, "line")
                if block.strip():
                    done = stream.stored.tell()
                    yield from ((*parsed, done) for parsed in self._parsed(block, location, refuse))
                line += block.count(b"\n")
                if not read:
                    return

    def _parsed(
        self, block: bytes, location: SourceLocation, refuse: Callable[[DataError], None] | None
    ) -> Iterator[tuple[pl.DataFrame, SourceLocation]]:
        """Yields the objects of a block, and where they are; those between lines that are none apart."""
        if block.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[" and location.first == 1:
            remedy = "write a line per object, with polars.read_json(FILE).write_ndjson(OTHER)"
            raise self.source.error("holds one JSON array", remedy)
        try:
            objects = iter([(_read(block), location)])
        except pl.exceptions.PolarsError as error:
            lines = block.split(b"\n")
            bad = [at for at, text in enumerate(lines) if text.strip() and not _is_object(text)]
            if not bad:
                raise
            whats = [f"{_shown(lines[at])!r} is no object" for at in bad]
            if refuse is not None:
                refuse(location.error(whats[0], self.remedy, bad[0]))
            elif self.faults is None:
                raise location.error(whats[0], self.remedy, bad[0]) from error
            else:
                self._count(bad, whats, location, self.faults)
            objects = self._between(lines, bad, location)
        yield from objects

    def _count(
        self, bad: Sequence[int], whats: Sequence[str], location: SourceLocation, faults: Faults
    ) -> None:
        """Counts lines that are no objects."""
        faults.rows += len(bad)
        faults.add(
            "dropped_lines", location, np.array(bad), whats.__getitem__, self.remedy, "lines"
        )

    def _between(
        self, lines: Sequence[bytes], bad: Sequence[int], location: SourceLocation
    ) -> Iterator[tuple[pl.DataFrame, SourceLocation]]:
        """Yields the objects of a block before, between and behind lines that are none, and where they are."""
        for before, end in itertools.pairwise([-1, *bad, len(lines)]):
            block = b"\n".join(lines[before + 1 : end])
            if block.strip():
                yield _read(block), self.at(location.first + before + 1, "line")

    def _batches(self, columns: Mapping[str, Leaf]) -> Iterator[Batch]:
        for frame, location, done in self._frames():
            schema = pa.schema({name: _arrow(dtype) for name, dtype in frame.schema.items()})
            values = {}
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


def _arrow(dtype: pl.DataType) -> pa.DataType:
    """Returns the Arrow type of what JSON is read as."""
    if isinstance(dtype, pl.List):
        return pa.large_list(_arrow(cast("pl.DataType", dtype.inner)))
    if isinstance(dtype, pl.Struct):
        fields = {inner.name: _arrow(cast("pl.DataType", inner.dtype)) for inner in dtype.fields}
        return pa.struct(fields)
    return _SIMPLE.get(dtype.base_type(), pa.int64())


def _read(lines: bytes) -> pl.DataFrame:
    """Returns the objects of some lines as rows; PolarsError where a line is none."""
    return pl.read_ndjson(lines, infer_schema_length=None)


def _shown(line: bytes) -> str:
    """Returns the beginning of a line, for a message."""
    return line[:80].decode("utf-8", "backslashreplace")


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):  # which nesting without end raises
        return False

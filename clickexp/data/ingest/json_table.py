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
from clickexp.data.ingest.streams import opened, whole_lines
from clickexp.data.log_files import JSON_LINES, also_compressed
from clickexp.data.names import OLDEST
from clickexp.data.schema import SourceLocation
from clickexp.errors import DataError

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
        refused: list[DataError] = []
        first = next(self._frames(refused.append), None)
        if first is None:
            raise refused[0] if refused else self.source.error("holds no line", self.remedy)
        return _schema(first[0]), size

    def _frames(
        self, refuse: Callable[[DataError], None] | None = None
    ) -> Iterator[tuple[pl.DataFrame, SourceLocation, int]]:
        """Yields objects, where they are, and how much was read; lines that are none are for `refuse`, or counted."""
        line = 1
        with opened(self.file) as stream:
            for block in whole_lines(stream, self.block_bytes):
                location = self.at(line, "line")
                if block.strip():
                    done = stream.stored.tell()
                    yield from ((*parsed, done) for parsed in self._parsed(block, location, refuse))
                line += block.count(b"\n")

    def _parsed(
        self, block: bytes, location: SourceLocation, refuse: Callable[[DataError], None] | None
    ) -> Iterator[tuple[pl.DataFrame, SourceLocation]]:
        """Yields the objects of a block, and where they are; those between lines that are none apart."""
        if block.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[" and location.first == 1:
            remedy = "write a line per object, with polars.read_json(FILE).write_ndjson(OTHER)"
            raise self.source.error("holds one JSON array", remedy)
        try:
            objects = iter([(_read(block), location)])
        except pl.exceptions.PolarsError:
            lines = block.split(b"\n")
            bad = [at for at, text in enumerate(lines) if text.strip() and not _is_object(text)]
            if not bad:
                raise
            objects = self._without(lines, bad, location, refuse)
        yield from objects

    def _without(
        self,
        lines: Sequence[bytes],
        bad: Sequence[int],
        location: SourceLocation,
        refuse: Callable[[DataError], None] | None,
    ) -> Iterator[tuple[pl.DataFrame, SourceLocation]]:
        """Returns the objects of a block with lines that are none, which are refused or counted."""
        whats = [f"{_shown(lines[at])!r} is no object" for at in bad]
        if refuse is not None:
            refuse(location.error(whats[0], self.remedy, bad[0]))
            # all others of the block show the columns
            return self._between(
                [text for at, text in enumerate(lines) if at not in {*bad}], [], location
            )
        if self.faults is None:
            raise location.error(whats[0], self.remedy, bad[0])
        self._count(bad, whats, location, self.faults)
        return self._between(lines, bad, location)

    def _count(
        self, bad: Sequence[int], whats: Sequence[str], location: SourceLocation, faults: Faults
    ) -> None:
        """Counts lines that are no objects."""
        faults.count(location, len(bad))
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
            schema, values = _schema(frame), {}
            for key, leaf in columns.items():
                name = ".".join((leaf.column, *leaf.fields))
                present = self._leaf(name, schema)
                if present is None or pa.types.is_null(present.type):
                    dtype = pl.List(pl.Float64) if self.fields[key].per_document else pl.Null
                    values[key] = pl.repeat(None, len(frame), eager=True, dtype=dtype)
                    continue
                self._check_kind(key, self._checked(key, present.type), location)
                values[key] = self._converted(key, present.of(frame[leaf.column]))
            yield Batch(values, location, done)

    def _check_kind(self, key: str, kind: str, location: SourceLocation) -> None:
        above = self.layout[key]
        if "nothing" in (kind, above):
            self.layout[key] = above if kind == "nothing" else kind
        elif kind != above:
            what = f"{self._called(key)} holds {kind} from here on, and {above} above"
            raise location.error(what, "write all values of a key alike", 0)


def _schema(frame: pl.DataFrame) -> pa.Schema:
    return frame.clear().to_arrow(compat_level=OLDEST).schema


def _read(lines: bytes) -> pl.DataFrame:
    """Returns the objects of some lines as rows; PolarsError where a line is none."""
    frame = pl.read_ndjson(lines, infer_schema_length=None)
    return frame.cast({name: _type(dtype) for name, dtype in frame.schema.items()})


def _type(dtype: pl.DataType) -> pl.DataType:
    """Returns a type, those inside included, with decimals in place of integers that Arrow does not have."""
    if isinstance(dtype, pl.List):
        return pl.List(_type(cast("pl.DataType", dtype.inner)))
    if isinstance(dtype, pl.Struct):
        return pl.Struct(
            {field.name: _type(cast("pl.DataType", field.dtype)) for field in dtype.fields}
        )
    return _LARGE if dtype == pl.Int128 else dtype


def _shown(line: bytes) -> str:
    """Returns the beginning of a line, for a message."""
    return line[:80].decode("utf-8", "backslashreplace")


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):  # which nesting without end raises
        return False

"""Parquet files as tables."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data.ingest.source_table import Batch, Leaf, TypedTable
from clickexp.data.loader import read_ahead
from clickexp.data.log_files import PARQUET
from clickexp.utils.sources import is_remote


class ParquetTable(TypedTable):
    """A parquet file, or some row groups of it."""

    kind = "parquet"
    suffixes = PARQUET
    _row_groups: range | None = None

    def keep(self, row_groups: range) -> None:
        """Leaves out the other row groups."""
        with _opened(self.file) as parquet:
            self._row_groups = row_groups
            self.size = _rows(parquet, row_groups)

    def _open(self) -> tuple[pa.Schema, int]:
        with _opened(self.file) as parquet:
            return parquet.schema_arrow, parquet.metadata.num_rows

    def _batches(self, columns: Mapping[str, Leaf]) -> Iterator[Batch]:
        done = 0
        is_wide = any(self.fields[key].kinds == "v" for key in columns)
        size = self.vector_rows if is_wide else self.batch_rows
        with _opened(self.file) as parquet:
            groups = self._row_groups or range(parquet.num_row_groups)
            above = _rows(parquet, range(groups.start))
            batches = parquet.iter_batches(size, groups, _stored(parquet, columns))
            for batch in read_ahead(batches, "parquet"):
                location, done = self.at(above + done), done + batch.num_rows
                values = {}
                for key, leaf in columns.items():
                    stored = pl.Series(batch.column(leaf.column))
                    values[key] = self._converted(key, leaf.of(stored))
                yield Batch(values, location, done)


def row_groups(file: Path) -> int:
    """Returns the number of row groups of a file; 0 of other kinds, and of those that cannot be read."""
    if not file.name.lower().endswith(PARQUET):
        return 0
    try:
        with _opened(file) as parquet:
            return parquet.num_row_groups
    except (pa.ArrowException, OSError):
        return 0


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[pq.ParquetFile]:
    with contextlib.ExitStack() as stack:  # ParquetFile closes no file that it is given open
        source: Any = file
        if is_remote(source):
            source = stack.enter_context(source.open("rb"))
        yield stack.enter_context(pq.ParquetFile(source))


def _rows(parquet: pq.ParquetFile, groups: range) -> int:
    return sum(parquet.metadata.row_group(number).num_rows for number in groups)


def _stored(parquet: pq.ParquetFile, columns: Mapping[str, Leaf]) -> list[str]:
    """Returns the columns to read, by their paths in the file: of structs only the fields that are asked for."""
    paths = [parquet.schema.column(number).path for number in range(len(parquet.schema))]
    wanted = []
    for leaf in columns.values():
        if not leaf.fields:
            wanted.append(leaf.column)
            continue
        ending = "." + ".".join(leaf.fields)
        wanted += [path for path in paths if path.startswith(f"{leaf.column}.") and ending in path]
    return list(dict.fromkeys(wanted))

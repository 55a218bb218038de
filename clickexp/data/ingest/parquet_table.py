"""Parquet files as tables."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data.ingest.source_table import Batch, Leaf, TypedTable, series_of
from clickexp.data.log_files import PARQUET
from clickexp.utils.sources import is_remote


class ParquetTable(TypedTable):
    """A parquet file."""

    kind = "parquet"
    suffixes = PARQUET

    @contextlib.contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        with contextlib.ExitStack() as stack:  # ParquetFile closes no file that it is given open
            source: Any = self.file
            if is_remote(source):
                source = stack.enter_context(source.open("rb"))
            yield stack.enter_context(pq.ParquetFile(source))

    def _open(self) -> tuple[pa.Schema, int]:
        with self._opened() as parquet:
            return parquet.schema_arrow, parquet.metadata.num_rows

    def _batches(self, columns: Mapping[str, Leaf]) -> Iterator[Batch]:
        done = 0
        is_wide = any(self.fields[key].kinds == "v" for key in columns)
        with self._opened() as parquet:
            stored = _stored(parquet, columns)
            for batch in parquet.iter_batches(
                self.vector_rows if is_wide else self.batch_rows, columns=stored
            ):
                location, done = self.at(done), done + batch.num_rows
                values = {}
                for key, leaf in columns.items():
                    read = leaf.of(series_of(batch.column(leaf.column)))
                    values[key] = self._converted(key, read)
                yield Batch(values, location, done)


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

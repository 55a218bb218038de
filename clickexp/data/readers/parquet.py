"""Sessions from parquet: one row per session, list columns of documents and clicks."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data.ingest.lists import read_lists, table_options
from clickexp.data.ingest.ragged import plain, plain_type
from clickexp.data.ingest.tables import Batch, SourceTable, find_files, open_tables
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import SourceLocation
from clickexp.utils.bounds import Ids, PositiveInt

BATCH_ROWS = 1 << 16


class ParquetTable(SourceTable):
    """A parquet file."""

    kind = "parquet"
    suffixes = (".parquet",)
    rows = None
    """Rows a batch, default BATCH_ROWS."""

    def _open(self) -> tuple[pa.Schema, int]:
        with pq.ParquetFile(self.file) as parquet:
            types = [(field.name, plain_type(field.type)) for field in parquet.schema_arrow]
            return pa.schema(types), parquet.metadata.num_rows

    def _batches(self, columns: Mapping[str, str]) -> Iterator[Batch]:
        done = 0
        with pq.ParquetFile(self.file) as parquet:
            for batch in parquet.iter_batches(self.rows or BATCH_ROWS, columns=list(columns.values())):
                location, done = SourceLocation(str(self.file), done), done + batch.num_rows
                yield Batch({key: plain(batch.column(name)) for key, name in columns.items()}, location, done)


@log_format("parquet")
def open_parquet(
    source: Path,
    log: LogWriter,
    *,
    files: str | None = None,
    columns: Mapping[str, Any] | None = None,
    pair_key: str | None = None,
    positions: PositiveInt | None = None,
    query_doc_pairs: Ids | None = None,
) -> None:
    """The dataset in a parquet file, or in those of a folder in the order of their names.

    files            pattern of the files in a folder, default *.parquet
    columns          file's name for query_doc_ids, clicks, query_id, positions, labels; None leaves one out. Any other
                     key declares a column that models may read: {dtype: float32, per: document, fill: null, name: KEY}
    pair_key         None: the ids are rows of the tables, from 0. "document" or "query_document": they are integers
                     or text of any kind, numbered from 1 in the order of appearance, the latter under their query
    positions        ranks to keep, default the longest list; longer lists are cut and counted
    query_doc_pairs  largest id allowed, default the largest found

    DataError names file, row and remedy.
    """
    table = functools.partial(ParquetTable, **table_options(columns, pair_key))
    tables = open_tables(find_files(source, files, ParquetTable.suffixes), table)
    read_lists(tables, log, pair_key, positions, query_doc_pairs)

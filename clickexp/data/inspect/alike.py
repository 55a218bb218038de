"""Names of queries and documents that differ by case or blanks only, and so may be one."""

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data.id_table import IdTable
from clickexp.data.ingest.lists import normalized
from clickexp.data.names import keys_of

_BATCH = 1 << 16
_EXAMPLES = 3


def alike_names(names: np.ndarray | None) -> Iterator[str]:
    """Yields a message for queries, and one for documents, with counts, examples and the option that joins them.

    Takes up to 24 bytes per distinct name, and 1 s for a million names.

    Args:
        names: Bytes of the file that names the ids of a log, if there is one; see `clickexp.data.names`.
    """
    if names is None:
        return
    file = pq.ParquetFile(pa.BufferReader(names))
    plural = {"query": "queries", "document": "documents"}
    for column in (name for name in plural if name in file.schema_arrow.names):
        if not pa.types.is_integer(file.schema_arrow.field(column).type):
            distinct, joined, examples = _counted(file, column)
            if joined < distinct:
                shown = "; ".join(" = ".join(map(repr, words)) for words in examples)
                yield (
                    f"{distinct:,} {plural[column]} by name are {joined:,} without the differences of case and blanks"
                    f"{f' ({shown})' if shown else ''}. normalize={column} takes them for one each"
                )


def _counted(file: pq.ParquetFile, column: str) -> tuple[int, int, list[list[str]]]:
    """Distinct names, those that are left without differences, and some of those that are not."""
    names, left, examples = IdTable(), IdTable(), []
    for batch in file.iter_batches(_BATCH, columns=[column]):
        words = pl.Series("name", batch.column(0)).cast(pl.String).unique(maintain_order=True)
        alike = normalized(words)
        names.ids(keys_of(words))
        left.ids(keys_of(alike))
        if len(examples) < _EXAMPLES:
            several = (
                pl.DataFrame({"name": words, "alike": alike})
                .group_by("alike", maintain_order=True)
                .agg("name")
                .filter(pl.col("name").list.len() > 1)
            )
            examples += [
                spellings[:2]
                for spellings in several["name"].head(_EXAMPLES - len(examples)).to_list()
            ]
    return len(names), len(left), examples

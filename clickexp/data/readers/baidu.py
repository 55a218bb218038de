"""Baidu-ULTR-UvA: clicks and expert annotations, with a vector of a language model for each document.

Hager et al. 2024, "Unbiased Learning to Rank Meets Reality: Lessons from Baidu's Large-Scale Search Dataset"; the log
is that of Zou et al. 2022, "A Large Scale Search Dataset for Unbiased Learning to Rank".
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from clickexp.data.id_table import IdTable
from clickexp.data.ingest.columns import Field, check_keys
from clickexp.data.ingest.extent import POSITIONS
from clickexp.data.ingest.faults import Faults, Invalid
from clickexp.data.ingest.lists import Lists, Values
from clickexp.data.ingest.parquet_table import ParquetTable
from clickexp.data.ingest.source_table import Batch
from clickexp.data.ingest.tables import batches_of, longest_list, open_tables
from clickexp.data.ingest.vectors import as_array
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import keys_of
from clickexp.data.schema import COLUMNS, Column, SourceLocation
from clickexp.errors import DataError
from clickexp.utils.bounds import PositiveInt

_VECTORS = "query_doc_features"
_ANNOTATIONS = "annotations.parquet"
_RULE = "features are finite numbers within half precision, as many for every document"
_FIELDS = {_VECTORS: Field("v", _RULE), **COLUMNS}
_COLUMN_NAMES = {name: name for name in (_VECTORS, "positions", "clicks", "labels")}
_REQUIRED = {"sessions": (_VECTORS, "positions", "clicks"), "ranking": (_VECTORS, "labels")}

_REMEDIES = {
    "sessions": POSITIONS,
    "ranking": "shorten the list in the file, or set annotations to null",
}


class _Documents:
    """Numbers distinct vectors from 1 and stores each of them once."""

    def __init__(self, log: LogWriter):
        self._log, self._table, self._width = log, IdTable(), 0

    def __len__(self) -> int:
        return len(self._table)

    def halves(
        self, vectors: pl.Series, lengths: np.ndarray, location: SourceLocation
    ) -> np.ndarray:
        """[documents, features] in half precision of the vectors of some lists, one list after another."""
        given = vectors.drop_nulls()
        self._width = self._width or (len(given[0]) if len(given) else 0)
        column = Column(_VECTORS, np.float16, shape=(self._width,), rule=_RULE)
        return as_array(vectors, column, location, lengths)

    def ids(self, vectors: np.ndarray) -> np.ndarray:
        """The ids of vectors [documents, features]."""
        if not len(vectors):
            return np.zeros(0, np.int64)
        stored = len(self._table)
        rows = np.ascontiguousarray(vectors)
        whole = pl.Series(rows.view(f"V{rows[:1].nbytes}").ravel().tolist(), dtype=pl.Binary)
        ids = self._table.ids(keys_of(whole))
        distinct, first = np.unique(ids, return_index=True)
        self._log.add_features(vectors[first[distinct > stored]])
        return ids


@log_format("baidu_ultr_uva", has_features=True)
def open_baidu_ultr_uva(
    source: Path,
    log: LogWriter,
    *,
    files: str = "part-*_split-*.parquet",
    annotations: str | None = _ANNOTATIONS,
    columns: Mapping[str, str | None] | None = None,
    positions: PositiveInt | None = 10,
    invalid: Invalid = "error",
) -> None:
    """The dataset in a folder of such parquet files: clicks one row per session, annotations one row per query.

    Documents whose vectors are equal, as half-precision numbers, are one: its vector is stored once. They are
    distinguished by 64-bit hashes; two of n share one with probability n^2 / 2^65, 3e-6 for ten million.

    files        pattern of the files of sessions
    annotations  file of the labelled lists; None leaves them out, and so does no such file under the default name
    columns      file's name for query_doc_features, positions, clicks and labels
    positions    lowest position to keep, None for all; what was shown below is dropped and counted
    invalid      "error": DataError once all is read, which names each kind of fault with its count, first rows and
                 remedy. "drop": leaves the rows out, counted
    """
    check_keys("columns", columns or {}, _COLUMN_NAMES)
    labelled, names = _annotations(source, annotations), {**_COLUMN_NAMES, **(columns or {})}
    tables = {}
    for part, pattern in {"sessions": files, **({"ranking": labelled} if labelled else {})}.items():
        wanted = {key: names[key] for key in _REQUIRED[part]}
        tables[part] = open_tables(
            source, _FIELDS, wanted, _REQUIRED[part], files=pattern, kinds=[ParquetTable]
        )
    total, read = sum(table.size for part in tables.values() for table in part), 0
    documents, faults, left = _Documents(log), Faults(), 0
    for part, lowest in zip(tables, (positions, None), strict=False):
        schema = {name: COLUMNS[name] for name in ("query_doc_ids", "clicks", *_REQUIRED[part][1:])}
        ranks = (
            longest_list(tables[part], _REQUIRED[part][-1], schema, _REMEDIES[part])
            if lowest is None
            else lowest
        )
        with log.part(part, ranks, ["lengths", *schema]) as pack:
            for batch in batches_of(
                tables[part],
                lambda done, _, *where, read=read: log.progress(read + done, total, *where),
                faults=faults,
            ):
                lists = _sound(batch, documents, lowest, log).down_to(lowest, log)
                if len(lists.lengths):
                    shown = {
                        name: lists.documents[name] for name in schema.keys() - {"query_doc_ids"}
                    }
                    shown["query_doc_ids"] = documents.ids(np.asarray(lists.documents[_VECTORS]))
                    packed = Lists(lists.lengths, shown, {}).padded(ranks)
                    pack.append(packed, SourceLocation(str(source)))
            left += pack.written
            if not pack.written:
                faults.end(invalid, log, 0)
        read += sum(table.size for table in tables[part])
    faults.end(invalid, log, left)
    log.note("distinct_documents", len(documents))


def _annotations(folder: Path, name: str | None) -> str | None:
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder. Give the folder that holds the files.")
    if name is None or (folder / name).is_file():
        return name
    if name == _ANNOTATIONS:
        return None
    raise DataError(f"{folder / name}: no such file. Check annotations, or set it to null.")


def _sound(batch: Batch, documents: _Documents, lowest: int | None, log: LogWriter) -> Lists:
    """The lists of a batch that its location does not refuse, their vectors [documents, features] in half precision."""
    location = batch.location
    lists = Lists.of(batch.columns, location, _FIELDS)
    columns: dict[str, Values] = {"clicks": np.zeros(len(lists.rows), bool)}
    for name, values in lists.documents.items():
        if name == _VECTORS:
            columns[name] = documents.halves(pl.Series(values), lists.lengths, location)
        else:
            columns[name] = COLUMNS[name].convert(np.asarray(values), location, lists.lengths)
    lists = Lists(lists.lengths, columns, {})
    if lowest is not None:
        kept = lists.where(np.asarray(columns["positions"]) <= lowest).lengths
        remedy = f"positions from 1 to {lowest} show one document each: mend or drop the row"
        location.reject(kept > lowest, kept, "the number of documents", remedy)
    refused = location.refused(len(lists.lengths))
    log.note("dropped_rows", 0 if refused is None else int(refused.sum()))
    return lists.without(refused)

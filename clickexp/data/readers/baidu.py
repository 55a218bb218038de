"""Baidu-ULTR-UvA: clicks and expert annotations, with a vector of a language model for each document.

Hager et al. 2024, "Unbiased Learning to Rank Meets Reality: Lessons from Baidu's Large-Scale Search Dataset"; the log
is that of Zou et al. 2022, "A Large Scale Search Dataset for Unbiased Learning to Rank".
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.ingest.columns import Field, check_keys
from clickexp.data.ingest.id_table import IdTable
from clickexp.data.ingest.numbering import keys_of
from clickexp.data.ingest.ragged import check_lengths, flat, is_list, numbered, padded, scatter
from clickexp.data.ingest.tables import SourceTable, find_files, longest_list, open_tables
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.readers.parquet import ParquetTable
from clickexp.data.schema import COLUMNS, POSITIONS, SourceLocation, checked
from clickexp.errors import DataError
from clickexp.utils.bounds import PositiveInt

VECTORS = "query_doc_features"
ANNOTATIONS = "annotations.parquet"
RULE = "features are finite numbers within half precision, as many for every document"
FIELDS = {VECTORS: Field("f", RULE), **COLUMNS}
COLUMN_NAMES = {name: name for name in (VECTORS, "positions", "clicks", "labels")}
REQUIRED = {"sessions": (VECTORS, "positions", "clicks"), "ranking": (VECTORS, "labels")}

REMEDIES = {"sessions": POSITIONS, "ranking": "shorten the list in the file, or set annotations to null"}


class VectorTable(ParquetTable):
    """A parquet file with a list of vectors in each row."""

    rows = 1 << 10

    def _check(self, key: str, kind: pa.DataType) -> None:
        if key != VECTORS:
            super()._check(key, kind)
        elif not (is_list(kind) and is_list(kind.value_type)):
            raise SourceLocation(str(self.file)).error(
                f"{VECTORS} has type {kind}", "it must hold lists of vectors"
            )
        elif not pa.types.is_floating(kind.value_type.value_type):
            raise SourceLocation(str(self.file)).error(f"{VECTORS} has type {kind}", RULE)


class Documents:
    """Numbers distinct vectors from 1 and stores each of them once."""

    def __init__(self, log: LogWriter):
        self._log, self._table, self._width = log, IdTable(), 0

    def __len__(self) -> int:
        return len(self._table)

    def vectors(self, lists: pa.Array, rows: np.ndarray, location: SourceLocation) -> np.ndarray:
        """[documents, features] in half precision of lists of numbers; `rows` holds the row of each list."""
        values, sizes = flat(VECTORS, lists, RULE, location, rows)
        self._width = self._width or (int(sizes[0]) if len(sizes) else 0)
        wrong = (sizes != self._width) | (sizes == 0)
        if wrong.any():
            first = int(wrong.argmax())
            what = f"{VECTORS} has a vector of {sizes[first]} numbers, the first one has {self._width}"
            raise location.error(what, RULE, int(rows[first]))
        numbers = values.to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            halves = numbers.astype(np.float16).reshape(len(sizes), -1)
        bad = ~np.isfinite(halves)
        if bad.any():
            first = int(bad.argmax())
            raise location.error(f"{VECTORS} holds {numbers[first]}", RULE, int(rows[first // self._width]))
        return halves

    def ids(self, vectors: np.ndarray) -> np.ndarray:
        """The ids of vectors [documents, features]."""
        known = len(self._table)
        ids = self._table.ids(keys_of(pl.Series(_bytes_of(vectors))))
        distinct, first = np.unique(ids, return_index=True)
        self._log.add_features(vectors[first[distinct > known]])
        return ids


@log_format("baidu_ultr_uva", has_features=True)
def open_baidu_ultr_uva(
    source: Path,
    log: LogWriter,
    *,
    files: str = "part-*_split-*.parquet",
    annotations: str | None = ANNOTATIONS,
    columns: Mapping[str, str | None] | None = None,
    positions: PositiveInt | None = 10,
) -> None:
    """The dataset in a folder of such parquet files: clicks one row per session, annotations one row per query.

    Documents whose vectors are equal, as half-precision numbers, are one: its vector is stored once. They are
    distinguished by 64-bit hashes; two of n share one with probability n^2 / 2^65, 3e-6 for ten million.

    files        pattern of the files of sessions
    annotations  file of the labelled lists; None leaves them out, and so does no such file under the default name
    columns      file's name for query_doc_features, positions, clicks and labels
    positions    lowest position to keep, None for all; what was shown below is dropped and counted

    DataError names file, row and remedy.
    """
    check_keys("columns", columns or {}, COLUMN_NAMES)
    if positions is not None and positions < 1:
        raise DataError(f"positions is {positions}: no rank is left. Set it to at least 1.")
    found = {"sessions": find_files(source, files, ()), "ranking": _annotations(source, annotations)}
    names = {**COLUMN_NAMES, **(columns or {})}
    tables = {part: _tables(paths, names, REQUIRED[part]) for part, paths in found.items() if paths}
    total, read = sum(table.size for part in tables.values() for table in part), 0
    documents = Documents(log)
    for part in tables:
        lowest = positions if part == "sessions" else None
        packed = {"query_doc_ids", "clicks", "lengths", *REQUIRED[part]} - {VECTORS}
        ranks = lowest or longest_list(tables[part], REQUIRED[part][-1], packed, REMEDIES[part])
        with log.part(part, ranks, sorted(packed)) as pack:
            for table in tables[part]:
                for batch in table.batches():
                    chunk, vectors = _checked(batch.columns, documents, batch.location)
                    chunk = _shown(chunk, lowest, pack.ranks, batch.location, log)
                    if len(chunk["lengths"]):
                        _number(chunk, vectors, documents)
                        pack.append(chunk, batch.location)
                    log.progress(read + batch.done, total)
                read += table.size
    log.note("distinct_documents", len(documents))


def _annotations(folder: Path, name: str | None) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder. Give the folder that holds the files.")
    if name is None or (name == ANNOTATIONS and not (folder / name).is_file()):
        return []
    if not (folder / name).is_file():
        raise DataError(f"{folder / name}: no such file. Check annotations, or set it to null.")
    return [folder / name]


def _tables(files: Iterable[Path], names: Mapping[str, str | None], keys: Sequence[str]) -> list[SourceTable]:
    wanted = {key: names[key] for key in keys}
    return open_tables(files, lambda file: VectorTable(file, FIELDS, wanted, required=keys))


def _checked(
    columns: Mapping[str, pa.Array], documents: Documents, location: SourceLocation
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Padded lists with numbers of documents, counted from 0, and the documents' vectors [documents, features]."""
    lists, lengths = flat(VECTORS, columns[VECTORS], RULE, location)
    others = {name: column for name, column in columns.items() if name != VECTORS}
    for name, column in others.items():
        found = flat(name, column, FIELDS[name].rule, location)[1]
        check_lengths(name, found, VECTORS, lengths, location)
    others["query_doc_ids"] = numbered(lengths)
    chunk, _ = padded(others, int(lengths.max(initial=1)), location)
    chunk.setdefault("clicks", np.zeros(chunk["query_doc_ids"].shape, bool))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return checked(chunk, location), documents.vectors(lists, rows, location)


def _shown(
    chunk: Mapping[str, np.ndarray], lowest: int | None, ranks: int, location: SourceLocation, log: LogWriter
) -> dict[str, np.ndarray]:
    """The lists down to a position, [rows, ranks]; those without a document left are dropped."""
    lengths = chunk["lengths"]
    kept = np.arange(chunk["clicks"].shape[1]) < lengths[:, None]
    if lowest is not None:
        kept &= chunk["positions"] <= lowest
        log.note("cut_lists", (kept.sum(axis=1) < lengths).sum())
        log.note("dropped_lists_without_documents", (~kept.any(axis=1)).sum())
    left = kept.sum(axis=1)
    remedy = f"positions from 1 to {lowest} show one document each: mend or drop the row"
    location.reject(left > ranks, left, "the number of documents", remedy)
    lists = {name: scatter(values[kept], left, ranks) for name, values in chunk.items() if name != "lengths"}
    return {name: values[left > 0] for name, values in (lists | {"lengths": left}).items()}


def _number(chunk: dict[str, np.ndarray], vectors: np.ndarray, documents: Documents) -> None:
    """Replaces the documents' numbers in the chunk by ids."""
    numbers, ranks = chunk["query_doc_ids"], chunk["clicks"].shape[1]
    shown = np.arange(ranks) < chunk["lengths"][:, None]
    chunk["query_doc_ids"] = scatter(documents.ids(vectors[numbers[shown]]), chunk["lengths"], ranks)


def _bytes_of(vectors: np.ndarray) -> pa.Array:
    """The bytes of each row, not copied."""
    rows = np.ascontiguousarray(vectors)
    offsets = np.arange(len(rows) + 1) * rows[0].nbytes
    return pa.Array.from_buffers(
        pa.large_binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    )

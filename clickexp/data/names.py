"""Names of the ids of a log: the query and the document of each, as they were in the source."""

import io
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data.checksums import REMEDY, DamagedError
from clickexp.errors import DataError

_BLOCK = 1 << 18
_SECOND = 1
"""Seed of second keys."""
OLDEST = pl.CompatLevel.oldest()


class NamesWriter:
    """Writes a parquet file whose row i names id i + 1, block by block. Without names there is no file.

        new = names.unnamed(ids)
        names.append(query=queries[new], document=documents[new])

    Ids are numbered from 1 in the order in which they first appear, as IdTable does.

    Args:
        file: The new file.
        earlier: Names of the first ids, from `read_names`, which another log has numbered.
    """

    def __init__(self, file: Path, earlier: pl.DataFrame | None = None):
        self.file, self.earlier, self.count = file, earlier, 0
        self._block: list[pa.Table] = []
        self._written = 0
        self._writer: pq.ParquetWriter | None = None

    def unnamed(self, ids: np.ndarray) -> np.ndarray:
        """Where those of the ids [documents] that have no name yet appear first."""
        highest = np.maximum.accumulate(np.append(self.count, ids))
        return np.flatnonzero(ids > highest[:-1])

    def append(self, **columns: np.ndarray | pl.Series) -> None:
        """The names of the next ids."""
        named = pl.DataFrame(columns)
        if self.earlier is not None:
            named = _alike(named, self.earlier)
        # Arrow's oldest form of text is a copy: a view would hold all the text of the batch.
        rows = named.to_arrow(compat_level=OLDEST)
        self._block.append(rows)
        self.count += len(rows)
        if self.count - self._written >= _BLOCK:
            self._write()

    def close(self) -> None:
        """Writes what is left."""
        if self._block:
            self._write(is_last=True)
        if self._writer:
            self._writer.close()

    def _write(self, is_last: bool = False) -> None:
        """Writes whole blocks, so that the file follows from the names, whatever came together."""
        rows = pa.concat_tables(self._block).combine_chunks()
        if self._writer is None:
            # Names hardly repeat within a block: a dictionary of them takes longer, for nothing.
            self._writer = pq.ParquetWriter(
                self.file, rows.schema, use_dictionary=False, write_statistics=False
            )
        whole = len(rows) if is_last else len(rows) // _BLOCK * _BLOCK
        for start in range(0, whole, _BLOCK):
            self._writer.write_table(rows.slice(start, min(_BLOCK, whole - start)))
        self._block, self._written = [rows.slice(whole)], self._written + whole


class NamesFile:
    """A file of names, of which a block at a time is in memory.

    Args:
        mapped: Bytes of the file.
        ids: How many it must name.

    Raises:
        DataError: The file cannot be read, or names fewer.
    """

    def __init__(self, mapped: np.ndarray, ids: int = 0):
        self._file = getattr(mapped, "filename", None) or "the names of ids"
        self._mapped = mapped
        try:
            self._parquet = pq.ParquetFile(pa.BufferReader(mapped))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error
        stored = self._parquet.metadata
        rows, columns = stored.num_rows, self._parquet.schema_arrow.names
        if rows < ids or not {"document"} <= {*columns} <= {"document", "query"}:
            what = f"it has {rows} rows of {', '.join(columns)}"
            raise DamagedError(f"{self._file}: {what}, and {ids} documents to name", REMEDY)
        blocks = [stored.row_group(number).num_rows for number in range(stored.num_row_groups)]
        self.columns: list[str] = columns
        self._ends, self._block = np.cumsum(blocks), (-1, pl.DataFrame())

    def all(self) -> pl.DataFrame:
        """Returns all names; see `read_names`."""
        try:
            return pl.DataFrame(self._parquet.read())
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def of(self, ids: np.ndarray) -> pl.DataFrame:
        """Returns the names of some ids, which ascend."""
        block = np.searchsorted(self._ends, ids)
        blocks = [self._some(number, ids[block == number]) for number in np.unique(block).tolist()]
        if not blocks:
            return pl.DataFrame(self._parquet.schema_arrow.empty_table())
        return pl.concat(blocks)

    def _some(self, block: int, ids: np.ndarray) -> pl.DataFrame:
        if self._block[0] != block:
            try:
                self._block = block, pl.DataFrame(self._parquet.read_row_group(block))
                _return_pages(self._mapped)
            except (pa.ArrowException, OSError) as error:
                raise self._unreadable(error) from error
        names = self._block[1]
        return names[ids - 1 - int(self._ends[block]) + len(names)]

    def _unreadable(self, error: Exception) -> DamagedError:
        return DamagedError(f"{self._file}: cannot be read as parquet ({error})", REMEDY)


def _return_pages(mapped: np.ndarray) -> None:
    """Returns what has been read of a mapped file to the system, which counts it as memory of the process."""
    mapping = mapped.base
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def read_names(mapped: np.ndarray, ids: int = 0) -> pl.DataFrame:
    """Reads names of ids.

    Args:
        mapped: Bytes of the file.
        ids: How many it must name.

    Returns:
        Row i, with `document` and, where ids are of pairs, `query`, names id i + 1.

    Raises:
        DataError: The file cannot be read, or names fewer.
    """
    return NamesFile(mapped, ids).all()


def renumbering(log: pl.DataFrame, other: pl.DataFrame) -> np.ndarray:
    """Returns the ids that the documents of a log have in another log.

    Args:
        log: The names of the log, from `read_names`.
        other: The names of the other log.

    Returns:
        The id there of each id from 0 of the log; 0 for a document that the other log does not have.

    Raises:
        DataError: Ids are of other kinds in the two logs, or have no document in common.
    """
    ids = _ids_in(other, _matching(log, other))
    if not (ids > 0).any():
        raise DataError(
            "no document of this log is in the one that the run was fitted to. Write ids alike, or give that log."
        )
    return np.append(0, ids)


def grown(log: pl.DataFrame, other: pl.DataFrame) -> tuple[np.ndarray, pl.DataFrame]:
    """Returns the ids of the documents of a log, and names, where those of another log go on.

    Args:
        log: The names of the log, from `read_names`.
        other: The names of the other log, which keep their ids.

    Returns:
        The new id of each id from 0 of the log, and the names of all ids.

    Raises:
        DataError: Ids are of other kinds in the two logs.
    """
    alike = _matching(log, other)
    ids = _ids_in(other, alike)
    new = ids == 0
    ids[new] = len(other) + np.arange(1, np.count_nonzero(new) + 1)
    added = _alike(log.filter(pl.Series(new)), other).select(other.columns)
    return np.append(0, ids), pl.concat([other, added])


def as_bytes(names: pl.DataFrame) -> np.ndarray:
    """Returns the bytes of a file that names ids, as `read_names` takes them."""
    buffer = io.BytesIO()
    table = names.to_arrow(compat_level=OLDEST)
    pq.write_table(table, buffer, use_dictionary=False, write_statistics=False)
    return np.frombuffer(buffer.getbuffer(), np.uint8)


def _matching(log: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """Returns the names of a log in the types that those of another have, null where they do not fit.

    Raises:
        DataError: Ids are of other kinds in the two logs.
    """
    fitted = "that the run was fitted to. Write ids alike, and read both with the same pair_key"
    _check_kinds([*other.columns, *log.columns], log, other, fitted)
    return log.with_columns(
        log[name].cast(kind, strict=False) for name, kind in other.schema.items()
    )


def _ids_in(other: pl.DataFrame, names: pl.DataFrame) -> np.ndarray:
    """Returns the id of each name in another log; 0 for those that it does not have."""
    numbered = other.with_row_index("id", offset=1)
    ids = names.join(numbered, on=other.columns, how="left", maintain_order="left")["id"]
    return ids.fill_null(0).to_numpy().astype(np.int64)


def _alike(names: pl.DataFrame, earlier: pl.DataFrame) -> pl.DataFrame:
    """Returns names in the types that earlier ones have; DataError where they are of another kind."""
    taken = "whose ids it takes. Write ids alike, or leave out ids="
    _check_kinds(names.columns, names, earlier, taken)
    try:
        return names.cast(earlier.schema)
    except pl.exceptions.InvalidOperationError as error:
        raise DataError(
            f"names do not fit the types of the log whose ids they take ({error}). Write ids alike, or leave out ids=."
        ) from error


def _check_kinds(
    columns: Iterable[str], names: pl.DataFrame, other: pl.DataFrame, which: str
) -> None:
    """DataError for a column of another kind in the other log; `which` says what log that is, and the remedy."""
    for column in columns:
        kind, of_other = _kind(names, column), _kind(other, column)
        if kind != of_other:
            raise DataError(f"{column} is {kind} in this log and {of_other} in the one {which}.")


def _kind(names: pl.DataFrame, column: str) -> str:
    if column not in names.columns:
        return "missing"
    return "numbers" if names[column].dtype.is_integer() else "text"


def second_keys_of(values: pl.Series) -> np.ndarray | None:
    """Returns other uint64 keys of text, which show two texts of one key; None of integers, which share none."""
    return None if values.dtype.is_integer() else values.hash(seed=_SECOND).to_numpy()


def keys_of(values: pl.Series) -> np.ndarray:
    """uint64 keys: integers as they are, text or bytes by a 64-bit hash.

    Two of n distinct texts share a key with probability n^2 / 2^65: 3e-8 for a million, 3e-4 for a hundred million.
    """
    return (
        (values if values.dtype.is_integer() else values.hash())
        .to_numpy()
        .astype(np.uint64, copy=False)
    )

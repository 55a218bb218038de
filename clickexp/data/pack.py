"""Packed sessions on disk: a folder of one .npy file per column and meta.json with counts and checksums."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.checksums import (
    REMEDY,
    DamagedError,
    Limits,
    Progress,
    Stored,
    sealed,
    stamp,
    unsealed,
    verify,
)
from clickexp.data.folders import NewFolder
from clickexp.data.schema import (
    COLUMNS,
    REQUIRED,
    Column,
    Columns,
    SourceLocation,
    checked,
    declared,
)
from clickexp.errors import DataError, reason
from clickexp.utils.content import content_of_all

_FORMAT = 1
_META = "meta.json"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, OverflowError, TokenError)
"""What reading a damaged .npy or JSON file raises."""


class GrowingArray:
    """A .npy file that grows block by block, [rows, *shape], and the CRC-32 of its numbers.

    `np.lib.format.open_memmap` needs the number of rows beforehand, which takes a second pass over the source.
    """

    def __init__(self, path: Path, dtype: DTypeLike, shape: tuple[int, ...] = ()):
        self.dtype, self.shape, self.rows, self.crc = np.dtype(dtype), shape, 0, 0
        self.path, self._file = path, path.open("wb")
        self._write_header()
        self._start = self._file.tell()

    @property
    def bytes(self) -> int:
        """Size of what has been written so far, without the header."""
        return self.rows * int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def append(self, values: np.ndarray) -> None:
        """Adds rows, in the type of the file."""
        block = np.ascontiguousarray(values, self.dtype).data
        self._file.write(block)
        self.crc = zlib.crc32(block, self.crc)
        self.rows += len(values)

    def view(self) -> np.ndarray:
        """What has been written so far, mapped."""
        self._file.flush()
        return np.memmap(self.path, self.dtype, "r", self._start, (self.rows, *self.shape))

    def close(self) -> None:
        """Writes the number of rows into the header."""
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        """As long as before for any number of rows: numpy leaves room for its digits."""
        descr = np.lib.format.dtype_to_descr(self.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self._file, header)


class PackWriter:
    """Writes sessions of up to `ranks` documents chunk by chunk, whole or not at all.

        with PackWriter(folder, ranks, ["query_doc_ids", "clicks", "lengths", Column("dwell", "float32")]) as pack:
            pack.append(chunk, location)

    The files grow in a hidden folder beside `folder`, which becomes `folder` when the block ends without
    an error; a pack that another process has completed there meanwhile stays.
    query_doc_pairs and positions grow to the largest id and position seen. A chunk with an id above `max_id` is
    refused. `source` is what an error about missing sessions names, by default `folder`.
    A pack that is `nested` in a folder being written leaves checks and safety on disk to that folder.
    """

    def __init__(
        self,
        folder: str | Path,
        ranks: int,
        columns: Iterable[str | Column],
        *,
        max_id: int | None = None,
        source: str | Path | None = None,
        nested: bool = False,
    ):
        if ranks < 1:
            raise DataError(f"positions is {ranks}: no rank is left. Set it to at least 1.")
        self.folder, self.ranks, self.max_id = Path(folder), ranks, max_id
        self.query_doc_pairs = self.positions = 0
        self.source, self.nested = source or folder, nested
        self.written = 0
        self.schema = declared(columns)
        self._new = NewFolder(self.folder)
        self._columns = {name: self._create(column) for name, column in self.schema.items()}

    def __enter__(self) -> "PackWriter":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            for column in self._columns.values():
                column.close()
            if kind is None:
                self._finish()
        finally:
            self._new.discard()

    def append(self, columns: Columns, location: SourceLocation) -> None:
        """Adds the next rows, checked and converted; DataError names the location of the first bad one."""
        chunk = checked(columns, location, self.max_id, COLUMNS | self.schema)
        for name, column in self._columns.items():
            column.append(chunk[name])
        pairs, positions = bounds(chunk)
        self.query_doc_pairs = max(self.query_doc_pairs, pairs)
        self.positions = max(self.positions, positions)
        self.written += len(chunk["lengths"])

    def _create(self, column: Column) -> GrowingArray:
        file = self._new.part / f"{column.name}.npy"
        return GrowingArray(file, column.dtype, column.shape_of(0, self.ranks)[1:])

    def _finish(self) -> None:
        if not self.written:
            remedy = "Check the path, and what the options leave out"
            raise DataError(f"{self.source}: there are no sessions to pack. {remedy}.")
        part = self._new.part
        keys = ("ranks", "query_doc_pairs", "positions")
        meta = (
            {"format": _FORMAT, "count": self.written}
            | {key: getattr(self, key) for key in keys}
            | {"info": {}}
        )
        meta["crc32"] = {name: column.crc for name, column in self._columns.items()}
        if extra := [
            _stated(column) for name, column in self.schema.items() if name not in COLUMNS
        ]:
            meta["columns"] = extra
        (part / _META).write_text(sealed(meta))
        if not self.nested:
            self._new.flush()
            stamp(part, stored_files(part))
        self._new.complete(is_pack)


def bounds(columns: Columns) -> tuple[int, int]:
    """The largest id and the largest position; without positions, the rank is the position."""
    ids, ranks = columns["query_doc_ids"], columns["query_doc_ids"].shape[1]
    positions = columns["positions"].max(initial=0) if "positions" in columns else ranks
    return int(ids.max(initial=0)), int(positions)


def is_pack(folder: Path) -> bool:
    """Whether a completed pack lies there."""
    return (folder / _META).is_file()


def read_pack(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """meta.json and the memory-mapped columns, unverified; DamagedError where the folder is not a whole pack.

    meta["schema"]: the declaration of each column by its name.
    """
    meta = _meta(folder)
    try:
        return meta, {column.name: _map(folder, column, meta) for column in meta["schema"].values()}
    except ValueError as error:
        raise DamagedError(f"{folder}: not a readable pack ({error})", REMEDY) from error


def stored_files(folder: Path) -> list[Stored]:
    """The files of a pack, with their checksums; DamagedError where meta.json does not list them."""
    meta = _meta(folder)
    columns = [
        Stored(
            folder / f"{name}.npy",
            np.dtype(column.dtype).itemsize
            * int(np.prod(column.shape_of(meta["count"], meta["ranks"]), dtype=object)),
            meta["crc32"][name],
            _limits(column, meta),
        )
        for name, column in meta["schema"].items()
    ]
    return [Stored(folder / _META), *columns]


def _limits(column: Column, meta: Mapping[str, Any]) -> Limits | None:
    """What the numbers of a column may be; those of padding are among them."""
    known = {
        "query_doc_ids": (0, meta["query_doc_pairs"]),
        "positions": (0, meta["positions"]),
        "lengths": (1, meta["ranks"]),
    }
    dtype = np.dtype(column.dtype)
    if column.name in known:
        least, largest = known[column.name]
        return Limits(dtype, least, largest)
    if dtype.kind == "b":
        return Limits(np.uint8, 0, 1)
    if dtype.kind == "f":
        largest = float(np.finfo(dtype.type).max)
        return Limits(dtype, -largest, largest)
    return None


def verify_pack(folder: Path, progress: Progress | None = None) -> Sequence[Stored]:
    """Reads a pack against its checksums and returns its files; DamagedError names those that differ."""
    return verify(folder, stored_files(folder), progress=progress)


def fingerprint(files: Iterable[Path], options: Mapping[str, Any]) -> str:
    """A name that changes with the names and contents of the files, the options and the pack format."""
    named = [_FORMAT, content_of_all(files), options]
    return hashlib.sha256(json.dumps(named, sort_keys=True, default=repr).encode()).hexdigest()[:20]


def _meta(folder: Path) -> dict[str, Any]:
    """meta.json, its keys and types checked."""
    try:
        meta = unsealed((folder / _META).read_text())
        if meta["format"] != _FORMAT:
            raise ValueError(f"format {meta['format']} instead of {_FORMAT}")
        for key in ("count", "ranks", "query_doc_pairs", "positions"):
            if type(meta[key]) is not int or meta[key] < 0:
                raise ValueError(f"{key} is {meta[key]!r}")
        if not isinstance(meta["info"], dict) or not isinstance(meta["crc32"], dict):
            raise ValueError("info and crc32 are no mappings")
        extra = {
            column["name"]: Column(**{**column, "shape": tuple(column["shape"])})
            for column in meta.get("columns", ())
        }
        known = COLUMNS | extra
        if unknown := meta["crc32"].keys() ^ (meta["crc32"].keys() & known.keys() | {*REQUIRED}):
            raise ValueError(f"it lists, or lacks, the columns {sorted(unknown)}")
        return {**meta, "schema": {name: known[name] for name in meta["crc32"]}}
    except UNREADABLE as error:
        raise DamagedError(
            f"{folder / _META}: cannot be read ({reason(error, context=False)})", REMEDY
        ) from error


def _stated(column: Column) -> dict[str, Any]:
    """A declaration as meta.json keeps it."""
    stated = {key: getattr(column, key) for key in ("name", "per", "fill", "least", "rule")}
    return {**stated, "dtype": np.dtype(column.dtype).name, "shape": list(column.shape)}


def _map(folder: Path, column: Column, meta: Mapping[str, Any]) -> np.ndarray:
    values = map_array(folder / f"{column.name}.npy")
    shape = column.shape_of(meta["count"], meta["ranks"])
    if values.shape != shape or values.dtype != column.dtype:
        raise ValueError(
            f"{column.name}.npy is {values.dtype}{list(values.shape)}, not of shape {list(shape)}"
        )
    return values


def map_array(file: Path) -> np.ndarray:
    """A .npy file mapped; ValueError naming the file where that cannot be."""
    try:
        mapped = np.lib.format.open_memmap(file, mode="r")
        size, expected = file.stat().st_size, mapped.offset + mapped.nbytes
        if size != expected:
            raise ValueError(f"it has {size} bytes, its header asks for {expected}")
        return mapped.view(np.ndarray)
    except UNREADABLE as error:
        raise ValueError(f"{file.name}: {reason(error, context=False)}") from error

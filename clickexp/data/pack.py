"""Packed sessions on disk: a folder of one .npy file a column and meta.json with counts and checksums."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.schema import COLUMNS, Columns, DataError, Place, checked
from clickexp.files import LOCK, locked

FORMAT = 1
_locks: dict[Path, TextIO] = {}
"""Of the hidden folders that this process is writing in."""


class GrowingArray:
    """A .npy file that grows block by block, [rows, *shape], and the CRC-32 of its numbers."""

    def __init__(self, path: Path, dtype: DTypeLike, shape: tuple[int, ...] = ()):
        self.dtype, self.shape, self.rows, self.crc = np.dtype(dtype), shape, 0, 0
        self.path, self._file = path, open(path, "wb")
        self._write_header()
        self._start = self._file.tell()

    def append(self, values: np.ndarray) -> None:
        block = np.ascontiguousarray(values, self.dtype).data
        self._file.write(block)
        self.crc = zlib.crc32(block, self.crc)
        self.rows += len(values)

    def view(self) -> np.ndarray:
        """What has been written so far, mapped."""
        self._file.flush()
        return np.memmap(self.path, self.dtype, "r", self._start, (self.rows, *self.shape))

    def close(self) -> None:
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

        with PackWriter(folder, ranks, ["query_doc_ids", "clicks", "lengths"]) as pack:
            pack.append(chunk, place)

    The files grow in a hidden folder beside `folder`, which becomes `folder` when the block ends without
    an error; a pack that another process has completed there meanwhile stays. `info` is kept in
    meta.json; query_doc_pairs and positions grow to the largest id and position seen. A chunk with an id
    above `max_id` is refused.
    """

    def __init__(
        self,
        folder: str | Path,
        ranks: int,
        names: Iterable[str],
        *,
        query_doc_pairs: int = 0,
        positions: int = 0,
        max_id: int | None = None,
        info: dict[str, Any] | None = None,
    ):
        self.folder, self.ranks, self.max_id = Path(folder), ranks, max_id
        self.query_doc_pairs, self.positions, self.info = query_doc_pairs, positions, info or {}
        self.written = 0
        self._part = hidden(self.folder)
        self._columns = {name: self._create(name) for name in names}

    def __enter__(self) -> "PackWriter":
        return self

    def __exit__(self, kind, error, trace) -> None:
        for column in self._columns.values():
            column.close()
        try:
            if kind is None:
                self._finish()
        finally:
            discard(self._part)

    def append(self, columns: Columns, place: Place) -> None:
        """Adds the next rows, checked and converted; DataError names the place of the first bad one."""
        chunk = checked(columns, place, self.max_id)
        for name, column in self._columns.items():
            column.append(chunk[name])
        pairs, positions = bounds(chunk)
        self.query_doc_pairs = max(self.query_doc_pairs, pairs)
        self.positions = max(self.positions, positions)
        self.written += len(chunk["lengths"])

    def _create(self, name: str) -> GrowingArray:
        shape = (self.ranks,) if COLUMNS[name].per_document else ()
        return GrowingArray(self._part / f"{name}.npy", COLUMNS[name].dtype, shape)

    def _finish(self) -> None:
        if not self.written:
            raise DataError(f"{self.folder}: there are no sessions to pack. Check the source.")
        keys = ("ranks", "query_doc_pairs", "positions", "info")
        meta = {"format": FORMAT, "count": self.written} | {key: getattr(self, key) for key in keys}
        meta["crc32"] = {name: column.crc for name, column in self._columns.items()}
        (self._part / "meta.json").write_text(json.dumps(meta, indent=1))
        complete(self._part, self.folder, is_pack)


def hidden(folder: Path) -> Path:
    """A new folder beside `folder` to write in until everything is there."""
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.{'[0-9a-f]' * 8}"):
        _remove_abandoned(left)
    part = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    part.mkdir(parents=True)
    with contextlib.suppress(OSError):  # without a lock, nobody removes it
        _locks[part] = locked(part / LOCK)
    return part


def discard(part: Path) -> None:
    """Removes what is left of a hidden folder."""
    shutil.rmtree(part, ignore_errors=True)
    if part in _locks:
        _locks.pop(part).close()


def _remove_abandoned(part: Path) -> None:
    """Removes a hidden folder whose process was killed, which has left its lock open."""
    with contextlib.suppress(OSError):
        if (part / LOCK).exists() and (lock := locked(part / LOCK)) is not None:
            shutil.rmtree(part, ignore_errors=True)
            lock.close()


def complete(part: Path, folder: Path, is_whole: Callable[[Path], bool]) -> None:
    """Renames a folder that was written; one that another process completed meanwhile stays."""
    try:
        os.replace(part, folder)
        (folder / LOCK).unlink(missing_ok=True)
    except OSError:
        if not is_whole(folder):
            raise


def bounds(columns: Columns) -> tuple[int, int]:
    """The largest id and the largest position; without positions, the rank is the position."""
    ids, ranks = columns["query_doc_ids"], columns["query_doc_ids"].shape[1]
    positions = columns["positions"].max(initial=0) if "positions" in columns else ranks
    return int(ids.max(initial=0)), int(positions)


def is_pack(folder: Path) -> bool:
    """Whether a completed pack lies there."""
    return (folder / "meta.json").is_file()


def read_pack(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """meta.json and the memory-mapped columns; DataError where the folder is not a whole pack."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']} instead of {FORMAT}")
        columns = {name: _map(folder, name, meta) for name in meta["crc32"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: not a readable pack ({error}). Delete it and pack again.") from error
    return meta, columns


def fingerprint(files: Iterable[Path], options: Mapping[str, Any]) -> str:
    """A name that changes with the files' names, sizes and times, the options and the pack format."""
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(
        json.dumps([FORMAT, stats, options], sort_keys=True, default=repr).encode()
    ).hexdigest()[:20]


def verify_pack(folder: Path) -> None:
    """Reads everything; DataError names the file whose CRC-32 is not the one in meta.json."""
    meta, columns = read_pack(folder)
    for name, values in columns.items():
        if zlib.crc32(values.data) != meta["crc32"][name]:
            raise DataError(f"{folder / name}.npy: the checksum differs. Delete the folder and pack again.")


def _map(folder: Path, name: str, meta: dict[str, Any]) -> np.ndarray:
    values = np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray)
    shape = (meta["count"], meta["ranks"]) if COLUMNS[name].per_document else (meta["count"],)
    if values.shape != shape or values.dtype != COLUMNS[name].dtype:
        raise ValueError(f"{name}.npy is {values.dtype}{list(values.shape)}, not of shape {list(shape)}")
    return values

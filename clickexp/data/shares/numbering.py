"""The ids of shares joined: things are numbered as they first appear in the log, as where one process reads it.

The share where a key appears first owns it. Keys are compared bucket by bucket; then each share counts its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clickexp.data.id_table import IdTable, mixed

BUCKETS = 256
"""Divisions of the keys of a table, each of which one process joins."""
_RANKS = "ranks"
"""Array of a share: how many ids up to each one are its own."""


@dataclass(frozen=True)
class Keys:
    """Keys of the tables that number the ids of a share, bucket by bucket.

    Attributes:
        folder: Folder of their arrays.
        buckets: `[BUCKETS]`, how many keys are in each, by the name of the table.
    """

    folder: Path
    buckets: Mapping[str, np.ndarray]

    @classmethod
    def write(cls, folder: Path, tables: Mapping[str, IdTable]) -> "Keys":
        """Writes the keys of tables, with their ids."""
        buckets = {}
        for name, table in tables.items():
            keys, second = table.keys(), table.second_keys()
            bucket = (mixed(keys) % np.uint64(BUCKETS)).astype(np.uint8)
            order = np.argsort(bucket, kind="stable")
            np.save(_file(folder, name, "keys"), keys[order])
            np.save(_file(folder, name, "ids"), (order + 1).astype(np.int32))
            if second is not None:
                np.save(_file(folder, name, "second"), second[order])
            buckets[name] = np.bincount(bucket, minlength=BUCKETS)
        return cls(folder, buckets)

    def array(self, table: str, name: str) -> np.ndarray:
        """Returns an array of a table, mapped."""
        return np.load(_file(self.folder, table, name), mmap_mode="r")

    def is_own(self, table: str) -> np.ndarray:
        """Returns which ids of a table, from 1, the share owns, once `count_own` has counted them."""
        return np.diff(self.array(table, _RANKS)) > 0


@dataclass(frozen=True)
class Numbered:
    """The numbers of a table over all shares.

    Attributes:
        files: What `find_owners` wrote of all buckets, in their order.
        counts: Ids that each share owns.
    """

    files: Sequence[Path]
    counts: Sequence[int]


def find_owners(shares: Sequence[Keys], table: str, first: int, stop: int, file: Path) -> None:
    """Writes the owner of each key in some buckets, and its id there, share by share.

    Args:
        shares: All shares in the order of their files.
        table: Name of the table.
        first: The first bucket.
        stop: The bucket behind the last one.
        file: Where `[2, keys]` go: owners, and ids.

    Raises:
        DataError: Two things have one key.
    """
    rows = [_rows(share, table, first, stop) for share in shares]
    keys, ids = (_joined(shares, table, name, rows) for name in ("keys", "ids"))
    has_second = any(_file(share.folder, table, "second").exists() for share in shares)
    second = _joined(shares, table, "second", rows) if has_second else None
    groups = IdTable().ids(keys, second)
    firsts = np.zeros(len(keys) + 1, np.int64)
    firsts[groups[::-1]] = np.arange(len(keys))[::-1]  # of equal numbers the last assignment stays
    owner = firsts[groups]
    share_of = np.repeat(np.arange(len(shares)), [part.stop - part.start for part in rows])
    np.save(file, np.stack([share_of[owner], ids[owner]]).astype(np.int32))


def count_own(shares: Sequence[Keys], table: str, number: int, files: Sequence[Path]) -> int:
    """Returns how many ids of a table a share owns, and writes how many there are up to each of its ids.

    Args:
        shares: All shares.
        table: Name of the table.
        number: Of the share.
        files: See `Numbered`.
    """
    ids, owners, _ = _owned(shares, table, number, files)
    is_own = np.zeros(len(ids) + 1, np.int32)
    is_own[ids] = owners == number
    ranks = np.cumsum(is_own, dtype=np.int32)
    np.save(_file(shares[number].folder, table, _RANKS), ranks)
    return int(ranks[-1])


def new_ids(shares: Sequence[Keys], table: str, number: int, numbered: Numbered) -> np.ndarray:
    """Returns the id in the whole log of each id from 0 of a share.

    Args:
        shares: All shares.
        table: Name of the table.
        number: Of the share.
        numbered: Owners of all keys.
    """
    ids, owners, there = _owned(shares, table, number, numbered.files)
    before = np.append(0, np.cumsum(numbered.counts))
    joined = np.zeros(len(ids) + 1, np.int64)
    for owner in np.unique(owners):
        owned = owners == owner
        joined[ids[owned]] = before[owner] + shares[owner].array(table, _RANKS)[there[owned]]
    return joined


def _file(folder: Path, table: str, name: str) -> Path:
    return folder / f"{table}.{name}.npy"


def _owned(
    shares: Sequence[Keys], table: str, number: int, files: Sequence[Path]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ids of a share, bucket by bucket, their owners, and their ids there."""
    buckets = np.stack([share.buckets[table] for share in shares])
    edges = np.linspace(0, buckets.shape[1], len(files) + 1).astype(int)
    pieces = []
    for file, first, stop in zip(files, edges, edges[1:], strict=False):
        before = int(buckets[:number, first:stop].sum())
        size = int(buckets[number, first:stop].sum())
        pieces.append(np.load(file, mmap_mode="r")[:, before : before + size])
    owners, there = np.concatenate(pieces, axis=1)
    return np.asarray(shares[number].array(table, "ids")), owners, there


def _rows(share: Keys, table: str, first: int, stop: int) -> slice:
    ends = np.append(0, np.cumsum(share.buckets[table]))
    return slice(int(ends[first]), int(ends[stop]))


def _joined(shares: Sequence[Keys], table: str, name: str, rows: Sequence[slice]) -> np.ndarray:
    # of a share without lists nobody knows whether keys have second ones
    parts = [
        share.array(table, name)[part]
        for share, part in zip(shares, rows, strict=True)
        if part.stop > part.start
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)

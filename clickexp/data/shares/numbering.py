"""The ids of shares joined: things are numbered as they first appear in the log, as where one process reads it.

The share where a key appears first owns it. Keys are compared bucket by bucket; then each share counts its own.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clickexp.data.id_table import IdTable
from clickexp.data.shares.reading import ReadShare, array_file

RANKS = "ranks"
"""Array of a share: how many ids up to each one are its own."""


def find_owners(shares: Sequence[ReadShare], table: str, first: int, stop: int, file: Path) -> None:
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
    has_second = any(share.has_array(table, "second") for share in shares)
    second = _joined(shares, table, "second", rows) if has_second else None
    groups = IdTable().ids(keys, second)
    firsts = np.zeros(len(keys) + 1, np.int64)
    firsts[groups[::-1]] = np.arange(len(keys))[::-1]  # of equal numbers the last assignment stays
    owner = firsts[groups]
    share_of = np.repeat(np.arange(len(shares)), [part.stop - part.start for part in rows])
    np.save(file, np.stack([share_of[owner], ids[owner]]).astype(np.int32))


def count_own(shares: Sequence[ReadShare], table: str, number: int, files: Sequence[Path]) -> int:
    """Returns how many ids of a table a share owns, and writes how many there are up to each of its ids.

    Args:
        shares: All shares.
        table: Name of the table.
        number: Of the share.
        files: What `find_owners` wrote of all buckets, in their order.
    """
    ids, owners, _ = _owned(shares, table, number, files)
    is_own = np.zeros(len(ids) + 1, np.int32)
    is_own[ids] = owners == number
    ranks = np.cumsum(is_own, dtype=np.int32)
    np.save(array_file(shares[number].folder, table, RANKS), ranks)
    return int(ranks[-1])


def new_ids(
    shares: Sequence[ReadShare],
    table: str,
    number: int,
    files: Sequence[Path],
    counts: Sequence[int],
) -> np.ndarray:
    """Returns the id in the whole log of each id from 0 of a share.

    Args:
        shares: All shares.
        table: Name of the table.
        number: Of the share.
        files: What `find_owners` wrote.
        counts: Results of `count_own`, of all shares.
    """
    ids, owners, there = _owned(shares, table, number, files)
    before = np.append(0, np.cumsum(counts))
    joined = np.zeros(len(ids) + 1, np.int64)
    for owner in np.unique(owners):
        owned = owners == owner
        ranks = shares[owner].array(table, RANKS)
        joined[ids[owned]] = before[owner] + ranks[there[owned]]
    return joined


def _owned(
    shares: Sequence[ReadShare], table: str, number: int, files: Sequence[Path]
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


def _rows(share: ReadShare, table: str, first: int, stop: int) -> slice:
    ends = np.append(0, np.cumsum(share.buckets[table]))
    return slice(int(ends[first]), int(ends[stop]))


def _joined(
    shares: Sequence[ReadShare], table: str, name: str, rows: Sequence[slice]
) -> np.ndarray:
    parts = [share.array(table, name)[part] for share, part in zip(shares, rows, strict=True)]
    return np.concatenate(parts)

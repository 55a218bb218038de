"""The sessions of a share, written to the pack of the whole log."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clickexp.data.arrays import write_rows
from clickexp.data.records import RECORDS, records_of
from clickexp.data.schema import REQUIRED, Column
from clickexp.data.shares.numbering import new_ids
from clickexp.data.shares.reading import ReadShare
from clickexp.utils.blocks import blocks
from clickexp.utils.lengths import from_lengths

_CHUNK = 1 << 16
"""Sessions that are written at a time."""


@dataclass(frozen=True)
class Numbered:
    """The numbers of a table over all shares.

    Attributes:
        files: What `find_owners` wrote of it.
        counts: Ids that each share owns.
    """

    files: Sequence[Path]
    counts: Sequence[int]


@dataclass(frozen=True)
class Pack:
    """The pack of a whole log.

    Attributes:
        folder: Its folder, with a file of zeros for each array.
        ranks: Documents that a list has room for.
        columns: Declarations.
        tables: Numbers of ids, by column.
        categories: The number here of each category of a share, from that of none, by column and share.
    """

    folder: Path
    ranks: int
    columns: Mapping[str, Column]
    tables: Mapping[str, Numbered]
    categories: Mapping[str, Sequence[np.ndarray]]


def write_share(shares: Sequence[ReadShare], number: int, pack: Pack) -> dict[str, int]:
    """Writes the sessions of a share, and returns the CRC-32 of its rows in each file.

    Args:
        shares: All shares, in the order of their sessions.
        number: Of the share.
        pack: Where they go.
    """
    numbers = {
        name: new_ids(shares, name, number, table.files, table.counts)
        for name, table in pack.tables.items()
        if name in pack.columns
    }
    numbers |= {name: tables[number] for name, tables in pack.categories.items()}
    first = sum(share.part.count for share in shares[:number])
    sums = {}
    for name in [RECORDS, *(name for name in pack.columns if name not in REQUIRED)]:
        rows = _records(shares[number], pack, numbers)
        if name != RECORDS:
            rows = _blocks(shares[number], pack, name, numbers.get(name))
        sums[name] = write_rows(pack.folder / f"{name}.npy", first, rows)
    return sums


def _records(
    share: ReadShare, pack: Pack, numbers: Mapping[str, np.ndarray]
) -> Iterator[np.ndarray]:
    columns = [_blocks(share, pack, name, numbers.get(name)) for name in REQUIRED]
    for chunk in zip(*columns, strict=True):
        yield records_of(dict(zip(REQUIRED, chunk, strict=True)))


def _blocks(
    share: ReadShare, pack: Pack, name: str, numbers: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Yields a column of a share some sessions at a time, with numbers of the whole log, as the pack has it."""
    column, columns = pack.columns[name], share.columns()
    for rows in blocks(share.part.count, _CHUNK):
        lengths = columns["lengths"][rows]
        if name in columns:
            values = columns[name][rows]
        else:
            shape = column.shape_of(len(lengths), share.part.ranks)
            values = np.full(shape, column.missing, column.dtype)
        values = values if numbers is None else numbers[values]
        yield _padded(values, lengths, column, pack.ranks) if column.per_document else values


def _padded(values: np.ndarray, lengths: np.ndarray, column: Column, ranks: int) -> np.ndarray:
    padded = np.full((len(values), ranks, *column.shape), column.padding, column.dtype)
    shown = from_lengths(lengths, values.shape[1])
    padded[:, : values.shape[1]][shown] = values[shown]
    return padded

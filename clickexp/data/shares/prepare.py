"""A reader whose work several processes do: the pack, names and counts are those of one process, to the bit.

Four rounds of calls, between which only counts are handed on: shares are read, owners of keys found, ids counted, and
sessions written. What a share takes in the meantime lies beside the new log.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl

from clickexp.data.arrays import new_array
from clickexp.data.checksums import joined_checksum
from clickexp.data.description import NAMES, PartDescription
from clickexp.data.ingest.checks import Checks
from clickexp.data.ingest.pages import PAGES
from clickexp.data.ingest.parquet_table import row_group_bytes
from clickexp.data.log_files import PARQUET, Share, log_files
from clickexp.data.log_format import LogFormat
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import read_names
from clickexp.data.records import RECORDS
from clickexp.data.schema import COLUMNS, REQUIRED, Column
from clickexp.data.shares.numbering import RANKS, count_own, find_owners
from clickexp.data.shares.reading import BUCKETS, EARLIER, PART, ReadShare, read_share
from clickexp.data.shares.writing import Numbered, Pack, write_share
from clickexp.errors import DataError

_SHARES_PER_WORKER = 4
"""More than one, so that a process that is slow, or has died, holds the others up for a fraction of the time."""
_PAGES_APART = (
    "the rows of {count} result pages lie in several shares of the files. Write the rows of a page to one file, or "
    "prepare the log without workers"
)


class Calls(Protocol):
    """Calls a function in other processes."""

    def __call__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        ended: Callable[[], None],
        /,
    ) -> list[Any]:
        """Returns what the function returns for each tuple of arguments.

        Args:
            function: Any that pickle finds by its name.
            arguments: Those of each call.
            ended: Called when a call has ended.
        """
        ...


def sharing(
    opener: LogFormat, workers: int, calls: Callable[[Path], AbstractContextManager[Calls]]
) -> Callable[..., None]:
    """Returns the reader of a format, whose work other processes do.

    Args:
        opener: The format.
        workers: Processes at a time.
        calls: Opens them for a folder of their files.
    """

    def read(source: Path, log: LogWriter, **options: Any) -> None:
        files = log_files(source, options.get("files"))
        groups = _groups(files, _SHARES_PER_WORKER * workers, opener.reads_shares == "rows")
        with calls(log.scratch / "calls") as call:
            _Joining(log, call, 3 * len(groups) + workers, workers).read(opener, groups, options)

    return read


class _Joining:
    """Reads shares of the files of a log and joins them."""

    def __init__(self, log: LogWriter, call: Calls, steps: int, workers: int):
        self._log, self._call, self._workers = log, call, workers
        self._done, self._steps = 0, steps

    def read(self, opener: LogFormat, groups: Sequence[Share], options: dict[str, Any]) -> None:
        log, folder = self._log, self._log.scratch / "shares"
        folder.mkdir()
        if log.names.earlier is not None:
            log.names.earlier.write_parquet(folder / EARLIER)
        path = f"{opener.read.__module__}.{opener.read.__qualname__}"
        reads = [
            (path, str(log.source), folder / str(number), share, options)
            for number, share in enumerate(groups)
        ]
        shares: list[ReadShare] = self._each(read_share, reads)
        columns = _columns(shares, groups)
        checks = self._end(shares, options)
        shares = [replace(share, checks=None) for share in shares]
        tables = {name: self._numbered(shares, name) for name in shares[0].buckets}
        self._check_pages(shares, tables.pop(PAGES, None))
        self._write_names(shares)
        ranks = max(share.part.ranks for share in shares)
        if options.get("positions") is None:
            ranks = checks.ranks(columns.values())
        categories = self._join_categories(shares)

        def write(part: Path) -> PartDescription:
            return self._write(shares, Pack(part, ranks, columns, tables, categories))

        log.join(PART, write)

    def _each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list:
        def ended() -> None:
            self._done += 1
            self._log.progress(min(self._done, self._steps), self._steps)

        return self._call(function, arguments, ended)

    def _end(self, shares: Sequence[ReadShare], options: dict[str, Any]) -> Checks:
        """Sums up what readers count, and decides on faults."""
        checks, *others = [share.checks for share in shares if share.checks is not None]
        for other in others:
            checks.join(other)
        for share in shares:
            for name, count in share.description.notes.items():
                if isinstance(count, int):
                    self._log.note(name, count)
                else:
                    self._log.notes[name] = count
        checks.end(options.get("invalid", "error"), self._log)
        if not any(share.part.count for share in shares):
            raise DataError(
                f"{self._log.source}: there are no sessions to pack. Check the path, and what the options leave out."
            )
        return checks

    def _numbered(self, shares: Sequence[ReadShare], table: str) -> Numbered:
        """Finds the owner of each key of a table, and counts those of each share."""
        edges = np.linspace(0, BUCKETS, min(self._workers, BUCKETS) + 1).astype(int).tolist()
        files = [self._log.scratch / f"{table}.{first}.npy" for first in edges[:-1]]
        ranges = zip(edges, edges[1:], files, strict=False)
        self._each(find_owners, [(shares, table, *buckets) for buckets in ranges])
        calls = [(shares, table, number, files) for number in range(len(shares))]
        return Numbered(files, self._each(count_own, calls))

    def _check_pages(self, shares: Sequence[ReadShare], pages: Numbered | None) -> None:
        if pages is None:
            return
        apart = sum(int(share.buckets[PAGES].sum()) for share in shares) - sum(pages.counts)
        if apart:
            raise DataError(f"{self._log.source}: {_PAGES_APART.format(count=f'{apart:,}')}.")

    def _write_names(self, shares: Sequence[ReadShare]) -> None:
        for share in shares:
            if not (share.folder / NAMES).exists():
                continue
            named = read_names(np.memmap(share.folder / NAMES, np.uint8, "r"))
            owned = named.filter(pl.Series(np.diff(share.array("query_doc_ids", RANKS)) > 0))
            self._log.names.append(**owned.to_dict())

    def _join_categories(self, shares: Sequence[ReadShare]) -> dict[str, list[np.ndarray]]:
        """Numbers categories as they appear; returns the number of each one of a share, from that of none."""
        self._log.features_of = shares[0].description.features
        joined: dict[str, list[np.ndarray]] = {}
        for column in dict.fromkeys(
            name for share in shares for name in share.description.categories
        ):
            numbers: dict[int | str, int] = {}
            joined[column] = []
            for share in shares:
                names = share.description.categories.get(column, [])
                for name in names:
                    numbers.setdefault(name, len(numbers) + 1)
                table = [0, *(numbers[name] for name in names)]
                joined[column].append(np.array(table, np.int32))
            self._log.categories[column] = [*numbers]
        return joined

    def _write(self, shares: Sequence[ReadShare], pack: Pack) -> PartDescription:
        pairs = max(share.part.query_doc_pairs for share in shares)
        if (table := pack.tables.get("query_doc_ids")) is not None:
            pairs = sum(table.counts)
        described = PartDescription(
            count=sum(share.part.count for share in shares),
            ranks=pack.ranks,
            query_doc_pairs=pairs,
            positions=max(share.part.positions for share in shares),
            declared=[column for name, column in pack.columns.items() if name not in COLUMNS],
            crc32=dict.fromkeys(sorted({RECORDS, *pack.columns} - {*REQUIRED}), 0),
        )
        for name, (dtype, shape) in described.arrays.items():
            new_array(pack.folder / f"{name}.npy", dtype, shape)
        calls = [(shares, number, pack) for number in range(len(shares))]
        sums: list[dict[str, int]] = self._each(write_share, calls)
        crc32 = dict(described.crc32)
        for name, (dtype, shape) in described.arrays.items():
            row, total = dtype.itemsize * math.prod(shape[1:]), 0
            for share, crc32_of in zip(shares, sums, strict=True):
                total = joined_checksum(total, crc32_of[name], row * share.part.count)
            crc32[name] = total
        return described.model_copy(update={"crc32": crc32})


class _Piece(NamedTuple):
    """A file, or a row group of one, and its bytes."""

    file: Path
    row_group: int | None
    size: float


def _groups(files: Sequence[Path], most: int, splits: bool = False) -> list[Share]:
    """Shares of about equal bytes, of files that follow one another; of row groups of large ones, where it splits."""
    pieces = _pieces(files, most, splits)
    sizes = np.array([piece.size for piece in pieces])
    shares, middles = min(most, len(pieces)), np.cumsum(sizes) - sizes / 2
    number = np.minimum(middles * shares // max(sizes.sum(), 1), shares - 1)
    groups = [
        [pieces[at] for at in np.flatnonzero(number == place).tolist()] for place in range(shares)
    ]
    return [_share(files[0], group) for group in groups if group]


def _pieces(files: Sequence[Path], most: int, splits: bool) -> list[_Piece]:
    sizes = [file.stat().st_size for file in files]
    pieces = []
    for file, size in zip(files, sizes, strict=True):
        groups = []
        if splits and size > sum(sizes) / most and file.name.lower().endswith(PARQUET):
            groups = row_group_bytes(file)
        if len(groups) < 2:
            pieces.append(_Piece(file, None, size))
            continue
        scale = size / max(sum(groups), 1)
        pieces += [_Piece(file, number, scale * group) for number, group in enumerate(groups)]
    return pieces


def _share(first: Path, pieces: Sequence[_Piece]) -> Share:
    numbers: dict[Path, list[int]] = {}
    for piece in pieces:
        if piece.row_group is not None:
            numbers.setdefault(piece.file, []).append(piece.row_group)
    files = tuple(dict.fromkeys(piece.file for piece in pieces))
    return Share(first, files, {file: range(n[0], n[-1] + 1) for file, n in numbers.items()})


def _columns(shares: Sequence[ReadShare], groups: Sequence[Share]) -> dict[str, Column]:
    """Returns the declarations of the columns of all shares; only labels may be missing in some.

    Raises:
        DataError: A column is another one in some share.
    """
    columns: dict[str, Column] = {}
    for share, group in zip(shares, groups, strict=True):
        for name, column in share.part.columns.items():
            if columns.setdefault(name, column) != column:
                raise DataError(
                    f"{group.files[0]}: {name} is another column than in the files before. Write it alike in all "
                    f"files, or leave it out with columns.{name}=null."
                )
    return columns

"""A reader whose work several processes do: the pack, names and counts are those of one process, to the bit.

Four rounds of calls, between which only counts are handed on: shares are read, owners of keys found, ids counted, and
sessions written. What a share takes in the meantime lies beside the new log.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl

from clickexp.data.ingest.packing import ReadLists
from clickexp.data.ingest.pages import PAGES
from clickexp.data.ingest.parquet_table import row_group_bytes
from clickexp.data.log_files import PARQUET, Share, log_files
from clickexp.data.log_format import LogFormat
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import read_names
from clickexp.data.shares.numbering import BUCKETS, Keys, Numbered, count_own, find_owners
from clickexp.data.shares.reading import EARLIER, ReadShare, read_share
from clickexp.data.shares.writing import JoinedPart, write_share
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
        most = _SHARES_PER_WORKER * workers
        if callable(opener.reads_shares):
            groups = opener.reads_shares(source, most, options)
        else:
            files = log_files(source, options.get("files"))
            groups = _groups(files, most, opener.reads_shares == "rows")
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
        self._join_notes(shares)
        with _joined(shares, groups).new_part(log) as part:
            keys = [share.keys for share in shares]
            tables = {name: self._numbered(keys, name) for name in keys[0].buckets}
            self._check_pages(keys, tables.pop(PAGES, None))
            self._write_names(shares)
            categories = self._join_categories(shares)
            source = str(part.source)
            shape = part.folder, source, part.ranks, part.schema
            joined = JoinedPart(*shape, keys, tables, part.max_id)
            firsts = np.cumsum([0, *(share.sessions for share in shares)]).tolist()
            calls = [
                (joined, number, firsts[number], share.read.lists, categories[number])
                for number, share in enumerate(shares)
                if share.sessions
            ]
            for others in self._each(write_share, calls):
                part.extend(others)

    def _each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list:
        def ended() -> None:
            self._done += 1
            self._log.progress(min(self._done, self._steps), self._steps)

        return self._call(function, arguments, ended)

    def _join_notes(self, shares: Sequence[ReadShare]) -> None:
        """Sums up what readers count."""
        for share in shares:
            for name, count in share.notes.items():
                if isinstance(count, int):
                    self._log.note(name, count)
                else:
                    self._log.notes[name] = count

    def _numbered(self, keys: Sequence[Keys], table: str) -> Numbered:
        """Finds the owner of each key of a table, and counts those of each share."""
        edges = np.linspace(0, BUCKETS, min(self._workers, BUCKETS) + 1).astype(int).tolist()
        files = [self._log.scratch / f"{table}.{first}.npy" for first in edges[:-1]]
        ranges = zip(edges, edges[1:], files, strict=False)
        self._each(find_owners, [(keys, table, *buckets) for buckets in ranges])
        calls = [(keys, table, number, files) for number in range(len(keys))]
        return Numbered(files, self._each(count_own, calls))

    def _check_pages(self, keys: Sequence[Keys], pages: Numbered | None) -> None:
        if pages is None:
            return
        apart = sum(int(share.buckets[PAGES].sum()) for share in keys) - sum(pages.counts)
        if apart:
            raise DataError(f"{self._log.source}: {_PAGES_APART.format(count=f'{apart:,}')}.")

    def _write_names(self, shares: Sequence[ReadShare]) -> None:
        for share in shares:
            if not share.names.exists():
                continue
            named = read_names(np.memmap(share.names, np.uint8, "r"))
            owned = named.filter(pl.Series(share.keys.is_own("query_doc_ids")))
            self._log.names.append(**owned.to_dict())

    def _join_categories(self, shares: Sequence[ReadShare]) -> list[dict[str, np.ndarray]]:
        """Numbers categories as they appear; returns the number of each one of a share, from that of none."""
        self._log.features_of = shares[0].features
        numbers: dict[str, dict[int | str, int]] = {}
        joined = []
        for share in shares:
            tables = {}
            for column, names in share.categories.items():
                of_column = numbers.setdefault(column, {})
                for name in names:
                    of_column.setdefault(name, len(of_column) + 1)
                tables[column] = np.array([0, *(of_column[name] for name in names)], np.int32)
            joined.append(tables)
        self._log.categories = {column: [*names] for column, names in numbers.items()}
        return joined


def _joined(shares: Sequence[ReadShare], groups: Sequence[Share]) -> ReadLists:
    """Returns what is decided of all shares; only labels may be missing in some.

    Raises:
        DataError: A column is another one in some share.
    """
    first, *others = [share.read for share in shares]
    schema = dict(first.schema)
    for read, group in zip(others, groups[1:], strict=True):
        for name, column in read.schema.items():
            if schema.setdefault(name, column) != column:
                raise DataError(
                    f"{group.files[0]}: {name} is another column than in the files before. Write it alike in all "
                    f"files, or leave it out with columns.{name}=null."
                )
        first.checks.join(read.checks, continued=group.span is not None)
    return replace(first, schema=schema)


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

"""A reader whose work several processes do: the pack, names and counts are those of one process, to the bit.

Four rounds of calls, between which only counts are handed on: shares are read, owners of keys found, ids counted, and
sessions written. What a share takes in the meantime lies beside the new log.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.packing import ReadLog
from clickexp.data.ingest.pages import PAGES
from clickexp.data.ingest.spool import Spool
from clickexp.data.log_files import Piece, Share
from clickexp.data.log_format import LogFormat
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import read_names
from clickexp.data.shares.numbering import BUCKETS, Keys, Numbered, count_own, find_owners
from clickexp.data.shares.reading import EARLIER, ReadShare, read_share
from clickexp.data.shares.writing import write_share
from clickexp.errors import DataError
from clickexp.utils.blocks import blocks

_messages = logging.getLogger(__name__)
_SHARES_PER_WORKER = 4
"""More than one, so that a process that is slow, or has died, holds the others up for a fraction of the time."""
_BLOCK = 1 << 14
"""Feature vectors that are in memory at a time."""
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
) -> Callable[..., ReadLog | None]:
    """Returns the reader of a format, whose work other processes do where it has pieces.

    Args:
        opener: The format.
        workers: Processes at a time.
        calls: Opens them for a folder of their files.
    """

    def read(source: Path, log: LogWriter, **options: Any) -> ReadLog | None:
        most = _SHARES_PER_WORKER * workers
        # parts may have a file in common
        pieces = [*dict.fromkeys(opener.pieces(source, most, **options))]
        if not pieces:
            _messages.warning(
                "workers: %s is read by one process; its rows belong together", opener.format
            )
            return opener.read(source, log, **options)
        shares = shares_of(pieces, most)
        with calls(log.scratch / "calls") as call:
            _Joining(log, call, 3 * len(shares) + workers, workers).read(opener, shares, options)
        return None

    return read


class _Joining:
    """Reads shares of the files of a log and joins them."""

    def __init__(self, log: LogWriter, call: Calls, steps: int, workers: int):
        self._log, self._call, self._workers = log, call, workers
        self._done, self._steps = 0, steps

    def read(self, opener: LogFormat, shares: Sequence[Share], options: dict[str, Any]) -> None:
        log, folder = self._log, self._log.scratch / "shares"
        folder.mkdir()
        if log.names.earlier is not None:
            log.names.earlier.write_parquet(folder / EARLIER)
        path = f"{opener.read.__module__}.{opener.read.__qualname__}"
        calls = [
            (path, str(log.source), folder / str(number), share, options)
            for number, share in enumerate(shares)
        ]
        read: list[ReadShare] = self._each(read_share, calls)
        self._join_notes(read)
        lists = _placed(read)
        with _joined(read, shares).new_parts(log) as parts:
            keys = [share.keys for share in read]
            tables = {name: self._numbered(keys, name) for name in keys[0].buckets}
            self._check_pages(keys, tables.pop(PAGES, None))
            self._write_names(read)
            self._write_vectors(read)
            writers, categories = (
                {name: part.others() for name, part in parts.items()},
                self._join_categories(read),
            )
            writes = [
                (writers, keys, tables, number, lists[number], categories[number])
                for number in range(len(read))
                if lists[number]
            ]
            for written in self._each(write_share, writes):
                for name, others in written.items():
                    parts[name].extend(others)

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

    def _write_vectors(self, shares: Sequence[ReadShare]) -> None:
        for share in shares:
            if not share.vectors.exists():
                continue
            vectors = np.load(share.vectors, mmap_mode="r")[1:]
            owned = share.keys.is_own("query_doc_ids")
            for rows in blocks(len(vectors), _BLOCK):
                self._log.add_features(vectors[rows][owned[rows]], vectors.dtype)

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


def _placed(shares: Sequence[ReadShare]) -> list[dict[str, tuple[int, Spool[Lists]]]]:
    """Returns the lists of each share by part, where it has any, and the numbers of the first ones in the log."""
    firsts, placed = Counter[str](), []
    for share in shares:
        parts = {name: part for name, part in share.read.parts.items() if part.extent.lists}
        placed.append({name: (firsts[name], part.lists) for name, part in parts.items()})
        firsts.update({name: part.extent.lists for name, part in parts.items()})
    return placed


def _joined(read: Sequence[ReadShare], shares: Sequence[Share]) -> ReadLog:
    """Returns what is decided of all shares.

    Raises:
        DataError: A column is another one in some share.
    """
    log = read[0].read
    for later, share in zip(read[1:], shares[1:], strict=True):
        log.join(later.read, next(iter(share.spans or ())))
    return log


def shares_of(pieces: Sequence[Piece], most: int) -> list[Share]:
    """Returns shares of about equal bytes, of pieces that follow one another."""
    sizes = np.array([piece.size for piece in pieces])
    count, middles = min(most, len(pieces)), np.cumsum(sizes) - sizes / 2
    numbers = np.minimum(middles * count // max(sizes.sum(), 1), count - 1)
    shares: dict[int, dict[Path, range | None]] = {}
    for number, piece in zip(numbers.tolist(), pieces, strict=True):
        spans = shares.setdefault(number, {})
        begun = spans.get(piece.file, piece.span)
        spans[piece.file] = range(begun.start, piece.span.stop) if begun and piece.span else begun
    return [Share(spans) for spans in shares.values()]

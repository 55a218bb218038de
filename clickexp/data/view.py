"""Reads columns of sessions, packed or derived, at rows or in pieces of bounded size."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Integer

from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.features import Features
from clickexp.data.records import RECORDS
from clickexp.data.schema import Columns
from clickexp.errors import DataError
from clickexp.utils.lengths import from_lengths

_CHUNK = 1 << 16
"""Sessions of a piece: few enough that a pass over pieces, in which numpy may keep other threads from running, leaves
them their turns."""


class Chunk(Mapping[str, np.ndarray]):
    """Some sessions of a view, whose columns are read when they are asked for.

    Args:
        view: The view.
        rows: Numbers of the sessions in it.
    """

    def __init__(self, view: "ColumnsView", rows: Rows):
        self._view, self._rows = view, rows
        self._read: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._read:
            self._read |= self._view.rows(self._rows, [name])
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._view.columns or name in self._view.derived

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.columns)

    def __len__(self) -> int:
        return len(self._view.columns)

    @property
    def count(self) -> int:
        """Number of sessions."""
        return len(self["lengths"])

    @cached_property
    def shown(self) -> Bool[np.ndarray, "session rank"]:
        """Where a list has a document."""
        return from_lengths(self["lengths"], self._view.ranks)

    @cached_property
    def positions(self) -> Integer[np.ndarray, "session rank"]:
        """Positions of the documents: where the log says they were shown, else their places in the list.

        This is what models look up, and what "rank" is in tables, figures and files.
        """
        if "positions" in self:
            return self["positions"]
        return np.broadcast_to(np.arange(1, self._view.ranks + 1), self.shown.shape)

    def of_documents(self, name: str) -> np.ndarray:
        """Returns a column at the documents shown, those of lists once for each; positions as `positions` has them."""
        values = self.positions if name == "positions" else self[name]
        by_document = (
            values if values.ndim > 1 else np.broadcast_to(values[:, None], self.shown.shape)
        )
        return by_document[self.shown]

    def some(self, chosen: Integer[np.ndarray, " chosen"]) -> "Chunk":
        """Returns the sessions with these numbers in the chunk."""
        rows = self._rows
        return Chunk(
            self._view,
            np.arange(rows.start, rows.stop)[chosen] if isinstance(rows, slice) else rows[chosen],
        )


class ByPosition(NamedTuple):
    """Counts of documents by position; index 0 is 0.

    Attributes:
        shown: Documents shown.
        clicks: Those clicked.
    """

    shown: Integer[np.ndarray, " positions+1"]
    clicks: Integer[np.ndarray, " positions+1"]


@dataclass(frozen=True, eq=False)
class ColumnsView:
    """Some rows of packed columns, and columns that are derived of them.

    Attributes:
        columns: Packed columns by name.
        query_doc_pairs: The largest id.
        positions: The largest position.
        index: Rows of the columns that this view shows; None for all of them.
        folder: Of the pack, if any.
        features: A feature vector for each id from 0 to query_doc_pairs, which all views share.
        derived: Columns that are computed where they are asked for by name.
        first: Number of the first row of `columns` in the log that they are derived of.
        checksums: Those of the packed files.
        records: What the columns that every log has are views of, if they are; see `clickexp.data.records`.
    """

    columns: Columns
    query_doc_pairs: int
    positions: int
    _: KW_ONLY
    index: np.ndarray | None = None
    folder: Path | None = None
    features: Features | None = None
    derived: Mapping[str, DerivedColumn] = field(default_factory=dict)
    first: int = 0
    checksums: Mapping[str, int] | None = None
    records: np.ndarray | None = None

    @property
    def count(self) -> int:
        """Sessions in this view."""
        return len(self.columns["lengths"] if self.index is None else self.index)

    @property
    def ranks(self) -> int:
        """Documents that a list has room for."""
        return self.columns["query_doc_ids"].shape[1]

    def rows(self, rows: Rows, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Some columns (default all that are packed) at a slice or array of session numbers; slices may be views."""
        rows = rows if self.index is None else self.index[rows]
        return {
            name: self._derived(name, rows) if name in self.derived else self.columns[name][rows]
            for name in names or self.columns
        }

    def column(self, name: str) -> np.ndarray:
        """A whole column of this view; DataError if the sessions have none of that name."""
        if name in self.derived:
            return self.rows(slice(0, self.count), [name])[name]
        if name not in self.columns:
            raise DataError(
                f"{self.folder or 'sessions'}: there are no {name}. Add them to the source."
            )
        return self.columns[name] if self.index is None else self.columns[name][self.index]

    def read_into(self, target: dict[str, np.ndarray], rows: Rows) -> None:
        """Copies the columns, or records, named in target at a slice or array of valid session numbers into it."""
        rows = rows if self.index is None else self.index[rows]
        for name, out in target.items():
            if name in self.derived:
                np.copyto(out, self._derived(name, rows))
                continue
            values = self.columns[name] if name != RECORDS else self._records()
            if isinstance(rows, np.ndarray):
                # clip: numpy would buffer `out` to raise on a bad row
                np.take(values, rows, axis=0, out=out, mode="clip")
            else:
                np.copyto(out, values[rows])

    def _records(self) -> np.ndarray:
        """The records, of a view that has them."""
        if self.records is None:
            raise DataError(f"{self.folder or 'sessions'}: there are no records.")
        return self.records

    def _derived(self, name: str, rows: Rows) -> np.ndarray:
        """A derived column at rows of `columns`."""
        derived = self.derived[name]
        packed = {column: self.columns[column][rows] for column in derived.reads}
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self.columns["lengths"]))
            return derived.compute(packed, slice(self.first + start, self.first + stop))
        return derived.compute(packed, self.first + rows)

    def chunk(self, start: int = 0, stop: int | None = None) -> Chunk:
        """The sessions from one number to another, by default all."""
        stop = self.count if stop is None else min(stop, self.count)
        return Chunk(self, slice(start, stop))

    def chunks(self) -> Iterator[Chunk]:
        """All sessions in pieces of bounded size, in order."""
        return (self.chunk(start, start + _CHUNK) for start in range(0, self.count, _CHUNK))

    @cached_property
    def positions_are_ranks(self) -> bool:
        """Whether the position of each document is its place in the list, as it is where the log states none."""
        if "positions" not in self.columns:
            return True
        ranks = np.arange(1, self.ranks + 1)
        return all(((chunk.positions == ranks) | ~chunk.shown).all() for chunk in self.chunks())

    @cached_property
    def most_at_a_position(self) -> int:
        """Most documents of one list at one position: 1 unless positions were merged."""
        if self.positions_are_ranks:
            return 1
        return max(_most_at_a_position(chunk.positions, chunk.shown) for chunk in self.chunks())

    @cached_property
    def by_length(self) -> Integer[np.ndarray, " lengths"]:
        """Lists by length, from 0."""
        counts = np.zeros(self.ranks + 1, np.int64)
        for chunk in self.chunks():
            counts += np.bincount(chunk["lengths"], minlength=len(counts))
        return counts

    @property
    def documents(self) -> int:
        """Documents shown, the sum of the lengths."""
        return int(self.by_length @ np.arange(self.ranks + 1))

    @cached_property
    def documents_zero(self) -> int:
        """Documents shown whose id is 0: where a log has names, those that have none."""
        return sum(
            int(np.count_nonzero(chunk.shown & (chunk["query_doc_ids"] == 0)))
            for chunk in self.chunks()
        )

    @property
    def clicks_total(self) -> int:
        """Documents clicked."""
        return int(self.by_position.clicks.sum())

    @cached_property
    def by_position(self) -> ByPosition:
        """Documents shown and clicks by position."""
        ranks, largest = self.ranks, max(self.positions, self.ranks)
        shown, clicks = np.zeros((2, largest + 1), np.int64)
        if "positions" not in self.chunk(0, 0):  # sums of columns take a tenth of the time
            shown[1 : ranks + 1] = self.by_length[:0:-1].cumsum()[::-1]
            for chunk in self.chunks():
                clicks[1 : ranks + 1] += chunk["clicks"].sum(axis=0)
            return ByPosition(shown, clicks)
        for chunk in self.chunks():
            at = chunk.of_documents("positions")
            shown += np.bincount(at, minlength=len(shown))
            clicks += np.bincount(at[chunk.of_documents("clicks")], minlength=len(clicks))
        return ByPosition(shown, clicks)


def _most_at_a_position(
    positions: Integer[np.ndarray, "session rank"], shown: Bool[np.ndarray, "session rank"]
) -> int:
    """Returns the most documents of one list at one position, at least 1."""
    apart = np.where(shown, positions, -1 - np.arange(positions.shape[1]))
    ordered, most = np.sort(apart, axis=1), 1
    while most < ordered.shape[1] and (ordered[:, most:] == ordered[:, :-most]).any():
        most += 1
    return most

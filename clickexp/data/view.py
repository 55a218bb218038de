"""Reads columns of sessions, packed or derived, at rows or in pieces of bounded size."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.schema import Columns
from clickexp.errors import DataError

_CHUNK = 1 << 18


class ColumnsView:
    """Some rows of packed columns, and columns that are derived of them.

    Attributes:
        columns: Packed columns by name.
        index: Rows of the columns that this view shows; None for all of them.
        folder: Of the pack, if any.
        derived: Columns that are computed where they are asked for by name.
        first: Number of the first row of `columns` in the log that they are derived of.
    """

    columns: Columns
    index: np.ndarray | None
    folder: Path | None
    derived: Mapping[str, DerivedColumn]
    first: int

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
        """Copies the columns named in target at a slice or array of valid session numbers into it."""
        rows = rows if self.index is None else self.index[rows]
        for name, out in target.items():
            if name in self.derived:
                np.copyto(out, self._derived(name, rows))
            elif isinstance(
                rows, np.ndarray
            ):  # clip: numpy would buffer `out` to raise on a bad row
                np.take(self.columns[name], rows, axis=0, out=out, mode="clip")
            else:
                np.copyto(out, self.columns[name][rows])

    def _derived(self, name: str, rows: Rows) -> np.ndarray:
        """A derived column at rows of `columns`."""
        derived = self.derived[name]
        packed = {each: self.columns[each][rows] for each in derived.reads}
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self.columns["lengths"]))
            return derived.of(packed, slice(self.first + start, self.first + stop))
        return derived.of(packed, self.first + rows)

    def chunks(self, names: Iterable[str] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """The columns in pieces of bounded size, in order."""
        return (
            self.rows(slice(start, start + _CHUNK), names) for start in range(0, self.count, _CHUNK)
        )

    @cached_property
    def positions_are_ranks(self) -> bool:
        """Whether each document stands at the position that is its rank, as it does where there are no positions."""
        if "positions" not in self.columns:
            return True
        ranks = np.arange(1, self.ranks + 1)
        return all(
            ((chunk["positions"] == ranks) | (ranks > chunk["lengths"][:, None])).all()
            for chunk in self.chunks(["positions", "lengths"])
        )

    @cached_property
    def documents(self) -> int:
        """Documents shown, the sum of the lengths."""
        return sum(int(chunk["lengths"].sum(dtype=np.int64)) for chunk in self.chunks(["lengths"]))

    @cached_property
    def documents_zero(self) -> int:
        """Documents shown whose id is 0: where a log has names, those that have none."""
        ranks, count = np.arange(self.ranks), 0
        for chunk in self.chunks(["query_doc_ids", "lengths"]):
            shown = ranks < chunk["lengths"][:, None]
            count += int(np.count_nonzero(shown & (chunk["query_doc_ids"] == 0)))
        return count

    @cached_property
    def clicks_total(self) -> int:
        """Documents clicked."""
        return sum(int(np.count_nonzero(chunk["clicks"])) for chunk in self.chunks(["clicks"]))

"""Positions within layouts: pages of each device, say, whose documents are seen differently at the same rank."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from clickexp.data.dataset import Dataset
from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.encoding import Names, numbered_names
from clickexp.data.schema import COLUMNS, Columns
from clickexp.data.sessions import Sessions
from clickexp.errors import ConfigError
from clickexp.utils.suggest import did_you_mean
from clickexp.utils.text import Layout, layout_name

_MOST = 1_000_000
"""Cells of a model; more are those of a column that tells no layouts, such as a user."""

_OTHER = "(other)"
"""A category in none of the layouts."""


@dataclasses.dataclass(frozen=True)
class Cells:
    """Numbers of positions within combinations of the values of columns: cell = combination (positions + 1) + position.

    Without columns, cells are positions. Documents with other values are in cells of their own, behind all others.

    Attributes:
        columns: Names of columns of whole numbers from 0, and how many values each has.
        positions: Largest position.
        categories: What the numbers from 0 of columns of categories are called, by column.
        reference: Combination whose first position examination of all is relative to.
    """

    columns: tuple[tuple[str, int], ...]
    positions: int
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    reference: int = 0

    @classmethod
    def of_sizes(cls, names: Sequence[str], sizes: Mapping[str, int], positions: int) -> "Cells":
        """Returns the cells of columns of a log.

        Args:
            names: Of the columns.
            sizes: Largest value of each column of whole numbers of the log.
            positions: Largest position.

        Raises:
            ConfigError: The log has no such column, or too many values.
        """
        for name in names:
            if name not in sizes:
                have = ", ".join(sizes) or "none"
                meant = did_you_mean(name, sizes)
                raise ConfigError(
                    f"examination_by={list(names)}: the log has no column {name} of whole numbers (it has {have})."
                    f"{meant} Declare it, as in '+dataset.columns.{name}={{dtype: category, per: session}}', "
                    "or leave it out"
                )
        cells = cls(tuple((name, sizes[name] + 1) for name in names), positions)
        if cells.count > _MOST:
            raise ConfigError(
                f"examination_by={list(names)} has {cells.count:,} combinations of values and positions, more than "
                f"{_MOST:,}: give columns with few values, numbered from 0, such as that of the device"
            )
        return cells

    def called(self, categories: Mapping[str, Names]) -> "Cells":
        """Returns the cells with layouts by the names of the categories 1, 2, ... of columns."""
        called = {
            name: numbered_names(categories[name]) for name in self.names if name in categories
        }
        return dataclasses.replace(self, categories=tuple(called.items()))

    def relative_to_largest(self, sessions: Sessions) -> "Cells":
        """Returns the cells relative to the combination with most documents; of several, the first by name."""
        shown, _ = self.view(sessions).by_position
        documents = shown.reshape(-1, self.positions + 1)[: self.layouts].sum(axis=1)
        largest = np.flatnonzero(documents == documents.max()).tolist()
        reference = min(largest, key=lambda number: self.words(number * (self.positions + 1)))
        return dataclasses.replace(self, reference=reference)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(name for name, _ in self.columns)

    @property
    def count(self) -> int:
        """Number of cells, the first of each combination being that of no position."""
        return (self.positions + 1) * (self.layouts + bool(self.columns))

    @property
    def layouts(self) -> int:
        """Number of combinations."""
        return math.prod(size for _, size in self.columns)

    @property
    def first(self) -> int:
        """The cell that examination of all is relative to."""
        return self.reference * (self.positions + 1) + 1

    def of(self, batch: Mapping[str, Any]) -> Any:
        """Returns the cell of each document, from the positions and the columns of a batch."""
        if not self.columns:
            return batch["positions"]
        combination: Any = 0
        is_value: Any = True
        for name, size in self.columns:
            values = batch[name].astype(np.int32)
            is_value = is_value & (values >= 0) & (values < size)
            combination = combination * size + values
        inside = is_value.astype(np.int32)
        combination = combination * inside + self.layouts * (1 - inside)
        return combination * (self.positions + 1) + batch["positions"]

    def cell(self, layout: Mapping[str, str], position: int) -> int:
        """Returns the cell of a position in a layout; that of others where a value is of none."""
        values = {name: np.int32(self._number(name, layout[name])) for name in self.names}
        return int(self.of({**values, "positions": position}))

    def _number(self, column: str, value: str) -> int:
        """Returns the number of a value of a column; -1 of one that the column does not have."""
        called = dict(self.categories).get(column)
        if called is not None:
            return called.index(value) if value in called else -1
        return int(value) if value.isdecimal() else -1

    def values(self, column: str, numbers: np.ndarray) -> np.ndarray:
        """Returns the values that numbers of a column stand for: the names of categories, or the numbers."""
        called = dict(self.categories).get(column)
        if called is None:
            return numbers.astype(np.int64)
        return np.array([*called, _OTHER])[np.minimum(numbers, len(called))]

    def knows(self, cell: int) -> bool:
        """Whether a cell belongs to a combination of the values."""
        return cell < self.layouts * (self.positions + 1)

    def unknown(self, sessions: Sessions) -> int:
        """Returns how many documents are in other layouts."""
        chunks = self.view(sessions).chunks()
        first_unknown = self.layouts * (self.positions + 1)
        return sum(
            int((chunk.of_documents("positions") >= first_unknown).sum()) for chunk in chunks
        )

    def layout(self, cell: int) -> Layout:
        """Returns the value of each column that a cell belongs to."""
        numbers = self.batch([cell])
        return {name: str(self.values(name, numbers[name])[0, 0]) for name in self.names}

    def words(self, cell: int) -> str:
        """Returns the layout of a cell in words, such as "device 2"."""
        return layout_name(self.layout(cell))

    def position(self, cell: int) -> int:
        """Returns the position that a cell belongs to."""
        return cell % (self.positions + 1)

    def batch(self, cells: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """Returns positions and columns of a batch of one list that has documents in these cells.

        Columns of cells in none of the layouts have the first number that is no value.
        """
        combination, positions = np.divmod(np.asarray(cells, np.int32), self.positions + 1)
        columns, inside = {"positions": positions[None]}, combination < self.layouts
        for name, size in reversed(self.columns):
            combination, values = np.divmod(combination, size)
            columns[name] = np.where(inside, values, size)[None]
        return columns

    def others(self) -> np.ndarray:
        """Returns the cells of the positions 0, 1, ... in none of the layouts."""
        return np.arange(self.count - self.positions - 1, self.count)

    def places_of(self, fewer: "Cells") -> np.ndarray:
        """Returns the cells here of all cells of the same columns with fewer values, or of fewer positions."""
        batch = fewer.batch(np.arange(fewer.count))
        others = fewer.others()
        places = np.asarray(self.of(batch))[0]
        places[others] = self.others()[: len(others)]
        return places

    def view(self, sessions: Sessions) -> Sessions:
        """Returns sessions whose positions are the cells, to count by them; models take the sessions themselves."""
        if not self.columns:
            return sessions
        derived = {**sessions.derived, "positions": _CellNumbers(self, sessions)}
        largest = self.count - 1
        return dataclasses.replace(sessions, derived=derived, positions=largest)


class _CellNumbers(DerivedColumn):
    """Stands in for the positions of sessions."""

    column = COLUMNS["positions"]

    def __init__(self, cells: Cells, sessions: Sessions):
        self._cells, self._has_positions = cells, "positions" in sessions.columns
        self._ranks = sessions.ranks
        self._per_document = {name: sessions.schema[name].per_document for name in cells.names}
        self._derived = {name: sessions.derived.get(name) for name in cells.names}

    @cached_property
    def reads(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]  # follows from the log
        """Packed columns."""
        own = ("positions",) if self._has_positions else ()
        columns = [
            (name,) if derived is None else derived.reads for name, derived in self._derived.items()
        ]
        return (*own, "lengths", *{name for names in columns for name in names})

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        """Returns the cell of each document, 0 where there is none."""
        places = np.arange(1, self._ranks + 1, dtype=np.int32)[None]
        values = {}
        for name, derived in self._derived.items():
            column = packed[name] if derived is None else derived.compute(packed, rows)
            values[name] = column if self._per_document[name] else column[:, None]
        positions = packed["positions"] if self._has_positions else places
        shown = places <= packed["lengths"][:, None]
        return np.where(shown, self._cells.of({**values, "positions": positions}), 0)

    def bounds(self) -> tuple[int, int]:
        """Returns the smallest and the largest cell."""
        return 0, self._cells.count - 1


def cells_of(dataset: Dataset, names: Sequence[str]) -> Cells:
    """Returns the cells of columns of a dataset; ConfigError as `Cells.of_sizes`."""
    cells = Cells.of_sizes(names, dataset.columns, dataset.positions)
    return cells.called(dataset.categories)

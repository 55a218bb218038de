"""Faults of a log: counted by kind while it is read, so that one message names all of them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np

from clickexp.data.ingest.first_rank import FirstRankCheck
from clickexp.data.ingest.times import TimeCheck
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import LEFT_OUT, MUCH_LEFT_OUT, Remedy, SourceLocation
from clickexp.errors import FaultyLogError
from clickexp.utils.bounds import OneOf
from clickexp.utils.text import counted

Invalid = Annotated[str, OneOf("error", "drop")]
"""The treatment of rows with faults: they are an error when all have been read, or they are left out and counted."""

_NOTHING_LEFT = "No list is without a fault, so that dropping them leaves nothing."
_MOST = (
    "Most rows are faulty, and the others are another log: mend them, filter the log before, or leave out a column "
    "that holds something else, as by columns.label=null."
)
_MOST_OF_FILE = (
    "Nearly all rows of a file are faulty, and without them the file is left out: mend it, choose the other files by "
    "files=PATTERN, or leave out a column that holds something else, as by columns.label=null."
)
_BY_CLICKS = (
    "Where clicks are faulty, that leaves out lists by what was clicked, and biases what is left."
)
NULL_IS_NO_CLICK = "null_is_no_click"
"""The option of readers that take a missing click for none, which their remedy of one names."""
FILLS_FEATURES = "missing=mean fills empty features"
"""Part of the remedy of an empty feature."""
_MAY_LACK = {"label": "label", "labels": "labels", "times": "time", "seen": "seen"}
"""The keys of columns without which a log is read, too."""
_SHOWN = 3
"""Rows of a kind that are named."""
_NEARLY_ALL = 0.9
"""Share of the rows of a file without which the file is as good as left out."""
_OF_FILE = 100
"""Rows of a file below which it is too small for such a share to say anything."""
_ROWS = "rows"


class _Example(NamedTuple):
    """A row with a fault."""

    location: SourceLocation
    row: int
    what: str


@dataclass
class _Kind:
    """Rows with one kind of fault: how many, the first of them, and the remedy."""

    remedy: str
    unit: str
    rows: Counter[str] = field(default_factory=Counter)  # by file
    examples: list[_Example] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.rows.total()

    def add(
        self, location: SourceLocation, rows: np.ndarray, describe: Callable[[int], str]
    ) -> None:
        for number, row in enumerate(rows[:_SHOWN].tolist()):
            self.examples.append(_Example(location, row, describe(number)))
        sources = [example.location.source for example in self.examples]
        # files in the order of reading; the rows of one batch come column by column
        self.examples.sort(
            key=lambda at: (sources.index(at.location.source), at.location.first + at.row)
        )
        del self.examples[_SHOWN:]
        self.rows[location.source] += len(rows)

    def join(self, later: "_Kind", source: str | None, before: int) -> None:
        """Adds later rows; those of one source lie behind so many."""
        self.rows += later.rows
        for example in later.examples[: _SHOWN - len(self.examples)]:
            above = before if example.location.source == source else 0
            self.examples.append(example._replace(row=example.row + above))

    def counted(self) -> str:
        """How many rows, and the next places of the same file: " (5 rows, next 7, 9, ...)"."""
        if self.count == 1:
            return ""
        location, *_ = self.examples[0]
        alike = [
            other.first + row
            for other, row, _ in self.examples[1:]
            if other.source == location.source
        ]
        if not alike:
            return f" ({self.count:,} {self.unit})"
        more = ["..."] if self.count > 1 + len(alike) else []
        places = ", ".join([*map(str, alike), *more])
        return f" ({self.count:,} {self.unit}, next {location.unit} {places})"

    def what(self) -> str:
        """The values that rows hold: "rank holds 'top', 'low'"."""
        first, *others = dict.fromkeys(example.what for example in self.examples)
        head, holds, _ = first.partition(" holds ")
        values = [other.removeprefix(head + holds) for other in others if holds]
        more = ", ..." if len(values) == _SHOWN - 1 and self.count > _SHOWN else ""
        return ", ".join([first, *values]) + more


class Faults:
    """Counts what is wrong with the rows of a log, by kind, and keeps the first places of each.

    Readers give the locations of `at` to what checks rows. A row with a fault is left out, and reading goes on; `end`
    decides whether that was an error. Memory holds a few places per kind.

    Args:
        first_rank: What the ranks of the log count from.
        continues: A text of which a share may begin in the middle; its lines count from there.

    Attributes:
        rows: Rows that were read by file, which the reader counts.
        faulty_rows: Rows with a fault of any kind.
        times: Compares the times of all rows.
        first_rank: Compares their ranks.
    """

    def __init__(self, first_rank: int = 1, continues: str | None = None) -> None:
        self.rows: Counter[str] = Counter()
        self.faulty_rows = 0
        self.times, self.first_rank = TimeCheck(), FirstRankCheck(first_rank)
        self._continues = continues
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def __bool__(self) -> bool:
        """Returns whether any were counted."""
        return bool(self._kinds)

    def count(self, location: SourceLocation, rows: int) -> None:
        """Counts rows that were read of a file."""
        self.rows[location.source] += rows

    def at(self, location: SourceLocation) -> "CountedLocation":
        """The same place, where faults are counted instead of raised."""
        return CountedLocation(
            location.source, location.first, location.unit, self, names=location.names
        )

    def add(
        self,
        kind: str,
        location: SourceLocation,
        rows: np.ndarray,
        describe: Callable[[int], str],
        remedy: str,
        unit: str = _ROWS,
    ) -> None:
        """Counts rows with a fault.

        Args:
            kind: Its name in the notes of a log.
            location: Where the rows are.
            rows: Their numbers there.
            describe: What is wrong with the i-th of them.
            remedy: What to do.
            unit: What they are counted as.
        """
        if len(rows):
            self._kinds.setdefault((kind, remedy), _Kind(remedy, unit)).add(
                location, rows, describe
            )

    def join(self, later: "Faults") -> None:
        """Adds the faults of later files, or of the next rows of a text.

        Raises:
            DataError: Their times are of another kind.
        """
        for key, kind in later._kinds.items():
            known = self._kinds.setdefault(key, _Kind(kind.remedy, kind.unit))
            known.join(kind, later._continues, self.rows.total())
        self.rows += later.rows
        self.faulty_rows += later.faulty_rows
        self.times.join(later.times)
        self.first_rank.join(later.first_rank)

    def end(self, invalid: str, log: LogWriter, left: int) -> None:
        """Ends the reading of a log: notes the counts of what was left out.

        Args:
            invalid: What becomes of faults.
            log: Receives the counts.
            left: Lists without a fault.

        Raises:
            FaultyLogError: There are faults, and `invalid` is "error", or hardly a row or list is without one, or
                without some options the log is read wrongly.
        """
        if not self._kinds:
            return
        options = {**self.first_rank.options, **self._needed()}
        is_droppable = left > 0 and not options and not self._are_most()
        if invalid == "error" or not is_droppable:
            raise self._error(options, left > 0, is_droppable)
        for (kind, _), rows in self._kinds.items():
            log.note(kind, rows.count)
        share = self.faulty_rows / max(self.rows.total(), 1)
        if share >= MUCH_LEFT_OUT:
            log.notes[LEFT_OUT] = f"{share:.0%}"

    def _needed(self) -> dict[str, str]:
        """Options that leave no faults of a kind that most rows have, or that are safe, where there are any."""
        options = {}
        for (name, remedy), kind in self._kinds.items():
            what, _, column = name.partition("_")
            is_safe = isinstance(remedy, Remedy) and remedy.is_safe
            if not (is_safe or self._is_most(kind)):
                continue
            if isinstance(remedy, Remedy):
                options |= remedy.options
            elif what == "missing" and NULL_IS_NO_CLICK in remedy:
                options[NULL_IS_NO_CLICK] = "true"
            elif what == "invalid" and column in _MAY_LACK:
                options[f"columns.{_MAY_LACK[column]}"] = "null"
        return options

    def _are_most(self) -> bool:
        """Whether most rows have some kind of fault, so that the log is another one without them."""
        return any(map(self._is_most, self._kinds.values()))

    def _is_most(self, kind: _Kind) -> bool:
        """Whether half of the rows have a kind of fault, or nearly all of a file."""
        return self._is_half(kind) or bool(self._files_of(kind))

    def _is_half(self, kind: _Kind) -> bool:
        return 2 * kind.count >= self.rows.total()

    def _files_of(self, kind: _Kind) -> list[str]:
        """Files of which nearly all rows have a kind of fault; none where there is one file."""
        if len(self.rows) == 1:
            return []
        return [
            file
            for file, faulty in kind.rows.items()
            if faulty >= _NEARLY_ALL * max(self.rows[file], _OF_FILE)
        ]

    def _of_files(self, kind: _Kind) -> str:
        """Of which file nearly all rows have a kind of fault: ", 500 of the 500 rows of FILE"."""
        files = self._files_of(kind)
        if not files:
            return ""
        file = files[0]
        more = f", and so of {counted(len(files) - 1, 'other file')}" if len(files) > 1 else ""
        return f", {kind.rows[file]:,} of the {self.rows[file]:,} {kind.unit} of {file}{more}"

    def _error(self, options: dict[str, str], is_some_left: bool, is_droppable: bool) -> Exception:
        lines = []
        for kind in self._kinds.values():
            location, row, _ = kind.examples[0]
            remedy = f"{kind.remedy[0].upper()}{kind.remedy[1:]}"
            counts = f"{kind.counted()}{self._of_files(kind)}"
            lines.append(f"{location.of(row)}: {kind.what()}{counts}. {remedy}.")
        end = self._end() if is_some_left else _NOTHING_LEFT
        if is_droppable:
            options = {"invalid": "drop"}
            end = "invalid=drop leaves out what is faulty, and counts it."
            if any(self._can_be_filled(*key) for key in self._kinds):
                options = {"missing": "mean"}
            elif self._lacks_clicks():
                options = {NULL_IS_NO_CLICK: "true"}
                end = f"Many clicks are missing, as where null is no click; {end}"
            if self._of_clicks():
                options, end = {}, f"{end} {_BY_CLICKS}"
        elif options:
            stated = " ".join(f"{key}={value}" for key, value in options.items())
            end = f"{stated} mends all of these faults, or most: the next call names those that remain."
        return FaultyLogError(lines, end, options, [kind for kind, _ in self._kinds])

    def _end(self) -> str:
        """What to do where faults are too many to be left out."""
        return _MOST if any(map(self._is_half, self._kinds.values())) else _MOST_OF_FILE

    def _of_clicks(self) -> bool:
        """Whether clicks hold what is none."""
        return not {"invalid_click", "invalid_clicks"}.isdisjoint(kind for kind, _ in self._kinds)

    def _lacks_clicks(self) -> bool:
        """Whether many clicks are missing, which an option takes for none, and hardly anything else is faulty."""
        rows = sum(
            kind.count
            for (name, remedy), kind in self._kinds.items()
            if name.startswith("missing") and NULL_IS_NO_CLICK in remedy
        )
        return rows > max(MUCH_LEFT_OUT * self.rows.total(), self.faulty_rows / 2)

    @staticmethod
    def _can_be_filled(name: str, remedy: str) -> bool:
        return name.startswith("missing") and FILLS_FEATURES in remedy


@dataclass(frozen=True)
class CountedLocation(SourceLocation):
    """Where rows came from whose faults are counted; what checks them goes on with any valid value."""

    faults: Faults = field(default_factory=Faults)
    _rows: list[np.ndarray] = field(default_factory=list)
    _counted: dict[str, np.ndarray] = field(default_factory=dict)

    def refuse(
        self, rows: np.ndarray, describe: Callable[[int], str], remedy: str, kind: str
    ) -> None:
        """Counts rows with a fault; one that several checks find counts once."""
        if not len(rows):
            return
        rows, first = np.unique(rows, return_index=True)
        counted = self._counted.get(kind, rows[:0])
        is_new = ~np.isin(rows, counted)
        rows, first = rows[is_new], first[is_new]
        of_any_kind = np.concatenate([rows[:0], *self._counted.values()])
        self.faults.faulty_rows += int(np.count_nonzero(~np.isin(rows, of_any_kind)))
        self.faults.add(kind, self, rows, lambda number: describe(int(first[number])), remedy)
        self._counted[kind] = np.append(counted, rows)
        self._rows.append(rows)

    def refused(self, count: int) -> np.ndarray | None:
        """Which of so many rows have been refused since the last call; None without any."""
        if not self._rows:
            return None
        refused = np.zeros(count, bool)
        refused[np.concatenate(self._rows)] = True
        self._rows.clear()
        return refused

"""Tables and numbers on a terminal: `console_table` prints those of the whole package."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
_WIDTHS = {"epoch": 5, "best": 4}
_NUMBER_WIDTH = len("-0.1234")


def number(value: float | None) -> str:
    """A number with four decimals; counts whole; a dash for None."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def count(value: float) -> str:
    """A count in three digits: 950, 12.3k, 2.00M; a dash for NaN and inf."""
    if not math.isfinite(value):
        return "-"
    mantissa, exponent = f"{value:.2e}".split("e")
    thousands, shift = divmod(max(int(exponent), 0), 3)
    if not thousands:
        return f"{value:.0f}"
    return f"{float(mantissa) * 10**shift:.{2 - shift}f}{'kMGT'[thousands - 1]}"


class EpochTable:
    """One line per epoch: the watched metric, others of the first record that the width holds, a star if best so far.

    Args:
        record: The first epoch's record.
        width: Characters per line.
        watched: The metric that is shown whatever the width.
    """

    def __init__(self, record: Mapping[str, Any], width: int, watched: str = "") -> None:
        names = [name for name in record if "/" in name]
        shown = {watched}
        for name in names:
            self.metrics = [each for each in names if each in {name, *shown}]
            if len(self.header()) <= width:
                shown.add(name)
        self.metrics = [name for name in names if name in shown]

    def header(self) -> str:
        """The names of the columns."""
        return self._line({name: name for name in ("epoch", *self.metrics, "seconds", "best")})

    def row(self, record: Mapping[str, Any]) -> str:
        """The numbers of one epoch; its seconds without compilation."""
        metrics = {name: number(record.get(name)) for name in self.metrics}
        compiling = record.get("compile_seconds") or 0.0
        seconds = f"{record['seconds'] - compiling:.1f}" if "seconds" in record else "-"
        best = "*" if record.get("improved") else ""
        return self._line({"epoch": str(record["epoch"]), **metrics, "seconds": seconds, "best": best})

    @staticmethod
    def _line(cells: Mapping[str, str]) -> str:
        widths = {name: _WIDTHS.get(name, max(len(name), _NUMBER_WIDTH)) for name in cells}
        return "  ".join(f"{text:>{widths[name]}}" for name, text in cells.items()).rstrip()


def console_table(
    header: Iterable[str], rows: Iterable[Iterable[RenderableType]] = (), *, text_columns: int = 1
) -> Table:
    """The one style of all tables on a terminal; `fits` says whether a console is wide enough.

    Args:
        header: Names of the columns.
        rows: Cells of each row; more can follow by `add_row` of the result. Strings are shown as they are, without
            rich's markup.
        text_columns: How many columns, from the left, hold text; those after them hold numbers and align right.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        table.add_column(Text(name), justify="left" if place < text_columns else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def fits(table: Table, console: Console) -> bool:
    """Whether no column of the table would be cut off."""
    wanted = console.measure(table, options=console.options.update(max_width=1000)).maximum
    return wanted <= console.width


def widest(make: Callable[[T], Table], contents: Sequence[T], console: Console) -> Table | None:
    """The first table that fits, made of contents from the widest to the narrowest; None if none does."""
    first = bisect_left(contents, True, key=lambda content: fits(make(content), console))
    return make(contents[first]) if first < len(contents) else None


def metric_table(
    title: str,
    metrics: Mapping[str, float | None],
    intervals: Mapping[str, tuple[float | None, float | None]] | None = None,
) -> Table:
    """One line per metric, with its interval where there is one.

    Args:
        title: Header of the first column.
        metrics: Values by name.
        intervals: Bounds of the 95% interval by name.
    """
    intervals = intervals or {}
    bounds = {name: " to ".join(map(number, intervals[name])) for name in metrics if name in intervals}
    rows = [
        [name, number(value), bounds.get(name, "")][: 3 if intervals else 2]
        for name, value in metrics.items()
    ]
    return console_table([title, "", "95% interval"][: 3 if intervals else 2], rows)


def rank_table(per_rank: Mapping[str, Iterable[float | None]]) -> Table:
    """One line per rank, from 1.

    Args:
        per_rank: For each metric a value per rank. `sessions` are whole numbers.
    """
    columns = [
        [number(round(value) if name == "sessions" and value is not None else value) for value in values]
        for name, values in per_rank.items()
    ]
    rows = ([str(rank), *cells] for rank, cells in enumerate(zip(*columns, strict=True), start=1))
    return console_table(["rank", *per_rank], rows, text_columns=0)


def side_by_side(*tables: Table) -> Table:
    """Tables in one row."""
    row = Table.grid(padding=(0, 4))
    row.add_row(*tables)
    return row

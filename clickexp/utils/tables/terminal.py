"""Tables and numbers on a terminal: `console_table` prints those of the whole package."""

import math
import textwrap
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_T = TypeVar("_T")
_WIDTHS = {"epoch": 5, "seconds": 7, "best": 4}
MOST_ROWS = 30
"""Rows of a table of numbers by rank, or the like, on a terminal."""
_NUMBER_WIDTH = len("-0.12345")
_DECIMALS = 5
"""Of the numbers of an epoch: early stopping takes a smaller change for none, by default."""


def number(value: float | None, decimals: int = 4) -> str:
    """A number with so many decimals; counts whole; a dash for None."""
    return (
        "-"
        if value is None
        else f"{value:,}"
        if isinstance(value, int)
        else f"{value:.{decimals}f}"
    )


def count(value: float) -> str:
    """A count in three digits: 950, 12.3k, 2.00M; a dash for NaN and inf."""
    if not math.isfinite(value):
        return "-"
    mantissa, exponent = f"{value:.2e}".split("e")
    thousands, shift = divmod(max(int(exponent), 0), 3)
    if not thousands:
        return f"{value:.0f}"
    return f"{float(mantissa) * 10**shift:.{2 - shift}f}{'kMGT'[thousands - 1]}"


def folded(text: str, width: int) -> str:
    """Text in lines of at most `width` characters, all but the first indented; words, such as paths, stay whole."""
    lines = textwrap.wrap(
        text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


class EpochTable:
    """One line per epoch: the watched metric, others of the first record that the width holds, a star if best so far.

    Of a log-likelihood that is minus the loss only the loss is shown.

    Args:
        record: The first epoch's record.
        width: Characters per line.
        watched: The metric that is shown whatever the width.
    """

    def __init__(self, record: Mapping[str, Any], width: int, watched: str = "") -> None:
        loss = record.get("val/loss")
        repeats = watched != "val/ll" and loss is not None and record.get("val/ll") == -loss
        names = [name for name in record if "/" in name and not (repeats and name == "val/ll")]
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
        metrics = {name: number(record.get(name), _DECIMALS) for name in self.metrics}
        compiling = record.get("compile_seconds") or 0.0
        seconds = f"{record['seconds'] - compiling:.1f}" if "seconds" in record else "-"
        best = "*" if record.get("improved") else ""
        return self._line(
            {"epoch": str(record["epoch"]), **metrics, "seconds": seconds, "best": best}
        )

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
        table.add_column(
            Text(name), justify="left" if place < text_columns else "right", no_wrap=True
        )
    for cells in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def fits(table: Table, console: Console) -> bool:
    """Whether no column of the table would be cut off."""
    wanted = console.measure(table, options=console.options.update(max_width=1000)).maximum
    return wanted <= console.width


def widest(make: Callable[[_T], Table], contents: Sequence[_T], console: Console) -> Table | None:
    """The first table that fits, made of contents from the widest to the narrowest; None if none does."""
    first = bisect_left(contents, True, key=lambda content: fits(make(content), console))
    return make(contents[first]) if first < len(contents) else None


def rank_table(per_rank: Mapping[str, Iterable[float | None]]) -> Table:
    """One line per rank, from 1.

    Args:
        per_rank: For each metric a value per rank. `sessions` are whole numbers.
    """
    columns = [
        [
            number(round(value) if name == "sessions" and value is not None else value)
            for value in values
        ]
        for name, values in per_rank.items()
    ]
    rows = [[str(rank), *cells] for rank, cells in enumerate(zip(*columns, strict=True), start=1)]
    return first_ranks(["rank", *per_rank], rows, "in result.json")


def first_ranks(header: Sequence[str], rows: Sequence[Sequence[str]], where: str) -> Table:
    """A table of numbers by rank, of long lists the first `MOST_ROWS` with a line below.

    Args:
        header: Names of the columns.
        rows: Cells of each rank.
        where: Where all are, such as "in result.json".
    """
    table = console_table(header, rows[:MOST_ROWS], text_columns=0)
    if len(rows) > MOST_ROWS:
        table.caption, table.caption_justify = (
            f"the first {MOST_ROWS} of {len(rows):,} ranks; all are {where}",
            "left",
        )
    return table


def side_by_side(*tables: Table) -> Table:
    """Tables in one row."""
    row = Table.grid(padding=(0, 4))
    row.add_row(*tables)
    return row

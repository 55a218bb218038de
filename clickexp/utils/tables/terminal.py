"""Tables on a terminal: `console_table` prints those of the whole package."""

import textwrap
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from clickexp.utils.tables.table import Cell, Table

_T = TypeVar("_T")
MOST_ROWS = 30
"""Rows of a table of numbers by rank, or the like, on a terminal."""
_STYLES = ("", "bold", "underline")


def folded(text: str, width: int) -> str:
    """Text in lines of at most `width` characters, all but the first indented; words, such as paths, stay whole."""
    lines = textwrap.wrap(
        text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def console_table(
    header: Iterable[str], rows: Iterable[Iterable[RenderableType]] = (), *, text_columns: int = 1
) -> RichTable:
    """The one style of all tables on a terminal; `fits` says whether a console is wide enough.

    Args:
        header: Names of the columns.
        rows: Cells of each row; more can follow by `add_row` of the result. Strings are shown as they are, without
            rich's markup.
        text_columns: How many columns, from the left, hold text; those after them hold numbers and align right.
    """
    table = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        table.add_column(
            Text(name), justify="left" if place < text_columns else "right", no_wrap=True
        )
    for cells in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def terminal(
    table: Table, columns: int | None = None, *, deviations: bool = True, names: int | None = None
) -> RichTable:
    """Returns a table for a terminal; best in bold, second underlined.

    Args:
        table: The table.
        columns: How many, from the left; by default all.
        deviations: Whether uncertainties are shown.
        names: Characters of a line of text; by default all are in one.
    """

    def drawn(cell: str | Cell) -> Text:
        if isinstance(cell, Cell):
            deviation = f" {cell.deviation}" if cell.deviation and deviations else ""
            return Text.assemble((cell.text, _STYLES[cell.place]), cell.stars, deviation)
        if names is None:
            return Text(cell)
        lines = textwrap.wrap(cell, names, subsequent_indent="  ", break_on_hyphens=False)
        return Text("\n".join(lines))

    rows = [[drawn(cell) for cell in row[:columns]] for row in table.rows]
    text_columns = len(table.sides) - len(table.sides.lstrip("l"))
    return console_table(table.header[:columns], rows, text_columns=text_columns)


def fits(table: RichTable, console: Console) -> bool:
    """Whether no column of the table would be cut off."""
    wanted = console.measure(table, options=console.options.update(max_width=1000)).maximum
    return wanted <= console.width


def widest(
    make: Callable[[_T], RichTable], contents: Sequence[_T], console: Console
) -> RichTable | None:
    """The first table that fits, made of contents from the widest to the narrowest; None if none does."""
    first = bisect_left(contents, True, key=lambda content: fits(make(content), console))
    return make(contents[first]) if first < len(contents) else None


def first_ranks(header: Sequence[str], rows: Sequence[Sequence[str]], where: str) -> RichTable:
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


def side_by_side(*tables: RichTable) -> RichTable:
    """Tables in one row."""
    row = RichTable.grid(padding=(0, 4))
    row.add_row(*tables)
    return row

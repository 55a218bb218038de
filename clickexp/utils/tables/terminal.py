"""Tables on a terminal: `console_table` prints those of the whole package."""

import textwrap
from collections.abc import Iterable
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from clickexp.utils.escape import printable
from clickexp.utils.tables.table import Cell, Table

MOST_ROWS = 30
"""Rows of a table of numbers by rank, or the like, on a terminal."""
_STYLES = ("", "bold", "underline")
_NAME_WIDTH = 36
"""Characters of a line of a name, in a table that would be too wide."""


def is_terminal(console: Console) -> bool:
    """Whether a console can be drawn on; rich alone would say so of a pipe where FORCE_COLOR is set."""
    return console.is_interactive and console.file.isatty()


def folded(text: str, console: Console) -> str:
    """Text, on a terminal in lines that fit, all but the first indented; words, such as paths, stay whole."""
    if not is_terminal(console):
        return text
    lines = textwrap.wrap(
        text,
        console.width,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
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
            Text(printable(name)), justify="left" if place < text_columns else "right", no_wrap=True
        )
    for cells in rows:
        table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells))
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
            return Text.assemble((printable(cell.text), _STYLES[cell.place]), cell.stars, deviation)
        if names is None:
            return Text(printable(cell))
        lines = textwrap.wrap(
            printable(cell), names, subsequent_indent="  ", break_on_hyphens=False
        )
        return Text("\n".join(lines))

    rows = [[drawn(cell) for cell in row[:columns]] for row in table.rows]
    text_columns = len(table.sides) - len(table.sides.lstrip("l"))
    shown = console_table(table.header[:columns], rows, text_columns=text_columns)
    shown.caption, shown.caption_justify = "\n".join(table.notes) or None, "left"
    return shown


def fits(table: RichTable, console: Console) -> bool:
    """Whether no column of the table would be cut off."""
    wanted = console.measure(table, options=console.options.update(max_width=1000)).maximum
    return wanted <= console.width


def fitting(
    table: Table, console: Console, least: int = 2, *, deviations: bool = False
) -> RichTable:
    """Returns a table as wide as the console is: of one that is wider long names have lines of their own.

    Where that is not enough, uncertainties are left out, and then columns from the right, with a note on these.

    Args:
        table: The table.
        console: Where it is shown.
        least: Columns that are shown in any case.
        deviations: Whether all uncertainties are shown, and names in one line, so that columns alone are left out.
    """
    every = len(table.header)
    fewer = range(every, least - 1, -1)
    if deviations:
        layouts = [(columns, True, None) for columns in fewer]
    else:
        layouts = [(every, True, None), (every, True, _NAME_WIDTH)]
        layouts += [(columns, False, _NAME_WIDTH) for columns in fewer]
    drawn = terminal(table)
    for columns, shows_deviations, names in layouts:
        noted = replace(table, notes=[*table.notes, *_note_on_columns(columns, every)])
        drawn = terminal(noted, columns, deviations=shows_deviations, names=names)
        if fits(drawn, console):
            break
    return drawn


def _note_on_columns(columns: int, every: int) -> list[str]:
    """Returns a line below the first of more columns, else none."""
    return [f"the first {columns} of {every} columns"] if columns < every else []


def first_ranks(table: Table, where: str) -> Table:
    """Returns a table of numbers by rank, of long lists the first `MOST_ROWS` with a note.

    Args:
        table: A row per rank.
        where: Where all are, such as "in result.json".
    """
    notes = note_on_ranks(len(table.rows), where)
    return replace(table, rows=table.rows[:MOST_ROWS], notes=notes)


def note_on_ranks(ranks: int, where: str) -> list[str]:
    """Returns a line below the first `MOST_ROWS` of more ranks, else none."""
    if ranks <= MOST_ROWS:
        return []
    return [f"the first {MOST_ROWS} of {ranks:,} ranks; all are {where}"]


def side_by_side(*tables: RichTable) -> RichTable:
    """Tables in one row."""
    row = RichTable.grid(padding=(0, 4))
    row.add_row(*tables)
    return row

"""Tables in LaTeX (booktabs) that fit a column or a page of `article`: width is estimated in Computer Modern."""

import re
from collections.abc import Sequence
from itertools import product

from clickexp.utils import escape
from clickexp.utils.tables.table import MISSING, Cell, ReportTable

_COLUMN, _PAGE = 200, 345
"""Points: the text of a column of `article` with twocolumn, and of a page without."""
_NAME = 110
"""Points of a first column at most, whose lines are broken."""
_SIZES = ((r"\small", 0.9, 4), (r"\footnotesize", 0.8, 3), (r"\footnotesize", 0.8, 2))
"""Command, scale of 10 points, and half the space between columns in points."""
_WIDTHS = (
    ("mwMW%@", 9.5),
    ("±=+<>-↑↓", 7.8),
    (".,:;!|'ijl", 2.9),
    (" ft()[]", 4.0),
    ("0123456789*", 5.0),
)
_CAPITAL, _LETTER = 7.8, 5.7
_BOLD, _SMALLER = 1.15, 0.875
"""Width of a bold number relative to others, and of an uncertainty below its number in the smallest type."""
_MARKS = ("{}", r"\mathbf{{{}}}", r"\underline{{{}}}")
_Row = Sequence[str | Cell]


def latex(table: ReportTable, label: str) -> str:
    """The table as a float or, if long, a longtable; best in bold, second underlined.

    It has the largest type in which it fits a column, or else a page; uncertainties are below their numbers where it
    does not fit otherwise. Columns beyond a page follow in a second tabular. Tables wider than a column are `table*`,
    which spans the page where there are two columns and is a table elsewhere.

    Args:
        table: The table.
        label: The name to refer to it.
    """
    notes = "".join(f" ({i}) {note}." for i, note in enumerate(table.notes, start=1))
    caption = re.sub(
        r"\*+", lambda stars: f"$^{{{stars[0]}}}$", escape.latex(table.caption + notes)
    )
    head = [rf"\caption{{{caption}}}", rf"\label{{{label}}}"]
    package = rf"% \usepackage{{booktabs{',longtable' if table.long else ''}}}"
    columns = range(len(table.header))
    if table.long:
        size, scale, gap = next(
            (each for each in _SIZES if _width(table, columns, each, False) <= _PAGE), _SIZES[-1]
        )
        header, rows = _line(table.header, columns, scale), _lines(table, columns, scale, False)
        parts = [
            "{" + size,
            rf"\setlength{{\tabcolsep}}{{{gap}pt}}",
            rf"\begin{{longtable}}{{{table.align}}}",
        ]
        parts += [head[0], head[1] + r" \\", r"\toprule", header, r"\midrule", r"\endhead", *rows]
        return "\n".join([package, *parts, r"\bottomrule", r"\end{longtable}}", ""])
    room, below, size = next(
        (
            (room, below, size)
            for room, below, size in product((_COLUMN, _PAGE), (False, True), _SIZES)
            if _width(table, columns, size, below) <= room
        ),
        (_PAGE, True, _SIZES[-1]),
    )
    blocks = _blocks(table, size, below)
    star = "*" if room == _PAGE else ""
    parts = [
        rf"\begin{{table{star}}}",
        r"\centering",
        *head,
        size[0],
        rf"\setlength{{\tabcolsep}}{{{size[2]}pt}}",
    ]
    for number, block in enumerate(blocks):
        align = "".join(table.align[place] for place in block)
        parts += [r"\par\medskip"] * bool(number) + [rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
        parts += [
            _line(table.header, block, size[1]),
            r"\midrule",
            *_lines(table, block, size[1], below),
        ]
        parts += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([package, *parts, rf"\end{{table{star}}}", ""])


def _blocks(table: ReportTable, size: tuple[str, float, int], below: bool) -> list[list[int]]:
    """Columns of each tabular: the first one, and as many others, evenly, as fit a page."""
    others = range(1, len(table.header))
    blocks = [[0, *others]]
    for count in range(2, len(others) + 1):
        if all(_width(table, block, size, below) <= _PAGE for block in blocks):
            break
        each = -(-len(others) // count)
        blocks = [[0, *others[start : start + each]] for start in range(0, len(others), each)]
    return blocks


def _lines(table: ReportTable, columns: Sequence[int], scale: float, below: bool) -> list[str]:
    """Lines of the rows; with `below`, uncertainties have lines after those of their numbers."""
    lines = []
    for row in table.rows:
        lines.append(_line(row, columns, scale, beside=not below))
        shown = [
            cell.deviation if isinstance(cell, Cell) else ""
            for cell in (row[place] for place in columns)
        ]
        if below and any(shown):
            small = [rf"{{\scriptsize$\pm {text}$}}" if text else "" for text in shown]
            lines.append(" & ".join(small) + r" \\")
    return lines


def _line(row: _Row, columns: Sequence[int], scale: float, beside: bool = True) -> str:
    return " & ".join(_cell(row[place], scale, place == 0, beside) for place in columns) + r" \\"


def _cell(cell: str | Cell, scale: float, first: bool, beside: bool) -> str:
    if isinstance(cell, str):
        text = escape.latex(cell)
        return (
            rf"\parbox[t]{{{_NAME}pt}}{{\raggedright {text}}}"
            if first and _points(cell) * scale > _NAME
            else text
        )
    if cell.text == MISSING:
        return "--"
    stars = f"^{{{cell.stars}}}" if cell.stars else ""
    deviation = rf" \pm {cell.deviation}" if cell.deviation and beside else ""
    return f"${_MARKS[cell.place].format(cell.text)}{stars}{deviation}$"


def _width(
    table: ReportTable, columns: Sequence[int], size: tuple[str, float, int], below: bool
) -> float:
    """Estimated width in points."""
    _, scale, gap = size
    total = 0.0
    for place in columns:
        cells = [table.header[place], *(row[place] for row in table.rows)]
        width = scale * max(_cell_points(cell, below) for cell in cells)
        total += (min(width, _NAME) if place == 0 else width) + 2 * gap
    return total


def _cell_points(cell: str | Cell, below: bool) -> float:
    if isinstance(cell, str):
        return _points(cell)
    width = _points(cell.text) * (_BOLD if cell.place == 1 else 1) + 5.4 * len(cell.stars)
    deviation = _points(f"±{cell.deviation}") if cell.deviation else 0
    return (
        max(width, deviation * _SMALLER + 1)
        if below
        else width + (deviation + 4.5 if deviation else 0)
    )


def _points(text: str) -> float:
    """Points of text at 10 points."""
    return sum(
        next(
            (width for signs, width in _WIDTHS if sign in signs),
            _CAPITAL if sign.isupper() else _LETTER,
        )
        for sign in text
    )

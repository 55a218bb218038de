r"""Tables in LaTeX (booktabs), which adjustbox makes as narrow as the line where they are wider."""

import re

from clickexp.utils import escape
from clickexp.utils.tables.numbers import MISSING
from clickexp.utils.tables.table import Cell, Row, Table

_MOST_COLUMNS = 5
"""Columns of a table that stands in one of two columns of a page; those of more span both."""
_LONGEST_NAME = 36
"""Letters of a line of the first column."""
_MARKS = ("{}", r"\mathbf{{{}}}", r"\underline{{{}}}")


def latex(table: Table, label: str) -> str:
    r"""Returns the table as a float or, if long, a longtable; best in bold, second underlined.

    The preamble needs the packages that the first line names. Tables of many columns are `table*`, which spans the page
    where there are two columns and is a table elsewhere.

    Args:
        table: The table.
        label: The name to refer to it.
    """
    notes = "".join(f" ({i}) {note}." for i, note in enumerate(table.notes, start=1))
    caption = escape.latex(table.caption + notes)
    caption = re.sub(r"\*+", lambda stars: f"$^{{{stars[0]}}}$", caption)
    named = rf"\caption{{{caption}}}\label{{{label}}}"
    body = [_line(table.header), r"\midrule", *map(_line, table.rows), r"\bottomrule"]
    if table.long:
        body.insert(2, r"\endhead")
        lines = [
            r"% \usepackage{booktabs,longtable}",
            r"{\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{{table.sides}}}",
            rf"{named} \\",
            r"\toprule",
            *body,
            r"\end{longtable}}",
        ]
        return "\n".join([*lines, ""])
    kind = "table*" if len(table.header) > _MOST_COLUMNS else "table"
    lines = [
        r"% \usepackage{booktabs,adjustbox}",
        rf"\begin{{{kind}}}",
        r"\centering",
        named,
        r"\begin{adjustbox}{max width=\linewidth}",
        rf"\begin{{tabular}}{{{table.sides}}}",
        r"\toprule",
        *body,
        r"\end{tabular}",
        r"\end{adjustbox}",
        rf"\end{{{kind}}}",
    ]
    return "\n".join([*lines, ""])


def _line(row: Row) -> str:
    first, *others = row
    name = _cell(first)
    if isinstance(first, str) and len(first) > _LONGEST_NAME:
        name = rf"\parbox[t]{{{_LONGEST_NAME / 2:g}em}}{{\raggedright {name}}}"
    return " & ".join([name, *map(_cell, others)]) + r" \\"


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escape.latex(cell)
    if cell.text == MISSING:
        return "--"
    stars = f"^{{{cell.stars}}}" if cell.stars else ""
    deviation = f" {cell.deviation}".replace("±", r"\pm") if cell.deviation else ""
    return f"${_MARKS[cell.place].format(cell.text)}{stars}{deviation}$"

"""Tables of numbers with their marks, and how they are written: Markdown for pages, LaTeX (booktabs) for papers."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clickexp.utils import escape

MISSING = "–"


@dataclass(frozen=True)
class Cell:
    """A number for a reader.

    Attributes:
        text: The number as shown, or MISSING.
        deviation: Its standard deviation as shown, if any.
        place: 1 for the best of its column, 2 for the second, else 0.
        stars: Its significance.
    """

    text: str
    deviation: str = ""
    place: int = 0
    stars: str = ""


@dataclass(frozen=True)
class ReportTable:
    """A table for a reader.

    Attributes:
        caption: Text below or above it.
        header: Names of the columns.
        rows: Cells of each row; text, or numbers with marks.
        align: For each column "l" (text) or "r" (numbers).
        title: Heading, if any.
        notes: Numbered notes, if any.
        long: Whether it may be longer than a page.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    align: str
    title: str = ""
    notes: Sequence[str] = ()
    long: bool = False


def markdown(table: ReportTable) -> str:
    """The table in GitHub-flavoured Markdown; best in bold, second underlined."""
    marks = ("{}", "**{}**", "<u>{}</u>")

    def cell_text(cell: str | Cell) -> str:
        if isinstance(cell, str):
            return escape.markdown(cell)
        deviation = f" ± {cell.deviation}" if cell.deviation else ""
        return marks[cell.place].format(cell.text) + cell.stars.replace("*", r"\*") + deviation

    rule = ["---:" if side == "r" else "---" for side in table.align]
    lines = [[*map(escape.markdown, table.header)], rule, *([*map(cell_text, row)] for row in table.rows)]
    blocks = [f"## {escape.markdown(table.title)}"] if table.title else []
    blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    blocks.append(escape.markdown(table.caption))
    if table.notes:
        blocks.append(
            "\n".join(f"{i}. {escape.markdown(note)}" for i, note in enumerate(table.notes, start=1))
        )
    return "\n\n".join(blocks) + "\n"


def latex(table: ReportTable, label: str) -> str:
    """The table with booktabs rules, as a float or, if long, a longtable; best in bold, second underlined."""
    marks = ("{}", r"\mathbf{{{}}}", r"\underline{{{}}}")

    def cell_text(cell: str | Cell) -> str:
        if isinstance(cell, str):
            return escape.latex(cell)
        if cell.text == MISSING:
            return "--"
        stars = f"^{{{cell.stars}}}" if cell.stars else ""
        deviation = rf" \pm {cell.deviation}" if cell.deviation else ""
        return f"${marks[cell.place].format(cell.text)}{stars}{deviation}$"

    def line(cells: Sequence[str | Cell], write: Callable[..., str] = cell_text) -> str:
        return " & ".join(map(write, cells)) + r" \\"

    notes = "".join(f" ({i}) {note}." for i, note in enumerate(table.notes, start=1))
    caption = re.sub(r"\*+", lambda stars: f"$^{{{stars[0]}}}$", escape.latex(table.caption + notes))
    head = [rf"\caption{{{caption}}}", rf"\label{{{label}}}"]
    header, rows = line(table.header, escape.latex), list(map(line, table.rows))
    if table.long:
        parts = [rf"\begin{{longtable}}{{{table.align}}}", *head[:1], head[1] + r" \\", r"\toprule", header]
        parts += [r"\midrule", r"\endhead", *rows, r"\bottomrule", r"\end{longtable}"]
    else:
        parts = [r"\begin{table}", r"\centering", *head, rf"\begin{{tabular}}{{{table.align}}}", r"\toprule"]
        parts += [header, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([rf"% \usepackage{{booktabs{',longtable' if table.long else ''}}}", *parts, ""])


def fixed(value: float) -> str:
    """A number with four decimals; MISSING for nan."""
    return f"{value:.4f}" if math.isfinite(value) else MISSING


def standing(texts: Sequence[str], direction: int) -> list[int]:
    """1 for the best of the numbers as shown, 2 for the second, else 0; all 0 where there is nothing to choose."""
    shown = sorted({float(text) for text in texts if text != MISSING}, reverse=direction > 0)
    if not direction or len(shown) < 2:
        return [0] * len(texts)
    places = {shown[0]: 1, shown[1]: 2}
    return [0 if text == MISSING else places.get(float(text), 0) for text in texts]

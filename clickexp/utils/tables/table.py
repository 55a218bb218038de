"""Tables of numbers with their marks, rounded to their uncertainty, and as Markdown; `latex` writes them for papers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clickexp.utils import escape

MISSING = "–"
_DECIMALS = 4
"""Decimals of numbers without an uncertainty."""
_MOST_DECIMALS = 6
"""An uncertainty that is 0 to so many decimals is not shown."""


@dataclass(frozen=True)
class Cell:
    """A number for a reader.

    Attributes:
        text: The number as shown, or MISSING.
        deviation: Its uncertainty as shown, if any.
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
    lines = [
        [*map(escape.markdown, table.header)],
        rule,
        *([*map(cell_text, row)] for row in table.rows),
    ]
    blocks = [f"## {escape.markdown(table.title)}"] if table.title else []
    blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    blocks.append(escape.markdown(table.caption))
    if table.notes:
        blocks.append(
            "\n".join(
                f"{i}. {escape.markdown(note)}" for i, note in enumerate(table.notes, start=1)
            )
        )
    return "\n\n".join(blocks) + "\n"


def _decimals(uncertainty: float) -> int | None:
    """Decimals of a number with this uncertainty: those of its first digit, or of its second after a 1.

    Returns:
        None where the uncertainty is unknown or 0 to six decimals.
    """
    if not math.isfinite(uncertainty) or uncertainty < 0.5 * 10**-_MOST_DECIMALS:
        return None
    digit, exponent = f"{uncertainty:.1e}".split("e")
    return min(max((1 if digit[0] == "1" else 0) - int(exponent), 0), _MOST_DECIMALS)


def rounded(
    values: Sequence[float], uncertainties: Sequence[float], sign: str = "", more: int = 0
) -> list[tuple[str, str]]:
    """Text of each number of a column and of its uncertainty, with the decimals that the uncertainty leaves.

    Args:
        values: The numbers; nan becomes MISSING.
        uncertainties: One for each; numbers without one have the most decimals of the column, or four, or their first
            digit where these decimals are zeros.
        sign: "+" shows the sign of all.
        more: Decimals beyond those, where the uncertainty is not that of differences between rows.
    """
    places = [
        None if (known := _decimals(each)) is None else known + more for each in uncertainties
    ]
    others = max((each for each in places if each is not None), default=_DECIMALS)

    def text(value: float, known: int | None) -> str:
        shown = f"{value:{sign}.{others if known is None else known}f}"
        if known is None and value and not float(shown):
            return f"{value:{sign}.{-math.floor(math.log10(abs(value)))}f}"
        return shown

    return [
        (text(value, known), "" if known is None else f"{each:.{known}f}")
        if math.isfinite(value)
        else (MISSING, "")
        for value, each, known in zip(values, uncertainties, places, strict=True)
    ]


def fixed(value: float) -> str:
    """A number with four decimals; MISSING for nan."""
    return f"{value:.{_DECIMALS}f}" if math.isfinite(value) else MISSING


def standing(texts: Sequence[str], direction: int) -> list[int]:
    """1 for the best of the numbers as shown, 2 for the second, else 0; all 0 where there is nothing to choose."""
    shown = sorted({float(text) for text in texts if text != MISSING}, reverse=direction > 0)
    if not direction or len(shown) < 2:
        return [0] * len(texts)
    places = {shown[0]: 1, shown[1]: 2}
    return [0 if text == MISSING else places.get(float(text), 0) for text in texts]

"""A table for a reader, whatever it is drawn as: `terminal`, `html`, `markdown` and `latex` draw it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cell:
    """A number for a reader.

    Attributes:
        text: The number as shown, or MISSING.
        deviation: Its uncertainty as shown, if any, with a sign: "± 0.002".
        place: 1 for the best of its column, 2 for the second, else 0.
        stars: Its significance.
    """

    text: str
    deviation: str = ""
    place: int = 0
    stars: str = ""


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """A table for a reader.

    Attributes:
        header: Names of the columns.
        rows: Cells of each row; text, or numbers with marks.
        caption: Text below or above it.
        align: For each column "l" (text) or "r" (numbers); by default the first column has the names of the rows.
        title: Heading, if any.
        notes: Numbered notes, if any.
        long: Whether it may be longer than a page.
    """

    header: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""
    align: str = ""
    title: str = ""
    notes: Sequence[str] = ()
    long: bool = False

    def without_empty_columns(self, *others: str) -> "Table":
        """Returns the table without columns that are empty in every row, and without others."""
        kept = [
            at
            for at, name in enumerate(self.header)
            if any(row[at] for row in self.rows) and name not in others
        ]
        rows = [[row[at] for at in kept] for row in self.rows]
        return replace(self, header=[self.header[at] for at in kept], rows=rows)

    @property
    def sides(self) -> str:
        """The alignment of each column."""
        return self.align or "l" + "r" * (len(self.header) - 1)

"""Tables in GitHub-flavoured Markdown."""

from clickexp.utils import escape
from clickexp.utils.tables.table import Cell, Table

_MARKS = ("{}", "**{}**", "<u>{}</u>")


def markdown(table: Table) -> str:
    """Returns the table; best in bold, second underlined."""
    rule = ["---:" if side == "r" else "---" for side in table.sides]
    lines = [[*map(escape.markdown, table.header)], rule]
    lines += ([*map(_cell, row)] for row in table.rows)
    blocks = [f"## {escape.markdown(table.title)}"] if table.title else []
    blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    blocks.append(escape.markdown(table.caption))
    if table.notes:
        notes = enumerate(table.notes, start=1)
        blocks.append("\n".join(f"{i}. {escape.markdown(note)}" for i, note in notes))
    return "\n\n".join(blocks) + "\n"


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return escape.markdown(cell)
    deviation = f" {cell.deviation}" if cell.deviation else ""
    return _MARKS[cell.place].format(cell.text) + cell.stars.replace("*", r"\*") + deviation

"""Tables in HTML."""

from clickexp.utils.escape import html_text
from clickexp.utils.tables.table import Cell, Table

_MARKS = ("{}", "<b>{}</b>", "<u>{}</u>")


def html(table: Table) -> str:
    """Returns the table in a region that scrolls, named by its caption; the first column names the rows."""
    head = "".join(f'<th scope="col">{html_text(name)}</th>' for name in table.header)
    lines = []
    for first, *others in table.rows:
        cells = "".join(f"<td>{_cell(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{_cell(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html_text(table.caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return html_text(cell)
    deviation = f" {cell.deviation}" if cell.deviation else ""
    return _MARKS[cell.place].format(html_text(cell.text)) + cell.stars + deviation

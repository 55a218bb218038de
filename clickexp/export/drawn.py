"""The files of `clickexp-export` as figures and as JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from clickexp.export.export import (
    DOCUMENTS_TABLE,
    EXAMINATION_TABLE,
    SHARED_TABLE,
    export,
)
from clickexp.runs.run import SharedParameter
from clickexp.runs.store import FIGURES
from clickexp.utils.files import check_inside
from clickexp.utils.paths import display_path
from clickexp.utils.tables.numbers import number
from clickexp.utils.tables.terminal import MOST_ROWS, console_table

_SHARED_COLUMNS = {
    "parameter": ("parameter",),
    "position": ("position",),
    "last click": ("last_click",),
    "value": ("value",),
    "95% interval": ("low", "high"),
    "relative": ("relative",),
    "its 95% interval": ("relative_low", "relative_high"),
}
"""Columns of the table of shared parameters, and what they show."""


def export_drawn(
    run: str | Path, output: str | Path | None = None, as_json: bool = False, **options: Any
) -> None:
    """Writes the tables of `export` and draws them into figures/ beside them.

    Prints the shared parameters, then the files; the last line is the path of the figures.

    Args:
        run: Its folder.
        output: Where to write, by default run/export.
        as_json: Print one JSON object with the files, examination and shared parameters instead.
        options: As `export` takes them.
    """
    folder = Path(output) if output is not None else Path(run) / "export"
    check_inside(folder / FIGURES, folder)
    written: list[Path] = []
    export(run, output, report=written.append if as_json else print, **options)

    # here, since what they import takes memory that the export needs
    from clickexp.export.figures import figures_of
    from clickexp.results.figures.log import write_figures

    examination, shared = (_table(folder / name) for name in (EXAMINATION_TABLE, SHARED_TABLE))
    figures = dict(figures_of(examination, folder / DOCUMENTS_TABLE))
    drawn = display_path(write_figures(figures, folder)) if figures else None
    rows = [] if shared is None else shared.to_dicts()
    if as_json:
        of_examination = None if examination is None else examination.to_dicts()
        content = {"files": list(map(str, written)), "examination": of_examination}
        content |= {"shared": rows, "figures": drawn}
        print(json.dumps(content, indent=2))  # noqa: T201  # the output of the command
        return
    if rows:
        _print_shared(rows)
    if drawn:
        print(f"figures: {drawn}")  # noqa: T201  # the output of the command


def _table(file: Path) -> pl.DataFrame | None:
    """Returns what an export has written; None where there is no such file."""
    return pl.read_csv(file, glob=False) if file.exists() else None


def _print_shared(rows: Sequence[Mapping[str, Any]]) -> None:
    console = Console(highlight=False, markup=False)
    console.print("", _shared_table(rows), "", sep="\n")
    if any(_is_open(row) for row in rows[:MOST_ROWS]):
        console.print("open: the log does not determine the number; its value follows the prior\n")
    if len(rows) > MOST_ROWS:
        console.print(f"the first {MOST_ROWS} of {len(rows)} rows of {SHARED_TABLE}\n")


def _shared_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Shared parameters with their intervals, by layout first; columns that none of them has are left out."""
    layout = {name: (name,) for name in rows[0] if name not in SharedParameter.model_fields}
    columns = {
        title: [_cell(row, *keys) for row in rows]
        for title, keys in {**layout, **_SHARED_COLUMNS}.items()
    }
    shown = {title: cells[:MOST_ROWS] for title, cells in columns.items() if any(cells)}
    return console_table(shown, zip(*shown.values(), strict=True))


def _cell(row: Mapping[str, Any], *keys: str) -> str:
    """Returns the value of a key, or an interval of two."""
    if _ends(row) in keys and _is_open(row):
        return "open"
    values = [row[key] for key in keys]
    if None in values:
        return ""
    return " to ".join(value if isinstance(value, str) else number(value) for value in values)


def _is_open(row: Mapping[str, Any]) -> bool:
    """Whether a number has no interval."""
    return row[_ends(row)] is None


def _ends(row: Mapping[str, Any]) -> str:
    """Returns the key of the lower bound: of the ratio where there is one, else of the probability."""
    return "low" if row["relative"] is None else "relative_low"

"""The files of `clickexp-export` as figures and as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from clickexp.export.export import (
    DOCUMENTS_TABLE,
    EXAMINATION_TABLE,
    SHARED_TABLE,
    export,
)
from clickexp.results.run_tables import OPEN, shared_table
from clickexp.runs.run import SharedParameter
from clickexp.runs.store import FIGURES
from clickexp.utils.files import check_inside
from clickexp.utils.paths import display_path
from clickexp.utils.tables.terminal import MOST_ROWS, fitting


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
    console, parameters = Console(highlight=False, markup=False), list(map(_parameter, rows))
    table = shared_table(parameters)
    shown = fitting(replace(table, rows=table.rows[:MOST_ROWS]), console)
    console.print("", shown, "", sep="\n")
    if any(parameter.is_open for parameter in parameters[:MOST_ROWS]):
        console.print(
            f"{OPEN}: the log does not determine the ratio; its value follows the prior\n"
        )
    if len(rows) > MOST_ROWS:
        console.print(f"the first {MOST_ROWS} of {len(rows)} rows of {SHARED_TABLE}\n")


def _parameter(row: Mapping[str, Any]) -> SharedParameter:
    """The parameter of a row, which has the columns of its layout beside its own."""
    fields = {name: value for name, value in row.items() if name in SharedParameter.model_fields}
    layout = {name: str(value) for name, value in row.items() if name not in fields}
    return SharedParameter(**fields, layout=layout)

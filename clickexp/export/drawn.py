"""What `clickexp-export` writes, drawn, and as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from clickexp.export.tables import SHARED_TABLE, export
from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.log import banded, histogram, write_figures
from clickexp.runs.store import FIGURES
from clickexp.utils.files import check_inside
from clickexp.utils.paths import display_path
from clickexp.utils.tables.numbers import number
from clickexp.utils.tables.terminal import MOST_ROWS, console_table

_BINS = 40
_PROBABILITIES = ("attraction", "satisfaction")
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
    console, written = Console(highlight=False, markup=False), []
    folder = Path(output) if output is not None else Path(run) / "export"
    check_inside(folder / FIGURES, folder)
    export(run, output, report=written.append if as_json else print, **options)
    table = folder / "examination.csv"
    examination = pl.read_csv(table) if table.exists() else None
    shared = (
        pl.read_csv(folder / SHARED_TABLE).to_dicts() if (folder / SHARED_TABLE).exists() else []
    )
    figures = dict(_figures(examination, folder / "documents.parquet"))
    drawn = display_path(write_figures(figures, folder)) if figures else None
    if as_json:
        rows = None if examination is None else examination.to_dicts()
        content = {
            "files": [str(file) for file in written],
            "examination": rows,
            "shared": shared,
            "figures": drawn,
        }
        print(json.dumps(content, indent=2))  # noqa: T201  # the output of the command
        return
    if shared:
        console.print("", _shared_table(shared), "", sep="\n")
        if any(_is_open(row) for row in shared[:MOST_ROWS]):
            console.print(
                "open: the log does not determine the ratio; its value follows the prior\n"
            )
        if len(shared) > MOST_ROWS:
            console.print(f"the first {MOST_ROWS} of {len(shared)} rows of {SHARED_TABLE}\n")
    if drawn:
        print(f"figures: {drawn}")  # noqa: T201  # the output of the command


def _shared_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Shared parameters with their intervals; columns that none of them has are left out."""
    columns = {
        title: [_cell(row, *keys) for row in rows] for title, keys in _SHARED_COLUMNS.items()
    }
    shown = {title: cells[:MOST_ROWS] for title, cells in columns.items() if any(cells)}
    return console_table(shown, zip(*shown.values(), strict=True))


def _cell(row: Mapping[str, Any], *keys: str) -> str:
    """Returns the value of a key, or an interval of two."""
    if "relative_low" in keys and _is_open(row):
        return "open"
    values = [row[key] for key in keys]
    if None in values:
        return ""
    return " to ".join(value if isinstance(value, str) else number(value) for value in values)


def _is_open(row: Mapping[str, Any]) -> bool:
    """Whether a ratio has a value and no interval."""
    return row["relative"] is not None and row["relative_low"] is None


def _figures(
    examination: pl.DataFrame | None, documents: Path
) -> Iterator[tuple[str, list[Panel]]]:
    """Yields propensities beside click rates, with intervals where the table has them, and attraction."""
    if examination is not None and len(examination):
        names = ("propensity", "propensity_low", "propensity_high", "click_rate")
        values, low, high, rates = (
            examination[name].cast(pl.Float64).to_numpy() if name in examination.columns else None
            for name in names
        )
        if values is not None and rates is not None and np.isfinite(values).any():
            others = {"click rate": rates / rates[0]} if rates[0] else {}
            yield (
                "examination",
                [banded({"propensity": values, **others}, low, high, "Relative to rank 1")],
            )
    file = pq.ParquetFile(documents)
    for name in _PROBABILITIES:
        if name in file.schema_arrow.names:
            counts = np.zeros(_BINS, np.int64)
            for batch in file.iter_batches(columns=[name]):
                counts += np.histogram(
                    batch.column(0).to_numpy(zero_copy_only=False), _BINS, (0, 1)
                )[0]
            yield name, [histogram(counts, name.capitalize(), "documents")]

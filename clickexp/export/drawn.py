"""What `clickexp-export` writes, drawn, and as JSON."""

import contextlib
import io
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
    console, printed = Console(highlight=False, markup=False), io.StringIO()
    folder = Path(output) if output is not None else Path(run) / "export"
    check_inside(folder / FIGURES, folder)
    with contextlib.redirect_stdout(printed) if as_json else contextlib.nullcontext():
        export(run, output, **options)
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
            "files": printed.getvalue().splitlines(),
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

    def interval(row: Mapping[str, Any], low: str, high: str) -> str:
        if low == "relative_low" and _is_open(row):
            return "open"
        return (
            ""
            if row[low] is None or row[high] is None
            else f"{number(row[low])} to {number(row[high])}"
        )

    def cell(value: Any) -> str:
        return "" if value is None else number(value)

    columns = {
        "parameter": [row["parameter"] for row in rows],
        "position": [cell(row["position"]) for row in rows],
        "last click": [cell(row["last_click"]) for row in rows],
        "value": [cell(row["value"]) for row in rows],
        "95% interval": [interval(row, "low", "high") for row in rows],
        "relative": [cell(row["relative"]) for row in rows],
        "its 95% interval": [interval(row, "relative_low", "relative_high") for row in rows],
    }
    shown = {name: cells[:MOST_ROWS] for name, cells in columns.items() if any(cells)}
    return console_table(shown, zip(*shown.values(), strict=True))


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

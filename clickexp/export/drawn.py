"""The files of `clickexp-export` as figures and as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from clickexp.export.export import (
    DOCUMENTS_TABLE,
    EXAMINATION_TABLE,
    SHARED_TABLE,
    export,
)
from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.log import banded, histogram, write_figures
from clickexp.results.figures.panels import Bars, layouts
from clickexp.runs.run import SharedParameter
from clickexp.runs.store import FIGURES
from clickexp.utils.files import check_inside
from clickexp.utils.paths import display_path
from clickexp.utils.tables.numbers import number
from clickexp.utils.tables.terminal import MOST_ROWS, console_table
from clickexp.utils.text import layout_name

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
    folder = Path(output) if output is not None else Path(run) / "export"
    check_inside(folder / FIGURES, folder)
    written: list[Path] = []
    export(run, output, report=written.append if as_json else print, **options)
    examination, shared = (_table(folder / name) for name in (EXAMINATION_TABLE, SHARED_TABLE))
    figures = dict(_figures(examination, folder / DOCUMENTS_TABLE))
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
        console.print("open: the log does not determine the ratio; its value follows the prior\n")
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
    if "relative_low" in keys and _is_open(row):
        return "open"
    values = [row[key] for key in keys]
    if None in values:
        return ""
    return " to ".join(value if isinstance(value, str) else number(value) for value in values)


def _is_open(row: Mapping[str, Any]) -> bool:
    """Whether a ratio has a value and no interval."""
    return row["relative"] is not None and row["relative_low"] is None


def _by_rank(examination: pl.DataFrame, name: str) -> np.ndarray | None:
    """Returns a column by rank from 1, nan at ranks that the log does not show; None where there is no such column."""
    if name not in examination.columns:
        return None
    ranks = examination["rank"].to_numpy()
    values = np.full(ranks.max(), np.nan)
    values[ranks - 1] = examination[name].cast(pl.Float64).to_numpy()
    return values


def _by_layout(examination: pl.DataFrame, layout: Sequence[str]) -> dict[str, Bars]:
    """Returns ranks and propensities with their bounds of each layout, the one with the most impressions first."""
    names = ("propensity", "propensity_low", "propensity_high")
    curves: dict[str, tuple[int, Bars]] = {}
    for values, part in examination.group_by(layout, maintain_order=True):
        middle, low, high = (
            np.asarray(part[name].cast(pl.Float64).to_numpy())
            if name in part.columns
            else np.full(len(part), np.nan)
            for name in names
        )
        words = layout_name(dict(zip(layout, map(str, values), strict=True)))
        curves[words] = int(part["sessions"].sum()), (part["rank"].to_list(), middle, low, high)
    ordered = sorted(curves.items(), key=lambda item: -item[1][0])
    return {name: bars for name, (_, bars) in ordered}


def _figures(
    examination: pl.DataFrame | None, documents: Path
) -> Iterator[tuple[str, list[Panel]]]:
    """Yields propensities beside click rates, with intervals where the table has them, and attraction."""
    if examination is not None and len(examination) and (panel := _propensities(examination)):
        yield "examination", [panel]
    file = pq.ParquetFile(documents)
    for name in _PROBABILITIES:
        if name in file.schema_arrow.names:
            counts = np.zeros(_BINS, np.int64)
            for batch in file.iter_batches(columns=[name]):
                counts += np.histogram(batch.column(0), _BINS, (0, 1))[0]
            yield name, [histogram(counts, name.capitalize(), "documents")]


def _propensities(examination: pl.DataFrame) -> Panel | None:
    """Returns propensities of layouts, or of one curve beside click rates; None where there are none."""
    layout = examination.columns[: examination.columns.index("rank")]
    if layout:
        return partial(layouts, _by_layout(examination, layout))
    names = ("propensity", "propensity_low", "propensity_high", "click_rate")
    values, low, high, rates = (_by_rank(examination, name) for name in names)
    if values is None or rates is None or not np.isfinite(values).any():
        return None
    first = rates[examination["rank"][0] - 1]
    curves = {"propensity": values} | ({"click rate": rates / first} if first else {})
    return banded(curves, low, high, "Relative to rank 1")

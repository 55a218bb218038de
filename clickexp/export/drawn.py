"""What `clickexp-export` writes, drawn, and as JSON."""

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from clickexp.export.tables import export
from clickexp.report.figures import Panel
from clickexp.report.tables import banded, histogram, write_figures
from clickexp.utils.paths import display_path

_BINS = 40
_PROBABILITIES = ("attraction", "satisfaction")


def export_drawn(run: str | Path, output: str | Path | None = None, as_json: bool = False, **options: Any) -> None:
    """Writes the tables of `export` and draws them into figures/ beside them; the last line printed is its path.

    Args:
        run: Its folder.
        output: Where to write, by default run/export.
        as_json: Print one JSON object with the files and examination instead of their names.
        options: As `export` takes them.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed) if as_json else contextlib.nullcontext():
        export(run, output, **options)
    folder = Path(output) if output is not None else Path(run) / "export"
    table = folder / "examination.csv"
    examination = pl.read_csv(table) if table.exists() else None
    figures = dict(_figures(examination, folder / "documents.parquet"))
    drawn = display_path(write_figures(figures, folder)) if figures else None
    if as_json:
        rows = None if examination is None else examination.to_dicts()
        content = {"files": printed.getvalue().splitlines(), "examination": rows, "figures": drawn}
        print(json.dumps(content, indent=2))  # noqa: T201  # the output of the command
    elif drawn:
        print(f"figures: {drawn}")  # noqa: T201  # the output of the command


def _figures(examination: pl.DataFrame | None, documents: Path) -> Iterator[tuple[str, list[Panel]]]:
    """Yields propensities beside click rates, with intervals where the table has them, and attraction."""
    if examination is not None and len(examination):
        names = ("propensity", "propensity_low", "propensity_high", "click_rate")
        values, low, high, rates = (
            examination[name].cast(pl.Float64).to_numpy() if name in examination.columns else None for name in names
        )
        if values is not None and rates is not None:
            others = {"click rate": rates / rates[0]} if rates[0] else {}
            yield "examination", [banded({"propensity": values, **others}, low, high, "Relative to rank 1")]
    file = pq.ParquetFile(documents)
    for name in _PROBABILITIES:
        if name in file.schema_arrow.names:
            counts = np.zeros(_BINS, np.int64)
            for batch in file.iter_batches(columns=[name]):
                counts += np.histogram(batch.column(0).to_numpy(zero_copy_only=False), _BINS, (0, 1))[0]
            yield name, [histogram(counts, name.capitalize(), "documents")]

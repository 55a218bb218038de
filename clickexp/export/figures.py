"""Figures of what an export has written: propensities beside click rates, and distributions over documents."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.log import banded, histogram
from clickexp.results.figures.panels import Bars, layouts
from clickexp.results.figures.run import by_layout
from clickexp.runs.run import RelativeExamination

_BINS = 40
_PROBABILITIES = ("attraction", "satisfaction")


def figures_of(
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
    shown = pl.col("impressions").sum().over(layout)
    rows = examination.sort(shown, descending=True, maintain_order=True).to_dicts()
    low, high = "propensity_low", "propensity_high"
    points = ((row["rank"], row["propensity"], row.get(low), row.get(high)) for row in rows)
    of_rows = [{name: str(row[name]) for name in layout} for row in rows]
    return by_layout(RelativeExamination.known(points, of_rows))


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

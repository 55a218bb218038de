"""The tables that the console prints."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

WIDTHS = {"epoch": 5, "best": 4}
NUMBER_WIDTH = len("-0.1234")


def number(value: float | None) -> str:
    """Four decimals; counts whole; a dash for None."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def count(value: float) -> str:
    """Three figures: 950, 12.3k, 2.00M; a dash for NaN and inf."""
    if not math.isfinite(value):
        return "-"
    mantissa, exponent = f"{value:.2e}".split("e")
    thousands, shift = divmod(max(int(exponent), 0), 3)
    if not thousands:
        return f"{value:.0f}"
    return f"{float(mantissa) * 10**shift:.{2 - shift}f}{'kMGT'[thousands - 1]}"


class EpochTable:
    """One line an epoch: the first record's metrics that the width holds, and a star if best so far."""

    def __init__(self, record: Mapping[str, Any], width: int) -> None:
        self.metrics: list[str] = []
        for name in (name for name in record if "/" in name):
            self.metrics.append(name)
            if len(self.header()) > width:
                self.metrics.pop()

    def header(self) -> str:
        """The names of the columns."""
        return self._line({name: name for name in ("epoch", *self.metrics, "seconds", "best")})

    def row(self, record: Mapping[str, Any]) -> str:
        """The numbers of one epoch; its seconds without compilation."""
        metrics = {name: number(record.get(name)) for name in self.metrics}
        compiling = record.get("compile_seconds") or 0.0
        seconds = f"{record['seconds'] - compiling:.1f}" if "seconds" in record else "-"
        best = "*" if record.get("improved") else ""
        return self._line({"epoch": str(record["epoch"]), **metrics, "seconds": seconds, "best": best})

    @staticmethod
    def _line(cells: Mapping[str, str]) -> str:
        widths = {name: WIDTHS.get(name, max(len(name), NUMBER_WIDTH)) for name in cells}
        return "  ".join(f"{text:>{widths[name]}}" for name, text in cells.items()).rstrip()


def metric_table(
    title: str,
    metrics: Mapping[str, float | None],
    intervals: Mapping[str, tuple[float | None, float | None]] | None = None,
) -> Table:
    """A line a metric, with its interval where there is one."""
    table = _table([title, "", "95% interval"] if intervals else [title, ""])
    table.columns[0].justify = "left"
    for name, value in metrics.items():
        bounds = intervals.get(name) if intervals else None
        table.add_row(
            name, number(value), *([f"{number(bounds[0])} to {number(bounds[1])}"] if bounds else [])
        )
    return table


def rank_table(per_rank: Mapping[str, Iterable[float | None]]) -> Table:
    """A line a rank, from 1; `sessions` are whole numbers."""
    table = _table(["rank", *per_rank])
    formats = [_sessions if name == "sessions" else number for name in per_rank]
    for rank, values in enumerate(zip(*per_rank.values(), strict=True), start=1):
        table.add_row(str(rank), *(text(value) for text, value in zip(formats, values, strict=True)))
    return table


def side_by_side(*tables: Table) -> Table:
    """Tables in one row."""
    row = Table.grid(padding=(0, 4))
    row.add_row(*tables)
    return row


def _sessions(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _table(names: Iterable[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table

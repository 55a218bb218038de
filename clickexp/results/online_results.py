"""Comparisons of rankers by users: found beside runs, and as a table."""

import math
from collections.abc import Iterable
from pathlib import Path

from clickexp.errors import UserError
from clickexp.results.loading import Skipped
from clickexp.runs.online import OnlineComparison
from clickexp.runs.run import Run
from clickexp.runs.store import ONLINE, ONLINE_FILE
from clickexp.utils.statistics.sequential import Estimate
from clickexp.utils.tables.numbers import DECIMALS, MISSING, number, p_value
from clickexp.utils.tables.table import Table


def online_results(runs: Iterable[Run]) -> tuple[list[OnlineComparison], list[Skipped]]:
    """Reads the comparisons by users in the folders of runs.

    Args:
        runs: The runs; a comparison lies in the folder of its second one.

    Returns:
        The comparisons, and files that are none.
    """
    results, skipped = [], []
    for run in runs:
        for file in sorted((run.folder / ONLINE).glob(f"*/{ONLINE_FILE}")):
            try:
                results.append(OnlineComparison.read(Path(file).parent))
            except UserError as error:
                skipped.append(Skipped(Path(file), str(error)))
    return results, skipped


def online_table(comparison: OnlineComparison) -> Table:
    """Returns the tests of all sessions, a row per metric and one of interleaving, the first columns most important."""
    rows = []
    for name, metric in comparison.ab.metrics.items():
        rows.append([name, number(metric.a), number(metric.b), *_cells(metric.difference)])
    test = comparison.interleaving
    rows.append(
        ["interleaving", number(test.wins_a), number(test.wins_b), *_cells(test.preference)]
    )
    percent = f"{100 * (1 - comparison.alpha):g}%"
    header = ["", "A", "B", "B - A", f"{percent} interval", "p", f"{percent} at all looks"]
    return Table([*header, "needs", "detectable"], rows)


def _cells(estimate: Estimate) -> list[str]:
    return [
        _signed(estimate.value),
        _bounds(estimate.low, estimate.high),
        p_value(estimate.p_value),
        _bounds(estimate.anytime_low, estimate.anytime_high),
        number(estimate.units_needed),
        number(estimate.minimum_detectable_effect),
    ]


def _bounds(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return f"{_signed(low)} to {_signed(high)}"


def _signed(value: float) -> str:
    return f"{value:+.{DECIMALS}f}"

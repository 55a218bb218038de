"""Figures for a paper: one set per test set."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from clickexp.results.colors import COLORS
from clickexp.results.comparison import Comparison
from clickexp.results.figures.drawing import Panel, draw
from clickexp.results.figures.panels import calibration, cost, forest, learning, per_rank
from clickexp.results.metric_names import PER_RANK, short
from clickexp.runs.run import VALIDATION
from clickexp.utils.escape import figure_text
from clickexp.utils.statistics.means import SIGNIFICANT

_MOST_METRICS = 3
"""Panels of the differences."""


def figures(comparison: Comparison, label: str = "") -> dict[str, bytes]:
    """Draws the best groups, as many as there are colours.

    Args:
        comparison: The groups.
        label: A slug for the names.

    Returns:
        Content of each file by its name.
    """
    return draw(_panels(comparison), label)


def _panels(comparison: Comparison) -> Iterator[tuple[str, Sequence[Panel]]]:
    """Name and panels of each figure that the results have numbers for."""
    groups = comparison.groups[: len(COLORS)]

    def has(metric: str) -> bool:
        return any(group.per_rank(metric) is not None for group in groups)

    baseline, several = comparison.baseline, len(comparison.groups) > 1
    if several:
        yield "differences", list(_forests(comparison))
    if ranked := [metric for metric in PER_RANK if has(metric)]:
        if several:
            yield (
                "per_rank",
                [partial(per_rank, groups, metric, baseline=baseline) for metric in ranked],
            )
        yield "per_rank_values", [partial(per_rank, groups, metric) for metric in ranked]
    if has("examination"):
        yield "examination", [partial(per_rank, groups, "examination")]
    first = next(
        (m for m in comparison.metrics if not m.startswith(VALIDATION)), comparison.leading[0]
    )
    recorded = {name for run in comparison.runs for epoch in run.epochs for name in epoch}
    learned = f"val/{first}" if f"val/{first}" in recorded else "val/loss"
    if learned in recorded:
        yield (
            "learning",
            [partial(learning, groups, learned, over) for over in ("epoch", "seconds")],
        )
    costs = {
        "seconds": [group.seconds for group in groups],
        "compile_seconds": [group.compile_seconds for group in groups],
        "parameters": np.array([group.runs[0].parameters for group in groups], np.float64),
    }
    plotted = {name: values for name, values in costs.items() if np.isfinite(values).any()}
    if plotted:
        yield (
            "cost",
            [partial(cost, groups, first, name, values) for name, values in plotted.items()],
        )
    if any(group.reliability() for group in groups):
        yield "calibration", [partial(calibration, groups)]


def _forests(comparison: Comparison) -> Iterator[Panel]:
    """A panel per leading metric: differences to the baseline of the best groups; open marks are not significant."""
    baseline = comparison.baseline
    shown = list(enumerate(comparison.groups[: len(COLORS)]))
    others = [(i, group) for i, group in shown if group is not baseline]
    for place, metric in enumerate(comparison.leading[:_MOST_METRICS]):
        differences = [
            (group.name, i, *comparison.difference(baseline, group, metric)) for i, group in others
        ]
        rows = [
            (name, i, value, half, not p >= SIGNIFICANT) for name, i, value, half, p in differences
        ]
        yield partial(
            forest, rows, figure_text(f"{short(metric)} minus {baseline.model}"), place == 0
        )

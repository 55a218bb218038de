"""Figures for a paper: one set per test set."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from clickexp.results.colors import COLORS
from clickexp.results.comparison import Comparison
from clickexp.results.figures.drawing import Panel, draw
from clickexp.results.figures.fonts import figure_text
from clickexp.results.figures.panels import calibration, cost, forest, layout, learning, per_rank
from clickexp.results.groups import Group
from clickexp.results.layouts import layout_curves
from clickexp.results.metric_names import PER_RANK, short
from clickexp.runs.run import VALIDATION
from clickexp.utils.tables.numbers import SIGNIFICANT

_MOST_METRICS = 3
"""Panels of the differences."""
_MOST_LAYOUTS = 3
"""Panels of examination."""


def figures(comparison: Comparison, label: str = "") -> dict[str, bytes]:
    """Draws the best groups, as many as there are colours.

    Args:
        comparison: The groups.
        label: A slug for the names.

    Returns:
        Content of each file by its name.
    """
    return draw(_panels(comparison).items(), label)


def _panels(comparison: Comparison) -> dict[str, Sequence[Panel]]:
    """Panels of each figure that the results have numbers for."""
    groups = comparison.groups[: len(COLORS)]
    figures: dict[str, Sequence[Panel]] = {}
    if len(comparison.groups) > 1:
        figures["differences"] = list(_forests(comparison))
        figures["per_rank"] = _ranked(groups, PER_RANK, comparison.baseline)
    figures["per_rank_values"] = _ranked(groups, PER_RANK)
    figures["examination"] = _examination(groups)
    comparable = [metric for metric in comparison.metrics if comparison.is_comparable(metric)]
    tested = [metric for metric in comparable if not metric.startswith(VALIDATION)]
    if first := next(iter(tested or comparable), None):
        figures["learning"] = _learning(comparison, groups, first)
        figures["cost"] = _costs(groups, first)
    if any(group.reliability() for group in groups):
        figures["calibration"] = [partial(calibration, groups)]
    return {name: panels for name, panels in figures.items() if panels}


def _ranked(
    groups: Sequence[Group], metrics: Iterable[str], baseline: Group | None = None
) -> list[Panel]:
    """A panel for each of the metrics that any of the groups, other than the baseline, has by rank."""
    runs = [run for group in groups if group is not baseline for run in group.runs]
    measured = [metric for metric in metrics if any(run.per_rank.get(metric) for run in runs)]
    if baseline is not None:
        measured = [metric for metric in measured if baseline.per_rank(metric) is not None]
    return [partial(per_rank, groups, metric, baseline=baseline) for metric in measured]


def _examination(groups: Sequence[Group]) -> list[Panel]:
    """Means over the test sessions of groups without layouts, and a panel for each of the first layouts."""
    of_layouts = layout_curves(groups)
    others = [group for group in groups if group not in of_layouts]
    names = dict.fromkeys(name for by_layout in of_layouts.values() for name in by_layout)
    means = _ranked(groups if others else [], ["examination"])
    return means + [partial(layout, groups, of_layouts, name) for name in [*names][:_MOST_LAYOUTS]]


def _learning(comparison: Comparison, groups: Sequence[Group], metric: str) -> list[Panel]:
    """The validation by epoch and by seconds, of the loss where that of the metric was not recorded."""
    recorded = {name for run in comparison.runs for epoch in run.epochs for name in epoch}
    for name in (f"{VALIDATION}{metric}", f"{VALIDATION}loss"):
        if name in recorded and comparison.is_comparable(name):
            return [partial(learning, groups, name, over) for over in ("epoch", "seconds")]
    return []


def _costs(groups: Sequence[Group], metric: str) -> list[Panel]:
    """A panel per cost that is known of any of the groups."""
    costs = {
        "seconds": [group.seconds for group in groups],
        "compile_seconds": [group.compile_seconds for group in groups],
        "parameters": np.array([group.runs[0].parameters for group in groups], np.float64),
    }
    return [
        partial(cost, groups, metric, name, values)
        for name, values in costs.items()
        if np.isfinite(values).any()
    ]


def _forests(comparison: Comparison) -> Iterator[Panel]:
    """A panel per leading metric: differences to the baseline of the best groups; open marks are not significant."""
    baseline = comparison.baseline
    others = [
        (place, group)
        for place, group in enumerate(comparison.groups[: len(COLORS)])
        if group is not baseline
    ]
    leading = filter(comparison.is_comparable, comparison.leading[:_MOST_METRICS])
    for metric in leading:
        rows = []
        for place, group in others:
            value, half, p = comparison.difference(baseline, group, metric)
            rows.append((group.name, place, value, half, not p >= SIGNIFICANT))
        xlabel = figure_text(f"{short(metric)} minus {baseline.model}")
        yield partial(forest, rows, xlabel, metric == comparison.leading[0])

"""Figures for a paper: one set per test set."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from clickexp.compare.summary import Comparison
from clickexp.report.figures import COLORS, Panel, calibration, cost, draw, learning, per_rank
from clickexp.report.groups import or_nan
from clickexp.runs.objective import VALIDATION

_PER_RANK = ("ll", "ppl", "cond_ppl")


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

    if ranked := [metric for metric in _PER_RANK if has(metric)]:
        yield "per_rank", [partial(per_rank, groups, metric) for metric in ranked]
    if has("examination"):
        yield "examination", [partial(per_rank, groups, "examination")]
    first = next((m for m in comparison.metrics if not m.startswith(VALIDATION)), comparison.leading[0])
    recorded = {name for run in comparison.runs for epoch in run.epochs for name in epoch}
    learned = f"val/{first}" if f"val/{first}" in recorded else "val/loss"
    if learned in recorded:
        yield "learning", [partial(learning, groups, learned, over) for over in ("epoch", "seconds")]
    costs = {
        "seconds": [group.seconds for group in groups],
        "compile_seconds": [group.compile_seconds for group in groups],
        "parameters": [or_nan(group.runs[0].parameters) for group in groups],
    }
    known = {name: values for name, values in costs.items() if np.isfinite(values).any()}
    if known:
        yield "cost", [partial(cost, groups, first, name, values) for name, values in known.items()]
    if any(group.reliability() for group in groups):
        yield "calibration", [partial(calibration, groups)]

"""Figures of a chain of updates: over its runs, the oldest first."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from clickexp.results.chains import LIKELIHOOD, Line, lines
from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.panels import MARKERS, look
from clickexp.runs.run import Run


def chain_panels(runs: Sequence[Run]) -> list[Panel]:
    """Returns panels of what the runs have: test log-likelihood, examination and click rate."""
    return [partial(_panel, label, drawn) for label, drawn in lines(runs).items()]


def _panel(label: str, drawn: Sequence[Line], axes: Axes) -> None:
    """Draws lines with their intervals, and their names at their ends."""
    if label != LIKELIHOOD:
        highest = np.nanmax([np.array(line.values, np.float64) for line in drawn])
        axes.set_ylim(0, 1.1 * highest)
    for i, line in enumerate(drawn):
        heights, color = np.array(line.values, np.float64), look(i)["color"]
        axes.plot(range(len(heights)), heights, marker=MARKERS[i], **look(i))
        finite = np.flatnonzero(np.isfinite(heights))
        if line.name and len(finite):
            end = finite[-1], heights[finite[-1]]
            axes.annotate(
                line.name, end, (6, 0), textcoords="offset points", va="center", color=color
            )
        if line.low:
            bounds = np.array([line.low, line.high], np.float64)
            axes.fill_between(range(len(heights)), *bounds, color=color, alpha=0.15, lw=0)
    axes.set_ylabel(label)
    axes.set_xlabel("Update")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))

"""Figures of a chain of updates: over its runs, the oldest first."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.optimize import isotonic_regression

from clickexp.results.chains import LIKELIHOOD, Line, lines
from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.panels import MARKERS, look
from clickexp.runs.run import Run

_LETTERS = 0.07
"""Height of a name, as a part of that of axes."""


def chain_panels(runs: Sequence[Run]) -> list[Panel]:
    """Returns panels of what the runs have: test log-likelihood, examination and click rate."""
    return [partial(_panel, label, drawn) for label, drawn in lines(runs).items()]


def _panel(label: str, drawn: Sequence[Line], axes: Axes) -> None:
    """Draws lines with their intervals, and their names beside the axes."""
    ends = []
    for i, line in enumerate(drawn):
        heights, color = np.array(line.values, np.float64), look(i)["color"]
        axes.plot(range(len(heights)), heights, marker=MARKERS[i], **look(i))
        finite = heights[np.isfinite(heights)]
        if line.name and len(finite):
            ends.append((finite[-1], line.name, color))
        if line.low:
            bounds = np.array([line.low, line.high], np.float64)
            axes.fill_between(range(len(heights)), *bounds, color=color, alpha=0.15, lw=0)
    if label != LIKELIHOOD:
        axes.set_ylim(0, 1.05 * axes.dataLim.y1)
    ends.sort()
    bottom, top = axes.get_ylim()
    heights = apart(np.array([end for end, *_ in ends]), _LETTERS * (top - bottom))
    for height, (_, name, color) in zip(heights, ends, strict=True):
        place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
        axes.annotate(name, (1, height), (3, 0), va="center", color=color, **place)
    axes.set_ylabel(label)
    axes.set_xlabel("Update")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def apart(heights: Float[np.ndarray, " names"], least: float) -> Float[np.ndarray, " names"]:
    """Returns heights that are so far apart, and else as near to these as can be; both ascend."""
    steps = least * np.arange(len(heights))
    return isotonic_regression(heights - steps).x + steps if len(heights) else heights

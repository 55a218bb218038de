"""Figures of a chain of updates: over its runs, the oldest first."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from clickexp.results.chains import LIKELIHOOD, Line, lines
from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.fonts import figure_text
from clickexp.results.figures.panels import MARKERS, look, marked, over_whole_numbers, wrapped
from clickexp.runs.run import Run


def chain_panels(runs: Sequence[Run]) -> list[Panel]:
    """Returns panels of what the runs have: test log-likelihood, examination, also of layouts, and click rate.

    The panels share a legend, so that lines of one name look alike.
    """
    by_label = lines(runs)
    names = dict.fromkeys(line.name for of_label in by_label.values() for line in of_label)
    places = {name: place for place, name in enumerate(names)}
    return [partial(_panel, label, of_label, places) for label, of_label in by_label.items()]


def _panel(label: str, drawn: Sequence[Line], places: Mapping[str, int], axes: Axes) -> None:
    """Draws lines with their intervals.

    Args:
        label: Of the axis.
        drawn: The lines.
        places: By the name of a line the place that chooses its look.
        axes: The panel.
    """
    for line in drawn:
        place = places[line.name] % len(MARKERS)
        runs, heights = range(len(line.values)), np.array(line.values, np.float64)
        # what begins so has no place in a legend
        marked(axes, place, line.name or "_", runs, heights)
        if line.low:
            bounds = np.array([line.low, line.high], np.float64)
            axes.fill_between(runs, *bounds, color=look(place)["color"], alpha=0.15, lw=0)
    if label != LIKELIHOOD:
        axes.set_ylim(0, 1.05 * axes.dataLim.y1)
    axes.set_ylabel(wrapped(figure_text(label)))
    over_whole_numbers(axes, "Update")

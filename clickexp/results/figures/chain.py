"""Figures of a chain of updates: over its runs, the oldest first."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from clickexp.results.chains import after_next, before_update, click_rate, examination_by_position
from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.panels import MARKERS, look
from clickexp.runs.run import Run

_MOST_POSITIONS = 3


def chain_panels(runs: Sequence[Run]) -> list[Panel]:
    """Returns panels of what the runs have: test log-likelihood, examination and click rate."""
    panels: list[Panel] = [partial(_likelihoods, runs)]
    if _positions(runs):
        panels.append(partial(_examination, runs))
    if any(click_rate(run) is not None for run in runs):
        panels.append(partial(_click_rates, runs))
    return panels


def _likelihoods(runs: Sequence[Run], axes: Axes) -> None:
    """Test log-likelihood on the log of each run, before and after its update, and after the next one."""
    series = {
        "after": [run.test.get("ll") for run in runs],
        "before": [before_update(run) for run in runs],
        "next": after_next(runs),
    }
    for i, (name, values) in enumerate(series.items()):
        _line(i, name, values, axes)
    _over_runs(runs, "Test log-likelihood", axes)


def _examination(runs: Sequence[Run], axes: Axes) -> None:
    """Examination relative to the first position, at some positions, with 95% intervals."""
    positions = _positions(runs)
    chosen = dict.fromkeys(
        positions[at] for at in np.linspace(0, len(positions) - 1, _MOST_POSITIONS).astype(int)
    )
    highest = max(point.relative for run in runs for point in run.propensity)
    axes.set_ylim(0, 1.1 * highest)
    curves = [examination_by_position(run) for run in runs]
    for i, position in enumerate(chosen):
        points = [curve.get(position) for curve in curves]
        values, low, high = (
            np.array([point and getattr(point, name) for point in points], np.float64)
            for name in ("relative", "relative_low", "relative_high")
        )
        _line(i, f"at {position}", values, axes)
        axes.fill_between(range(len(runs)), low, high, color=look(i)["color"], alpha=0.15, lw=0)
    _over_runs(runs, "Relative examination", axes)


def _positions(runs: Sequence[Run]) -> list[int]:
    """Positions but the first that runs have examination of, where it does not differ between layouts."""
    return sorted({position for run in runs for position in examination_by_position(run)} - {1})


def _click_rates(runs: Sequence[Run], axes: Axes) -> None:
    rates = [click_rate(run) for run in runs]
    _line(0, "", rates, axes)
    axes.set_ylim(0, 1.2 * max(rate or 0.0 for rate in rates))
    _over_runs(runs, "Click rate", axes)


def _line(i: int, name: str, values: Sequence[float | None] | np.ndarray, axes: Axes) -> None:
    heights = np.array(values, np.float64)
    axes.plot(range(len(heights)), heights, marker=MARKERS[i], **look(i))
    finite = np.flatnonzero(np.isfinite(heights))
    if name and len(finite):
        end, color = (finite[-1], heights[finite[-1]]), look(i)["color"]
        axes.annotate(name, end, (6, 0), textcoords="offset points", va="center", color=color)


def _over_runs(runs: Sequence[Run], label: str, axes: Axes) -> None:
    axes.set_ylabel(label)
    axes.set_xlabel("Update")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))

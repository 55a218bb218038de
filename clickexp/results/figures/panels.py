"""Panels of figures, of groups of runs."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from clickexp.results.colors import BLACK, COLORS
from clickexp.results.figures.drawing import outliers
from clickexp.results.figures.fonts import figure_text
from clickexp.results.groups import Group, over_runs
from clickexp.results.metric_names import axis, uncapitalised
from clickexp.runs.run import Run
from clickexp.utils.statistics.means import Spread

MARKERS = "osD^vP*X"
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1.5, 1, 1.5)))
_FEW_DECADES = 100.0
"""Ratio of costs below which a logarithmic axis has marks within decades."""
_MARGIN = 0.08
"""Of the height of a panel, above and below what it is scaled to."""
_NAME, _NAME_LINES, _DECADE = 24, 2, 10
"""Letters of a line and most lines of a name beside an axis; ratio of costs from which their axis is logarithmic."""
_FEW = 10
"""Documents from which a click rate means little."""


def look(i: int) -> dict[str, Any]:
    """The colour and the dashes of a group by its place."""
    return {"color": COLORS[i], "linestyle": _DASHES[i % len(_DASHES)]}


def marked(axes: Axes, place: int, label: str, x: Any, values: Any) -> None:
    """Draws a line with marks, in the look of its place among others."""
    axes.plot(x, values, label=label, marker=MARKERS[place], markersize=3, **look(place))


def over_whole_numbers(axes: Axes, label: str = "Rank") -> None:
    """Labels the first axis, and puts its marks at whole numbers."""
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def per_rank(
    groups: Sequence[Group], metric: str, axes: Axes, baseline: Group | None = None
) -> None:
    """Draws a metric, or its difference to a baseline, over ranks: means over runs with their bounds.

    Models without examination are left out of its curves where others have it.
    """
    spreads = [
        group.per_rank_difference(baseline, metric) if baseline else group.per_rank(metric)
        for group in groups
    ]
    draw = _banded
    if metric == "examination":
        draw, spreads = _barred, _of_models_with_examination(spreads)
        axes.set_ylim(0, 1.03)
    for place, (group, spread) in enumerate(zip(groups, spreads, strict=True)):
        if spread:
            draw(spread, place, axes, figure_text(group.name))
    ylabel = _lines(figure_text(axis(metric)))
    if baseline:
        ylabel = f"Difference in\n{uncapitalised(ylabel)}"
    axes.set_ylabel(ylabel)
    over_whole_numbers(axes)


def _of_models_with_examination(spreads: Sequence[Spread | None]) -> Sequence[Spread | None]:
    """Spreads of examination below 1, since those of 1 would lie over one another; all where there are no others."""
    below_1 = [
        spread if spread is not None and (spread.mean != 1).any() else None for spread in spreads
    ]
    return below_1 if any(below_1) else spreads


def _banded(spread: Spread, place: int, axes: Axes, label: str) -> None:
    """Draws a curve over ranks, with marks and a band."""
    ranks = np.arange(1, len(spread.mean) + 1)
    marked(axes, place, label, ranks, spread.mean)
    axes.fill_between(ranks, spread.low, spread.high, color=COLORS[place], alpha=0.15, linewidth=0)


def _barred(spread: Spread, place: int, axes: Axes, label: str) -> None:
    """Draws a curve over ranks with bars."""
    ranks = np.arange(1, len(spread.mean) + 1)
    barred(ranks, spread.mean, spread.low, spread.high, place, axes, label)


def barred(
    x: Any,
    values: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    place: int,
    axes: Axes,
    label: str,
) -> None:
    """Draws a curve with intervals, whose ends are wider than the marks and so are seen however short the bars are.

    Args:
        x: By point.
        values: By point.
        low: Lower ends, nan where unknown.
        high: Upper ends, likewise.
        place: Of the curve among others, which chooses its look.
        axes: The panel.
        label: In the legend.
    """
    marked(axes, place, label, x, values)
    reach = [np.nan_to_num(np.abs(values - np.asarray(bound))) for bound in (low, high)]
    if np.any(reach):
        bars: dict[str, Any] = {"elinewidth": 1.0, "capsize": 3.0, "capthick": 0.8}
        axes.errorbar(x, values, reach, fmt="none", ecolor=COLORS[place], **bars)


Numbers = Sequence[float] | np.ndarray
Bars = tuple[Sequence[int], Numbers, Numbers, Numbers]
"""Ranks, values, and lower and upper ends of their intervals, nan where unknown."""


def layouts(curves: Mapping[str, Bars], axes: Axes) -> None:
    """Draws examination by rank of each layout, relative to one of them; the first of many.

    Args:
        curves: By name of the layout.
        axes: The panel.
    """
    for place, (name, (ranks, *bars)) in enumerate([*curves.items()][: len(COLORS)]):
        values, low, high = (np.array(bar, float) for bar in bars)
        barred(ranks, values, low, high, place, axes, figure_text(name))
    label = wrapped(figure_text(f"Examination relative to {_reference(curves)}"))
    axes.set(ylabel=label, ylim=(0, None))
    over_whole_numbers(axes)


def _reference(curves: Mapping[str, Bars]) -> str:
    """What examination of layouts is relative to: the rank and layout whose ratio is 1."""
    for name, (ranks, values, *_) in curves.items():
        for rank, value in zip(ranks, values, strict=True):
            if value == 1:
                return f"rank {rank} of {name}"
    return "one layout"


def layout(
    groups: Sequence[Group], curves: Mapping[Group, Mapping[str, Spread]], name: str, axes: Axes
) -> None:
    """Draws relative examination by rank of one layout, of the groups that have it.

    Args:
        groups: All groups, whose places choose their looks.
        curves: By group and by name of the layout.
        name: That of the layout.
        axes: The panel.
    """
    for place, group in enumerate(groups):
        if spread := curves.get(group, {}).get(name):
            _barred(spread, place, axes, figure_text(group.name))
    label = figure_text(f"Relative examination, {name}")
    axes.set(ylabel=wrapped(label), ylim=(0, None))
    over_whole_numbers(axes)


def wrapped(label: str) -> str:
    """Returns the label of an axis in lines that its panel has room for."""
    return textwrap.fill(label, _NAME)


def forest(
    rows: Sequence[tuple[str, int, float, float, bool]], xlabel: str, named: bool, axes: Axes
) -> None:
    """Draws differences to a baseline with their intervals; long names are in the legend.

    Args:
        rows: Name, place among all groups, difference, half its interval (nan without one), and whether to fill the
            mark, of each group.
        xlabel: Text below the axis.
        named: Whether the names are shown.
        axes: The panel.
    """
    axes.axvline(0, color=BLACK, linewidth=0.8)
    lines = [textwrap.wrap(figure_text(name), _NAME) for name, *_ in rows]
    in_legend = max(map(len, lines), default=0) > _NAME_LINES
    for i, (name, place, value, half, filled) in enumerate(rows):
        error, color = half if np.isfinite(half) else None, COLORS[place]
        face = color if filled else "white"
        label = figure_text(name) if in_legend else None
        look: dict[str, Any] = {"color": color, "markerfacecolor": face, "capsize": 2}
        axes.errorbar(value, -i, xerr=error, marker="o", label=label, **look)
    beside = named and not in_legend
    names = ["\n".join(of_row) if beside else "" for of_row in lines]
    axes.set_yticks([-i for i in range(len(rows))], names)
    axes.set(xlabel=wrapped(xlabel), ylim=(0.6 - len(rows), 0.6))
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.15)  # small differences are not at the edge
    axes.xaxis.set_major_locator(MaxNLocator(4))


def learning(groups: Sequence[Group], metric: str, over: str, axes: Axes) -> None:
    """Draws the mean over the runs of a group and its bounds, over epochs or seconds without compilation.

    Where some runs have ended, those that go on have a thin line each.
    """
    later: list[float] = []
    for i, group in enumerate(groups):
        curves = [
            (_along(run, over), by_epoch(run, metric))
            for run in group.runs
            if _has_epochs(run, metric)
        ]
        if curves:
            _learning_curve(curves, i, figure_text(group.name), axes)
        later += [value for _, y in curves for value in y[1:]]
    over_epochs = over == "epoch"
    xlabel = "Epoch" if over_epochs else _broken(axis(over))
    axes.set(xlabel=xlabel, ylabel=_lines(figure_text(axis(metric))))
    marks = MaxNLocator(8 if over_epochs else 4, integer=over_epochs, min_n_ticks=1)
    axes.xaxis.set_major_locator(marks)
    scale_to(later, axes)


def _learning_curve(
    curves: Sequence[tuple[np.ndarray, np.ndarray]], place: int, label: str, axes: Axes
) -> None:
    """Draws the mean of curves (x, y) as far as all of them go, with their deviation, and the rest of each."""
    shared = min(len(y) for _, y in curves)
    x = np.mean([x[:shared] for x, _ in curves], axis=0)
    spread = over_runs([y[:shared] for _, y in curves])
    axes.plot(x, spread.mean, label=label, **look(place))
    if len(curves) > 1:
        band: dict[str, Any] = {"color": COLORS[place], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(x, spread.low, spread.high, **band)
    thin: dict[str, Any] = {**look(place), "linewidth": 0.6, "alpha": 0.6}
    for x, y in curves:
        if len(y) > shared:
            axes.plot(x[shared - 1 :], y[shared - 1 :], **thin)


def _has_epochs(run: Run, metric: str) -> bool:
    """Whether any epoch of the run has the metric."""
    return any(metric in epoch for epoch in run.epochs)


def by_epoch(run: Run, metric: str) -> np.ndarray:
    """Values of a metric of epochs; nan where an epoch has none."""
    return np.array([epoch.get(metric) for epoch in run.epochs], np.float64)


def _along(run: Run, over: str) -> np.ndarray:
    return np.cumsum(run.epoch_seconds) if over == "seconds" else by_epoch(run, over)


def cost(
    groups: Sequence[Group], metric: str, over: str, values: Sequence[float], axes: Axes
) -> None:
    """Draws a metric against what a group costs, as far as the metric is not beyond the axis."""
    means = np.array([group.spread(metric).mean for group in groups])
    costs = np.where(outliers(means, means), np.nan, values).tolist()
    for i, (group, value) in enumerate(zip(groups, costs, strict=True)):
        spread = group.spread(metric)
        bounds = np.array([[spread.mean - spread.low], [spread.high - spread.mean]])
        look: dict[str, Any] = {"marker": MARKERS[i], "color": COLORS[i], "linestyle": "none"}
        axes.errorbar(
            value, spread.mean, np.nan_to_num(bounds), label=figure_text(group.name), **look
        )
    positive = [value for value in costs if np.isfinite(value) and value > 0]
    if positive and max(positive) > _DECADE * min(positive):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if _spans_few_decades(positive) else (1,))
        )
        axes.minorticks_off()
    if over == "parameters" or axes.get_xscale() == "log":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel=_broken(axis(over)), ylabel=_lines(figure_text(axis(metric))))


def _spans_few_decades(values: Sequence[float]) -> bool:
    return max(values) < _FEW_DECADES * min(values)


def scale_to(values: Sequence[float], axes: Axes) -> None:
    """Scales the second axis to values, such as those of later epochs; lines of others leave it."""
    finite = [value for value in values if np.isfinite(value)]
    if len(finite) > 1 and max(finite) > min(finite):
        margin = _MARGIN * (max(finite) - min(finite))
        axes.set_ylim(min(finite) - margin, max(finite) + margin)


def calibration(groups: Sequence[Group], axes: Axes) -> None:
    """Draws the click rate over P(click), bins of all ranks together, and above it the documents of each bin."""
    largest = 0.0
    counts = axes.inset_axes((0, 1.04, 1, 0.16))
    for i, group in enumerate(groups):
        if curve := group.reliability():
            documents = curve["documents"].sum(axis=1)
            filled = documents >= _FEW
            x, y = (
                np.nansum(curve[key] * curve["documents"], axis=1)[filled] / documents[filled]
                for key in ("predicted", "observed")
            )
            marked(axes, i, figure_text(group.name), x, y)
            edges = np.linspace(0, 1, len(documents) + 1)
            shown = np.where(documents > 0, documents, np.nan)
            counts.stairs(shown, edges, baseline=None, linewidth=0.9, **look(i))
            # bins with few documents are left out, in small test sets all
            largest = max([largest, *x, *y])
    axes.plot([0, largest], [0, largest], color="#888888", linewidth=0.8, zorder=0)
    axes.set(xlabel="Predicted P(click)", ylabel="Observed click rate")
    # no mark at 1, which would lie over the highest mark below
    counts.set(xlim=axes.get_xlim(), yscale="log", ylim=(1.01, None))
    counts.set_title("Documents per bin", fontsize="small", loc="left", pad=2)
    counts.tick_params(labelbottom=False, labelsize="x-small")
    counts.yaxis.set_major_locator(LogLocator(numticks=2))  # as many as there is room for
    counts.minorticks_off()


def _lines(text: str) -> str:
    """The unit on a separate line."""
    return text.replace(" (", "\n(") if text.endswith(")") else text


def _broken(text: str) -> str:
    """Text that is long for the width of a panel, on two lines."""
    return text.replace(" compilation", "\ncompilation")

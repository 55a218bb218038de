"""Figures for a paper, of groups of runs: vector PDF and PNG."""

import io
import logging
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from clickexp.report.groups import Group, or_nan
from clickexp.report.names import axis, uncapitalised
from clickexp.utils.escape import figure_text

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
"""Distinct for colour-blind readers (Okabe and Ito 2008); yellow, too light on paper, is darker here."""
BLACK, GRID = "#010101", "#dddddd"
"""Of text and axes, and of grids, as in paper.mplstyle; pages put their own colours in the place of these."""
MARKERS = "osD^vP*X"
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1.5, 1, 1.5)))
_COLUMN, _ROW, _PAGE = 3.3, 2.5, 7.0
"""Inches: the width of a column of a paper, the height of a panel, the width of a page."""
_LETTER, _HANDLE, _LONGEST = 0.065, 0.36, 100
"""Of a legend: inches of a letter and of a line, letters of the longest label."""
_FAR, _FARTHER = 4, 10
"""How far a curve may lie from the middle one: in extents of a curve, and in distances between curves."""
_NAME, _DECADE = 24, 10
"""Letters of a line of a name beside an axis, and ratio of costs from which their axis is logarithmic."""
_FEW = 10
"""Documents from which a click rate means little."""
_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "png": {"Software": None}, "svg": {"Date": None}}
"""The same content gives the same bytes."""
Panel = Callable[[Axes], None]
"""What draws into axes."""


def draw(
    figures: Iterable[tuple[str, Sequence[Panel]]], label: str = "", formats: Sequence[str] = ("pdf", "png")
) -> dict[str, bytes]:
    """Draws figures.

    Args:
        figures: The name and the panels, side by side, of each.
        label: A slug for the names of the files.
        formats: Of pdf, png and svg; text in the last one is text, without a background.

    Returns:
        Content of each file by its name.
    """
    made = {}
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it lists each glyph that a PDF needs
    with as_file(files("clickexp.report") / "static" / "paper.mplstyle") as style, rc_context(fname=style):
        for name, panels in figures:
            figure = _drawing(panels)
            for suffix in formats:
                made[f"{name}{label}.{suffix}"] = _printed(figure, suffix)
                figure.set_layout_engine("none")  # laid out by now, which takes most of the time
    return made


def _printed(figure: Figure, suffix: str) -> bytes:
    """The content of a file, drawn once: `savefig` would draw all twice."""
    content, metadata = io.BytesIO(), _METADATA[suffix]
    for place in (figure, *figure.findobj(Axes)):
        place.patch.set_visible(suffix != "svg")
    if suffix == "svg":
        FigureCanvasSVG(figure).print_svg(content, metadata=metadata)
    elif suffix == "pdf":
        FigureCanvasPdf(figure).print_pdf(content, metadata=metadata)
    else:
        figure.set_dpi(rcParams["savefig.dpi"])
        FigureCanvasAgg(figure).print_png(content, metadata=metadata)
    return content.getvalue()


class Drawing(Figure):
    """A figure that notebooks show."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def drawing(panels: Sequence[Panel]) -> Drawing:
    """Makes a figure for a paper of panels side by side, with one legend below them."""
    with as_file(files("clickexp.report") / "static" / "paper.mplstyle") as style, rc_context(fname=style):
        return _drawing(panels)


def _drawing(panels: Sequence[Panel]) -> Drawing:
    figure = Drawing(figsize=(_COLUMN if len(panels) == 1 else 2.5 * len(panels), _ROW), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    beyond: set[str] = set()
    for panel, place in zip(panels, axes, strict=True):
        panel(place)
        beyond |= _without_outliers(place)
    lines = {
        label: line for place in axes for line, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    if not lines:
        return figure
    labels = [_shortened(label + (" (beyond the axis)" if label in beyond else "")) for label in lines]
    width = max(figure.get_figwidth(), min(max(map(len, labels)) * _LETTER + _HANDLE, _PAGE))
    columns = max(1, min(len(lines), int(width / (max(map(len, labels)) * _LETTER + _HANDLE))))
    figure.set_size_inches(width, _ROW + 0.17 * -(-len(lines) // columns))
    handles, labels = (_by_row(items, columns) for items in (list(lines.values()), labels))
    spacing = {"columnspacing": 0.8, "handlelength": 1.8, "handletextpad": 0.5}
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, **spacing)
    return figure


def _by_row(items: Sequence[Any], columns: int) -> list[Any]:
    """The order that reads row by row in a legend, which Matplotlib fills column by column."""
    return [item for column in range(columns) for item in items[column::columns]]


def _without_outliers(axes: Axes) -> set[str]:
    """Fits the axis to most of the curves where a few lie far off, and returns the names of these."""
    ends: dict[str, tuple[float, float]] = {}
    handles: tuple[list[Any], list[str]] = axes.get_legend_handles_labels()
    for line, label in zip(*handles, strict=True):
        data = line.lines[0] if isinstance(line, ErrorbarContainer) else line
        values = np.asarray(data.get_ydata(), np.float64)
        if len(values := values[np.isfinite(values)]):
            ends[label] = values.min(), values.max()
    if len(ends) < 3:
        return set()
    low, high = np.array(list(ends.values())).T
    middle, extents = np.median((low + high) / 2), (high - low)[high > low]  # a baseline is flat
    reach = _FAR * np.median(extents if len(extents) else 0.0) + _FARTHER * np.median(np.abs((low + high) / 2 - middle))
    far = {label for label, (a, b) in ends.items() if a < middle - reach or b > middle + reach}
    near = [bounds for label, bounds in ends.items() if label not in far]
    if far and near:
        bottom, top = min(a for a, _ in near), max(b for _, b in near)
        axes.set_ylim(bottom - 0.06 * (top - bottom), top + 0.06 * (top - bottom))
    return far


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"


def look(i: int) -> dict[str, Any]:
    """The colour and the dashes of a group by its place."""
    return {"color": COLORS[i], "linestyle": _DASHES[i % len(_DASHES)]}


def per_rank(groups: Sequence[Group], metric: str, axes: Axes, baseline: Group | None = None) -> None:
    """Draws a metric, or its difference to a baseline, over ranks: the mean over runs with its 95% interval.

    Models without examination are left out of its curves where others have it.
    """
    spreads = [group.per_rank_difference(baseline, metric) if baseline else group.per_rank(metric) for group in groups]
    examined = [metric == "examination" and spread is not None and (spread.mean == 1).all() for spread in spreads]
    for i, (group, spread) in enumerate(zip(groups, spreads, strict=True)):
        if spread and (not examined[i] or all(examined)):  # models without examination would lie over one another
            ranks = np.arange(1, len(spread.mean) + 1)
            mark = {"marker": MARKERS[i], "markersize": 3}
            axes.plot(ranks, spread.mean, label=figure_text(group.name), **mark, **look(i))
            axes.fill_between(ranks, spread.low, spread.high, color=COLORS[i], alpha=0.15, linewidth=0)
    ylabel = _lines(figure_text(axis(metric)))
    axes.set(xlabel="Rank", ylabel=f"Difference in\n{uncapitalised(ylabel)}" if baseline else ylabel)
    if metric == "examination":
        axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def forest(rows: Sequence[tuple[str, float, float, bool]], xlabel: str, named: bool, axes: Axes) -> None:
    """Draws differences to a baseline with their intervals.

    Args:
        rows: Name, difference, half its interval (nan without one), and whether to fill the mark, of each group.
        xlabel: Text below the axis.
        named: Whether the names are shown.
        axes: The panel.
    """
    axes.axvline(0, color=BLACK, linewidth=0.8)
    for i, (_, value, half, filled) in enumerate(rows):
        error = half if np.isfinite(half) else None
        face = COLORS[i] if filled else "white"
        axes.errorbar(value, -i, xerr=error, marker="o", color=COLORS[i], markerfacecolor=face, capsize=2)
    names = [textwrap.fill(figure_text(name), _NAME) if named else "" for name, *_ in rows]
    axes.set_yticks([-i for i in range(len(rows))], names)
    axes.set(xlabel=xlabel, ylim=(0.6 - len(rows), 0.6))
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(4))


def learning(groups: Sequence[Group], metric: str, over: str, axes: Axes) -> None:
    """Draws a line per run: over epochs, or the seconds since the start without compilation."""
    for i, group in enumerate(groups):
        for n, run in enumerate(group.runs):
            x = [or_nan(epoch.get(over)) for epoch in run.epochs]
            x = np.cumsum(run.epoch_seconds) if over == "seconds" else x
            y = [or_nan(epoch.get(metric)) for epoch in run.epochs]
            axes.plot(x, y, label=None if n else figure_text(group.name), alpha=0.9, **look(i))
    xlabel = "Epoch" if over == "epoch" else _broken(axis(over))
    axes.set(xlabel=xlabel, ylabel=_lines(figure_text(axis(metric))))
    axes.xaxis.set_major_locator(
        MaxNLocator(10 if over == "epoch" else 4, integer=over == "epoch", min_n_ticks=1)
    )


def cost(groups: Sequence[Group], metric: str, over: str, values: Sequence[float], axes: Axes) -> None:
    """Draws a metric against what a group costs."""
    for i, (group, value) in enumerate(zip(groups, values, strict=True)):
        spread = group.spread(metric)
        deviation = spread.sd if spread.count > 1 else 0
        look: dict[str, Any] = {"marker": MARKERS[i], "color": COLORS[i], "linestyle": "none"}
        axes.errorbar(value, spread.mean, deviation, label=figure_text(group.name), **look)
    known = [value for value in values if np.isfinite(value) and value > 0]
    if known and max(known) > _DECADE * min(known):
        axes.set_xscale("log")
    elif over == "parameters":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel=_broken(axis(over)), ylabel=_lines(figure_text(axis(metric))))


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
            axes.plot(x, y, label=figure_text(group.name), marker=MARKERS[i], markersize=3, **look(i))
            edges = np.linspace(0, 1, len(documents) + 1)
            counts.stairs(documents, edges, baseline=None, linewidth=0.9, **look(i))
            largest = max(largest, *x, *y)
    axes.plot([0, largest], [0, largest], color="#888888", linewidth=0.8, zorder=0)
    axes.set(xlabel="Predicted P(click)", ylabel="Observed click rate")
    counts.set(xlim=axes.get_xlim(), yscale="log", ylim=(1, None))
    counts.set_title("Documents per bin", fontsize="small", loc="left", pad=2)
    counts.tick_params(labelbottom=False, labelsize="x-small")
    counts.yaxis.set_major_locator(LogLocator(numticks=3))
    counts.minorticks_off()


def _lines(text: str) -> str:
    """The unit on a separate line."""
    return text.replace(" (", "\n(") if text.endswith(")") else text


def _broken(text: str) -> str:
    """Text that is long for the width of a panel, on two lines."""
    return text.replace(" compilation", "\ncompilation")

"""Draws panels as figures: vector PDF and PNG for papers, SVG for pages."""

import contextlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from clickexp.results.figures.fonts import families
from clickexp.utils.rounding import ceil_div
from clickexp.utils.text import shortened

_COLUMN, _PANEL, _ROW, _PAGE = 3.3, 2.5, 2.5, 7.0
"""Inches: the width of a column of a paper and of one panel of several, the height of a panel, the width of a page."""
_MOST_BESIDE = 3
"""Panels of a row."""
_HANDLE, _BORDER, _LONGEST = 0.36, 0.2, 100
"""Of a legend: inches of a line with its spaces and of what is around it all, letters of the longest label."""
_FAR, _FARTHER = 4, 10
"""How far a curve may lie from the middle one: in extents of a curve, and in distances between curves."""
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
    "svg": {"Date": None},
}
"""The same content gives the same bytes."""
Panel = Callable[[Axes], None]
"""A function that draws into axes."""


def draw(
    figures: Iterable[tuple[str, Sequence[Panel]]],
    label: str = "",
) -> dict[str, bytes]:
    """Draws figures as PDF and PNG.

    Args:
        figures: The name and the panels of each.
        label: A slug for the names of the files.

    Returns:
        Content of each file by its name.
    """
    contents = {}
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it lists each glyph that a PDF needs
    with _style():
        for name, panels in figures:
            figure = _drawing(panels, _width(panels))
            for suffix in ("pdf", "png"):
                contents[f"{name}{label}.{suffix}"] = _printed(figure, suffix)
                figure.set_layout_engine("none")  # laid out by now, which takes most of the time
    return contents


def draw_apart(figures: Iterable[tuple[str, Sequence[Panel]]]) -> dict[str, list[str]]:
    """Draws each panel by itself, with a legend of its own, so that a page can lay them out.

    Args:
        figures: The name and the panels of each.

    Returns:
        SVG of the panels by the name of the figure: text is text, and there is no background.
    """
    with _style():
        return {name: [_svg(panel, _width(panels)) for panel in panels] for name, panels in figures}


def _svg(panel: Panel, width: float) -> str:
    return _printed(_drawing([panel], width), "svg").decode()


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Sets the style of figures and their fonts."""
    file = as_file(files("clickexp.results.figures") / "paper.mplstyle")
    with file as style, rc_context({"font.family": families()}, fname=style):
        yield


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


class _Drawing(Figure):
    """A figure that notebooks show."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def drawing(panels: Sequence[Panel]) -> _Drawing:
    """Makes a figure for a paper of panels, with one legend below them."""
    with _style():
        return _drawing(panels, _width(panels))


def _width(panels: Sequence[Panel]) -> float:
    """Inches of each panel of a figure."""
    return _COLUMN if len(panels) == 1 else _PANEL


def _drawing(panels: Sequence[Panel], width: float) -> _Drawing:
    """Draws panels of a width in inches, as many to a row as a page of a paper has room for."""
    rows = ceil_div(len(panels), _MOST_BESIDE)
    columns = ceil_div(len(panels), rows)
    figure = _Drawing(figsize=(width * columns, _ROW * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    axes = places[: len(panels)]
    for spare in places[len(panels) :]:
        spare.remove()
    beyond: set[str] = set()
    for panel, place in zip(panels, axes, strict=True):
        panel(place)
        beyond |= _without_outliers(place)
    lines = {
        label: line
        for place in axes
        for line, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    if not lines:
        return figure
    labels = [
        shortened(label + (" (beyond the axis)" if label in beyond else ""), _LONGEST)
        for label in lines
    ]
    widths = list(map(_legend_inches, labels))
    width = max(figure.get_figwidth(), min(max(widths) + _BORDER, _PAGE))
    columns = _columns(widths, width - _BORDER)
    figure.set_size_inches(width, _ROW * rows + 0.17 * ceil_div(len(lines), columns))
    handles, labels = (_by_row(items, columns) for items in (list(lines.values()), labels))
    spacing = {"columnspacing": 0.8, "handlelength": 1.8, "handletextpad": 0.5}
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, **spacing)
    return figure


def _legend_inches(label: str) -> float:
    """The width of a label and its line."""
    font = FontProperties(size=rcParams["legend.fontsize"])
    points, _, _ = RendererAgg(1, 1, 72).get_text_width_height_descent(label, font, ismath=False)
    return points / 72 + _HANDLE


def _columns(widths: Sequence[float], width: float) -> int:
    """The most columns of a legend, each as wide as its widest label, that a width holds."""
    for columns in range(len(widths), 1, -1):
        if sum(max(widths[column::columns]) for column in range(columns)) <= width:
            return columns
    return 1


def _by_row(items: Sequence[Any], columns: int) -> list[Any]:
    """The order that reads row by row in a legend, which Matplotlib fills column by column."""
    return [item for column in range(columns) for item in items[column::columns]]


def _without_outliers(axes: Axes) -> set[str]:
    """Fits the axis to most of the curves where a few lie far off, and returns the names of these."""
    ends = _ends(axes)
    if not ends:
        return set()
    low, high = np.array(list(ends.values())).T
    is_far = outliers(low, high)
    if is_far.any():
        bottom, top = low[~is_far].min(), high[~is_far].max()
        axes.set_ylim(bottom - 0.06 * (top - bottom), top + 0.06 * (top - bottom))
    return {label for label, beyond in zip(ends, is_far, strict=True) if beyond}


def outliers(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns which of the curves between some values lie far off, so that an axis leaves them out: a few, or none."""
    middles = (low + high) / 2
    middle, extents = np.median(middles), (high - low)[high > low]  # a baseline is flat
    reach = _FAR * np.median(extents if len(extents) else 0.0)
    reach += _FARTHER * np.median(np.abs(middles - middle))
    is_far = (low < middle - reach) | (high > middle + reach)
    others = ~is_far
    # without an extent of the others there is nothing to show
    if len(low) < 3 or is_far.all() or low[others].min() == high[others].max():
        return np.zeros(len(low), bool)
    return is_far


def _ends(axes: Axes) -> dict[str, tuple[float, float]]:
    """The lowest and the highest value of each curve that has any, by its name."""
    ends: dict[str, tuple[float, float]] = {}
    handles: tuple[list[Any], list[str]] = axes.get_legend_handles_labels()
    for line, label in zip(*handles, strict=True):
        data = line.lines[0] if isinstance(line, ErrorbarContainer) else line
        values = np.asarray(data.get_ydata(), np.float64)
        if len(values := values[np.isfinite(values)]):
            ends[label] = values.min(), values.max()
    return ends

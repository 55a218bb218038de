"""Figures of tables: of a log, and of what a fitted model knows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from clickexp.results.colors import COLORS
from clickexp.results.figures.drawing import Panel, draw
from clickexp.results.figures.fonts import figure_text
from clickexp.results.figures.panels import look, marked, over_whole_numbers
from clickexp.runs.store import FIGURES
from clickexp.utils.files import check_inside, whole

_FEWEST = 100
"""Times that a group shows a rank, with fewer of which its click rate says little."""


def write_figures(figures: Mapping[str, Sequence[Panel]], folder: Path) -> Path:
    """Writes figures as PDF and PNG.

    Args:
        figures: Panels by name.
        folder: Below which the folder of figures is.

    Returns:
        The folder of figures.

    Raises:
        UserError: A link leads it elsewhere.
    """
    check_inside(folder / FIGURES, folder)
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, content in draw(figures.items()).items():
        with whole(folder / FIGURES / name) as part:
            part.write_bytes(content)
    return folder / FIGURES


def curves(lines: Mapping[str, Sequence[float] | np.ndarray], label: str) -> Panel:
    """Returns a panel of values by rank, a line for each name."""

    def draw_curves(axes: Axes) -> None:
        for i, (name, values) in enumerate(lines.items()):
            marked(axes, i, figure_text(name), np.arange(1, len(values) + 1), values)
        axes.set(ylabel=label, ylim=(0, None))
        over_whole_numbers(axes)

    return draw_curves


def rates_by_group(name: str, groups: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[Panel]:
    """Returns a panel of click rates by rank of the groups with the most impressions.

    What a group shows less than 100 times is left out, and the panel where this leaves no two groups.

    Args:
        name: What tells groups apart, such as a column.
        groups: Documents shown and clicks by rank, of each group.
    """
    shown = {group: np.array(counts["shown"], np.float64) for group, counts in groups.items()}
    largest = sorted(shown, key=lambda group: -np.nansum(shown[group]))[: len(COLORS)]
    rates: dict[str, np.ndarray] = {}
    for group in groups:
        is_known = shown[group] >= _FEWEST
        if group in largest and is_known.any():
            clicks = np.array(groups[group]["clicks"], np.float64)
            rates[f"{name} {group}"] = clicks / np.where(is_known, shown[group], np.nan)
    if len(rates) < 2:
        return []
    is_whole = all(((counts == 0) | (counts >= _FEWEST)).all() for counts in shown.values())
    note = "" if is_whole else f"\n(at least {_FEWEST} impressions)"
    return [curves(rates, f"Click rate{note}")]


def figures_by_group(
    begin: str, groups: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]
) -> dict[str, list[Panel]]:
    """Returns a figure for each name that tells groups apart, called by `begin` and the name; see `rates_by_group`."""
    figures = {}
    for name, counts in groups.items():
        if panels := rates_by_group(name, counts):
            figures[f"{begin}{name.replace(' ', '_')}"] = panels
    return figures


def shares(counts: Mapping[str, np.ndarray], label: str) -> Panel:
    """Returns a panel of the share of each whole number, of which counts[name][n] are n."""

    def draw_shares(axes: Axes) -> None:
        for i, (name, of) in enumerate(counts.items()):
            first = int(of[0] == 0)  # nothing at 0 where 0 cannot be
            values = of / max(of.sum(), 1)
            marked(axes, i, figure_text(name), np.arange(first, len(of)), values[first:])
        over_whole_numbers(axes, label)
        axes.set(ylabel="Share of sessions", ylim=(0, None))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))

    return draw_shares


def histogram(counts: np.ndarray, label: str, unit: str) -> Panel:
    """Returns a panel of how many of a unit are in each of equal bins from 0 to 1."""

    def draw_histogram(axes: Axes) -> None:
        edges, color = np.linspace(0, 1, len(counts) + 1), look(0)["color"]
        axes.stairs(counts, edges, color=color, alpha=0.2, fill=True)
        axes.stairs(counts, edges, color=color, linewidth=1.3)
        axes.set(xlabel=label, ylabel=unit.capitalize(), xlim=(0, 1), ylim=(0, None))

    return draw_histogram


def banded(
    lines: Mapping[str, Sequence[float] | np.ndarray],
    low: np.ndarray | None,
    high: np.ndarray | None,
    label: str,
) -> Panel:
    """Returns a panel of values by rank, the first with intervals, where there are any."""

    def draw_banded(axes: Axes) -> None:
        if low is not None and high is not None:
            ranks = np.arange(1, len(low) + 1)
            axes.fill_between(ranks, low, high, color=look(0)["color"], alpha=0.2, linewidth=0)
        curves(lines, label)(axes)

    return draw_banded

"""The command `clickexp-compare online`: two runs judged by users, as a table, JSON and figures."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from rich.console import Console

from clickexp.online.runs import compare_runs
from clickexp.results.colors import BLACK
from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.log import write_figures
from clickexp.results.figures.panels import look
from clickexp.results.online_results import online_table
from clickexp.runs.online import OnlineComparison
from clickexp.runs.store import FIGURES, ONLINE, ONLINE_FILE
from clickexp.utils.escape import printable, slug
from clickexp.utils.files import check_inside
from clickexp.utils.paths import display_path
from clickexp.utils.statistics.sequential import Estimate
from clickexp.utils.tables.terminal import fitting

_PREFERENCE = "preference"
_LEAST_COLUMNS = 4
"""Metric, A, B and their difference."""


def online(
    a: str, b: str, user: str, output: str | None = None, as_json: bool = False, **settings: Any
) -> OnlineComparison:
    """Compares two runs by users, prints the result and writes online.json and figures/.

    Args:
        a: Folder of the first run.
        b: Folder of the second.
        user: Folder of the run whose click model is the user, or "true".
        output: Where to write; by default b/online/ and the names of the folders of a and of the user, where the
            comparison page finds it.
        as_json: Print the result as JSON.
        settings: Those of `compare_runs`.

    Raises:
        UserError: A link leads what would be written elsewhere.
    """
    name = slug(f"{Path(a).resolve().name}-{Path(user).name}")
    folder = Path(b, ONLINE, name) if output is None else Path(output)
    check_inside(folder / FIGURES, Path(b if output is None else output))
    result = compare_runs(a, b, user, **settings)
    folder.mkdir(parents=True, exist_ok=True)
    result.write(folder)
    drawn = write_figures(figures(result), folder)
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))  # noqa: T201  # the output of the command
        return result
    _print(result)
    for path in (folder / ONLINE_FILE, drawn):
        print(display_path(path))  # noqa: T201  # the output of the command
    return result


def figures(result: OnlineComparison) -> dict[str, list[Panel]]:
    """Returns the panels of a comparison: differences by day with both intervals, by metric and of interleaving."""
    days = {
        name: [day.ab.metrics[name].difference for day in result.days] for name in result.ab.metrics
    }
    days[_PREFERENCE] = [day.interleaving.preference for day in result.days]
    confidence = 1 - result.alpha
    return {
        f"online_{name}": [partial(_by_day, estimates, _LABELS[name], confidence)]
        for name, estimates in days.items()
    }


_LABELS = {
    "click_rate": "Click rate, B - A",
    "clicks_per_session": "Clicks per session, B - A",
    "reciprocal_rank": "Reciprocal rank of\nthe first click, B - A",
    "abandonment": "Abandonment, B - A",
    _PREFERENCE: "Interleaving: wins of B\nminus those of A",
}


def _by_day(estimates: list[Estimate], label: str, confidence: float, axes: Axes) -> None:
    days = np.arange(1, len(estimates) + 1)
    values = {
        name: np.array([getattr(estimate, name) for estimate in estimates])
        for name in ("value", "low", "high", "anytime_low", "anytime_high")
    }
    one, other = look(0), look(1)
    axes.axhline(0, color=BLACK, linewidth=0.8)
    for kind, style, alpha in (("anytime_", other, 0.12), ("", one, 0.25)):
        low, high = values[f"{kind}low"], values[f"{kind}high"]
        name = "at all looks" if kind else "at one look"
        axes.fill_between(days, low, high, color=style["color"], alpha=alpha, linewidth=0)
        axes.plot(days, low, label=f"{100 * confidence:g}% interval {name}", linewidth=0.9, **style)
        axes.plot(days, high, linewidth=0.9, **style)
    axes.plot(days, values["value"], label="difference", marker="o", markersize=3, **one)
    axes.set(xlabel="Day", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _print(result: OnlineComparison) -> None:
    console = Console()
    units = f" of {result.users:,} users" if result.users else ""
    lines = (
        f"A: {result.models[0]} ({result.a})",
        f"B: {result.models[1]} ({result.b})",
        f"{result.sessions:,} sessions{units} over {len(result.days)} days on {result.lists:,} lists",
        f"{result.positions} documents shown, clicks of {result.user}; {result.same:.0%} of lists are ordered alike",
    )
    for line in lines:
        print(printable(line))  # noqa: T201  # the output of the command
    console.print(fitting(online_table(result), console, _LEAST_COLUMNS))
    for sentence in (*conclusions(result), *result.caveats):
        print(printable(sentence))  # noqa: T201  # the output of the command


def conclusions(result: OnlineComparison) -> list[str]:
    """Returns the findings of the tests, in sentences."""
    metrics, interleaving = result.ab.metrics, result.interleaving
    winners = []
    for ranker in ("a", "b"):
        better = [name for name, metric in metrics.items() if metric.better == ranker]
        if better:
            winners.append(f"{ranker.upper()} is better in {', '.join(better)}")
    ab = "; ".join(winners) or "no metric differs significantly"
    if not interleaving.better:
        return [f"A/B test: {ab}.", "Interleaving: neither is preferred significantly."]
    unit = "users" if result.users else "sessions"
    needed = (
        f"{interleaving.preference.units_needed:,} {unit} find that with power {result.power:g}"
    )
    return [
        f"A/B test: {ab}.",
        f"Interleaving: users prefer {interleaving.better.upper()}; {needed}.",
    ]

"""Figures of a single run beside its references."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from clickexp.results.chains import chain_of
from clickexp.results.colors import COLORS
from clickexp.results.figures.chain import chain_panels
from clickexp.results.figures.drawing import Panel
from clickexp.results.figures.fonts import figure_text
from clickexp.results.figures.log import figures_by_group
from clickexp.results.figures.panels import (
    Bars,
    barred,
    by_epoch,
    calibration,
    layouts,
    marked,
    over_whole_numbers,
    per_rank,
    scale_to,
)
from clickexp.results.groups import Group, with_bounds
from clickexp.results.layouts import frequent_first, points_by_layout
from clickexp.runs.run import RelativeExamination, Run

CLICK_RATES = "click_rates_by_"
"""How names of figures of click rates begin."""
_REFERENCE = 1
"""Which of the groups gains are over."""
_FEWEST = 100
"""Test documents of a range of impressions, with fewer of which its perplexity says little."""
_LOSSES = {"train/loss": "training", "val/loss": "validation"}


def run_figures(run: Run) -> dict[str, list[Panel]]:
    """Chooses the figures that a run has numbers for.

    Args:
        run: The run.

    Returns:
        Panels by the name of the figure.
    """
    groups = run_groups(run)
    figures: dict[str, list[Panel]] = {}
    if run.per_rank.get("ppl"):
        gain = [partial(_gain, groups)] if len(groups) > 1 else []
        figures["perplexity"] = [partial(per_rank, groups, "ppl"), *gain]
    figures |= _of_examination(run, groups)
    figures |= figures_by_group(CLICK_RATES, run.click_rates)
    if any(name in epoch for epoch in run.epochs for name in _LOSSES):
        figures["learning"] = _learning(run)
    if run.update is not None:
        figures["updates"] = chain_panels(chain_of(run))
    if groups[0].reliability():
        figures["calibration"] = [partial(calibration, groups[:1])]
    if _known_ranges(groups[0]).sum() > 1:
        figures["cold_start"] = [
            partial(_cold_start, groups),
            partial(_shares_by_impressions, groups),
        ]
    return figures


def _of_examination(run: Run, groups: Sequence[Group]) -> dict[str, list[Panel]]:
    """Figures of examination by rank, and of ratios to that of the first position; of layouts, these alone."""
    points = frequent_first(run, propensities(run))
    of_layouts = any(point.layout for point in points)
    panel = (
        partial(layouts, by_layout(points)) if of_layouts else partial(_propensity, points, groups)
    )
    ratios = [panel] if points else []
    examined = run.per_rank.get("examination") or [1.0]
    if {*examined} != {1.0}:
        means = [] if of_layouts else [partial(per_rank, groups, "examination")]
        return {"examination": [*means, *ratios]}
    return {"propensities": ratios} if ratios and len(examined) == 1 else {}


def propensities(run: Run) -> list[RelativeExamination]:
    """Returns examination relative to the first position, by position, with its 95% interval, where the run has it.

    That of a ranker is what it has learned, or was given to weight clicks by.
    """
    if run.propensity or run.weighting is None:
        return run.propensity or _shared_propensities(run)
    weights = run.weighting
    points = zip_longest(weights.values, weights.low, weights.high)
    if not weights.layouts:
        return RelativeExamination.known((place, *point) for place, point in enumerate(points, 1))
    of_points = [{**layout_of_point} for layout_of_point in weights.layouts]
    places = [int(layout.pop("position")) for layout in of_points]
    return RelativeExamination.known(
        ((place, *point) for place, point in zip(places, points, strict=True)), of_points
    )


def _shared_propensities(run: Run) -> list[RelativeExamination]:
    """Returns those of the model that do not depend on clicks above."""
    return RelativeExamination.of(
        [
            parameter
            for parameter in run.shared
            if parameter.last_click is None and "/" not in parameter.parameter
        ]
    )


def run_groups(run: Run) -> list[Group]:
    """Returns the run and its references, as groups of one run each."""
    references = [run.of_reference(name) for name in run.references]
    return [Group((one,), one.model, one.model) for one in (run, *references)]


def by_layout(points: Sequence[RelativeExamination]) -> dict[str, Bars]:
    """Returns ranks and propensities with their bounds of each layout."""
    curves = {}
    for name, of_layout in points_by_layout(points).items():
        curves[name] = [*of_layout], *with_bounds([*of_layout.values()])
    return curves


def _propensity(points: Sequence[RelativeExamination], groups: Sequence[Group], axes: Axes) -> None:
    """Draws propensities with their intervals, and those of the true user, if it is known."""
    ranks = [point.position for point in points]
    ratios, low, high = with_bounds(points)
    barred(ranks, ratios, low, high, 0, axes, figure_text(groups[0].name))
    for i, group in enumerate(groups):
        if i and (truth := group.per_rank("examination")):
            true = truth.mean / truth.mean[points[0].position - 1]
            marked(axes, i, figure_text(group.name), np.arange(1, len(true) + 1), true)
    bounds = ", 95% intervals" if np.isfinite(low[1:]).any() else ""
    axes.set(ylabel=f"Examination relative\nto rank 1{bounds}", ylim=(0, None))
    over_whole_numbers(axes)


def _gain(groups: Sequence[Group], axes: Axes) -> None:
    """Draws the share of the first reference's perplexity above 1 that each group saves.

    gain_r = (reference_r - ppl_r) / (reference_r - 1), as Chuklin, Markov and de Rijke (2015) compare click models.
    """
    reference = groups[1].per_rank("ppl")
    for i, group in enumerate(groups):
        spread = group.per_rank("ppl")
        if i == 1 or spread is None or reference is None:
            continue
        shared = min(len(spread.mean), len(reference.mean))
        base = reference.mean[:shared]
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = 100 * (base - spread.mean[:shared]) / (base - 1)
        marked(axes, i, figure_text(group.name), np.arange(1, shared + 1), gain)
    axes.axhline(0, color="#888888", linewidth=0.8, zorder=0)
    axes.set_ylabel(f"Gain over {figure_text(groups[1].name)} (%)")
    over_whole_numbers(axes)


def _cold_start(groups: Sequence[Group], axes: Axes) -> None:
    """Draws the gain over the first reference by impressions in training, or the perplexity where there is none.

    Perplexities of documents that are seldom shown are low, since they lie at low ranks: gains are not.
    """
    curve = _cold(groups[0])
    names, is_known = _ranges(curve["from"]), _known_ranges(groups[0])
    perplexities = {
        i: np.where(is_known, np.array(_cold(group)["ppl"], np.float64), np.nan)
        for i, group in enumerate(groups)
        if _cold(group).get("from") == curve["from"]
    }
    reference = perplexities.pop(_REFERENCE, None)
    for i, values in perplexities.items():
        if reference is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                values = 100 * (reference - values) / (reference - 1)
        marked(axes, i, figure_text(groups[i].name), names, values)
    whole = (-0.3, len(names) - 0.7)  # also where the first or the last range has no value
    axes.set(xlabel="Impressions in training", ylabel="Perplexity", xlim=whole)
    if reference is not None:
        axes.axhline(0, color="#888888", linewidth=0.8, zorder=0)
        axes.set(ylabel=f"Gain over {figure_text(groups[_REFERENCE].name)} (%)")


def _shares_by_impressions(groups: Sequence[Group], axes: Axes) -> None:
    """Draws which share of the documents, and of the clicks, is of documents with so many impressions in training."""
    curve = _cold(groups[0])
    # the panels share a legend, where the first looks are those of the groups
    for i, what in enumerate(("documents", "clicks"), start=len(groups)):
        counts = np.array(curve[what], float)
        marked(axes, i, what, _ranges(curve["from"]), counts / max(counts.sum(), 1))
    axes.set(xlabel="Impressions in training", ylabel="Share of the test set", ylim=(0, None))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _cold(group: Group) -> Mapping[str, Any]:
    return group.runs[0].curves.cold or {}


def _known_ranges(group: Group) -> np.ndarray:
    """Whether each range of impressions has enough test documents for a perplexity."""
    return np.array(_cold(group).get("documents", []), np.float64) >= _FEWEST


def _ranges(edges: Sequence[int]) -> list[str]:
    """Names of ranges of impressions by the fewest of each, such as 0, 1 to 5, 6 to 50, 51+."""
    inner = [str(low) if high == low + 1 else f"{low}–{high - 1}" for low, high in pairwise(edges)]
    return [*inner, f"{edges[-1]}+"]


def _learning(run: Run) -> list[Panel]:
    """A panel of both losses, or of each where they are of two kinds."""
    if run.validates_clicks:
        return [partial(_losses, run, {metric: label}) for metric, label in _LOSSES.items()]
    return [partial(_losses, run, _LOSSES)]


def _losses(run: Run, shown: Mapping[str, str], axes: Axes) -> None:
    """Draws losses over epochs, and marks the best epoch."""
    best, later = run.train.best_epoch, []
    for metric, label in shown.items():
        i = [*_LOSSES].index(metric)
        epochs, losses = by_epoch(run, "epoch"), by_epoch(run, metric)
        if not np.isfinite(losses).any():
            continue
        axes.plot(epochs, losses, label=label, marker="o", markersize=2.5, color=COLORS[i])
        later += losses[epochs > 1].tolist()
        is_best = epochs == best
        if metric.startswith("val/") and is_best.any():
            axes.plot(
                epochs[is_best], losses[is_best], "*", color=COLORS[i], markersize=9, zorder=3
            )
    kind = "Loss" if len(shown) > 1 else f"{next(iter(shown.values())).capitalize()} loss"
    axes.set(xlabel="Epoch", ylabel=f"{kind}\n(per document)")
    scale_to(later, axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

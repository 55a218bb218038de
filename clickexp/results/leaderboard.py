"""The tables of a comparison: overall, relative to the baseline, and per rank; for readers and as CSV for programs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from clickexp.results.comparison import Comparison
from clickexp.results.differences import Tests
from clickexp.results.groups import Group
from clickexp.results.layouts import (
    layout_curves,
    layout_table,
    named_references,
    references_of,
)
from clickexp.results.metric_names import ARROWS, PER_RANK, name, short
from clickexp.utils import escape
from clickexp.utils.statistics.means import Spread
from clickexp.utils.tables.latex import latex
from clickexp.utils.tables.markdown import markdown
from clickexp.utils.tables.numbers import FINE, STARS, number, rounded, standing
from clickexp.utils.tables.table import Cell, Table

_MARKS = "Best in bold, second underlined"


def tables(
    comparison: Comparison,
    label: str = "",
    full: bool = False,
) -> dict[str, str]:
    """Content of each file by its name.

    Args:
        comparison: The groups.
        label: A slug for the names, where there is more than one test set.
        full: Whether leaderboard.csv has all metrics, and what spreads, intervals and tests are over.
    """
    files = {f"leaderboard{label}.csv": _leaderboard_csv(comparison, full)}
    by_file = {f"leaderboard{label}": leaderboard(comparison)}
    if len(comparison.groups) > 1 and any(map(comparison.is_comparable, comparison.leading)):
        by_file[f"differences{label}"] = differences(comparison)
    for metric in dict.fromkeys([*PER_RANK, *comparison.leading]):
        if ranked := per_rank(comparison, metric):
            by_file[f"{metric}_per_rank{label}"] = ranked
            files[f"{metric}_per_rank{label}.csv"] = _per_rank_csv(comparison, metric)
    if curves := layout_curves(comparison.groups):
        by_file[f"examination_by_layout{label}"] = _by_layout(comparison, curves)
        files[f"examination_by_layout{label}.csv"] = _by_layout_csv(curves)
    # for readers of Markdown; a paper's table has its own text
    warned = replace(by_file[f"leaderboard{label}"], notes=comparison.run_warnings)
    for file, table in by_file.items():
        files[f"{file}.md"] = markdown(warned if file == f"leaderboard{label}" else table)
        files[f"{file}.tex"] = latex(table, f"tab:{file}")
    return files


def leaderboard(comparison: Comparison) -> Table:
    """The leading metrics: means over seeds, each with one uncertainty, whose digits it follows."""
    groups, metrics = comparison.groups, comparison.leading
    counts = sorted({len(group.runs) for group in groups})
    header = ["Model"]
    columns: list[Sequence[str | Cell]] = [[group.title for group in groups]]
    for metric in metrics:
        texts, deviations = zip(*value_texts(comparison, metric), strict=True)
        places = standing(texts, comparison.direction(metric))
        header.append(_heading(comparison, metric))
        columns.append(
            list(map(Cell, texts, deviations, places, map(_stars, _p_values(comparison, metric))))
        )
    if len(counts) > 1:
        header.append("Runs" if "folds" in comparison.uncertainty else "Seeds")
        columns.append([Cell(str(len(group.runs))) for group in groups])
    caption = [f"Test metrics on {comparison.name} ({comparison.describe()})"]
    if comparison.uncertainty:
        caption[0] += f": {comparison.meaning}"
    caption += [comparison.choice, _MARKS, significance(comparison)]
    return _table([*caption, *comparison.warnings], header, columns)


def value_texts(comparison: Comparison, metric: str) -> list[tuple[str, str]]:
    """Returns the text of each group's mean over runs, and of its uncertainty, rounded as a column."""
    values = [float(group.spread(metric).mean) for group in comparison.groups]
    uncertainties = [
        group.uncertainty(metric, comparison.uncertainty) for group in comparison.groups
    ]
    texts = rounded(values, uncertainties, more=int(comparison.shares_units))
    return [
        (text, group.beside(metric, text, uncertainty))
        for group, (text, uncertainty) in zip(comparison.groups, texts, strict=True)
    ]


def difference_texts(comparison: Comparison, baseline: Group, metric: str) -> list[tuple[str, str]]:
    """Returns the text of each group's difference to a baseline, and of half its interval, rounded as a column."""
    pairs = [comparison.difference(baseline, group, metric)[:2] for group in comparison.groups]
    values, halves = zip(*pairs, strict=True)
    texts = rounded(values, halves, "+", most=FINE)
    return [(text, half and f"± {half}") for text, half in texts]


def differences(comparison: Comparison) -> Table:
    """The leading metrics minus those of the baseline, with the 95% interval of each difference."""
    baseline, metrics = comparison.baseline, comparison.leading
    rows = [at for at, group in enumerate(comparison.groups) if group is not baseline]
    columns: list[Sequence[str | Cell]] = [[comparison.groups[at].title for at in rows]]
    for metric in metrics:
        texts = difference_texts(comparison, baseline, metric)
        stars = [_stars(p) for p in _p_values(comparison, metric)]
        columns.append([Cell(*texts[at], stars=stars[at]) for at in rows])
    title = f"Difference to {baseline.name} on {comparison.name}"
    if units := _units(comparison, lambda tests: tests.half):
        title += f" ± half its 95% interval over {units} (Student's t)"
    header = ["Model", *(_heading(comparison, metric) for metric in metrics)]
    return _table([title, significance(comparison)], header, columns)


def _heading(comparison: Comparison, metric: str) -> str:
    """The short name of a metric, with the arrow of its direction."""
    return short(metric) + ARROWS[comparison.direction(metric)]


def _units(comparison: Comparison, numbers: Callable[[Tests], np.ndarray]) -> str:
    """The units of the tests of leading metrics whose numbers, such as p-values, are known; empty without any."""
    tests = [comparison.tests[metric] for metric in comparison.leading]
    units = {of_metric.unit for of_metric in tests if np.isfinite(numbers(of_metric)).any()}
    return " or ".join(sorted(units))


def per_rank(comparison: Comparison, metric: str) -> Table | None:
    """Means over seeds of each rank; None where no run has the metric by rank."""
    spreads = _by_rank(comparison, metric)
    if not spreads:
        return None
    columns: list[Sequence[str | Cell]] = [[group.title for group in spreads]]
    for means in zip_longest(*(spread.mean for spread in spreads.values())):
        texts = [number(mean) for mean in means]
        places = standing(texts, comparison.direction(metric))
        cells = zip(texts, places, strict=True)
        columns.append([Cell(text, place=place) for text, place in cells])
    title = f"{name(metric)} per rank on {comparison.name}"
    return _table(
        [title, comparison.choice, _MARKS], ["Model", *map(str, range(1, len(columns)))], columns
    )


def _by_rank(comparison: Comparison, metric: str) -> dict[Group, Spread]:
    """Spread of a metric by rank of each group that has it."""
    spreads = {group: group.per_rank(metric) for group in comparison.groups}
    return {group: spread for group, spread in spreads.items() if spread}


def _table(
    sentences: Sequence[str], header: Sequence[str], columns: Sequence[Sequence[str | Cell]]
) -> Table:
    caption = ". ".join(filter(None, sentences)) + "."
    return Table(header, list(zip(*columns, strict=True)), caption)


def significance(comparison: Comparison) -> str:
    """The meaning of stars; empty where nothing is tested."""
    units = _units(comparison, lambda tests: tests.p)
    if not units:
        return ""
    return (
        f"* p < 0.05, ** p < 0.01 against {comparison.baseline.name}: paired t-test over "
        f"{units}, corrected by Holm's method"
    )


def _leaderboard_csv(comparison: Comparison, full: bool) -> str:
    """Metrics with spread, interval and test, unrounded: the leading ones, or all with what these are over."""
    rows = []
    for group in comparison.groups:
        run = group.runs[0]
        row = {
            "name": group.name,
            "model": group.model,
            "dataset": run.dataset,
            "tower": group.tower,
            "overrides": run.description,
            "seeds": len(group.runs),
            "chosen": str(group.chosen).lower(),
            "parameters": run.parameters,
            "training_seconds": group.seconds,
            "compile_seconds": group.compile_seconds,
            "baseline": comparison.baseline.name,
        }
        for metric in comparison.metrics if full else comparison.leading:
            row |= _metric_columns(comparison, group, metric, full)
        rows.append(row)
    return escape.csv_text(rows[0], map(dict.values, rows))


def _metric_columns(
    comparison: Comparison, group: Group, metric: str, full: bool
) -> dict[str, Any]:
    """Returns mean, spread, interval, p-value and difference of a metric; with `full` what they are over."""
    spread, (low, high, over) = group.spread(metric), group.interval(metric)
    value, half, p = comparison.difference(comparison.baseline, group, metric)
    columns: dict[str, Any] = {
        metric: spread.mean,
        f"{metric}_sd": spread.sd,
        f"{metric}_low": low,
        f"{metric}_high": high,
        f"{metric}_p": p,
        f"{metric}_difference": value,
        f"{metric}_difference_half_interval": half,
    }
    if full:
        unit = comparison.tests[metric].unit
        over = unit if (over, unit) == ("queries", "search sessions") else over
        columns[f"{metric}_interval_over"] = over
        columns[f"{metric}_p_over"] = unit if np.isfinite(p) else ""
    return columns


def _per_rank_csv(comparison: Comparison, metric: str) -> str:
    """The spread of a metric at each rank, unrounded."""
    rows = []
    for group, spread in _by_rank(comparison, metric).items():
        values = spread.mean, spread.sd, spread.low, spread.high, spread.count
        for rank, row in enumerate(zip(*values, strict=True), start=1):
            rows.append([group.name, rank, *row])
    return escape.csv_text(("name", "rank", metric, "sd", "low", "high", "seeds"), rows)


def _by_layout(comparison: Comparison, curves: Mapping[Group, Mapping[str, Spread]]) -> Table:
    """Means over seeds of examination of each layout at each rank."""
    references = named_references(references_of(comparison.runs))
    values = {
        group.title: {name: spread.mean.tolist() for name, spread in by_layout.items()}
        for group, by_layout in curves.items()
    }
    caption = f"Examination on {comparison.name} relative to {references}."
    return layout_table("Model", [*values.items()], caption)


def _by_layout_csv(curves: Mapping[Group, Mapping[str, Spread]]) -> str:
    """Examination of layouts with the ends of its intervals, unrounded."""
    rows = [
        [group.name, layout, rank, *values]
        for group, by_layout in curves.items()
        for layout, spread in by_layout.items()
        for rank, values in enumerate(zip(spread.mean, spread.low, spread.high, strict=True), 1)
        if np.isfinite(values[0])
    ]
    return escape.csv_text(("name", "layout", "rank", "relative", "low", "high"), rows)


def _p_values(comparison: Comparison, metric: str) -> list[float]:
    """The p-value of each group against the baseline."""
    return [
        comparison.difference(comparison.baseline, group, metric)[2] for group in comparison.groups
    ]


def _stars(p: float) -> str:
    return next((stars for limit, stars in STARS.items() if p < limit), "")

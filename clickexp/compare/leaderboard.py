"""The tables of a comparison: all groups, overall and per rank, for readers and as CSV for programs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from clickexp.compare.differences import SIGNIFICANT
from clickexp.compare.summary import Comparison
from clickexp.compare.tables import MISSING, Cell, ReportTable, fixed, latex, markdown, standing
from clickexp.report.names import name, short
from clickexp.utils import escape

_ARROWS = {1: " ↑", 0: "", -1: " ↓"}
_PER_RANK = ("ll", "ppl", "cond_ppl")
_STARS = ((0.01, "**"), (SIGNIFICANT, "*"))
_MARKS = "Best in bold, second underlined"


def tables(comparison: Comparison, label: str = "") -> dict[str, str]:
    """Content of each file by its name.

    Args:
        comparison: The groups.
        label: A slug for the names, where there is more than one test set.
    """
    files = {f"leaderboard{label}.csv": _leaderboard_csv(comparison)}
    made = {f"leaderboard{label}": leaderboard(comparison)}
    for metric in _PER_RANK:
        if ranks := per_rank(comparison, metric):
            made[f"{metric}_per_rank{label}"] = ranks
            files[f"{metric}_per_rank{label}.csv"] = _per_rank_csv(comparison, metric)
    for file, table in made.items():
        files[f"{file}.md"] = markdown(table)
        files[f"{file}.tex"] = latex(table, f"tab:{file}")
    return files


def leaderboard(comparison: Comparison) -> ReportTable:
    """The leading metrics, mean and standard deviation over seeds."""
    groups, metrics, baseline = comparison.groups, comparison.leading, comparison.baseline
    p = _against_baseline(comparison)
    counts = sorted({len(group.runs) for group in groups})
    header = ["Model"]
    columns: list[Sequence[str | Cell]] = [[group.title for group in groups]]
    for metric in metrics:
        spreads = [group.spread(metric) for group in groups]
        texts = [_decimals(spread.mean) for spread in spreads]
        deviations = [_decimals(spread.sd) if spread.count > 1 else "" for spread in spreads]
        places = standing(texts, comparison.direction(metric))
        header.append(short(metric) + _ARROWS[comparison.direction(metric)])
        columns.append(list(map(Cell, texts, deviations, places, map(_stars, p[metric][1]))))
    if len(counts) > 1:
        header.append("Seeds")
        columns.append([Cell(str(len(group.runs))) for group in groups])
    caption = [f"Test metrics on {comparison.name} ({comparison.describe()})"]
    if counts[-1] > 1:
        over = f"over {counts[0]} seeds" if len(counts) == 1 else "over seeds"
        caption[0] += f": mean ± standard deviation {over}"
    caption += [comparison.choice, _MARKS]
    units = {p[metric][0] for metric in metrics if np.isfinite(p[metric][1]).any()}
    if units:
        caption.append(
            f"* p < 0.05, ** p < 0.01 against {baseline.name}: paired t-test over {' or '.join(sorted(units))}, "
            "corrected by Holm's method"
        )
    text = ". ".join(filter(None, [*caption, *comparison.warnings])) + "."
    return ReportTable(text, header, list(zip(*columns, strict=True)), "l" + "r" * (len(header) - 1))


def per_rank(comparison: Comparison, metric: str) -> ReportTable | None:
    """Means over seeds of each rank; None where no run has the metric per rank."""
    means = {group.title: spread.mean for group in comparison.groups if (spread := group.per_rank(metric))}
    if not means:
        return None
    ranks = max(map(len, means.values()))
    texts = [[*map(_decimals, mean), *[MISSING] * (ranks - len(mean))] for mean in means.values()]
    sign = comparison.direction(metric)
    columns = [
        [Cell(text, place=place) for text, place in zip(column, standing(column, sign), strict=True)]
        for column in zip(*texts, strict=True)
    ]
    title = f"{name(metric)} per rank on {comparison.name}"
    caption = ". ".join(filter(None, [title, comparison.choice, f"{_MARKS}."]))
    header = ["Model", *map(str, range(1, ranks + 1))]
    return ReportTable(caption, header, list(zip(means, *columns, strict=True)), "l" + "r" * ranks)


def _leaderboard_csv(comparison: Comparison) -> str:
    """All metrics with their spread, interval and test, unrounded."""
    p = _against_baseline(comparison)
    rows = []
    for i, group in enumerate(comparison.groups):
        run = group.runs[0]
        row = {"name": group.name, "model": group.model, "dataset": run.dataset, "tower": group.tower}
        row |= {"overrides": run.description, "seeds": len(group.runs), "chosen": str(group.chosen).lower()}
        row |= {"parameters": run.parameters, "training_seconds": group.seconds}
        row |= {"compile_seconds": group.compile_seconds, "baseline": comparison.baseline.name}
        for metric in comparison.metrics:
            spread, (low, high, over), (unit, values) = group.spread(metric), group.interval(metric), p[metric]
            row |= {metric: spread.mean, f"{metric}_sd": spread.sd, f"{metric}_low": low, f"{metric}_high": high}
            row |= {f"{metric}_interval_over": over, f"{metric}_p": values[i]}
            row[f"{metric}_p_over"] = unit if np.isfinite(values[i]) else ""
        rows.append(row)
    return escape.csv_text(rows)


def _per_rank_csv(comparison: Comparison, metric: str) -> str:
    """The spread of a metric at each rank, unrounded."""
    spreads = {group.name: spread for group in comparison.groups if (spread := group.per_rank(metric))}
    return escape.csv_text(
        [
            {"name": name, "rank": rank, metric: mean, "sd": sd, "low": low, "high": high, "seeds": seeds}
            for name, s in spreads.items()
            for rank, (mean, sd, low, high, seeds) in enumerate(
                zip(s.mean, s.sd, s.low, s.high, s.count, strict=True), start=1
            )
        ]
    )


def _against_baseline(comparison: Comparison) -> dict[str, tuple[str, np.ndarray]]:
    """For each metric what is paired, and the p-value of each group against the baseline."""
    row = comparison.baselines.index(comparison.groups.index(comparison.baseline))
    return {metric: (tests.unit, tests.p[row]) for metric, tests in comparison.tests.items()}


def _stars(p: float) -> str:
    return next((stars for limit, stars in _STARS if p < limit), "")


def _decimals(value: Any) -> str:
    return fixed(float(value))

"""The result of a run as tables on a terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from clickexp.runs.result import Drawn, RunResult
from clickexp.utils.tables.terminal import (
    console_table,
    fits,
    number,
    rank_table,
    side_by_side,
    widest,
)

_ARROWS = {True: " ↑", False: " ↓", None: ""}
_AT = "@"
_END_ERROR = 0.0216
"""Standard error of an end of a 95% interval by 1,000 resamples of a normal quantity, over the interval's width."""


def result_blocks(result: RunResult, console: Console) -> list[Table]:
    """Makes the tables of a result, side by side as far as the console is wide enough.

    Args:
        result: The result.
        console: Where they will be printed.

    Returns:
        Test metrics by kind, beside the references; cutoffs in columns. Then metrics by rank, and posterior draws.
    """
    tables = []
    for each, metrics in result.kinds().items():
        kind = titled(each, result)
        if curves := [name for name in metrics if _AT in name]:
            tables.append(_cutoffs(kind, curves, result))
        single = [
            name for name in metrics if _AT not in name and not _counts_none(result.test[name])
        ]
        if single:
            tables.append(_metrics(kind, single, result))
    if result.test_draws:
        tables.append(_draws(result.test_draws))
    rows = _flow(tables, console)
    per_rank = dict(result.per_rank)
    if per_rank:
        sessions = {name: per_rank.pop(name) for name in ("sessions",) if name in per_rank}
        columns = [
            dict(list(per_rank.items())[:count]) | sessions for count in range(len(per_rank), 0, -1)
        ]
        rows.append(widest(rank_table, columns, console) or rank_table(columns[-1]))
    return rows


def _counts_none(value: Any) -> bool:
    """Whether it is a count of 0, such as of lists without a relevant document, which says nothing."""
    return isinstance(value, int) and value == 0


def titled(kind: str, result: RunResult) -> str:
    """Names a kind of metrics, with a word where marginals are sampled, and the share of ranking lists in training."""
    if kind == "click" and result.marginals != "exact":
        return f"{kind}, ppl by draws"
    seen = result.data.lists_seen
    return f"{kind}, {seen:.0%} of lists in training" if kind == "ranking" and seen else kind


def _metrics(kind: str, metrics: Sequence[str], result: RunResult) -> Table:
    """A line per metric: its value, its interval, and those of references, as far as there are any."""
    intervals, stated = result.intervals, result.higher_is_better
    columns = {result.model: [number(result.test[name]) for name in metrics]}
    if any(name in intervals for name in metrics):
        columns["95% interval"] = [_interval(intervals.get(name)) for name in metrics]
    for title, reference in result.references.items():
        if known := {name: reference.test[name] for name in metrics if name in reference.test}:
            columns[title] = [number(known[name]) if name in known else "" for name in metrics]
    rows = zip(
        (f"{name}{_ARROWS[stated.get(name)]}" for name in metrics), *columns.values(), strict=True
    )
    return console_table([kind, *columns], rows)


def _cutoffs(kind: str, metrics: Sequence[str], result: RunResult) -> Table:
    """A line per metric, and below it those of references that have it, and a column per cutoff."""
    stated = result.higher_is_better
    parts = [name.partition(_AT) for name in metrics]
    cutoffs = list(dict.fromkeys(at for _, _, at in parts))
    rows = []
    for base in dict.fromkeys(base for base, _, _ in parts):
        names = [f"{base}{_AT}{at}" for at in cutoffs]
        arrow = _ARROWS[next((stated[name] for name in names if name in stated), None)]
        rows.append([base + arrow, *(number(result.test.get(name)) for name in names)])
        for title, reference in result.references.items():
            if any(name in reference.test for name in names):
                rows.append([f"  {title}", *(number(reference.test.get(name)) for name in names)])
    return console_table([kind, *(f"{_AT}{at}" for at in cutoffs)], rows)


def _draws(intervals: Mapping[str, Drawn]) -> Table:
    """Metrics over posterior draws."""
    rows = [
        [name, number(each.mean), _interval((each.low, each.high))]
        for name, each in intervals.items()
    ]
    return console_table(["posterior draws", "", "95% interval"], rows)


def _interval(bounds: Sequence[float | None] | None) -> str:
    """Both ends, the last decimal about as large as the error of resampling, at most four decimals."""
    if not bounds:
        return ""
    low, high = bounds
    width = (high or 0) - (low or 0)
    error = _END_ERROR * width
    decimals = (
        min(max(round(-math.log10(error)), 0), 4) if math.isfinite(error) and error > 0 else 4
    )
    return " to ".join(number(bound, decimals) for bound in bounds)


def _flow(tables: Sequence[Table], console: Console) -> list[Table]:
    """Tables in rows, each as long as the console is wide."""
    rows: list[list[Table]] = []
    for table in tables:
        if rows and fits(side_by_side(*rows[-1], table), console):
            rows[-1].append(table)
        else:
            rows.append([table])
    return [row[0] if len(row) == 1 else side_by_side(*row) for row in rows]

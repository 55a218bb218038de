"""The conclusion of a comparison in a sentence: which group is best, by how much, and how surely."""

import math
from collections.abc import Iterable

import numpy as np

from clickexp.results.comparison import Comparison
from clickexp.results.groups import Group
from clickexp.results.metric_names import headline, short
from clickexp.utils.statistics.means import SIGNIFICANT
from clickexp.utils.tables.numbers import FINE, rounded


def conclusion(comparison: Comparison, baseline: Group | None = None) -> str:
    """Names the best group by each leading metric, and its difference to the baseline, or of the baseline to the next.

    Args:
        comparison: The groups.
        baseline: One of the comparison's baselines; by default its baseline.

    Returns:
        Sentences; empty where there is nothing to compare.
    """
    baseline = baseline or comparison.baseline
    clauses: dict[Group, list[str]] = {}
    reserve, last = "", None
    metrics = (
        comparison.leading[:1] if comparison.choice else headline(comparison.leading)
    )  # a search has one metric
    tested = any(np.isfinite(comparison.tests[metric].p).any() for metric in metrics)
    for metric in metrics:
        best, next_best = (*_ranked(comparison, metric), None, None)[:2]
        if (
            best is None
            or next_best is None
            or best.spread(metric).mean == next_best.spread(metric).mean
        ):
            continue
        knows = bool(np.isfinite(baseline.spread(metric).mean))  # rankers know no metrics of clicks
        other = next_best if best is baseline or not knows else baseline
        verdict = _advantage(
            comparison, baseline, metric, best, other, None if other is last else other.name, tested
        )
        clauses.setdefault(best, []).append(f"{short(metric)} ({verdict})")
        last = other
        if metric == comparison.leading[0] and next_best is not other:
            *_, p = comparison.difference(best, next_best, metric)
            if p >= SIGNIFICANT:
                reserve = f" {next_best.name} is not significantly worse in {short(metric)} ({_p_text(p)})."
    if not clauses:
        return ""
    text = "; ".join(
        f"{group.name} is best in {_listed(parts)}" for group, parts in clauses.items()
    )
    return f"{text}.{reserve}{'' if tested else ' Nothing is tested.'}"


def _ranked(comparison: Comparison, metric: str) -> list[Group]:
    """Groups that have the metric, best first; none where neither way is better."""
    direction = comparison.direction(metric)
    measured = [group for group in comparison.groups if np.isfinite(group.spread(metric).mean)]
    return (
        sorted(measured, key=lambda group: -direction * group.spread(metric).mean)
        if direction
        else []
    )


def _advantage(
    comparison: Comparison,
    baseline: Group,
    metric: str,
    best: Group,
    other: Group,
    name: str | None,
    tested: bool,
) -> str:
    """Such as "+0.0048 on PBM, p < 0.001"; without a name where the sentence has just given it."""
    _, half, p = comparison.difference(baseline, other if best is baseline else best, metric)
    value = float(best.spread(metric).mean - other.spread(metric).mean)
    ((text, _),) = rounded([value], [half], "+", most=FINE)
    if float(text) == 0:
        ((text, _),) = rounded(
            [value], [math.nan], "+", most=FINE
        )  # its first digit, rather than +0.0000
    verdict = (
        "not tested"
        if math.isnan(p)
        else _p_text(p)
        if p < SIGNIFICANT
        else f"not significant, {_p_text(p)}"
    )
    return text + (f" on {name}" if name else "") + (f", {verdict}" if tested else "")


def _p_text(p: float) -> str:
    """Such as "p = 0.012"."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last

"""The conclusion of a comparison in a sentence: which group is best, by how much, and how surely."""

import math
from collections.abc import Iterable

import numpy as np

from clickexp.results.comparison import Comparison
from clickexp.results.differences import kept_values
from clickexp.results.groups import Group
from clickexp.results.metric_names import headline, short
from clickexp.runs.run import Run
from clickexp.utils.tables.numbers import FINE, SIGNIFICANT, p_value, rounded
from clickexp.utils.text import listed

_FIT = "ll"
"""The metric that tells how well a model fits users."""
_CLICK_RATE = "ctr"
"""The parameter of models that are click rates, which assume nothing of users."""
_MOST_NAMED = 6
"""Names of groups in the sentence."""


def conclusion(comparison: Comparison, baseline: Group | None = None) -> str:
    """Names the best group by each leading metric, and its difference to the baseline, or of the baseline to the next.

    Args:
        comparison: The groups.
        baseline: One of the comparison's baselines; by default its baseline.

    Returns:
        Sentences; empty where there is nothing to compare.
    """
    baseline = baseline or comparison.baseline
    # a search has one metric
    metrics = comparison.leading[:1] if comparison.choice else headline(comparison.leading)
    tested = any(np.isfinite(comparison.tests[metric].p).any() for metric in metrics)
    clauses: dict[Group, list[str]] = {}
    reserve, last = "", None
    for metric in metrics:
        contenders = _contenders(comparison, metric, comparison.groups)
        if contenders is None:
            continue
        best, second = contenders
        other = _compared(baseline, metric, best, second)
        verdict = _advantage(comparison, baseline, metric, best, other, last, tested)
        clauses.setdefault(best, []).append(f"{short(metric)} ({verdict})")
        last = other
        if metric == comparison.leading[0]:
            reserve = _reserve(comparison, metric, best, second, other)
    if not clauses:
        return ""
    sentences = [f"{group.name} is best in {_listed(parts)}" for group, parts in clauses.items()]
    remarks = reserve + _whose_parameters(comparison) + ("" if tested else _untested(comparison))
    return f"{'; '.join(sentences)}.{remarks}"


def _whose_parameters(comparison: Comparison) -> str:
    """A sentence that says whose parameters to take where tests show that models fit users worse; else empty.

    Intervals of parameters assume that the model is right. Those of a model of other users are as narrow, around
    parameters that do not exist.
    """
    fitted = [group for group in comparison.groups if any(map(_describes_users, group.runs))]
    contenders = _contenders(comparison, _FIT, fitted)
    if contenders is None:
        return ""
    best, _ = contenders
    worse, undecided = [], []
    for group in fitted:
        if group.model != best.model:
            *_, p = comparison.difference(best, group, _FIT)
            if p < SIGNIFICANT:
                worse.append(group.name)
            elif p >= SIGNIFICANT:  # where it is tested
                undecided.append(group.name)
    if not worse:
        return ""
    against = f"{listed(worse, _MOST_NAMED)}, whose intervals do not show it"
    if undecided:
        against += f", and not significantly against {listed(undecided, _MOST_NAMED)}"
    return f" Take parameters from {best.name}: clicks speak against {against}."


def _describes_users(run: Run) -> bool:
    """Whether a run reports parameters of users, such as examination or continuation."""
    return bool(run.propensity) or any(one.parameter != _CLICK_RATE for one in run.shared)


def _untested(comparison: Comparison) -> str:
    """A sentence that says why nothing is tested."""
    runs = comparison.runs
    kept = sum(map(kept_values, runs))
    if kept == len(runs):
        return " Nothing is tested."
    return (
        f" Nothing is tested: {kept or 'none'} of {len(runs)} runs have values per query, which keep_values=true keeps "
        "of clicks and labelled lists, and a test over seeds needs two per row."
    )


def _mean(group: Group, metric: str) -> float:
    return float(group.spread(metric).mean)


def _compared(baseline: Group, metric: str, best: Group, second: Group) -> Group:
    """The group that the best is compared with: the baseline, unless it is the best, or has no such metric."""
    has_metric = math.isfinite(_mean(baseline, metric))  # rankers know no metrics of clicks
    return baseline if has_metric and baseline is not best else second


def _reserve(comparison: Comparison, metric: str, best: Group, second: Group, other: Group) -> str:
    """A sentence where the best is not significantly better than a second that is not the other; else empty."""
    *_, p = comparison.difference(best, second, metric)
    if second is other or not p >= SIGNIFICANT:
        return ""
    return f" {second.name} is not significantly worse in {short(metric)} ({_p_text(p)})."


def _contenders(
    comparison: Comparison, metric: str, groups: Iterable[Group]
) -> tuple[Group, Group] | None:
    """The best group and the second; None where neither way is better, or both are alike, or there is none."""
    direction = comparison.direction(metric)
    measured = [group for group in groups if math.isfinite(_mean(group, metric))]
    if not direction or len(measured) < 2:
        return None
    best, second, *_ = sorted(measured, key=lambda group: -direction * _mean(group, metric))
    return (best, second) if _mean(best, metric) != _mean(second, metric) else None


def _advantage(
    comparison: Comparison,
    baseline: Group,
    metric: str,
    best: Group,
    other: Group,
    last: Group | None,
    tested: bool,
) -> str:
    """Such as "+0.0048 on PBM, p < 0.001"; without a name where the sentence has just given it, as that of `last`."""
    _, half, p = comparison.difference(baseline, other if best is baseline else best, metric)
    value = _mean(best, metric) - _mean(other, metric)
    ((text, _),) = rounded([value], [half], "+", most=FINE)
    if float(text) == 0:  # its first digit, rather than +0.0000
        ((text, _),) = rounded([value], [math.nan], "+", most=FINE)
    on = "" if other is last else f" on {other.name}"
    return f"{text}{on}, {_verdict(p)}" if tested else text + on


def _verdict(p: float) -> str:
    if math.isnan(p):
        return "not tested"
    return _p_text(p) if p < SIGNIFICANT else f"not significant, {_p_text(p)}"


def _p_text(p: float) -> str:
    """Such as "p = 0.012"."""
    text = p_value(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last

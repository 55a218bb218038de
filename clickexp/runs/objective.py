"""The number that a run is judged by, such as val/loss, and which way it is better."""

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from clickexp.errors import ConfigError
from clickexp.runs.result import RunResult
from clickexp.utils.suggest import did_you_mean

HIGHER_IS_BETTER = {
    **dict.fromkeys(("loss", "ppl", "cond_ppl", "micro_ppl", "click_ppl", "skip_ppl"), False),
    **dict.fromkeys(("ece", "click_rate_error", "attraction_rmse", "examination_rmse"), False),
    **dict.fromkeys(("ll", "auc", "attraction_correlation"), True),
    **dict.fromkeys(
        ("precision", "recall", "f1", "hits", "hit_rate", "mrr", "arhr", "rbp", "err"), True
    ),
    **dict.fromkeys(("map", "map_min", "mar", "mar_all", "cg"), True),
    **dict.fromkeys(
        ("dcg", "dcg_linear", "dcg_original", "ndcg", "ndcg_linear", "ndcg_original"), True
    ),
    **dict.fromkeys(("concordant_pairs", "fcp", "tau", "weighted_tau"), True),
    **dict.fromkeys(("examination", "without_relevant", "unjudged", "judged"), None),
}
"""What the classes behind the names in conf/metric state, for results that do not carry it."""

Stated = Mapping[str, bool | None]

VALIDATION = "val/"
"""How the names of metrics of the best epoch's validation begin."""

DRAWS = "draws/"
"""How the names of test metrics over posterior draws begin."""


def higher_is_better(metric: str, stated: Stated | None = None) -> bool | None:
    """Which way a metric such as ll, val/loss or ndcg@10 is better; None where neither way is, or it is not known.

    Args:
        metric: its name, with or without the part of the result.
        stated: by name what the metrics of the run state. Names that it lacks are looked up among those of conf/metric.
    """
    name = metric.rpartition("/")[2]
    if stated and name in stated:
        return stated[name]
    return HIGHER_IS_BETTER.get(name.partition("@")[0])


def stated_by(results: Iterable[RunResult]) -> dict[str, bool | None]:
    """By name which way metrics are better as results state it; None where they disagree."""
    stated: dict[str, bool | None] = {}
    for result in results:
        for name, better in result.higher_is_better.items():
            stated[name] = better if stated.get(name, better) == better else None
    return stated


def objective(result: RunResult, metric: str) -> float:
    """The value of a metric such as val/loss or test/ndcg@10; nan where it is not known."""
    part, _, name = metric.partition("/")
    reported = {"val": result.val, "test": result.test}
    check_objective(metric, reported)
    value = reported[part][name]
    return math.nan if value is None else value


def reports(result: RunResult, metric: str) -> bool:
    """Whether a result has a metric; a validation has only those that were watched."""
    part, _, name = metric.partition("/")
    return name in {"val": result.val, "test": result.test}.get(part, {})


def check_objective(metric: str, reported: Mapping[str, Any]) -> None:
    """ConfigError for a metric that no part of the result reports. reported: the names of each part."""
    names = [f"{part}/{name}" for part, inside in reported.items() for name in inside]
    if metric not in names:
        nearest = get_close_matches(metric, names, 1, cutoff=0)
        meant = did_you_mean(metric, names) or f" The nearest is {nearest[0]}." * bool(nearest)
        raise ConfigError(
            f"optimized_metric={metric}: choose one that the run reports.{meant} It reports {', '.join(names)}"
        )

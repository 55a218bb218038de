"""The number that a run is judged by, such as val/loss, and which way it is better."""

from collections.abc import Mapping
from typing import Any

from clickexp.errors import ConfigError
from clickexp.suggest import did_you_mean

LOWER_IS_BETTER = ("loss", "ppl", "error", "rmse", "ece")


def lower_is_better(metric: str) -> bool:
    """True for losses, perplexities and errors."""
    return metric.endswith(LOWER_IS_BETTER)


def objective(result: Mapping[str, Any], metric: str) -> float:
    """The value of a metric such as val/loss or test/ndcg@10 in what result.json holds."""
    part, _, name = metric.partition("/")
    check_objective(metric, {part: result.get(part, {}) for part in ("val", "test")})
    return result[part][name]


def check_objective(metric: str, reported: Mapping[str, Any]) -> None:
    """ConfigError for a metric that no part of the result reports. reported: the names of each part."""
    names = [f"{part}/{name}" for part, inside in reported.items() for name in inside]
    if metric not in names:
        meant = did_you_mean(metric, names)
        raise ConfigError(
            f"optimized_metric={metric}: choose one that the run reports.{meant} It reports {', '.join(names)}"
        )

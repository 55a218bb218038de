"""The number that a run is judged by, such as val/loss, and which way it is better."""

import json
import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from clickexp.errors import ConfigError
from clickexp.runs.run import Run
from clickexp.utils.suggest import did_you_mean

Stated = Mapping[str, bool | None]
"""By the name of a metric its `higher_is_better`, as its class states it."""
_LOSS: Stated = {"loss": False}
"""Every model minimises it; that of a click model is no metric."""


def higher_is_better(metric: str, stated: Stated) -> bool | None:
    """Which way a metric such as ll, val/loss or ndcg@10 is better; None where neither way is, or it is not known.

    Args:
        metric: Its name, with or without the part of the result.
        stated: What the metrics of the run state.
    """
    return {**_LOSS, **stated}.get(metric.rpartition("/")[2])


def stated_by(runs: Iterable[Run]) -> dict[str, bool | None]:
    """By name which way metrics are better as runs state it; None where they disagree."""
    stated: dict[str, bool | None] = {}
    for run in runs:
        for name, better in run.higher_is_better.items():
            stated[name] = better if stated.get(name, better) == better else None
    return stated


def is_loss(metric: str) -> bool:
    """Whether a metric, with or without the part of the result, is what training minimises."""
    return metric.rpartition("/")[2] in _LOSS


def mixes_losses(runs: Iterable[Run]) -> bool:
    """Whether losses of runs are of several kinds, so that their values say nothing about each other.

    The loss of click models is minus their log-likelihood, that of a ranker depends on its loss and its correction.
    """
    return len({_kind_of_loss(run) for run in runs}) > 1


def _kind_of_loss(run: Run) -> str:
    model = run.config.get("model")
    if "ll" in run.test or "ll" in run.val:
        return "clicks"
    if not isinstance(model, Mapping):
        return run.model
    return json.dumps([model.get(key) for key in ("_target_", "loss", "debias")], default=str)


def objective(run: Run, metric: str) -> float:
    """The value of a metric such as val/loss or test/ndcg@10; nan where it is not known.

    Raises:
        ConfigError: The run does not report it.
    """
    part, _, name = metric.partition("/")
    reported = {"val": run.val, "test": run.test}
    check_objective(metric, reported)
    value = reported[part][name]
    return math.nan if value is None else value


def check_objective(metric: str, reported: Mapping[str, Any]) -> None:
    """ConfigError for a metric that no part of the result reports. reported: the names of each part."""
    names = [f"{part}/{name}" for part, inside in reported.items() for name in inside]
    if metric not in names:
        nearest = get_close_matches(metric, names, 1, cutoff=0)
        meant = did_you_mean(metric, names) or f" The nearest is {nearest[0]}." * bool(nearest)
        raise ConfigError(
            f"optimized_metric={metric}: choose one that the run reports.{meant} It reports {', '.join(names)}"
        )

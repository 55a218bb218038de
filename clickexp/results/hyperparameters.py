"""Where runs came from: the commands of sweeps, and how much each hyperparameter of a search mattered."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.results.groups import Group, varying

_FEWEST = 4
"""Trials from which importances mean something."""
_WIDE = 10
"""Ratio of the largest to the smallest value from which a hyperparameter is taken as logarithmic."""


def importances(groups: Sequence[Group], metric: str, direction: int) -> dict[str, float]:
    """Importance of each override that all groups have a value for, in shares that add up to 1.

    PED-ANOVA (Watanabe, Bansal and Hutter 2023): how far the distribution of a hyperparameter among the best trials
    differs from that among all.

    Args:
        groups: The trials.
        metric: What they were chosen by.
        direction: 1 where more is better, -1 where less is.

    Returns:
        The most important first; empty with few trials, or without Optuna.
    """
    measured = [group for group in groups if np.isfinite(group.spread(metric).mean)]
    rows = [{**group.overrides, "model": group.model} for group in measured]
    keys = [
        key
        for key in varying(rows)
        if key != "dataset" and all(row.get(key) is not None for row in rows)
    ]
    if len(measured) < _FEWEST or not keys or not direction:
        return {}
    try:
        import optuna  # here, since only searches need it
    except ImportError:
        return {}
    # Optuna logs each study, and warns of distributions that will lose support for lists
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if direction > 0 else "minimize")
    distributions = {
        key: _distribution(optuna.distributions, [row[key] for row in rows]) for key in keys
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for group, row in zip(measured, rows, strict=True):
            values = {key: _trial_value(row[key]) for key in keys}
            value = float(group.spread(metric).mean)
            study.add_trial(
                optuna.create_trial(params=values, distributions=distributions, value=value)
            )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (RuntimeError, ValueError):  # of trials that are all alike
            return {}


def commands(groups: Sequence[Group]) -> list[str]:
    """The command of each sweep, from the overrides of its runs: values of one key are joined by commas."""
    sweeps: dict[Path, list[list[tuple[str, str]]]] = {}
    for run in (run for group in groups for run in group.runs):
        pairs = [word.partition("=") for word in run.words if "=" in word]
        sweeps.setdefault(run.folder.parent, []).append([(key, value) for key, _, value in pairs])
    lines = {}
    for jobs in sweeps.values():
        values: dict[str, dict[str, None]] = {}
        for key, value in (pair for pairs in jobs for pair in pairs):
            values.setdefault(key, {})[value] = None
        words = [
            f"{key}={','.join(own) if len(own) <= _WIDE else '...'}" for key, own in values.items()
        ]
        several = any(len(own) > 1 for own in values.values())
        lines[" ".join(["clickexp", *(["-m"] if several else []), *words])] = None
    return list(lines)


def _distribution(distributions: Any, values: Sequence[Any]) -> Any:
    if not all(_is_number(value) for value in values):
        return distributions.CategoricalDistribution(
            sorted({_trial_value(value) for value in values}, key=str)
        )
    low, high = float(min(values)), float(max(values))
    return distributions.FloatDistribution(low, high, log=low > 0 and high > _WIDE * low)


def _trial_value(value: Any) -> Any:
    return float(value) if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

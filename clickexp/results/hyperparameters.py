"""Where runs came from: the commands of sweeps, and how much each hyperparameter of a search mattered."""

import warnings
from collections.abc import Collection, Mapping, Sequence
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
    if len(measured) < _FEWEST or not direction:
        return {}
    means = [float(group.spread(metric).mean) for group in measured]
    trials = _varied([{**group.overrides, "model": group.model} for group in measured])
    return _ped_anova(trials, means, direction) if trials[0] else {}


def _varied(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float | str]]:
    """Values of the keys that all rows have, and that differ between them, but for the dataset."""
    keys = [
        key
        for key in varying(rows)
        if key != "dataset" and all(row.get(key) is not None for row in rows)
    ]
    return [{key: _trial_value(row[key]) for key in keys} for row in rows]


def _ped_anova(
    trials: Sequence[Mapping[str, float | str]], values: Sequence[float], direction: int
) -> dict[str, float]:
    """Importances by Optuna, the most important first; empty without Optuna."""
    try:
        import optuna  # here, since only searches need it
    except ImportError:
        return {}
    # Optuna logs each study, and warns of distributions that will lose support for lists
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if direction > 0 else "minimize")
    distributions = {
        key: _distribution(optuna.distributions, [trial[key] for trial in trials])
        for key in trials[0]
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial, value in zip(trials, values, strict=True):
            parts = {"params": {**trial}, "distributions": distributions, "value": value}
            study.add_trial(optuna.create_trial(**parts))
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (RuntimeError, ValueError):  # of trials that are all alike
            return {}


def commands(groups: Sequence[Group]) -> list[str]:
    """The command of each sweep, from the overrides of its runs: values of one key are joined by commas."""
    sweeps: dict[Path, dict[str, dict[str, None]]] = {}
    for run in (run for group in groups for run in group.runs):
        values = sweeps.setdefault(run.folder.parent, {})
        for word in run.words:
            key, equals, value = word.partition("=")
            if equals:
                values.setdefault(key, {})[value] = None
    return list(dict.fromkeys(map(_command, sweeps.values())))


def _command(values: Mapping[str, Collection[str]]) -> str:
    """The command that has these values of each key."""
    command = ["clickexp"]
    if any(len(of_key) > 1 for of_key in values.values()):
        command.append("-m")
    for key, of_key in values.items():
        command.append(f"{key}={','.join(of_key) if len(of_key) <= _WIDE else '...'}")
    return " ".join(command)


def _distribution(distributions: Any, values: Sequence[float | str]) -> Any:
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < len(values):
        return distributions.CategoricalDistribution(sorted({*values}, key=str))
    low, high = min(numbers), max(numbers)
    return distributions.FloatDistribution(low, high, log=low > 0 and high > _WIDE * low)


def _trial_value(value: Any) -> float | str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else str(value)

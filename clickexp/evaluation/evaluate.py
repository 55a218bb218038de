"""Evaluation on the parts of a dataset, and what validations compute."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from clickexp.data import Dataset
from clickexp.errors import DataError
from clickexp.evaluation.evaluation import Evaluation
from clickexp.evaluation.evaluator import USUAL, CompiledEvaluation, Evaluator, Groups, Program
from clickexp.evaluation.groups import (
    ClickMetrics,
    CounterfactualMetrics,
    HeldOut,
    RankingMetrics,
    click_metrics,
    metric_groups,
)
from clickexp.evaluation.inputs import checked
from clickexp.metrics import DCG
from clickexp.models.base import Model

_LARGEST_GRADE = 100
"""Label of which sums of exponential gains are within single precision."""


def evaluate(
    model: Model,
    dataset: Dataset,
    groups: Groups,
    evaluator: Evaluator = USUAL,
    *,
    keep_values: bool = False,
) -> Evaluation:
    """Evaluates a fitted model; see `compiled_test`."""
    compiled = compiled_test(model, dataset, groups, evaluator, keep_values=keep_values)
    return compiled(evaluator.state_of(model), "test")


def compiled_test(
    model: Model,
    dataset: Dataset,
    groups: Groups,
    evaluator: Evaluator = USUAL,
    *,
    keep_values: bool = False,
) -> CompiledEvaluation:
    """The evaluation on the test sessions and, as far as the dataset has them, labelled lists and the true user.

    Args:
        model: The model, of which only the structure and the sizes count.
        dataset: Its test part is used.
        groups: Metrics by group.
        evaluator: How many sessions at a time, and the logger.
        keep_values: Whether metrics keep the values of single sessions and lists.
    """
    built = metric_groups(groups)
    if keep_values:
        for key, group in built.items():
            if isinstance(group, ClickMetrics | RankingMetrics | CounterfactualMetrics):
                built[key] = group.keep_values()
    return evaluator.compiled(model, HeldOut.test(dataset), built)


def validation_metrics(groups: Groups, watched: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """The metrics of a validation, as trainers take them.

    Args:
        groups: Metrics by group.
        watched: Values that the validation has to report, such as ppl or ndcg@10.

    Returns:
        `metrics`: those of clicks, and the watched ones of the group `test`. `groups`: others, such as `ranking`, of
        which a metric is watched.
    """
    built = metric_groups(groups)
    click, test = (built.pop(key, ClickMetrics()) for key in ("click", "test"))
    extra = {
        name: metric
        for name, metric in test.metrics.items()
        if not set(watched).isdisjoint(ClickMetrics({name: metric}).names)
    }
    chosen: dict[str, Mapping[str, Any]] = {
        "groups": {
            key: group for key, group in built.items() if not set(watched).isdisjoint(group.names)
        }
    }
    if click.metrics or extra:
        chosen["metrics"] = {**(click.metrics or click_metrics()), **extra}
    return chosen


def check_metrics(model: Model, dataset: Dataset, groups: Groups) -> None:
    """Checks before training that metrics from outside of the package can be computed.

    Raises:
        ConfigError: One wants what its group does not have.
    """
    held_out = HeldOut.test(dataset)
    for group in metric_groups(groups).values():
        of_users = {
            name: metric
            for name, metric in group.metrics.items()
            if not type(metric).__module__.startswith("clickexp.")
        }
        group = type(group)(of_users)
        data = group.data_of(model, held_out)
        if data is not None:
            truth = held_out.truth if group.needs_truth else None
            models = [model] if truth is None else [model, truth]
            Program(USUAL, model, group, data, truth).check(models)


def check_lists(model: Model, dataset: Dataset, groups: Groups) -> None:
    """Checks before training that the labelled lists fit the model.

    Raises:
        DataError: They do not.
    """
    ranking = metric_groups(groups).get("ranking", RankingMetrics())
    if dataset.ranking is None or not ranking.metrics:
        return
    try:
        checked(dataset.ranking, model, model.predict_relevance, "labels")
    except DataError as error:
        raise DataError(f"labelled lists: {error} metric=click leaves them out.") from error
    if not any(
        isinstance(metric, DCG) and metric.form == "exponential"
        for metric in ranking.metrics.values()
    ):
        return
    largest = max(
        (float(np.nanmax(chunk["labels"], initial=0)) for chunk in dataset.ranking.chunks()),
        default=0.0,
    )
    if largest > _LARGEST_GRADE:
        raise DataError(
            f"labelled lists: labels go up to {largest:g}, and the gain 2^label - 1 of dcg and ndcg overflows "
            f"above {_LARGEST_GRADE}. Scale them to grades, or set metric.ranking.NAME.form=linear for both."
        )

"""What a model is worth on held-out data: clicks, rankings, and the truth where it is known."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from flax import nnx

from clickexp.data import Dataset
from clickexp.data.feed import Compiled, Data
from clickexp.data.seen import Impressions
from clickexp.errors import DataError
from clickexp.evaluation.evaluator import Metrics, ModelState
from clickexp.evaluation.inputs import checked
from clickexp.evaluation.model_evaluator import ModelEvaluator, click_metrics
from clickexp.evaluation.outputs import MeanLoss
from clickexp.loggers.base import Phase
from clickexp.metrics import (
    DCG,
    ClickRateError,
    ColdStart,
    Examination,
    ExpectedCalibrationError,
    LogLikelihood,
    MultiMetric,
)
from clickexp.models import ClickModel
from clickexp.models.base import Model

_LARGEST_GRADE = 100
"""Label of which sums of exponential gains are within single precision."""

Groups = Mapping[str, Metrics]
"""Metrics by group.

`click`, `test` and `counterfactual` read sessions, `ranking` labelled lists, `truth` the true user.
"""

RankVectors = dict[str, list[float] | list[int]]
"""Vectors of one length, rank 1 first: each metric that has one, NaN where unknown, and the number of `sessions`."""


@dataclass(frozen=True)
class HeldOut:
    """Data that a model is evaluated on.

    Attributes:
        sessions: What users saw and clicked.
        lists: Lists with relevance labels, if there are any.
        truth: The click model that clicked, where it is known.
    """

    sessions: Data
    lists: Data | None = None
    truth: ClickModel | None = None

    @classmethod
    def test(cls, dataset: Dataset) -> "HeldOut":
        """The test part of a dataset."""
        return cls(
            dataset.test.deriving(Impressions(dataset.train)), dataset.ranking, dataset.truth
        )

    @classmethod
    def validation(cls, dataset: Dataset) -> "HeldOut":
        """The validation part; its lists are the sessions where these have labels."""
        sessions = dataset.val.deriving(Impressions(dataset.train))
        return cls(sessions, dataset.val if dataset.val.has_labels else None, dataset.truth)


_PARTS = {
    "click": "clicks",
    "loss": "loss",
    "ranking": "ranking",
    "counterfactual": "ranking by clicks",
    "truth": "hidden events",
}
"""What readers call the parts of an evaluation."""
_KINDS = {
    "calibration": (ExpectedCalibrationError, ClickRateError),
    "impressions in training": (ColdStart,),
    "hidden events": (Examination,),
}
"""Metrics of clicks that readers look for elsewhere."""
_ORDER = (
    "clicks",
    "loss",
    "calibration",
    "impressions in training",
    "ranking",
    "ranking by clicks",
    "hidden events",
)


@dataclass(frozen=True)
class Evaluation:
    """Metrics on held-out data by kind: `click`, `loss`, `ranking`, `counterfactual`, `truth`, as far as computed."""

    parts: Mapping[str, MultiMetric]

    def values(self) -> dict[str, float | int]:
        """Every value by name, such as ppl or ndcg@10, and `loss`: the model's own, -ll of a click model."""
        values = {
            name: value for part in self.parts.values() for name, value in part.compute().items()
        }
        return {**values, "loss": values.pop("loss") if "loss" in values else -values["ll"]}

    def per_rank(self) -> RankVectors:
        """The vectors of click metrics; none where there are no click metrics."""
        if "click" not in self.parts:
            return {}
        clicks = self.parts["click"]
        counts = cast(LogLikelihood, clicks.metrics["ll"]).counts
        vectors = {name: _padded(v, counts.size) for name, v in clicks.compute_per_rank().items()}
        return {**vectors, "sessions": counts.tolist()}

    def result(self) -> dict[str, Any]:
        """What result.json holds of it.

        Returns:
            `test`: values by name. `groups`: their names by kind, such as clicks and ranking. `higher_is_better`: by
            name what each metric states. `per_rank`: vectors of one length, rank 1 first. `curves`: what else to draw.
        """
        stated = {
            name: better
            for part in self.parts.values()
            for name, better in part.higher_is_better.items()
        }
        return {
            "test": self.values(),
            "groups": self._kinds(),
            "higher_is_better": {**stated, "loss": False},
            "per_rank": self.per_rank(),
            "curves": self.parts["click"].compute_curves() if "click" in self.parts else {},
        }

    def _kinds(self) -> dict[str, list[str]]:
        """Names of the values by kind; without the loss of a click model, which is -ll."""
        kinds: dict[str, list[str]] = {}
        for part, metrics in self.parts.items():
            for name, metric in metrics.metrics.items():
                of = next(
                    (kind for kind, classes in _KINDS.items() if isinstance(metric, classes)),
                    _PARTS[part],
                )
                kinds.setdefault(of, []).extend(name + suffix for suffix in metric.suffixes)
        return {kind: kinds[kind] for kind in _ORDER if kind in kinds}

    def keep(self, dataset: Dataset, folder: Path) -> dict[str, list[float]]:
        """Writes the values of single sessions and lists; returns 95% intervals [low, high] of the metrics.

        Of fewer than six queries or search sessions there are none.
        """
        # here, since only such runs need what these import
        from clickexp.results.per_query import OBSERVED, samples, write_values
        from clickexp.utils.statistics.bootstrap import bootstrap_interval

        nothing = MultiMetric()
        clicks, lists = self.parts.get("click", nothing), self.parts.get("ranking", nothing)
        write_values(folder, dataset.test, clicks, dataset.ranking, lists)
        names = [*(name for name in clicks.names if name in OBSERVED), *lists.values()]
        intervals = {name: bootstrap_interval(samples(folder, name)) for name in names}
        bounds = {name: [interval.low, interval.high] for name, interval in intervals.items()}
        return {name: pair for name, pair in bounds.items() if not np.isnan(pair).any()}


def _padded(values: np.ndarray, length: int) -> list[float]:
    return np.pad(
        values[:length], (0, max(length - values.size, 0)), constant_values=np.nan
    ).tolist()


class HeldOutEvaluator:
    """Groups of metrics on held-out data, for any state of one model, each compiled once.

    A model that is no click model has no metrics of clicks and truth.

    Args:
        evaluator: How many sessions at a time, and the logger.
        model: The model, of which only the structure and the sizes count.
        data: What to evaluate on.
        groups: Metrics by group; those without data are left out.

    Raises:
        DataError: Ids, positions or clicks do not fit the model.
    """

    def __init__(self, evaluator: ModelEvaluator, model: Model, data: HeldOut, groups: Groups):
        self._tasks = {}
        clicks = isinstance(model, ClickModel)
        if clicks:
            metrics = {**groups["click"], **groups.get("test", {})}
            self._tasks["click"] = evaluator.task("click", model, data.sessions, metrics)
        if not clicks or type(model).compute_loss is not ClickModel.compute_loss:
            self._tasks["loss"] = evaluator.task("loss", model, data.sessions, {"loss": MeanLoss()})
        if data.lists is not None and groups.get("ranking"):
            self._tasks["ranking"] = evaluator.task("ranking", model, data.lists, groups["ranking"])
        if groups.get("counterfactual"):
            metrics = groups["counterfactual"]
            self._tasks["counterfactual"] = evaluator.task(
                "counterfactual", model, data.sessions, metrics
            )
        if clicks and data.truth is not None and groups.get("truth"):
            self._tasks["truth"] = evaluator.task(
                "truth", model, data.sessions, groups["truth"], data.truth
            )

    def __call__(self, state: ModelState, phase: Phase, epoch: int = 0) -> Evaluation:
        """Evaluates the model in a state, in the order in which `nnx.merge` takes it."""
        return Evaluation(
            {
                kind: task.evaluator(state, task.data, phase, epoch)
                for kind, task in self._tasks.items()
            }
        )

    @property
    def names(self) -> list[str]:
        """Names of the values that evaluations have."""
        names = [name for task in self._tasks.values() for name in task.evaluator.metrics.names]
        return ["loss", *(name for name in names if name != "loss")]

    @property
    def data(self) -> list[Data]:
        """What is evaluated on, as it is iterated."""
        return [task.data for task in self._tasks.values()]

    @property
    def programs(self) -> list[Compiled]:
        """What is compiled."""
        return [task.evaluator.run for task in self._tasks.values()]


def evaluate(
    model: Model,
    dataset: Dataset,
    metrics: Groups,
    evaluator: ModelEvaluator | None = None,
    *,
    keep_values: bool = False,
) -> Evaluation:
    """Evaluates on the test sessions and, as far as the dataset has them, labelled lists and the true user.

    Args:
        model: A fitted model.
        dataset: Its test part is used.
        metrics: Metrics by group.
        evaluator: How many sessions at a time, and the logger.
        keep_values: Whether metrics keep the values of single sessions and lists.
    """
    if keep_values:
        kept = ("click", "test", "ranking")
        metrics = {
            name: MultiMetric(group).keep_values().metrics if name in kept else group
            for name, group in metrics.items()
        }
    run = HeldOutEvaluator(evaluator or ModelEvaluator(), model, HeldOut.test(dataset), metrics)
    return run((nnx.state(model),), "test")


def validation_metrics(groups: Groups, watched: Collection[str]) -> dict[str, Metrics]:
    """The metrics of a validation, as trainers take them.

    Args:
        groups: Metrics by group.
        watched: Values that the validation has to report, such as ppl or ndcg@10.

    Returns:
        Click metrics, the watched ones of the group `test`, and groups such as `ranking` of which one is watched.
    """

    def reports(metrics: Metrics) -> bool:
        return not set(watched).isdisjoint(MultiMetric(metrics).names)

    extra = {
        name: metric for name, metric in groups.get("test", {}).items() if reports({name: metric})
    }
    click = groups.get("click")
    chosen: dict[str, Metrics] = {}
    if click or extra:
        chosen["metrics"] = {**(click or click_metrics()), **extra}
    for group in ("ranking", "counterfactual", "truth"):
        if reports(groups.get(group) or {}):
            chosen[f"{group}_metrics"] = groups[group]
    return chosen


def check_lists(model: Model, dataset: Dataset, metrics: Groups) -> None:
    """Checks before training that the labelled lists fit the model.

    Raises:
        DataError: They do not.
    """
    if dataset.ranking is not None and metrics.get("ranking"):
        try:
            checked(dataset.ranking, model, model.predict_relevance, "labels")
        except DataError as error:
            raise DataError(f"labelled lists: {error} metric=click leaves them out.") from error
        gains = [
            m for m in metrics["ranking"].values() if isinstance(m, DCG) and m.form == "exponential"
        ]
        found = (float(chunk["labels"].max(initial=0)) for chunk in dataset.ranking.chunks())
        largest = max(found, default=0.0) if gains else 0.0
        if largest > _LARGEST_GRADE:
            raise DataError(
                f"labelled lists: labels go up to {largest:g}, and the gain 2^label - 1 of dcg and ndcg overflows "
                f"above {_LARGEST_GRADE}. Scale them to grades, or set metric.ranking.NAME.form=linear for both."
            )

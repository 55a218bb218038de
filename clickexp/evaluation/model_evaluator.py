"""Evaluates models on click logs and labelled lists, one kind of metrics at a time."""

import dataclasses
from typing import Literal, NamedTuple

from flax import nnx

from clickexp.data.feed import Data
from clickexp.evaluation import outputs
from clickexp.evaluation.evaluator import Evaluator, Metrics
from clickexp.evaluation.inputs import checked
from clickexp.loggers.base import Logger
from clickexp.metrics import ConditionalPerplexity, LogLikelihood, Metric, MultiMetric, Perplexity
from clickexp.models.base import ClickModel, Model


def click_metrics() -> dict[str, Metric]:
    """Log-likelihood, perplexity and conditional perplexity under their usual names."""
    return {"ll": LogLikelihood(), "ppl": Perplexity(), "cond_ppl": ConditionalPerplexity()}


class _Kind(NamedTuple):
    """What metrics of a kind read, the method whose inputs have to fit the model, and keys that batches need."""

    outputs: outputs.Outputs
    method: str
    required: tuple[str, ...] = ()


_KINDS = {
    "click": _Kind(outputs.click_outputs, "compute_loss", ("clicks",)),
    "loss": _Kind(outputs.loss_outputs, "compute_loss"),
    "ranking": _Kind(outputs.ranking_outputs, "predict_relevance", ("labels",)),
    "counterfactual": _Kind(outputs.counterfactual_outputs, "predict_relevance", ("clicks",)),
    "truth": _Kind(outputs.truth_outputs, "predict_examination"),
}


class _Task(NamedTuple):
    """Metrics of one kind, and the data that they are computed on."""

    evaluator: Evaluator
    data: Data


@dataclasses.dataclass(frozen=True)
class ModelEvaluator:
    """Evaluates a model, its metrics ready for `compute` and `compute_per_rank`.

    Args:
        batch_size: Sessions, or lists, per step.
        steps_per_execution: Batches per dispatch.
        logger: Receives progress.
    """

    batch_size: int = 8192
    steps_per_execution: int = 16
    logger: Logger = dataclasses.field(default_factory=Logger)

    def clicks(self, model: ClickModel, data: Data, metrics: Metrics) -> MultiMetric:
        """Metrics of click predictions.

        Args:
            model: A click model.
            data: Packed sessions or batches, with clicks.
            metrics: Metrics by name.

        Raises:
            DataError: Clicks are missing, or ids, positions or clicks do not fit the model.
        """
        return _evaluated(model, self.task("click", model, data, metrics))

    def ranking(self, model: Model, data: Data, metrics: Metrics) -> MultiMetric:
        """Metrics of rankings.

        Args:
            model: A ranker or click model.
            data: Packed sessions, or batches of `labels`, `mask` and what the model ranks by; clicks are not needed.
            metrics: Metrics by name.

        Raises:
            DataError: Batches lack labels or mask, or do not fit the model.
        """
        return _evaluated(model, self.task("ranking", model, data, metrics))

    def truth(
        self, model: ClickModel, truth: ClickModel, data: Data, metrics: Metrics
    ) -> MultiMetric:
        """Metrics of hidden events on data that the true user clicked on."""
        return _evaluated(model, self.task("truth", model, data, metrics, truth))

    def task(
        self,
        kind: Literal["click", "loss", "ranking", "counterfactual", "truth"],
        model: Model,
        data: Data,
        metrics: Metrics,
        truth: Model | None = None,
    ) -> _Task:
        """Metrics of a kind for states of this model, on data that is found to fit it and the true user."""
        outputs, method, required = _KINDS[kind]
        for each in filter(None, (model, truth)):
            data = checked(data, each, getattr(each, method), *required)
        return _Task(self.program(model, metrics, outputs, truth), data)

    def program(
        self,
        model: Model,
        metrics: Metrics,
        read: outputs.Outputs = outputs.click_outputs,
        truth: Model | None = None,
    ) -> Evaluator:
        """What evaluates states of this model, compiled once; see `Evaluator`."""
        for each in filter(None, (model, truth)):
            each.eval()
        sizes = {"batch_size": self.batch_size, "steps_per_execution": self.steps_per_execution}
        return Evaluator(
            nnx.graphdef(model), metrics, read, truth=truth, logger=self.logger, **sizes
        )


def _evaluated(model: Model, task: _Task) -> MultiMetric:
    return task.evaluator((nnx.state(model),), task.data, "test")

"""Evaluates models on click logs and labelled lists."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from flax import nnx

from clickexp.data.feed import Data
from clickexp.evaluation.evaluator import (
    Evaluator,
    Outputs,
    WithTruth,
    click_outputs,
    ranking_outputs,
    truth_outputs,
)
from clickexp.evaluation.inputs import checked
from clickexp.loggers.base import Logger
from clickexp.metrics import Metric, MultiMetric
from clickexp.models.base import ClickModel

Metrics = Mapping[str, Metric]
RankVectors = dict[str, list[float] | list[int]]
"""Vectors of one length, rank 1 first: each metric that has one, NaN where unknown, and the number of `sessions`."""


@dataclasses.dataclass(frozen=True)
class ModelEvaluator:
    """Evaluates a model, its metrics ready for `compute` and `compute_per_rank`.

    Args:
        batch_size: Sessions, or lists, per step.
        steps: Batches per dispatch.
        logger: Receives progress.
    """

    batch_size: int = 8192
    steps: int = 16
    logger: Logger = dataclasses.field(default_factory=Logger)

    def clicks(self, model: ClickModel, data: Data, metrics: Metrics) -> MultiMetric:
        """Metrics of click predictions.

        Raises:
            DataError: Clicks are missing, or ids, positions or clicks do not fit the model.
        """
        return self._run(model, checked(data, model, model.compute_loss, "clicks"), metrics, click_outputs)

    def ranking(self, model: ClickModel, data: Data, metrics: Metrics) -> MultiMetric:
        """Metrics of rankings.

        Args:
            data: Packed sessions, or batches of `labels`, `mask` and what the model ranks by; clicks are not needed.

        Raises:
            DataError: Batches lack labels or mask, or do not fit the model.
        """
        return self._run(
            model, checked(data, model, model.predict_relevance, "labels"), metrics, ranking_outputs
        )

    def truth(self, model: ClickModel, truth: ClickModel, data: Data, metrics: Metrics) -> MultiMetric:
        """Metrics of hidden events on data that the true user clicked on."""
        for each in model, truth:
            data = checked(data, each, each.predict_examination)
        return self._run(WithTruth(model, truth), data, metrics, truth_outputs)

    def _run(self, model: nnx.Module, data: Data, metrics: Metrics, outputs: Outputs) -> MultiMetric:
        model.eval()
        graphdef, state = nnx.split(model)
        return self.program(graphdef, metrics, outputs)((state,), data, "test")

    def program(
        self, graphdef: nnx.GraphDef, metrics: Metrics, outputs: Outputs = click_outputs
    ) -> Evaluator:
        """What evaluates states of this structure, compiled once."""
        sizes = dict(batch_size=self.batch_size, steps=self.steps)
        return Evaluator(graphdef, metrics, outputs, logger=self.logger, **sizes)


def per_rank(metrics: MultiMetric) -> RankVectors:
    """The vectors of click metrics, of which `ll` is one."""
    counts = metrics.metrics["ll"].counts
    vectors = {
        name: _padded(values, counts.size).tolist() for name, values in metrics.compute_per_rank().items()
    }
    return {**vectors, "sessions": counts.tolist()}


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    return np.pad(values[:length], (0, max(length - values.size, 0)), constant_values=np.nan)

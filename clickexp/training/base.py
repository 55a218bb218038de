"""What trainers share: the report of a fit, and the evaluation of a model."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from flax import nnx

from clickexp.bounds import PositiveInt, bounded
from clickexp.errors import ConfigError
from clickexp.loggers.base import Logger
from clickexp.metrics import LogLikelihood, Metric, MultiMetric, ranking_metrics
from clickexp.models.base import ClickModel
from clickexp.training.dispatch import Data
from clickexp.training.evaluation import (
    Evaluator,
    ModelState,
    WithTruth,
    click_metrics,
    click_outputs,
    ranking_outputs,
    truth_outputs,
)
from clickexp.training.inputs import checked
from clickexp.training.stopping import Stopping, early_stopping_of

Metrics = Mapping[str, Metric]
RankVectors = dict[str, list[float] | list[int]]
"""Vectors of one length, rank 1 first: each metric that has one, NaN where unknown, and the number of `sessions`."""


@dataclasses.dataclass(frozen=True)
class FitReport:
    """Report of a training.

    seconds: wall time with data loading and validation; compile_seconds, the compilation inside it, depends on what was
    compiled before and is left out of training_seconds. per_rank: validation metrics of the best epoch by rank.
    """

    epochs: int
    best_epoch: int
    sessions: int
    seconds: float
    compile_seconds: float
    history: list[dict[str, int | float]]
    per_rank: RankVectors

    @property
    def training_seconds(self) -> float:
        return self.seconds - self.compile_seconds

    @property
    def sessions_per_second(self) -> float:
        return self.sessions / max(self.training_seconds, 1e-9)

    def summary(self) -> dict[str, int | float]:
        fields = ("epochs", "best_epoch", "sessions")
        times = ("seconds", "compile_seconds", "training_seconds", "sessions_per_second")
        return {name: getattr(self, name) for name in (*fields, *times)}


class BaseTrainer:
    """Evaluates models; a subclass fits them in `train`.

    early_stopping: its metric must be one of the validation, which are `metrics`, loss and ll. Flax's EarlyStopping
    watches the loss, with its min_delta and patience.
    """

    @bounded
    def __init__(
        self,
        *,
        early_stopping: Stopping = None,
        eval_batch_size: PositiveInt = 8192,
        steps: PositiveInt = 16,
        metrics: Metrics | None = None,
        logger: Logger | None = None,
    ):
        early_stopping = early_stopping_of(early_stopping)
        self.metrics = {"ll": LogLikelihood(), **(metrics or click_metrics())}
        watched = early_stopping.metric if early_stopping else "loss"
        reported = ("loss", *self.metrics)
        check(
            watched in reported, f"cannot stop early on {watched!r}; validation reports {', '.join(reported)}"
        )
        stated = {**MultiMetric(self.metrics).higher_is_better, "loss": False}
        self.early_stopping = early_stopping and early_stopping.directed(stated)
        self.eval_batch_size = eval_batch_size
        self.steps = steps
        self.logger = logger or Logger()

    def train(self, model: ClickModel, train: Data, val: Data) -> FitReport:
        """Fits the model in place."""
        raise NotImplementedError

    def evaluate(self, model: ClickModel, data: Data, metrics: Metrics | None = None) -> MultiMetric:
        """Click metrics of a model on data, ready for `compute` and `compute_per_rank`."""
        data = checked(data, model, model.compute_loss, "clicks")
        evaluator, state = self._evaluator(model, metrics or self.metrics, click_outputs)
        return evaluator(state, data, "test")

    def evaluate_ranking(self, model: ClickModel, data: Data, metrics: Metrics | None = None) -> MultiMetric:
        """Ranking metrics of a model on lists with labels.

        Args:
            data: packed sessions, or batches of `labels`, `mask` and what the model ranks by; clicks are not needed.
            metrics: names and metrics, by default those of `ranking_metrics`.

        Raises:
            DataError: where batches lack labels or mask.
        """
        data = checked(data, model, model.predict_relevance, "labels")
        evaluator, state = self._evaluator(model, metrics or ranking_metrics(), ranking_outputs)
        return evaluator(state, data, "test")

    def evaluate_truth(
        self, model: ClickModel, truth: ClickModel, data: Data, metrics: Metrics
    ) -> MultiMetric:
        """Metrics of hidden events of a model on data that the true user clicked on."""
        for each in model, truth:
            data = checked(data, each, each.predict_examination)
        evaluator, state = self._evaluator(WithTruth(model, truth), metrics, truth_outputs)
        return evaluator(state, data, "test")

    def test_clicks(self, model: ClickModel, data: Data, metrics: Metrics | None = None) -> dict[str, float]:
        """The values of `evaluate`, named test_..."""
        return self.evaluate(model, data, metrics).compute("test_")

    def test_ranking(self, model: ClickModel, data: Data, metrics: Metrics | None = None) -> dict[str, float]:
        """The values of `evaluate_ranking`, named test_..."""
        return self.evaluate_ranking(model, data, metrics).compute("test_")

    test = test_clicks

    def _evaluator(
        self, model: ClickModel, metrics: Metrics, outputs: object
    ) -> tuple[Evaluator, ModelState]:
        model.eval()
        graphdef, state = nnx.split(model)
        return self.evaluator(graphdef, metrics, outputs), (state,)

    def evaluator(
        self, graphdef: nnx.GraphDef, metrics: Metrics, outputs: object = click_outputs
    ) -> Evaluator:
        sizes = dict(batch_size=self.eval_batch_size, steps=self.steps)
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


def check(condition: bool, complaint: str) -> None:
    """ConfigError with the complaint unless the condition holds."""
    if not condition:
        raise ConfigError(complaint)

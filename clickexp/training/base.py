"""What trainers share: settings of the validation, and the report of a fit."""

import dataclasses

from clickexp.data.feed import Data
from clickexp.errors import ConfigError
from clickexp.evaluation.evaluator import click_metrics
from clickexp.evaluation.model_evaluator import Metrics, ModelEvaluator, RankVectors
from clickexp.loggers.base import Logger
from clickexp.metrics import LogLikelihood, MultiMetric, ranking_metrics
from clickexp.models.base import ClickModel
from clickexp.training.stopping import Stopping, early_stopping_of
from clickexp.utils.bounds import PositiveInt, bounded


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
        self.steps = steps
        self.logger = logger or Logger()
        self.evaluation = ModelEvaluator(eval_batch_size, steps, self.logger)

    def train(self, model: ClickModel, train: Data, val: Data) -> FitReport:
        """Fits the model in place."""
        raise NotImplementedError

    def evaluate(self, model: ClickModel, data: Data, metrics: Metrics | None = None) -> MultiMetric:
        """Click metrics of a model, by default those of the validation; see `ModelEvaluator.clicks`."""
        return self.evaluation.clicks(model, data, metrics or self.metrics)

    def evaluate_ranking(self, model: ClickModel, data: Data, metrics: Metrics | None = None) -> MultiMetric:
        """Ranking metrics of a model, by default `ranking_metrics()`; see `ModelEvaluator.ranking`."""
        return self.evaluation.ranking(model, data, metrics or ranking_metrics())

    def test_clicks(self, model: ClickModel, data: Data, metrics: Metrics | None = None) -> dict[str, float]:
        """The values of `evaluate`, named test_..."""
        return self.evaluate(model, data, metrics).compute("test_")

    def test_ranking(self, model: ClickModel, data: Data, metrics: Metrics | None = None) -> dict[str, float]:
        """The values of `evaluate_ranking`, named test_..."""
        return self.evaluate_ranking(model, data, metrics).compute("test_")

    test = test_clicks


def check(condition: bool, complaint: str) -> None:
    """ConfigError with the complaint unless the condition holds."""
    if not condition:
        raise ConfigError(complaint)

"""Common parts of trainers: their settings, one training from start to report, and evaluation."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
from annotated_types import Ge

from clickexp.data.feed import Data
from clickexp.errors import ConfigError, DivergedError
from clickexp.evaluation.evaluator import CompiledEvaluation, Groups
from clickexp.evaluation.groups import (
    ClickMetrics,
    HeldOut,
    MetricGroup,
    Metrics,
    click_metrics,
    metric_groups,
)
from clickexp.evaluation.inputs import check_ahead, checked
from clickexp.loggers.base import Logger
from clickexp.metrics import LogLikelihood, MultiMetric, ranking_metrics
from clickexp.metrics.click import MARGINAL
from clickexp.models.base import ClickModel, Model
from clickexp.parameters.layouts import pool_layouts
from clickexp.training.accelerators import warn_of_faults
from clickexp.training.loop import Checkpoint, FitReport, Learner, Loop
from clickexp.training.spread import ALL, EvaluatorOnDevices, computing_on, placement_on
from clickexp.training.stopping import EarlyStopping, KeepLast, early_stopping_of
from clickexp.utils import threads
from clickexp.utils.bounds import BatchSize, PositiveInt, check_numbers


@dataclasses.dataclass(eq=False, kw_only=True)
class BaseTrainer:
    """Fits models by passes over a log, each followed by a validation, and evaluates them.

    A subclass states what a pass does (`learner`); one that has a field `early_stopping` may stop earlier.

    Attributes:
        devices: How many devices share the rows of tables and the sessions of each batch, to the same estimates, in
            training and evaluation; `all` takes those that JAX sees, of all processes.
        eval_batch_size: Sessions, or lists, per evaluation step.
        steps_per_execution: Batches per dispatch to the device.
        metrics: Click metrics of the validation by name, by default log-likelihood and both perplexities; `loss` and
            `ll` are always among the reported values.
        groups: Further metrics of the validation by group, such as `ranking`; see `clickexp.evaluation.groups`.
        logger: Receives progress and the record of every epoch.
        checkpoint: File that keeps the whole state of a training, for the caller to delete. Where it exists, the same
            training continues from it, to the same numbers as without the interruption.
        checkpoint_minutes: Least time between checkpoints, which are written after an epoch; None writes none.
        continue_from: Checkpoint of an earlier training, only read, in place of `checkpoint`. It is an error, and not a
            message, where training cannot continue from it.
        settings: Names and values of what else makes a training what it is, such as its learning rate.
    """

    devices: PositiveInt | str = 1
    eval_batch_size: BatchSize = 8192
    steps_per_execution: PositiveInt = 16
    metrics: Metrics | None = None
    groups: Groups = dataclasses.field(default_factory=dict)
    logger: Logger = dataclasses.field(default_factory=Logger)
    checkpoint: str | Path | None = None
    checkpoint_minutes: Annotated[int | float, Ge(0)] | None = 5
    continue_from: str | Path | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_numbers(type(self).__init__, vars(self))
        self.metrics = {"ll": LogLikelihood(), **(self.metrics or click_metrics())}
        self.metric_groups = metric_groups({**self.groups, "click": self.metrics})
        self.evaluator = EvaluatorOnDevices(
            self.eval_batch_size, self.steps_per_execution, self.logger, self.devices
        )
        if self.checkpoint_minutes is None:
            self.checkpoint = None
        if hasattr(self, "early_stopping"):
            self.early_stopping = self._directed(early_stopping_of(self.early_stopping))

    def copy_with(self, **fields: Any) -> "BaseTrainer":
        """Returns a copy with other values of fields, whatever the constructor of a subclass takes."""
        changed = copy.copy(self)
        vars(changed).update(fields)
        changed.__post_init__()
        return changed

    def _directed(self, rule: EarlyStopping | None) -> EarlyStopping | None:
        if rule is None:
            return None
        directions = {"loss": False}
        for group in self.metric_groups.values():
            directions |= group.higher_is_better
        if rule.metric not in directions:
            raise ConfigError(_no_metric(rule.metric, directions))
        return rule.directed(directions)

    def _validated(self, model: Model) -> dict[str, MetricGroup]:
        """Metrics of a validation: without marginals that take all click vectors, unless they are watched."""
        if not model.follows_click_vectors:
            return self.metric_groups
        kept = {
            name: metric
            for name, metric in self.metric_groups["click"].metrics.items()
            if getattr(metric, "reads", None) != MARGINAL or name == self.stopping.metric
        }
        return {**self.metric_groups, "click": ClickMetrics(kept)}

    @property
    def stopping(self) -> EarlyStopping:
        """Which epoch is the best and when to stop; without early stopping the last of all is kept."""
        return getattr(self, "early_stopping", None) or KeepLast()

    def check_machine(self) -> None:
        """ConfigError where there are fewer devices, or several processes do not use all."""
        placement = placement_on(self.devices)
        if jax.process_count() > 1 and placement.devices < jax.device_count():
            raise ConfigError(
                f"trainer.devices={self.devices}: {jax.process_count()} processes train together; set "
                f"trainer.devices={ALL}"
            )

    def learner(self, model: Model, train: Data | None = None) -> Learner:
        """The passes over the model.

        Args:
            model: The model.
            train: The training sessions; None where only a later call has them.

        Raises:
            ConfigError: The model cannot be fitted in this way.
        """
        raise NotImplementedError

    def train(
        self,
        model: Model,
        train: Data,
        val: Data,
        *,
        val_lists: Data | None = None,
        truth: ClickModel | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> FitReport:
        """Fits the model in place and leaves it in its best state.

        Args:
            model: A click model or ranker.
            train: Training sessions.
            val: Validation sessions.
            val_lists: Labelled lists that metrics of rankings are computed on; by default the validation sessions.
            truth: The user that metrics of the group `truth` compare with.
            meanwhile: What a thread does while the model trains, after it has compiled the programs of the training.

        Raises:
            DataError: Ids, positions or clicks do not fit the model.
            DivergedError: The loss stopped being a number; the model is in its best state so far.
            ConfigError: The model cannot be fitted in this way.
        """
        warn_of_faults()
        required = ("clicks",) if isinstance(model, ClickModel) else ()
        train = checked(train, model, model.compute_loss, *required)
        with computing_on(self.devices):
            learner = self.learner(model, train)
            validation = self._validation(model, val, val_lists, truth)
            file, earlier = (
                Path(place) if place else None for place in (self.checkpoint, self.continue_from)
            )
            checkpoint = Checkpoint(
                file, 60.0 * (self.checkpoint_minutes or 0), earlier, self.settings
            )
            loop = Loop(learner, validation, self.stopping, self.logger, checkpoint)
            try:
                with threads.work():
                    threads.start(_ahead, loop, train, meanwhile)
                    loop.run(train, val)
            except BaseException as error:
                # other processes stand elsewhere, unless the error is theirs, too
                if jax.process_count() == 1 or isinstance(error, DivergedError):
                    learner.restore(model, loop.best)
                raise
            learner.restore(model, loop.best)
            pool_layouts(model)
            report = loop.report(train)
            loop.release()
            return report

    def _validation(
        self, model: Model, val: Data, lists: Data | None, truth: ClickModel | None
    ) -> CompiledEvaluation:
        """The evaluation after each pass, its data checked."""
        held_out = HeldOut(val, val if lists is None else lists, truth)
        validation = self.evaluator.compiled(model, held_out, self._validated(model))
        if self.stopping.metric not in validation.names:
            raise ConfigError(_no_metric(self.stopping.metric, validation.names))
        for data in validation.data:
            check_ahead(data)
        return validation

    def evaluate(
        self, model: ClickModel, data: Data, metrics: Metrics | None = None
    ) -> MultiMetric:
        """Click metrics of a model, by default those of the validation; see `Evaluator.clicks`."""
        return self.evaluator.clicks(model, data, metrics or self.metric_groups["click"].metrics)

    def evaluate_ranking(
        self, model: Model, data: Data, metrics: Metrics | None = None
    ) -> MultiMetric:
        """Ranking metrics of a model, by default those of the validation or the usual ones; see `Evaluator.ranking`."""
        validated = self.metric_groups.get("ranking")
        metrics = metrics or (validated.metrics if validated else ranking_metrics())
        return self.evaluator.ranking(model, data, metrics)

    def test_clicks(
        self, model: ClickModel, data: Data, metrics: Metrics | None = None
    ) -> dict[str, float]:
        """The values of `evaluate`, named test_..."""
        return self.evaluate(model, data, metrics).compute("test_")

    def test_ranking(
        self, model: Model, data: Data, metrics: Metrics | None = None
    ) -> dict[str, float]:
        """The values of `evaluate_ranking`, named test_..."""
        return self.evaluate_ranking(model, data, metrics).compute("test_")

    test = test_clicks


def _ahead(loop: Loop, train: Data, meanwhile: Callable[[], None] | None) -> None:
    """Compiles what a training runs, and does what it does without; what fails here fails again where it is needed."""
    with contextlib.suppress(Exception):
        loop.compile(train)
    if meanwhile is not None:
        threads.end_where_needless()
        meanwhile()


def _no_metric(name: str, reported: Iterable[str]) -> str:
    return f"cannot stop early on {name!r}; validation reports {', '.join(reported)}"

"""Adds up metrics of a model over held-out data, several batches per dispatch."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data import Sessions
from clickexp.data.batches import at_step, batch_like, with_mask
from clickexp.data.devices import SINGLE, devices_with
from clickexp.data.feed import (
    Compiled,
    Data,
    feed,
    feed_like,
    session_count,
)
from clickexp.data.schema import COLUMNS, MADE
from clickexp.errors import ConfigError, DataError
from clickexp.evaluation.evaluation import Evaluation
from clickexp.evaluation.groups import (
    ClickMetrics,
    HeldOut,
    MeanLoss,
    MetricGroup,
    Metrics,
    RankingMetrics,
    metric_groups,
)
from clickexp.evaluation.inputs import ColumnSelection, checked
from clickexp.loggers.base import Logger, Phase
from clickexp.metrics import Metric, MultiMetric, Positions
from clickexp.models.base import ClickModel, Model
from clickexp.types import SHOWN_FIRST, Array, Batch, ByRank, Count
from clickexp.utils.batches import missing_key

_MOST_NUMBERS = 1 << 25
"""Features, or documents, that an evaluation step looks up at most; documents per dispatch."""

_KNOWN = {*COLUMNS, *MADE, "query_doc_features", SHOWN_FIRST}
"""Keys of batches that the package fills; readers declare all others."""
_IDS = "query_doc_ids"

Groups = Mapping[str, Metrics | MetricGroup]
"""Metrics by group; see `clickexp.evaluation.groups.GROUPS`."""

ModelState = tuple[nnx.State, ...]


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates models.

    Args:
        batch_size: Sessions, or lists, per step.
        steps_per_execution: Batches per dispatch.
        logger: Receives progress.
    """

    batch_size: int = 8192
    steps_per_execution: int = 16
    logger: Logger = dataclasses.field(default_factory=Logger)

    def state_of(self, model: Model) -> ModelState:
        """The state of a model, as `CompiledEvaluation` takes it."""
        return (nnx.state(model),)

    def clicks(self, model: ClickModel, data: Data, metrics: Metrics) -> MultiMetric:
        """Metrics of click predictions.

        Args:
            model: A click model.
            data: Packed sessions or batches, with clicks.
            metrics: Metrics by name.

        Raises:
            DataError: Clicks are missing, or ids, positions or clicks do not fit the model.
        """
        return self._evaluated(model, data, ClickMetrics(metrics))

    def ranking(self, model: Model, data: Data, metrics: Metrics) -> MultiMetric:
        """Metrics of rankings.

        Args:
            model: A ranker or click model.
            data: Packed sessions, or batches of `labels`, `mask` and what the model ranks by; clicks are not needed.
            metrics: Metrics by name.

        Raises:
            DataError: Batches lack labels or mask, or do not fit the model.
        """
        return self._evaluated(model, data, RankingMetrics(metrics))

    def compiled(self, model: Model, held_out: HeldOut, groups: Groups) -> "CompiledEvaluation":
        """The evaluation of any state of one model, each group compiled once.

        Args:
            model: The model, of which only the structure and the sizes count.
            held_out: What to evaluate on.
            groups: Metrics by group; those that the model or the data have nothing for are left out.

        Raises:
            DataError: Ids, positions or clicks do not fit the model.
        """
        built = metric_groups({**groups, "loss": {"loss": MeanLoss()}})
        # groups of one kind are computed from the same predictions
        merged: dict[type[MetricGroup], tuple[str, dict[str, Metric]]] = {}
        for key, group in built.items():
            merged.setdefault(type(group), (key, {}))[1].update(group.metrics)
        programs = {}
        for kind, (key, metrics) in merged.items():
            group = kind(metrics)
            data = group.data_of(model, held_out)
            if data is not None:
                truth = held_out.truth if group.needs_truth else None
                programs[key] = Program(self, model, group, data, truth)
        return CompiledEvaluation(programs)

    def _evaluated(self, model: Model, data: Data, group: MetricGroup) -> MultiMetric:
        return Program(self, model, group, data)(self.state_of(model), "test")


USUAL = Evaluator()
"""Evaluates at the usual sizes, and reports no progress."""


@dataclasses.dataclass(eq=False)
class CompiledEvaluation:
    """Groups of metrics on held-out data, for any state of one model.

    Attributes:
        groups: What computes the metrics of each group.
    """

    groups: Mapping[str, "Program"]

    def __call__(self, state: ModelState, phase: Phase, epoch: int = 0) -> Evaluation:
        """Evaluates the model in a state, in the order in which `nnx.merge` takes it."""
        return Evaluation(
            {key: program(state, phase, epoch) for key, program in self.groups.items()}
        )

    def compile(self, state: ModelState) -> None:
        """Compiles what evaluates states of these shapes, ahead of the first evaluation."""
        for program in self.groups.values():
            program.compile(state)

    @property
    def names(self) -> list[str]:
        """Names of the values that evaluations have."""
        names = [name for program in self.groups.values() for name in program.group.names]
        return ["loss", *(name for name in names if name != "loss")]

    @property
    def data(self) -> list[Data]:
        """The data of each group, as it is iterated."""
        return [program.data for program in self.groups.values()]

    @property
    def programs(self) -> list[Compiled]:
        """The compiled programs."""
        return [program.run for program in self.groups.values()]


class Program:
    """One group of metrics of states of a model, compiled once per shape of the data.

    Args:
        evaluator: Sizes of steps, and the logger.
        model: The model.
        group: The metrics.
        data: Packed sessions or batches, which are checked.
        truth: The true user, if the group needs it.

    Raises:
        DataError: The data does not fit the model or the true user.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        model: Model,
        group: MetricGroup,
        data: Data,
        truth: ClickModel | None = None,
    ):
        self.group, self.run, self._evaluator = group, Compiled(self._statistics), evaluator
        models = [model] if truth is None else [model, truth]
        self._positions = None
        if group.by_rank and isinstance(data, Sessions) and not data.positions_are_ranks:
            self._positions = Positions(data.positions)
            _check_conventions(group, data)

        def arguments(batch: Batch) -> dict[str, Any]:
            return self._arguments(models, batch, self._positions)

        for checked_model in models:
            checked_model.eval()
            data = checked(data, checked_model, arguments, *group.required)
        self.data = data
        self._graphdefs = [nnx.graphdef(one) for one in models]
        self._truth = [] if truth is None else [(nnx.state(truth),)]
        self._devices = SINGLE
        self._select_columns = ColumnSelection(self._read, *self._graphdefs)

    def __call__(self, state: ModelState, phase: Phase, epoch: int = 0) -> MetricGroup:
        """The metrics over the data, summed in float64 on the host.

        Args:
            state: The model's state, in the order in which `nnx.merge` takes it.
            phase: Phase and epoch that progress is reported for.
            epoch: See `phase`.
        """
        metrics = self.group.empty()
        done, total = 0, session_count(self.data)
        self._devices = devices_with(state)
        truth = jax.tree.map(self._devices.everywhere, self._truth)
        states = state, *truth
        data = self._select_columns(self.data, *states)
        size, steps = self._sizes_for(data)
        size = self._devices.even_size(size)
        for batch in feed(data, size, steps, devices=self._devices):
            if self.group.by_rank and not isinstance(data, Sessions):
                self._positions = _positions_so_far(self._positions, batch.arrays)
            metrics.add(self.run(states, batch.arrays, self._positions), stacked=True)
            done += batch.sessions
            self._evaluator.logger.progress(phase, epoch, done, total)
        return metrics

    def compile(self, state: ModelState) -> None:
        """Compiles for packed sessions, and states of these shapes on one device."""
        states = state, *self._truth
        data = self._select_columns(self.data, *states)
        if isinstance(data, Sessions):
            arrays = feed_like(data, *self._sizes_for(data))
            self.run.program(states, arrays, self._positions)

    def check(self, models: Sequence[Model]) -> None:
        """Calls each metric once on shapes alone.

        Args:
            models: The model and, if the group needs it, the true user.

        Raises:
            ConfigError: A metric wants what its group does not have.
        """
        if not isinstance(self.data, Sessions):
            return
        outputs = jax.eval_shape(
            lambda batch: self._arguments(models, batch, self._positions), batch_like(self.data)
        )
        for name, metric in self.group.metrics.items():
            try:
                jax.eval_shape(
                    lambda arguments, metric=metric: metric.statistics(**arguments), outputs
                )
            except TypeError as error:
                names = ", ".join(sorted(outputs))
                raise ConfigError(f"metric {name}: {error}. Its group has {names}") from error

    def _read(self, *inputs: Any) -> Any:
        """The statistics of a batch, for which it is read."""
        *models, batch = inputs
        return self.group.statistics(**self._arguments(models, batch, self._positions))

    def _arguments(self, models: Any, batch: Batch, positions: Positions | None) -> dict[str, Any]:
        """Arguments of metrics by rank: the outputs, ids, and the columns of the batch that readers declare."""
        by_rank = ByRank(batch)
        columns = {name: by_rank[name] for name in batch if name not in _KNOWN or name == _IDS}
        model, *truth = models
        outputs = {**columns, **self.group.outputs(model, by_rank, *truth)}
        if positions is not None:
            outputs["positions"] = dataclasses.replace(positions, values=by_rank.positions)
        return outputs

    def _sizes_for(self, data: Data) -> tuple[int, int]:
        """Lists per step and steps per dispatch: fewer where lists are long or have many features, for memory."""
        size, steps = self._evaluator.batch_size, self._evaluator.steps_per_execution
        if not isinstance(data, Sessions):
            return size, steps
        numbers = data.ranks * (1 + sum(data.feature_lengths.values()))
        # a small log is not padded to a whole step
        fitting = 1 << max(data.count - 1, 0).bit_length()
        lists = min(size, fitting, max(_MOST_NUMBERS // numbers, 1))
        return lists, min(steps, max(_MOST_NUMBERS // (lists * data.ranks), 1))

    def _statistics(
        self,
        states: tuple[ModelState, ...],
        arrays: Mapping[str, Array],
        positions: Positions | None,
    ) -> dict[str, dict[str, Any]]:
        """The sums of each batch of a superbatch, stacked.

        Predictions are made in a loop apart, and so lie in memory: beside the sums, the compiler would repeat them for
        each. An array lies there once that the outputs name twice, as both predictions of a model of independent
        clicks.
        """
        arrays = with_mask(arrays)
        structure, places = jax.tree.structure(None), []

        def predict(index: Count) -> list[Array]:
            nonlocal structure, places
            models = [
                nnx.merge(g, *s, copy=True) for g, s in zip(self._graphdefs, states, strict=True)
            ]
            batch = at_step(arrays, index)
            try:
                leaves, structure = jax.tree.flatten(self._arguments(models, batch, positions))
            except KeyError as error:
                raise missing_key(error, batch) from error
            distinct = {id(leaf): leaf for leaf in leaves}
            places = [list(distinct).index(id(leaf)) for leaf in leaves]
            return list(distinct.values())

        def statistics(predicted: list[Array]) -> dict[str, dict[str, Any]]:
            outputs = structure.unflatten([predicted[place] for place in places])
            return self.group.statistics(**outputs)

        predicted = jax.lax.map(predict, jnp.arange(len(arrays["mask"])))
        sums = jax.lax.map(statistics, predicted)
        return self._devices.replicated(sums)


def _positions_so_far(positions: Positions | None, arrays: Mapping[str, Array]) -> Positions | None:
    """The positions of ready-made batches, of those before and of a superbatch."""
    if "positions" not in arrays:
        return positions
    largest = int(np.max(np.where(arrays["mask"], arrays["positions"], 0)))
    return Positions(largest if positions is None else max(positions.largest, largest))


def _check_conventions(group: MetricGroup, sessions: Sessions) -> None:
    """DataError where a metric counts lists, and these have several documents at a position."""
    if sessions.most_at_a_position == 1:
        return
    for name, metric in group.metrics.items():
        if getattr(metric, "rank_normalization", "own") != "own":
            raise DataError(
                f"{name}: rank_normalization={metric.rank_normalization} knows one document per list and rank, and "  # pyright: ignore[reportAttributeAccessIssue]  # as found
                "lists show several documents at one position. Choose rank_normalization=own, or leave positions "
                "out: columns.positions=null."
            )

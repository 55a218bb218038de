"""Adds up metrics of a model over data, several batches per dispatch."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.data import Sessions
from clickexp.data.batches import at_step, with_mask
from clickexp.data.feed import Compiled, Data, feed, session_count
from clickexp.data.schema import COLUMNS, MADE
from clickexp.evaluation.inputs import Carrying
from clickexp.evaluation.outputs import Outputs, click_outputs
from clickexp.loggers.base import Logger, Phase
from clickexp.metrics import Metric, MultiMetric
from clickexp.models.base import Model
from clickexp.types import SHOWN_FIRST, Array, Count, turned
from clickexp.utils.batches import missing_key

_MOST_NUMBERS = 1 << 25
"""Features, or documents, that an evaluation step looks up at most; documents per dispatch."""

_KNOWN = {*COLUMNS, *MADE, SHOWN_FIRST}
"""Keys of batches that the package fills; readers declare all others."""

Metrics = Mapping[str, Metric]
ModelState = tuple[nnx.State, ...]


class Evaluator:
    """The metrics of one structure of model, compiled once per shape of the data.

    Args:
        graphdef: Structure of the model.
        metrics: Metrics by name.
        outputs: What they read, computed from the model, the true user if there is one, and a batch.
        truth: The true user.
        batch_size: Sessions, or lists, per step.
        steps_per_execution: Batches per dispatch.
        logger: Receives progress.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        metrics: Metrics,
        outputs: Outputs = click_outputs,
        *,
        truth: Model | None = None,
        batch_size: int = 8192,
        steps_per_execution: int = 16,
        logger: Logger | None = None,
    ):
        self.metrics = MultiMetric(metrics)
        self.run = Compiled(self._statistics)
        self._graphdefs, self._truth = [graphdef], []
        if truth is not None:
            structure, state = nnx.split(truth)
            self._graphdefs.append(structure)
            self._truth.append((state,))
        self._outputs = outputs
        self._carrying = Carrying(
            lambda *given: self.metrics.statistics(**self._arguments(*given)), *self._graphdefs
        )
        self._sizes = batch_size, steps_per_execution
        self._logger = logger or Logger()

    def __call__(self, state: ModelState, data: Data, phase: Phase, epoch: int = 0) -> MultiMetric:
        """The metrics over the data, summed in float64 on the host.

        Args:
            state: The model's state, in the order in which `nnx.merge` takes it.
            data: Packed sessions or batches.
            phase: Phase and epoch that progress is reported for.
            epoch: See `phase`.
        """
        metrics = self.metrics.empty()
        done, total = 0, session_count(data)
        states = state, *self._truth
        data = self._carrying(data, *states)
        for batch in feed(data, *self._sizes_for(data)):
            metrics.add(self.run(states, batch.arrays), stacked=True)
            done += batch.sessions
            self._logger.progress(phase, epoch, done, total)
        return metrics

    def _arguments(self, *given: Any) -> dict[str, Any]:
        """What metrics receive: the outputs, and the columns of the batch, which comes last, that readers declare."""
        extra = {name: values for name, values in given[-1].items() if name not in _KNOWN}
        return {**extra, **self._outputs(*given)}

    def _sizes_for(self, data: Data) -> tuple[int, int]:
        """Lists per step and steps per dispatch: fewer where lists are long or have many features, for memory."""
        size, steps = self._sizes
        if not isinstance(data, Sessions):
            return size, steps
        numbers = data.ranks * (1 + sum(data.feature_lengths.values()))
        fitting = (
            1 << max(data.count - 1, 0).bit_length()
        )  # a small log is not padded to a whole step
        lists = min(size, fitting, max(_MOST_NUMBERS // numbers, 1))
        return lists, min(steps, max(_MOST_NUMBERS // (lists * data.ranks), 1))

    def _statistics(
        self, states: tuple[ModelState, ...], arrays: Mapping[str, Array]
    ) -> dict[str, dict[str, Any]]:
        """The sums of each batch of a superbatch, stacked.

        Predictions are made in a loop apart, and so lie in memory: beside the sums, the compiler would repeat them for
        each. They lie there with ranks first, as models make them and sums are taken, and an array once that the
        outputs name twice, as both predictions of a model of independent clicks.
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
                leaves, structure = jax.tree.flatten(self._arguments(*models, batch))
            except KeyError as error:
                raise missing_key(error, batch) from error
            distinct = {id(leaf): leaf for leaf in leaves}
            places = [list(distinct).index(id(leaf)) for leaf in leaves]
            return [turned(leaf) for leaf in distinct.values()]

        def statistics(predicted: list[Array]) -> dict[str, dict[str, Any]]:
            return self.metrics.statistics(
                **structure.unflatten([turned(predicted[place]) for place in places])
            )

        predicted = jax.lax.map(predict, jnp.arange(len(arrays["mask"])))
        return jax.lax.map(statistics, predicted)

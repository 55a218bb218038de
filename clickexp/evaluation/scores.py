"""Ranking scores of sessions, or any outputs by name, which a model computes batch by batch."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data.batches import at_step, with_mask
from clickexp.data.devices import devices_with
from clickexp.data.feed import feed
from clickexp.data.sessions import Sessions
from clickexp.evaluation.inputs import ColumnSelection, checked
from clickexp.models.base import Model
from clickexp.types import Array, Batch
from clickexp.utils.progress import Report, no_report

_BATCH = 8192
"""Sessions that are computed at a time."""
Outputs = Callable[[Any, Batch], Mapping[str, Array]]
"""Of a model and a batch, each of a shape that broadcasts to [sessions, rank], by name."""
Batches = Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]
"""Lengths [sessions] and values [sessions, rank] of each batch."""
Lay = Callable[[nnx.State], nnx.State]
"""Lays the state of a model over devices."""


def as_it_is(state: nnx.State) -> nnx.State:
    """Returns the state of a model that one device has."""
    return state


_LAY: ContextVar[Lay] = ContextVar("lay", default=as_it_is)


@contextlib.contextmanager
def laid_by(lay: Lay) -> Iterator[None]:
    """Lays models over devices, as an `Evaluator` does, for outputs that are compiled in this context."""
    before = _LAY.set(lay)
    try:
        yield
    finally:
        _LAY.reset(before)


def outputs_by_batch(
    model: Any, outputs: Outputs, report: Report = no_report
) -> Callable[[Sessions], Batches]:
    """Compiles outputs of a model.

    Args:
        model: The model, or a tuple of several.
        outputs: What is computed of a batch.
        report: Receives the sessions that are done, and all.

    Returns:
        A function of sessions that yields the outputs in batches of one size, the last one cut to its sessions.
    """
    graphdef, whole = nnx.split(model)
    state = [_LAY.get()(whole)]
    selection, devices = ColumnSelection(outputs, graphdef), devices_with(state)

    @jax.jit
    def run(state: list[nnx.State], arrays: Mapping[str, Array]) -> dict[str, Array]:
        batch = at_step(with_mask(arrays), 0)
        values = outputs(nnx.merge(graphdef, *state), batch)
        return {
            name: jnp.broadcast_to(array, batch["mask"].shape) for name, array in values.items()
        }

    def compute(sessions: Sessions) -> Batches:
        done = 0
        size = devices.even_size(min(_BATCH, sessions.count))
        for batch in feed(selection(sessions, state), size, 1, devices=devices):
            arrays = run(state, batch.arrays)
            values = {name: np.asarray(array)[: batch.sessions] for name, array in arrays.items()}
            yield sessions.chunk(done, done + batch.sessions)["lengths"], values
            done += batch.sessions
            report(done, sessions.count)

    return compute


def relevance_scores(
    model: Model, report: Report = no_report
) -> Callable[[Sessions], Iterator[np.ndarray]]:
    """Compiles the ranking scores of a model.

    Args:
        model: The model.
        report: Receives the lists that are done, and all.

    Returns:
        A function of sessions that yields scores `[lists, ranks]` in batches; -inf where no document is shown.
    """
    compute = outputs_by_batch(
        model, lambda model, batch: {"score": model.predict_relevance(batch)}, report
    )

    def predict(sessions: Sessions) -> Iterator[np.ndarray]:
        checked(sessions, model, model.predict_relevance)
        for _, values in compute(sessions):
            yield values["score"]

    return predict

"""Ranking scores of documents by a model, batch by batch."""

from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np
from flax import nnx

from clickexp.data.batches import at_step, with_mask
from clickexp.data.feed import feed
from clickexp.data.sessions import Sessions
from clickexp.evaluation.inputs import ColumnSelection, checked
from clickexp.models.base import Model
from clickexp.types import Array, Batch

_BATCH = 8192
"""Lists that are scored at a time."""


def relevance_scores(
    model: Model, progress: Callable[[int, int], None] | None = None
) -> Callable[[Sessions], Iterator[np.ndarray]]:
    """Compiles the ranking scores of a model.

    Args:
        model: The model.
        progress: Called with the lists that are done, and all.

    Returns:
        A function of sessions that yields scores `[lists, ranks]` in batches; -inf where no document is shown.
    """
    graphdef, *state = nnx.split(model)

    def scores(model: Model, batch: Batch) -> Array:
        return model.predict_relevance(batch)

    selection = ColumnSelection(scores, graphdef)

    @jax.jit
    def run(state: list[nnx.State], arrays: Mapping[str, Array]) -> Array:
        return scores(nnx.merge(graphdef, *state), at_step(with_mask(arrays), 0))

    def predict(sessions: Sessions) -> Iterator[np.ndarray]:
        done, lists = 0, checked(sessions, model, model.predict_relevance)
        for batch in feed(selection(lists, state), min(_BATCH, sessions.count), 1):
            yield np.asarray(run(state, batch.arrays))[: batch.sessions]
            done += batch.sessions
            if progress is not None:
                progress(done, sessions.count)

    return predict

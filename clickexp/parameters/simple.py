"""Towers of few numbers: one for everything, or one per position."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data.cells import Cells
from clickexp.numerics import LogPair, log_sigmoid_pair
from clickexp.parameters.base import Parameter, ParameterConfig, Sizes, row_ids
from clickexp.types import Array, Batch, ByRank, Logits
from clickexp.utils.bounds import PositiveInt

_COPIES = 64
_MANY = 1 << 12
"""Documents from which on copies are worth while."""


@dataclasses.dataclass(frozen=True)
class GlobalParameterConfig(ParameterConfig):
    """Settings of a GlobalParameter.

    Attributes:
        initial: Starting logit; None takes the log-odds of the click rate.
    """

    initial: float | None = 0.0

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "GlobalParameter":
        """Builds the tower."""
        return GlobalParameter(
            dataclasses.replace(self, initial=sizes.starting_logit(self.initial)), rngs=rngs
        )


class GlobalParameter(Parameter):
    """One logit for every document, of shape [1, 1]."""

    def __init__(
        self,
        config: GlobalParameterConfig = GlobalParameterConfig(),
        *,
        rngs: nnx.Rngs | None = None,
    ):
        self.config = config
        self.weight = nnx.Param(jnp.full((1, 1), config.initial or 0.0, jnp.float32))

    def logit(self, batch: Batch | None = None) -> Logits:
        """Returns the logit, [1, 1]."""
        return self.weight[...]

    def of_cells(self, cells: Sequence[int] | np.ndarray) -> Logits:
        """Returns the logit of each cell, `[1, cells]`."""
        return jnp.broadcast_to(self.weight[...], (1, len(cells)))


@dataclasses.dataclass(frozen=True)
class PositionParameterConfig(ParameterConfig):
    """Settings of a PositionParameter.

    Attributes:
        use_feature: Key of the batch that holds small integers, such as positions.
        parameters: Largest of them; None takes that of the data.
        initial: Starting logit; None takes the log-odds of the training click rate.
    """

    use_feature: str = "positions"
    parameters: PositiveInt | None = None
    initial: float | None = 2.0

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "PositionParameter":
        """Builds the tower."""
        parameters = self.parameters
        if parameters is None:
            parameters = sizes.largest(self.use_feature, "positions", "position parameter")
        initial = sizes.starting_logit(self.initial)
        return PositionParameter(
            dataclasses.replace(self, parameters=parameters, initial=initial), rngs=rngs
        )


class PositionParameter(Parameter):
    """z = weight[position]: one logit per position, or per any other small integer of the batch.

    The pair of log-probabilities is computed for the few weights, before they are looked up for the many documents.
    """

    def __init__(self, config: PositionParameterConfig, *, rngs: nnx.Rngs | None = None):
        if config.parameters is None:
            raise ValueError(
                "PositionParameterConfig needs parameters=..., the largest position in the data"
            )
        self.config = config
        self.weight = nnx.Param(
            jnp.full((config.parameters + 1,), config.initial or 0.0, jnp.float32)
        )

    @property
    def cells(self) -> Cells:
        """The places of its numbers: the positions, or whatever `use_feature` counts."""
        return Cells((), self.weight.size - 1)

    def of_cells(self, cells: Sequence[int] | np.ndarray) -> Logits:
        """Returns the logits of cells, `[1, cells]`."""
        return jnp.take(self.weight[...], np.asarray(cells)[None], mode="clip")

    def logit(self, batch: Batch) -> Logits:
        """Returns the logit of each document's position."""
        return self.weight[...][row_ids(batch, self.config.use_feature)]

    def limits(self) -> dict[str, int]:
        """Returns the largest position."""
        return {self.config.use_feature: self.weight.shape[0] - 1}

    def log_pair(self, batch: Batch | ByRank) -> LogPair:
        """Returns (log s(z), log s(-z))."""
        index = row_ids(batch, self.config.use_feature)
        pair = log_sigmoid_pair(self.weight[...])
        return LogPair(_looked_up(pair.log, index), _looked_up(pair.complement, index))

    def probabilities(self, positions: int) -> np.ndarray:
        """Returns s(z) of the positions 1, 2, ..., positions."""
        places = np.arange(1, positions + 1, dtype=np.int32)[None]
        return np.exp(np.asarray(self.log_prob({self.config.use_feature: places}), np.float64))[0]


def _looked_up(few: Array, index: Array) -> Array:
    """A number of few for each document.

    The gradient adds up what documents share. Accelerators add to one number one after the other, so there documents
    that lie side by side read copies.
    """
    if jax.default_backend() == "cpu" or index.size < _MANY:
        return few[index]
    copy = jnp.arange(index.size, dtype=jnp.int32).reshape(index.shape) % _COPIES
    return jnp.tile(few, _COPIES)[index + copy * few.size]

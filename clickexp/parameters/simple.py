"""Towers of few numbers: one for everything, or one a position."""

import dataclasses

import jax.numpy as jnp
from flax import nnx

from clickexp.numerics import LogPair, log_sigmoid_pair
from clickexp.parameters.base import Parameter, ParameterConfig, Sizes
from clickexp.types import Batch, Logits
from clickexp.utils.bounds import PositiveInt


@dataclasses.dataclass(frozen=True)
class GlobalParameterConfig(ParameterConfig):
    """Settings of a GlobalParameter. initial: starting logit; None takes the log-odds of the click rate."""

    initial: float | None = 0.0

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "GlobalParameter":
        return GlobalParameter(
            dataclasses.replace(self, initial=sizes.starting_logit(self.initial)), rngs=rngs
        )


class GlobalParameter(Parameter):
    """One logit for every document, of shape [1, 1]."""

    def __init__(self, config: GlobalParameterConfig = GlobalParameterConfig(), *, rngs: nnx.Rngs):
        self.config = config
        self.weight = nnx.Param(jnp.full((1, 1), config.initial or 0.0, jnp.float32))

    def logit(self, batch: Batch | None = None) -> Logits:
        return self.weight[...]


@dataclasses.dataclass(frozen=True)
class PositionParameterConfig(ParameterConfig):
    """Settings of a PositionParameter.

    use_feature: key of the batch that holds small integers, such as positions.
    parameters: largest of them; None takes the number of positions of the data.
    initial: starting logit; None takes the log-odds of the training click rate.
    """

    use_feature: str = "positions"
    parameters: PositiveInt | None = None
    initial: float | None = 1.0

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "PositionParameter":
        parameters = self.parameters
        if parameters is None:
            positions = sizes.require("positions", "position parameter")
            parameters = (positions + 1) ** 2 - 1 if self.use_feature == "examination_idx" else positions
        initial = sizes.starting_logit(self.initial)
        return PositionParameter(dataclasses.replace(self, parameters=parameters, initial=initial), rngs=rngs)


class PositionParameter(Parameter):
    """z = weight[position]: one logit a position, or any other small integer of the batch.

    The pair of log-probabilities is taken of the few weights, before they are looked up for the many documents.
    """

    def __init__(self, config: PositionParameterConfig, *, rngs: nnx.Rngs):
        if config.parameters is None:
            raise ValueError("PositionParameterConfig needs parameters=..., the largest position in the data")
        self.config = config
        self.weight = nnx.Param(jnp.full((config.parameters + 1,), config.initial or 0.0, jnp.float32))

    def logit(self, batch: Batch) -> Logits:
        return self.weight[...][batch[self.config.use_feature]]

    def limits(self) -> dict[str, int]:
        return {self.config.use_feature: self.weight.shape[0] - 1}

    def ranked(self, batch: Batch) -> LogPair:
        index = batch[self.config.use_feature].T
        pair = log_sigmoid_pair(self.weight[...])
        return LogPair(pair.log[index], pair.complement[index])

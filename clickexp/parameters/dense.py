"""Towers that read feature vectors: linear, deep, and deep & cross networks."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.parameters.base import Parameter, ParameterConfig, Sizes
from clickexp.types import Array, Batch, Logits
from clickexp.utils.bounds import Bounds, NonNegativeInt, PositiveInt

Norm = Callable[..., nnx.Module] | None
Dropout = Annotated[float, Bounds(least=0, below=1)]


def _identity(x: Array) -> Array:
    return x


def _norm(norm: Norm, features: int, rngs: nnx.Rngs) -> Callable[[Array], Array]:
    return _identity if norm is None else norm(features, rngs=rngs)


def _perceptron(
    config: "DeepParameterConfig | DeepCrossParameterConfig", layers: int, rngs: nnx.Rngs
) -> nnx.Sequential:
    """`layers` times linear, norm, activation, dropout."""
    modules, features = [], config.features
    for _ in range(layers):
        modules += [
            nnx.Linear(features, config.hidden_units, rngs=rngs),
            _norm(config.norm, config.hidden_units, rngs),
            config.activation_fn,
            nnx.Dropout(config.dropout, rngs=rngs),
        ]
        features = config.hidden_units
    return nnx.Sequential(*modules)


@dataclasses.dataclass(frozen=True)
class FeatureConfig(ParameterConfig):
    """What all towers over feature vectors need to know.

    use_feature: the batch's key of the vectors; features: their length, None takes that of the data;
    input_norm: constructor of the normalisation of the input, None for none.
    """

    use_feature: str = "query_doc_features"
    features: PositiveInt | None = None
    input_norm: Norm = nnx.LayerNorm

    def sized(self, sizes: Sizes) -> "FeatureConfig":
        """With the number of features known; ConfigError if it is not."""
        return dataclasses.replace(self, features=sizes.width(self.use_feature, self.features))


@dataclasses.dataclass(frozen=True)
class LinearParameterConfig(FeatureConfig):
    """Settings of a LinearParameter."""

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "LinearParameter":
        return LinearParameter(self.sized(sizes), rngs=rngs)


class LinearParameter(Parameter):
    """z = w . norm(x) + b."""

    def __init__(self, config: LinearParameterConfig, *, rngs: nnx.Rngs):
        self.config = config = config.sized(Sizes())
        self.input_norm = _norm(config.input_norm, config.features, rngs)
        self.linear = nnx.Linear(config.features, 1, rngs=rngs)

    def logit(self, batch: Batch) -> Logits:
        return self.linear(self.input_norm(batch[self.config.use_feature]))[..., 0]


@dataclasses.dataclass(frozen=True)
class DeepParameterConfig(FeatureConfig):
    """Settings of a DeepParameter."""

    hidden_units: PositiveInt = 16
    layers: NonNegativeInt = 2
    dropout: Dropout = 0.0
    activation_fn: Callable[[Array], Array] = jax.nn.elu
    norm: Norm = nnx.LayerNorm

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "DeepParameter":
        return DeepParameter(self.sized(sizes), rngs=rngs)


class DeepParameter(Parameter):
    """z = MLP(norm(x))."""

    def __init__(self, config: DeepParameterConfig, *, rngs: nnx.Rngs):
        self.config = config = config.sized(Sizes())
        self.input_norm = _norm(config.input_norm, config.features, rngs)
        self.deep = _perceptron(config, config.layers, rngs)
        self.output = nnx.Linear(config.hidden_units if config.layers else config.features, 1, rngs=rngs)

    def logit(self, batch: Batch) -> Logits:
        return self.output(self.deep(self.input_norm(batch[self.config.use_feature])))[..., 0]


class Combination(enum.StrEnum):
    """How cross and deep layers meet: one after the other, or side by side."""

    STACKED = "stacked"
    PARALLEL = "parallel"


@dataclasses.dataclass(frozen=True)
class DeepCrossParameterConfig(FeatureConfig):
    """Settings of a DeepCrossParameter."""

    hidden_units: PositiveInt = 32
    cross_layers: NonNegativeInt = 2
    deep_layers: NonNegativeInt = 2
    dropout: Dropout = 0.0
    activation_fn: Callable[[Array], Array] = jax.nn.elu
    norm: Norm = nnx.LayerNorm
    combination: Combination | str = Combination.STACKED

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "DeepCrossParameter":
        return DeepCrossParameter(self.sized(sizes), rngs=rngs)


class DeepCrossParameter(Parameter):
    """Deep & cross network v2: cross layers x' = x0 * (W x + b) + x, and an MLP after or beside them.

    Wang et al. 2021, "DCN V2: Improved deep & cross network and practical lessons for web-scale
    learning to rank systems".
    """

    def __init__(self, config: DeepCrossParameterConfig, *, rngs: nnx.Rngs):
        self.config = config = config.sized(Sizes())
        self.stacked = Combination(config.combination) is Combination.STACKED
        self.input_norm = _norm(config.input_norm, config.features, rngs)
        linears = [
            nnx.Linear(config.features, config.features, rngs=rngs) for _ in range(config.cross_layers)
        ]
        self.cross = nnx.List(linears)
        self.deep = _perceptron(config, config.deep_layers, rngs)
        deep_units = config.hidden_units if config.deep_layers else config.features
        self.output = nnx.Linear(deep_units + (0 if self.stacked else config.features), 1, rngs=rngs)

    def logit(self, batch: Batch) -> Logits:
        start = self.input_norm(batch[self.config.use_feature])
        crossed = start
        for linear in self.cross:
            crossed = start * linear(crossed) + crossed
        if self.stacked:
            return self.output(self.deep(crossed))[..., 0]
        return self.output(jnp.concatenate([self.deep(start), crossed], axis=-1))[..., 0]

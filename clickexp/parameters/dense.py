"""Towers that read feature vectors: linear, deep, and deep & cross networks."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.parameters.base import Parameter, ParameterConfig, Sizes, feature_vectors
from clickexp.parameters.formula import Formula, identity
from clickexp.types import Array, Batch, Logits
from clickexp.utils.bounds import Decay, NonNegativeInt, PositiveInt

_Config = TypeVar("_Config", bound="FeatureConfig")
_Norm = Callable[..., Any] | None


@dataclasses.dataclass(frozen=True)
class FeatureConfig(ParameterConfig):
    """Settings of all towers over feature vectors.

    Attributes:
        use_feature: Key of the batch that holds the vectors.
        features: Their length; None takes that of the data.
        input_norm: Constructor of the normalisation of the input, None for none. LayerNorm leaves out vectors that the
            data has standardised, and single numbers, of which it would leave nothing.
    """

    use_feature: str = "query_doc_features"
    features: PositiveInt | None = None
    input_norm: _Norm = nnx.LayerNorm

    def sized(self: _Config, sizes: Sizes) -> _Config:
        """Returns the settings with the number of features and the norm; ConfigError if the number is not known."""
        width = sizes.width(self.use_feature, self.features)
        is_layer_norm = self.input_norm is nnx.LayerNorm
        scaled = sizes.is_scaled(self.use_feature, width)
        norm = None if is_layer_norm and scaled else self.input_norm
        return dataclasses.replace(self, features=width, input_norm=norm)


class _FeatureParameter(Parameter):
    def __init__(self, config: FeatureConfig, *, rngs: nnx.Rngs):
        self.config = config.sized(Sizes())
        self.width = self.config.features or 0
        self.input_norm = _norm(config.input_norm, self.width, rngs)

    def logit(self, batch: Batch) -> Logits:
        """Returns the logit of each document's features."""
        vectors = feature_vectors(batch, self.config.use_feature, self.width)
        return self.score(jnp.asarray(self.input_norm(vectors)))[..., 0]

    def score(self, features: jax.Array) -> jax.Array:
        """Returns scores `[..., 1]` of normalised features `[..., feature]`."""
        raise NotImplementedError

    def describe(self, formula: Formula) -> str:
        """Adds the steps from features to the logit."""
        x = formula.layers(formula.features, [self.input_norm])
        return formula.step("squeeze", self.describe_score(formula, x))

    def describe_score(self, formula: Formula, x: str) -> str:
        """Adds the steps of `score`."""
        raise NotImplementedError


def _norm(norm: _Norm, features: int, rngs: nnx.Rngs) -> Callable[..., Any]:
    return identity if norm is None else norm(features, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class LinearParameterConfig(FeatureConfig):
    """Settings of a LinearParameter."""

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "LinearParameter":
        """Builds the tower."""
        return LinearParameter(self.sized(sizes), rngs=rngs)


class LinearParameter(_FeatureParameter):
    """z = w . norm(x) + b."""

    def __init__(self, config: LinearParameterConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.linear = nnx.Linear(self.width, 1, rngs=rngs)

    def score(self, features: jax.Array) -> jax.Array:
        """Returns w . x + b."""
        return self.linear(features)

    def describe_score(self, formula: Formula, x: str) -> str:
        """Adds the steps of `score`."""
        return formula.layers(x, [self.linear])


@dataclasses.dataclass(frozen=True)
class DeepParameterConfig(FeatureConfig):
    """Settings of a DeepParameter.

    Attributes:
        hidden_units: Units of each hidden layer.
        layers: Hidden layers.
        dropout: Share of the hidden units that a training step leaves out.
        activation_fn: Nonlinearity of hidden layers.
        norm: Constructor of the normalisation of hidden layers, None for none.
    """

    hidden_units: PositiveInt = 16
    layers: NonNegativeInt = 2
    dropout: Decay = 0.0
    activation_fn: Callable[[Array], Array] = jax.nn.elu
    norm: _Norm = nnx.LayerNorm

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "DeepParameter":
        """Builds the tower."""
        return DeepParameter(self.sized(sizes), rngs=rngs)


class DeepParameter(_FeatureParameter):
    """z = MLP(norm(x))."""

    def __init__(self, config: DeepParameterConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.deep, units = _perceptron(config, config.layers, self.width, rngs)
        self.output = nnx.Linear(units, 1, rngs=rngs)

    def score(self, features: jax.Array) -> jax.Array:
        """Returns w . MLP(x) + b."""
        return self.output(self.deep(features))

    def describe_score(self, formula: Formula, x: str) -> str:
        """Adds the steps of `score`."""
        return formula.layers(x, [*self.deep.layers, self.output])


class Combination(enum.StrEnum):
    """How cross and deep layers meet: one after the other, or side by side."""

    STACKED = "stacked"
    PARALLEL = "parallel"


@dataclasses.dataclass(frozen=True)
class DeepCrossParameterConfig(FeatureConfig):
    """Settings of a DeepCrossParameter.

    Attributes:
        hidden_units: Units of each deep layer.
        cross_layers: Cross layers.
        deep_layers: Deep layers.
        dropout: Share of the hidden units that a training step leaves out.
        activation_fn: Nonlinearity of deep layers.
        norm: Constructor of the normalisation of deep layers, None for none.
        combination: "stacked", or "parallel".
    """

    hidden_units: PositiveInt = 32
    cross_layers: NonNegativeInt = 2
    deep_layers: NonNegativeInt = 2
    dropout: Decay = 0.0
    activation_fn: Callable[[Array], Array] = jax.nn.elu
    norm: _Norm = nnx.LayerNorm
    combination: Combination | str = Combination.STACKED

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "DeepCrossParameter":
        """Builds the tower."""
        return DeepCrossParameter(self.sized(sizes), rngs=rngs)


class DeepCrossParameter(_FeatureParameter):
    """Deep & cross network v2: cross layers x' = x0 * (W x + b) + x, and an MLP after or beside them.

    Wang et al. 2021, "DCN V2: Improved deep & cross network and practical lessons for web-scale
    learning to rank systems".
    """

    def __init__(self, config: DeepCrossParameterConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.stacked = Combination(config.combination) is Combination.STACKED
        width = self.width
        self.cross = nnx.List(
            [nnx.Linear(width, width, rngs=rngs) for _ in range(config.cross_layers)]
        )
        self.deep, units = _perceptron(config, config.deep_layers, width, rngs)
        self.output = nnx.Linear(units if self.stacked else units + width, 1, rngs=rngs)

    def score(self, features: jax.Array) -> jax.Array:
        """Returns the last layer of MLP(cross(x)), or of MLP(x) beside cross(x)."""
        crossed = features
        for linear in self.cross:
            crossed = features * linear(crossed) + crossed
        if self.stacked:
            return self.output(self.deep(crossed))
        return self.output(jnp.concatenate([self.deep(features), crossed], axis=-1))

    def describe_score(self, formula: Formula, x: str) -> str:
        """Adds the steps of `score`."""
        crossed = x
        for linear in self.cross:
            product = formula.step("multiply", x, formula.layers(crossed, [linear]))
            crossed = formula.step("add", product, crossed)
        if self.stacked:
            return formula.layers(crossed, [*self.deep.layers, self.output])
        deep = formula.layers(x, self.deep.layers)
        return formula.layers(formula.step("concatenate", deep, crossed), [self.output])


def _perceptron(
    config: DeepParameterConfig | DeepCrossParameterConfig,
    layers: int,
    features: int,
    rngs: nnx.Rngs,
) -> tuple[nnx.Sequential, int]:
    """`layers` times linear, norm, activation, dropout, and the number of units that come out."""
    modules = []
    for _ in range(layers):
        modules += [
            nnx.Linear(features, config.hidden_units, rngs=rngs),
            _norm(config.norm, config.hidden_units, rngs),
            config.activation_fn,
            nnx.Dropout(config.dropout, rngs=rngs),
        ]
        features = config.hidden_units
    return nnx.Sequential(*modules), features

"""Optimizers: an update rule for the touched rows of tables, and any Optax transformation for the rest."""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import ClassVar, cast

import jax.numpy as jnp
import optax
from jaxtyping import Float

from clickexp.errors import ConfigError
from clickexp.types import Array, Count, Scalar
from clickexp.utils.bounds import Decay, NonNegativeFloat, PositiveFloat, bounded, check_numbers

RowVectors = Float[Array, "rows dim"]
Slots = list[RowVectors]
Updated = tuple[RowVectors, Slots]
"""Of a moving average."""


@dataclasses.dataclass(frozen=True)
class RowOptimizer:
    """Update rule of table rows. It sees the rows of one batch, each with the summed gradient of its documents.

    Rows that are not in the batch stay as they are.

    Attributes:
        learning_rate: Of rows; an array inside `update`, so that all rates share one compiled program.
        slots: Number of state vectors that each row has.
    """

    learning_rate: PositiveFloat
    slots: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_numbers(type(self).__init__, vars(self))

    def update(self, row: RowVectors, state: Slots, grad: RowVectors, step: Count) -> Updated:
        """New rows and state.

        Args:
            row: Parameters of the rows.
            state: Their `slots` state vectors, zero before the first step.
            grad: Gradient of the loss, summed over the documents of each row.
            step: Number of the step in the whole training, from 1.
        """
        raise NotImplementedError

    def at_rate(self, learning_rate: Scalar) -> "RowOptimizer":
        """The same rule at a learning rate that is data of a compiled program."""
        rule = copy.copy(self)
        object.__setattr__(rule, "learning_rate", learning_rate)
        return rule


@dataclasses.dataclass(frozen=True)
class LazySGD(RowOptimizer):
    """row - lr * grad."""

    def update(self, row: RowVectors, state: Slots, grad: RowVectors, step: Count) -> Updated:
        """New rows, without a state."""
        return row - self.learning_rate * grad, []


@dataclasses.dataclass(frozen=True)
class LazyAdagrad(RowOptimizer):
    """row - lr * grad / (sqrt(sum of squared gradients) + eps) (Duchi, Hazan and Singer 2011)."""

    eps: NonNegativeFloat = 1e-7
    slots: ClassVar[int] = 1

    def update(self, row: RowVectors, state: Slots, grad: RowVectors, step: Count) -> Updated:
        """New rows and sums of squared gradients."""
        total = state[0] + grad * grad
        return row - self.learning_rate * grad / (jnp.sqrt(total) + self.eps), [total]


@dataclasses.dataclass(frozen=True)
class LazyAdam(RowOptimizer):
    """Adam on touched rows only, as torch.optim.SparseAdam, with AdamW's decoupled decay of touched rows.

    m' = b1 m + (1 - b1) g, v' = b2 v + (1 - b2) g^2, row - lr (m'/(1 - b1^t) / (sqrt(v'/(1 - b2^t)) + eps) + decay row)
    with t the number of steps of the whole run (Kingma and Ba 2015; Loshchilov and Hutter 2019).
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegativeFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    slots: ClassVar[int] = 2

    def update(self, row: RowVectors, state: Slots, grad: RowVectors, step: Count) -> Updated:
        """New rows and moments."""
        first = self.b1 * state[0] + (1 - self.b1) * grad
        second = self.b2 * state[1] + (1 - self.b2) * grad * grad
        time = step.astype(jnp.float32)
        scale = jnp.sqrt(second / (1 - self.b2**time)) + self.eps
        change = first / (1 - self.b1**time) / scale + self.weight_decay * row
        return row - self.learning_rate * change, [first, second]


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What trains a model.

    Attributes:
        dense: Optax's rule for every parameter, or for all but table rows if `rows` is given.
        rows: Rule for table rows.
    """

    dense: optax.GradientTransformation
    rows: RowOptimizer | None = None


def optimizer_of(given: object) -> Optimizer:
    """An optimizer from what a trainer takes.

    Args:
        given: An `Optimizer`, a transformation of Optax for every parameter, or None for `lazy_adagrad()`.

    Raises:
        ConfigError: It is something else.
    """
    if given is None:
        return lazy_adagrad()
    if isinstance(given, Optimizer):
        return given
    if hasattr(given, "init") and hasattr(given, "update"):
        return Optimizer(cast(optax.GradientTransformation, given))
    raise ConfigError(f"optimizer={given!r}: give an Optimizer or a transformation of Optax")


def with_rate(
    rule: Callable[..., optax.GradientTransformation], learning_rate: float
) -> optax.GradientTransformation:
    """An Optax rule whose learning rate is part of its state, so that all rates share one compiled program.

    Args:
        rule: Makes the transformation from `learning_rate`, such as `optax.adam` or a partial of it.
        learning_rate: The rate to start from and to keep.
    """
    at_rate = optax.inject_hyperparams(lambda learning_rate: rule(learning_rate=learning_rate))
    return at_rate(float(learning_rate))


@bounded
def lazy_adam(
    learning_rate: PositiveFloat = 0.03,
    dense_learning_rate: PositiveFloat = 0.01,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegativeFloat = 1e-8,
) -> Optimizer:
    """LazyAdam for table rows, Adam for everything else."""
    rows = LazyAdam(learning_rate, b1, b2, eps)
    return Optimizer(with_rate(partial(optax.adam, b1=b1, b2=b2, eps=eps), dense_learning_rate), rows)


@bounded
def lazy_adamw(
    learning_rate: PositiveFloat = 0.03,
    dense_learning_rate: PositiveFloat = 0.01,
    weight_decay: NonNegativeFloat = 1e-4,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegativeFloat = 1e-8,
) -> Optimizer:
    """LazyAdam with decoupled weight decay on touched rows, AdamW for everything else."""
    rows = LazyAdam(learning_rate, b1, b2, eps, weight_decay)
    dense = partial(optax.adamw, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)
    return Optimizer(with_rate(dense, dense_learning_rate), rows)


@bounded
def lazy_adagrad(learning_rate: PositiveFloat = 0.5, dense_learning_rate: PositiveFloat = 0.01) -> Optimizer:
    """Adagrad for table rows, Adam for everything else."""
    return Optimizer(with_rate(optax.adam, dense_learning_rate), LazyAdagrad(learning_rate))


@bounded
def lazy_sgd(learning_rate: PositiveFloat = 0.3, dense_learning_rate: PositiveFloat = 0.01) -> Optimizer:
    """Plain gradient descent for table rows, Adam for everything else."""
    return Optimizer(with_rate(optax.adam, dense_learning_rate), LazySGD(learning_rate))

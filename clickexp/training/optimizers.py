"""Optimizers: an update rule for the touched rows of tables, and any Optax transformation for the rest."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import cast

import optax

from clickexp.errors import ConfigError
from clickexp.training.sparse.row_optimizers import (
    LazyAdagrad,
    LazyAdam,
    LazySGD,
    NaturalGradient,
    RowOptimizer,
)
from clickexp.utils.bounds import Decay, NonNegativeFloat, PositiveFloat, bounded


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The rules that train a model.

    Attributes:
        dense: Optax's rule for every parameter, or for all but table rows if `rows` is given.
        rows: Rule for table rows.
    """

    dense: optax.GradientTransformation
    rows: RowOptimizer | None = None


def optimizer_of(optimizer: object) -> Optimizer:
    """An optimizer from what a trainer takes.

    Args:
        optimizer: An `Optimizer`, a transformation of Optax for every parameter, or None for `natural_gradient()`.

    Raises:
        ConfigError: It is something else.
    """
    if optimizer is None:
        return natural_gradient()
    if isinstance(optimizer, Optimizer):
        return optimizer
    if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
        return Optimizer(cast(optax.GradientTransformation, optimizer))
    raise ConfigError(f"optimizer={optimizer!r}: give an Optimizer or a transformation of Optax")


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
def natural_gradient(
    learning_rate: PositiveFloat = 0.3,
    adagrad_learning_rate: PositiveFloat = 0.5,
    dense_learning_rate: PositiveFloat = 0.01,
) -> Optimizer:
    """Natural gradients for rows with posteriors, Adagrad for other rows, Adam for everything else.

    Args:
        learning_rate: Of posteriors: parts of a Newton step per pass over the data.
        adagrad_learning_rate: Of rows without posteriors.
        dense_learning_rate: Of everything else.
    """
    rows = NaturalGradient(adagrad_learning_rate, posterior_rate=learning_rate)
    return Optimizer(with_rate(optax.adam, dense_learning_rate), rows)


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
    return Optimizer(
        with_rate(partial(optax.adam, b1=b1, b2=b2, eps=eps), dense_learning_rate), rows
    )


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
def lazy_adagrad(
    learning_rate: PositiveFloat = 0.5, dense_learning_rate: PositiveFloat = 0.01
) -> Optimizer:
    """Adagrad for table rows, Adam for everything else."""
    return Optimizer(with_rate(optax.adam, dense_learning_rate), LazyAdagrad(learning_rate))


@bounded
def lazy_sgd(
    learning_rate: PositiveFloat = 0.3, dense_learning_rate: PositiveFloat = 0.01
) -> Optimizer:
    """Plain gradient descent for table rows, Adam for everything else."""
    return Optimizer(with_rate(optax.adam, dense_learning_rate), LazySGD(learning_rate))

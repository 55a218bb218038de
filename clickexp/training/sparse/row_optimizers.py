"""Rules that update the rows of tables which a batch touches: SGD, Adagrad, Adam and natural gradients."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from clickexp.types import Array, Count
from clickexp.utils.bounds import Decay, NonNegativeFloat, PositiveFloat, check_numbers

RowVectors = Float[Array, "rows dim"]
PerRow = Float[Array, "rows 1"]
Slots = list[RowVectors]
Updated = tuple[RowVectors, Slots]

SPREAD_RATE = 0.6
"""Learning rate of spreads over that of means, for rules that are made for single numbers."""


@dataclasses.dataclass(frozen=True)
class RowOptimizer:
    """Update rule of table rows. It sees the rows of one batch, each with the summed gradient of its documents.

    Rows that are not in the batch stay as they are. Posteriors may also change by sums over documents.

    Attributes:
        learning_rate: Of rows; an array inside `update`, so that all rates share one compiled program.
        rates: Names of the attributes that are such arrays.
        slots: Number of state vectors that each row has.
        adds_to_posteriors: Whether posteriors change by `posterior_changes` of each document, without a state, and not
            by `update_posterior`.
        without_decay: Attributes of a rule that leaves the pull on posteriors to their prior.
    """

    learning_rate: PositiveFloat
    rates: ClassVar[tuple[str, ...]] = ("learning_rate",)
    slots: ClassVar[int] = 0
    adds_to_posteriors: ClassVar[bool] = False
    without_decay: ClassVar[dict[str, float]] = {}

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

    def update_posterior(
        self, posterior: RowVectors, state: Slots, grad: RowVectors, step: Count
    ) -> Updated:
        """New posteriors and state; by default `update` at the learning rate, and at 0.6 of it for the spreads.

        Args:
            posterior: Means of the rows, as offsets from that of the prior, then the logarithms of their deviations.
            state: `slots` state vectors of the same size, zero before the first step.
            grad: Gradient of the negative evidence lower bound, summed over the documents of each row.
            step: Number of the step in the whole training, from 1.
        """
        scale = np.repeat(np.array([1, SPREAD_RATE], np.float32), posterior.shape[-1] // 2)
        rule = self.at_rates({"learning_rate": self.learning_rate * scale} | self.without_decay)
        return rule.update(posterior, state, grad, step)

    def posterior_changes(
        self, sd: RowVectors, mean_grad: RowVectors, log_sd_grad: RowVectors, curvature: PerRow
    ) -> tuple[RowVectors, RowVectors]:
        """Changes of means, and of the logarithms of deviations, by each document of a batch; the step adds them up.

        Args:
            sd: Standard deviations of the posteriors.
            mean_grad: Gradient of the negative evidence lower bound of each document with respect to the mean.
            log_sd_grad: That with respect to the logarithm of the deviation.
            curvature: About the largest second derivative of the loss of a whole batch with respect to the mean.
        """
        raise NotImplementedError

    def at_rates(self, rates: Mapping[str, Any]) -> "RowOptimizer":
        """The same rule at learning rates that are data of a compiled program."""
        rule = copy.copy(self)
        for name, rate in rates.items():
            object.__setattr__(rule, name, rate)
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
class NaturalGradient(LazyAdagrad):
    """Natural gradient of normal posteriors N(m, s^2): m - r s^2 g_m and log s - r / 2 g_log s; Adagrad for other rows.

    A rate of r moves a posterior by the r-th part of a Newton step per pass over the data, whatever the number of its
    documents, so that neither rows nor logs need rates that fit them. Changes are sums over documents, which a step
    adds to the rows. Far from the optimum 1 / s^2 is not yet the curvature of the loss: r s^2 is at most the inverse of
    the largest curvature that a batch is expected to have.

    Khan and Lin 2017, "Conjugate-computation variational inference"; Salimbeni, Eleftheriadis and Hensman 2018,
    "Natural gradients in practice".

    Attributes:
        learning_rate: Of rows without posteriors.
        posterior_rate: Of posteriors, r.
    """

    posterior_rate: PositiveFloat = 0.3
    rates: ClassVar[tuple[str, ...]] = ("learning_rate", "posterior_rate")
    adds_to_posteriors: ClassVar[bool] = True

    def posterior_changes(
        self, sd: RowVectors, mean_grad: RowVectors, log_sd_grad: RowVectors, curvature: PerRow
    ) -> tuple[RowVectors, RowVectors]:
        """-r s^2 g_m and -r / 2 g_log s of each document, r s^2 at most 1 / curvature."""
        variance = sd * sd
        rate = -jnp.minimum(self.posterior_rate, 1 / (variance * curvature))
        return rate * variance * mean_grad, rate / 2 * log_sd_grad


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
    without_decay: ClassVar[dict[str, float]] = {"weight_decay": 0.0}

    def update(self, row: RowVectors, state: Slots, grad: RowVectors, step: Count) -> Updated:
        """New rows and moments."""
        first = self.b1 * state[0] + (1 - self.b1) * grad
        second = self.b2 * state[1] + (1 - self.b2) * grad * grad
        time = step.astype(jnp.float32)
        scale = jnp.sqrt(second / (1 - self.b2**time)) + self.eps
        change = first / (1 - self.b1**time) / scale + self.weight_decay * row
        return row - self.learning_rate * change, [first, second]

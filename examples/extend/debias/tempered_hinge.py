"""A loss of rankings and a correction of clicks, for rankers: hinge loss, and tempered inverse propensities."""

from dataclasses import dataclass

import jax.numpy as jnp

from clickexp.models.ranker.debias import InversePropensity
from clickexp.models.ranker.losses import Loss
from clickexp.utils.bounds import PositiveProbability


@dataclass(frozen=True)
class HingeLoss(Loss):
    """sum_i w_i c_i sum_j max(0, 1 - f_i + f_j) over documents j without a click (Joachims 2002)."""

    name = "hinge"

    def value(self, lists, key):
        scores, labels, where, weights = lists
        costs = jnp.maximum(1 - scores[:, :, None] + scores[:, None, :], 0)
        skipped = (where & (labels == 0))[:, None, :]
        return jnp.sum(weights * labels * costs.sum(axis=2, where=skipped), axis=1)


@dataclass(frozen=True)
class TemperedPropensity(InversePropensity):
    """A click at position k has weight 1 / p_k^power: with a power below 1, less variance for some bias."""

    name = "tempered"

    power: PositiveProbability = 0.5

    def weights(self, batch):
        return super().weights(batch) ** self.power

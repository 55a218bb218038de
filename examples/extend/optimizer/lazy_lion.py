"""A row optimizer: Lion (Chen et al. 2023), one slot per row where Adam takes two."""

from dataclasses import dataclass

import jax.numpy as jnp

from clickexp.training import RowOptimizer


@dataclass(frozen=True)
class LazyLion(RowOptimizer):
    """row - lr sign(b1 m + (1 - b1) grad), then m' = b2 m + (1 - b2) grad."""

    b1: float = 0.9
    b2: float = 0.99
    slots = 1

    def update(self, row, state, grad, step):
        direction = jnp.sign(self.b1 * state[0] + (1 - self.b1) * grad)
        return row - self.learning_rate * direction, [self.b2 * state[0] + (1 - self.b2) * grad]

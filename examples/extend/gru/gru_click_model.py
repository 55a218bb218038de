"""A recurrent click model: a GRU reads attraction, position and the click above, and predicts the next click."""

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.models import Role, SequentialClickModel
from clickexp.numerics import log_sigmoid_pair
from clickexp.parameters import EmbeddingParameterConfig


class GRUClickModel(SequentialClickModel):
    """logit P(c_r = 1 | c_<r) = w . h_r + attraction_r with h_r = GRU(h_{r-1}, [attraction_r, position_r, c_{r-1}])."""

    name = "GRU"

    attraction: Role = Role(EmbeddingParameterConfig())
    hidden: int = 8

    def setup(self, rngs):
        self.cell = nnx.GRUCell(2 + self.positions + 1, self.hidden, rngs=rngs)
        self.output = nnx.Linear(self.hidden, 1, rngs=rngs)

    def inputs(self, batch):
        position = jax.nn.one_hot(batch.positions, self.positions + 1)
        return self.attraction(batch), position

    def start(self, batch):
        return jnp.zeros((batch.shape[1], self.hidden))

    def step(self, state, inputs, previous):
        logit, position = inputs
        read = jnp.concatenate(
            [logit[:, None], previous[:, None].astype(jnp.float32), position], axis=1
        )
        state, _ = self.cell(state, read)
        return state, log_sigmoid_pair(self.output(state)[:, 0] + logit)

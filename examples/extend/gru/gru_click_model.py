"""A recurrent click model: a GRU reads attraction, position and the click above, and predicts the next click."""

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.models import SequentialClickModel
from clickexp.numerics import log_sigmoid_pair
from clickexp.parameters import EmbeddingParameterConfig, Sizes, build_parameter


class GRUClickModel(SequentialClickModel):
    """logit P(c_r = 1 | c_<r) = w . h_r + attraction_r with h_r = GRU(h_{r-1}, [attraction_r, position_r, c_{r-1}])."""

    name = "GRU"

    def __init__(self, positions, query_doc_pairs, attraction=None, hidden=8, click_rate=None, features=None, *, rngs):
        sizes = Sizes(query_doc_pairs, positions, click_rate, features)
        self.attraction = build_parameter("attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs)
        self.cell = nnx.GRUCell(2 + positions + 1, hidden, rngs=rngs)
        self.output = nnx.Linear(hidden, 1, rngs=rngs)
        self.positions, self.hidden = positions, hidden

    def inputs(self, batch):
        logit = self.attraction.logit(batch).T
        position = jax.nn.one_hot(jnp.broadcast_to(batch["positions"].T, logit.shape), self.positions + 1)
        return logit, position

    def start(self, batch):
        return jnp.zeros((len(batch["mask"]), self.hidden))

    def step(self, state, inputs, previous):
        logit, position = inputs
        read = jnp.concatenate([logit[:, None], previous[:, None].astype(jnp.float32), position], axis=1)
        state, _ = self.cell(state, read)
        return state, log_sigmoid_pair(self.output(state)[:, 0] + logit)

    def relevance(self, batch):
        return self.attraction.log_prob(batch)

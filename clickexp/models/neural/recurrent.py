"""Recurrent networks whose inputs are projected outside the loop over ranks, once for all histories of clicks."""

from typing import Annotated, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from clickexp.types import Array
from clickexp.utils.bounds import OneOf

Kind = Annotated[str, OneOf("gru", "lstm")]
_State = jax.Array | tuple[jax.Array, jax.Array]
_GATES = {"gru": 3, "lstm": 4}


class Recurrent(nnx.Module):
    """A gated recurrent unit, or a long short-term memory.

        gru     r = s(x_r + U_r h)   z = s(x_z + U_z h)   n = tanh(x_n + r U_n h)   h' = (1 - z) n + z h
        lstm    i, f, o = s(x + U h)   g = tanh(x_g + U_g h)   m' = f m + i g   h' = o tanh(m')

    for x = W read + b, which `project` computes. The forget gate of the LSTM starts open.

    Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder for statistical machine translation";
    Hochreiter and Schmidhuber 1997, "Long short-term memory".

    Attributes:
        kind: "gru" or "lstm".
        width: Numbers that a step reads.
        hidden: Units of the state.
    """

    def __init__(self, kind: Kind, width: int, hidden: int, *, rngs: nnx.Rngs):
        self.kind, self.width, self.hidden = kind, width, hidden
        gates = _GATES[kind] * hidden
        bias = np.zeros(gates, np.float32)
        bias[hidden : 2 * hidden] = float(kind == "lstm")
        self.read = nnx.Linear(width, gates, bias_init=lambda *_: jnp.asarray(bias), rngs=rngs)
        self.recall = nnx.Linear(
            hidden, gates, use_bias=False, kernel_init=nnx.initializers.orthogonal(), rngs=rngs
        )

    def start(self, lists: int) -> _State:
        """Returns a state of zeros."""
        zeros = jnp.zeros((lists, self.hidden))
        return (zeros, zeros) if self.kind == "lstm" else zeros

    def project(
        self, read: Float[Array, "*lists part"], first: int = 0
    ) -> Float[Array, "*lists gates"]:
        """Returns W read + b, where all numbers before `first` and behind the part are 0."""
        read = jnp.asarray(read)
        weights = self.read.kernel[...][first : first + read.shape[-1]]
        return read @ weights + cast(nnx.Param, self.read.bias)[...]

    def step(
        self, state: _State, projected: Float[Array, "lists gates"]
    ) -> tuple[_State, jax.Array]:
        """Returns the next state, and its units."""
        if isinstance(state, tuple):
            memory, units = state
            inward, forget, new, outward = jnp.split(projected + self.recall(units), 4, axis=-1)
            memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(inward) * jnp.tanh(new)
            units = jax.nn.sigmoid(outward) * jnp.tanh(memory)
            return (memory, units), units
        x_reset, x_update, x_new = jnp.split(projected, 3, axis=-1)
        h_reset, h_update, h_new = jnp.split(self.recall(state), 3, axis=-1)
        update = jax.nn.sigmoid(x_update + h_update)
        new = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + h_reset) * h_new)
        units = (1 - update) * new + update * state
        return units, units

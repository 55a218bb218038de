"""How relevance and examination make a click, in the context-aware click model."""

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.numerics import LOG_ZERO, LogPair, log_and, log_complement, log_mix, log_sigmoid_pair
from clickexp.utils.bounds import OneOf

Kind = Annotated[str, OneOf("mul", "exp_mul", "linear", "nonlinear", "sigmoid_log")]
_HIDDEN = 8


class ClickCombination(nnx.Module):
    """P(click) of the probabilities R of relevance and E of examination.

        mul          R E
        exp_mul      R^a E^b, a and b > 0 learned
        linear       w R + (1 - w) E, w learned, so that it is a probability
        nonlinear    s(MLP([R, E])), eight hidden units
        sigmoid_log  4 s(log R) s(log E) = 4 R E / ((1 + R) (1 + E))

    Chen, Mao, Liu, Zhang and Ma 2020, "A context-aware click model for web search".

    Attributes:
        kind: One of these.
    """

    def __init__(self, kind: Kind, *, rngs: nnx.Rngs):
        self.kind = kind
        if kind == "exp_mul":
            self.powers = nnx.Param(jnp.full(2, jnp.log(jnp.expm1(1.0))))  # a = b = 1
        elif kind == "linear":
            self.share = nnx.Param(jnp.zeros(()))
        elif kind == "nonlinear":
            self.hidden = nnx.Linear(2, _HIDDEN, rngs=rngs)
            self.output = nnx.Linear(_HIDDEN, 1, rngs=rngs)

    def __call__(self, relevance: LogPair, examination: LogPair) -> LogPair:
        """Returns the logarithms of P(click) and of its complement."""
        match self.kind:
            case "mul":
                return log_and(relevance, examination)
            case "exp_mul":
                a, b = jax.nn.softplus(self.powers[...])
                return _pair(a * relevance.log + b * examination.log)
            case "linear":
                return log_mix(log_sigmoid_pair(self.share[...]), relevance, examination)
            case "nonlinear":
                both = jnp.exp(
                    jnp.stack(jnp.broadcast_arrays(relevance.log, examination.log), axis=-1)
                )
                return log_sigmoid_pair(self.output(jnp.tanh(self.hidden(both)))[..., 0])
        log_odds_of = (pair.log - jnp.log1p(jnp.exp(pair.log)) for pair in (relevance, examination))
        return _pair(sum(log_odds_of, jnp.log(4.0)))


def _pair(log: jax.Array) -> LogPair:
    """The logarithm with that of its complement, both finite."""
    log = jnp.clip(log, LOG_ZERO, -1e-7)
    return LogPair(log, log_complement(log))

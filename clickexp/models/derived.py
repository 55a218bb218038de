"""Marginal predictions and draws of any model that has a conditional, by the chain rule."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from clickexp.models.events import uniform
from clickexp.numerics import LOG_ZERO, LogPair, log_add
from clickexp.types import Array, ByRank

EXACT_RANKS = 10
"""Longest list whose click vectors are enumerated, 2^9 above the last rank; longer ones are sampled."""
DRAWS = 256
"""Sampled sessions per list that a marginal beyond `EXACT_RANKS` is averaged over."""

_Conditional = Callable[[ByRank], LogPair]


def marginal_method(ranks: int) -> str:
    """Returns "exact", or what `marginal` averages over for lists of so many documents."""
    return "exact" if ranks <= EXACT_RANKS else f"mean over {DRAWS} sampled sessions"


def marginal(conditional: _Conditional, batch: ByRank) -> LogPair:
    """Returns P(c_r) = E[P(c_r | c_1 .. c_{r-1})], `[rank, batch]`.

    The expectation runs over all click vectors of the ranks above, or over draws beyond `EXACT_RANKS`.
    """
    if batch.shape[0] > EXACT_RANKS:
        return _sampled(conditional, batch)
    return _enumerated(conditional, batch)


def _enumerated(conditional: _Conditional, batch: ByRank) -> LogPair:
    mask = batch["mask"].astype(bool)
    ranks = len(mask)

    def add(vector: Array, total: LogPair) -> LogPair:
        clicks = ((vector >> jnp.arange(ranks)) & 1).astype(bool)[:, None] & jnp.ones_like(mask)
        pair = conditional(batch.replace(clicks=clicks & mask))
        possible = jnp.where(clicks, LOG_ZERO, 0.0)
        observed = jnp.where(mask, jnp.where(clicks, pair.log, pair.complement), possible)
        weight = jnp.sum(observed[:-1], axis=0)
        weighted = jax.tree.map(lambda log_prob: jnp.maximum(weight + log_prob, LOG_ZERO), pair)
        return jax.tree.map(log_add, total, weighted)

    return jax.lax.fori_loop(0, 1 << (ranks - 1), add, _nothing(batch))


def _sampled(conditional: _Conditional, batch: ByRank) -> LogPair:
    return mean_of_draws(
        lambda key: conditional(batch.replace(clicks=draw(conditional, batch, key))), batch
    )


def mean_of_draws(along: Callable[[Array], LogPair], batch: ByRank) -> LogPair:
    """Returns the mean of probabilities over `DRAWS` keys.

    Args:
        along: Logarithms of probabilities along the clicks that a key draws.
        batch: Sessions, for their shape.
    """

    def add(total: LogPair, key: Array) -> tuple[LogPair, None]:
        return jax.tree.map(log_add, total, along(key)), None

    total, _ = jax.lax.scan(add, _nothing(batch), jax.random.split(jax.random.key(0), DRAWS))
    return jax.tree.map(lambda sum_: sum_ - jnp.log(float(DRAWS)), total)


def _nothing(batch: ByRank) -> LogPair:
    return LogPair(jnp.full(batch.shape, LOG_ZERO), jnp.full(batch.shape, LOG_ZERO))


def draw(conditional: _Conditional, batch: ByRank, key: Array) -> Bool[Array, "rank batch"]:
    """Draws clicks from the top down, each given those above; none where no document is shown."""

    def add(rank: Array, clicks: jax.Array) -> jax.Array:
        pair = conditional(batch.replace(clicks=clicks))
        probability = jnp.exp(batch.broadcast(pair.log)[rank])
        return clicks.at[rank].set(mask[rank] & (numbers[rank] < probability))

    mask = jnp.asarray(batch["mask"], bool)
    numbers = uniform(key, batch)
    return jax.lax.fori_loop(0, batch.shape[0], add, jnp.zeros(batch.shape, bool))

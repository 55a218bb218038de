"""Marginal predictions and draws of any model that has a conditional, by the chain rule."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from clickexp.numerics import LOG_ZERO, LogPair, log_add
from clickexp.types import Array, Batch

EXACT_RANKS = 10
"""Longest list whose click vectors are enumerated, 2^9 above the last rank; longer ones are sampled."""
DRAWS = 256
"""Sampled sessions per list that a marginal beyond `EXACT_RANKS` is averaged over."""

Conditional = Callable[[Batch], LogPair]


def how(ranks: int) -> str:
    """How `marginal` computes lists of this length, for results."""
    return "exact, by enumeration" if ranks <= EXACT_RANKS else f"mean over {DRAWS} sampled sessions"


def marginal(conditional: Conditional, batch: Batch) -> LogPair:
    """P(c_r) = E[P(c_r | c_1 .. c_{r-1})], `[rank, batch]`.

    The expectation runs over all click vectors of the ranks above, or over draws beyond `EXACT_RANKS`.
    """
    if batch["mask"].shape[1] > EXACT_RANKS:
        return _sampled(conditional, batch)
    return _enumerated(conditional, batch)


def _enumerated(conditional: Conditional, batch: Batch) -> LogPair:
    mask = batch["mask"].T.astype(bool)
    ranks = len(mask)

    def add(vector: Array, total: LogPair) -> LogPair:
        clicks = ((vector >> jnp.arange(ranks)) & 1).astype(bool)[:, None] & jnp.ones_like(mask)
        pair = conditional({**batch, "clicks": (clicks & mask).T})
        observed = jnp.where(
            mask, jnp.where(clicks, pair.log, pair.complement), jnp.where(clicks, LOG_ZERO, 0.0)
        )
        weight = jnp.sum(observed[:-1], axis=0)
        return jax.tree.map(
            lambda sum_, log_prob: log_add(sum_, jnp.maximum(weight + log_prob, LOG_ZERO)), total, pair
        )

    nothing = jnp.full(mask.shape, LOG_ZERO)
    return jax.lax.fori_loop(0, 1 << (ranks - 1), add, LogPair(nothing, nothing))


def _sampled(conditional: Conditional, batch: Batch) -> LogPair:
    shape = batch["mask"].T.shape

    def add(total: LogPair, key: Array) -> tuple[LogPair, None]:
        pair = conditional({**batch, "clicks": draw(conditional, batch, key)})
        return jax.tree.map(log_add, total, pair), None

    nothing = jnp.full(shape, LOG_ZERO)
    total, _ = jax.lax.scan(add, LogPair(nothing, nothing), jax.random.split(jax.random.key(0), DRAWS))
    return jax.tree.map(lambda sum_: sum_ - jnp.log(float(DRAWS)), total)


def draw(conditional: Conditional, batch: Batch, key: Array) -> Bool[Array, "batch rank"]:
    """Clicks drawn from the top down, each given those above; none where no document is shown."""
    shape = batch["mask"].shape

    def add(rank: Array, clicks: Array) -> Array:
        pair = conditional({**batch, "clicks": clicks})
        probability = jnp.exp(jnp.broadcast_to(pair.log, shape[::-1])[rank])
        return clicks.at[:, rank].set(shown[:, rank] & (uniform[:, rank] < probability))

    shown = jnp.asarray(batch["mask"], bool)
    uniform = jax.random.uniform(key, shape)
    return jax.lax.fori_loop(0, shape[1], add, jnp.zeros(shape, bool))

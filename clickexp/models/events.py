"""Draws of events in definitions of click models, and the state behind ranks that show no document."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from clickexp.types import Array, ByRank, LogitsByRank, swap_list_and_rank


def skip_hidden_ranks(mask: Bool[Array, "#batch"] | None, after: Any, before: Any) -> Any:
    """Returns the state after a rank, or that before it where no document was shown."""
    return after if mask is None else jax.tree.map(partial(jnp.where, mask), after, before)


def uniform(key: Array, batch: ByRank) -> Float[Array, "rank batch"]:
    """Draws one number per document, list by list."""
    return swap_list_and_rank(jax.random.uniform(key, batch.shape[::-1]))


def bernoulli(key: Array, log_prob: LogitsByRank, batch: ByRank) -> Bool[Array, "rank batch"]:
    """Draws one event per document, of probability exp(log_prob)."""
    return uniform(key, batch) < jnp.exp(log_prob)

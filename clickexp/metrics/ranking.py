"""Ranking metrics of Rax over lists with relevance labels."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

from clickexp.metrics.base import Metric, pick
from clickexp.types import Array, Count


@partial(jax.jit, static_argnames=("metric_fn", "top_n", "orders"))
def _sum_over_lists(
    metric_fn: Callable[..., Array],
    top_n: int | None,
    orders: int,
    key: Array,
    scores: Float[Array, "*lists rank"],
    labels: Float[Array, "*lists rank"],
    where: Bool[Array, "*lists rank"],
) -> dict[str, Shaped[Array, ""]]:
    """Sum over the lists with a document of the metric's value, and their number."""
    cutoff = {} if top_n is None else {"topn": top_n}
    shuffled = jnp.argsort(jax.random.uniform(key, scores.shape), axis=-1)

    def values(shift: Count) -> Float[Array, "*lists"]:
        # Rax sorts stably, so the order in which it receives tied documents decides between them.
        order = jnp.roll(shuffled, shift, axis=-1)
        s, y, mask = (jnp.take_along_axis(array, order, axis=-1) for array in (scores, labels, where))
        return metric_fn(s, y, where=mask, reduce_fn=None, **cutoff)

    with jax.numpy_dtype_promotion("standard"):  # Rax multiplies float masks by integer ranks
        per_order = jax.vmap(values)(_shifts(orders, scores.shape[-1]))
    poisoned = jnp.any(where & (jnp.isnan(scores) | jnp.isnan(labels)), axis=-1)
    per_list = jnp.where(poisoned, jnp.nan, per_order.mean(axis=0))
    counted = jnp.any(where, axis=-1)
    return {
        "value": jnp.sum(jnp.where(counted, per_list, 0)),
        "lists": jnp.sum(counted, dtype=jnp.int32),
    }


def _shifts(orders: int, ranks: int) -> Integer[Array, " order"]:
    """Evenly spaced rotations of a list, each at most once."""
    orders = min(orders, ranks)
    return jnp.arange(orders) * ranks // orders


class RaxMetric(Metric):
    """Mean over lists of a Rax ranking metric, cut off at `top_n`.

        RaxMetric(rax.ndcg_metric, top_n=10).update(scores=scores, labels=labels, where=mask)

    Reads, all of shape [..., rank]:
        scores  any order-preserving score; -inf ranks a document last
        labels  graded relevance; below 0 (spam) counts as 0
        where   True where a document was shown; without it every document counts
    Lists without a document do not count; lists without a relevant one count with Rax's value, 0.

    Tied documents are ranked in `orders` different orders and the values averaged: the rotations of one
    random order per list. With at least as many orders as ranks, a constant score has exactly the DCG
    expected of a random ranking. (Ties: McSherry & Najork 2008; Rax: Jagerman et al. 2022.)

    `compute` raises ValueError if any score or label was NaN: sorting would hide it.
    """

    def __init__(
        self, metric_fn: Callable[..., Array], top_n: int | None = None, *, orders: int = 10, seed: int = 0
    ) -> None:
        super().__init__()
        self.metric_fn = metric_fn
        self.top_n = top_n
        self.orders = orders
        self.seed = seed

    def __repr__(self) -> str:
        name = getattr(self.metric_fn, "__name__", repr(self.metric_fn))
        return f"RaxMetric({name}, top_n={self.top_n})"

    def statistics(self, **outputs: Any) -> dict[str, Array]:
        """value: sum of the metric over the lists with a document; lists: how many."""
        scores = jnp.asarray(pick(self, outputs, "scores"), jnp.float32)
        labels = jnp.asarray(pick(self, outputs, "labels"), jnp.float32)
        where = outputs.get("where")
        where = jnp.ones(scores.shape, bool) if where is None else jnp.asarray(where, bool)
        if not scores.shape == labels.shape == where.shape:
            shapes = f"{scores.shape}, {labels.shape}, {where.shape}"
            raise ValueError(f"{self!r}: shapes of scores, labels and where differ: {shapes}")
        # Rax takes -inf for "not retrieved"; the lowest finite score means "ranked last".
        scores = jnp.maximum(jnp.where(where, scores, 0), jnp.finfo(jnp.float32).min)
        labels = jnp.maximum(jnp.where(where, labels, 0), 0)
        key = jax.random.key(self.seed)
        return _sum_over_lists(self.metric_fn, self.top_n, self.orders, key, scores, labels, where)

    def compute(self) -> float:
        total, lists = self.total("value").sum(), self.total("lists").sum()
        if np.isnan(total):
            raise ValueError(f"{self!r}: a score or label was NaN; check relevance scores and labels")
        return float(total / lists) if lists else float("nan")

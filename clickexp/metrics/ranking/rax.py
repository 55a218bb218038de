"""Any ranking metric of Rax."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from clickexp.metrics.ranking.base import RankingMetric
from clickexp.metrics.ranking.lists import RankedLists, Values
from clickexp.types import Array, Count


class RaxMetric(RankingMetric):
    """Mean over lists of a Rax ranking metric, cut off at `top_n`.

        RaxMetric(rax.ndcg_metric, top_n=10).update(scores=scores, labels=labels, where=mask)

    Reads what every `RankingMetric` does, and so differs from a call of Rax, and from CLAX's metric of this name,
    for ties, scores of -inf, labels below 0 and lists that are all masked: `RankingMetric` has examples. Where none
    of these occur, values are Rax's. Lists without a relevant document count with Rax's value.

    Tied documents are ranked in several orders and the values averaged: the rotations of one random order of each list.
    With at least as many orders as ranks, a constant score has exactly the DCG expected of a random ranking. (Ties:
    McSherry & Najork 2008; Rax: Jagerman et al. 2022.)

    Args:
        metric_fn: The function of Rax, such as `rax.ndcg_metric`.
        top_n: The cutoff; None for all documents.
        orders: Orders of tied documents to average over.
        seed: Seed of the random orders.
        higher_is_better: True, as for every metric of Rax; False or None for a function that is different.
    """

    def __init__(
        self,
        metric_fn: Callable[..., Array],
        top_n: int | None = None,
        *,
        orders: int = 10,
        seed: int = 0,
        higher_is_better: bool | None = True,
    ) -> None:
        super().__init__(top_n)
        self.metric_fn = metric_fn
        self.orders = orders
        self.seed = seed
        self.higher_is_better = higher_is_better

    def __repr__(self) -> str:
        name = getattr(self.metric_fn, "__name__", repr(self.metric_fn))
        return f"RaxMetric({name}, top_n={self.cutoffs})"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """None: the metric's name holds the cutoff."""
        return ("",)

    def has_relevant(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether a list has a document."""
        return jnp.any(ranked.where, axis=1)

    def per_list(self, ranked: RankedLists) -> Values:
        """Rax's value of each list, [list, 1]."""
        cutoff = {} if self.cutoffs is None else {"topn": self.cutoffs}
        # Rax takes -inf for "not retrieved"; the lowest finite score means "ranked last".
        scores = jnp.maximum(jnp.where(ranked.where, ranked.scores, 0), jnp.finfo(jnp.float32).min)
        shuffled = jnp.argsort(jax.random.uniform(jax.random.key(self.seed), scores.shape), axis=1)

        def values(shift: Count) -> Float[Array, "list"]:
            # Rax sorts stably, so the order in which it receives tied documents decides between them.
            order = jnp.roll(shuffled, shift, axis=1)
            s, y, mask = (
                jnp.take_along_axis(x, order, axis=1) for x in (scores, ranked.labels, ranked.where)
            )
            return self.metric_fn(s, y, where=mask, reduce_fn=None, **cutoff)

        orders = min(self.orders, scores.shape[1])
        shifts = jnp.arange(orders) * scores.shape[1] // orders  # evenly spaced, each at most once
        with jax.numpy_dtype_promotion("standard"):  # Rax multiplies float masks by integer ranks
            return jax.vmap(values)(shifts).mean(axis=0)[:, None]

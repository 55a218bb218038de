"""How much of ranked lists was judged: lists without any label, and the share of documents with one."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Bool

from clickexp.metrics.base import Metric, mask_of, pick
from clickexp.metrics.ranking.base import RankingMetric
from clickexp.metrics.ranking.lists import RankedLists, Values
from clickexp.types import Array


class UnjudgedLists(Metric):
    """Number of lists that have documents of which nobody judged any: `RankingMetric` does not count them."""

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """The number of one batch.

        Raises:
            TypeError: Where labels are missing.
        """
        labels = jnp.asarray(pick(self, outputs, "labels"), jnp.float32)
        where = mask_of(outputs, labels.shape)
        has_documents = jnp.any(where, axis=0)
        judged = jnp.any(where & ~jnp.isnan(labels), axis=0)
        return {"lists": jnp.sum(has_documents & ~judged, dtype=jnp.int32)}

    def compute(self) -> int:
        """The number of lists."""
        return int(self.total("lists").sum())


class JudgedShare(RankingMetric):
    """Share of the documents in the top k that have a label: of lists where any has, judged@k / min(k, documents).

    As judged@k of ir_measures; 1 where all documents were judged.
    """

    higher_is_better = None

    def has_relevant(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether a list has a document."""
        return jnp.any(ranked.where, axis=1)

    def per_list(self, ranked: RankedLists) -> Values:
        """Share of each list, [list, n]."""
        lengths = ranked.lengths.astype(jnp.float32)[:, None]
        depths = jnp.minimum(self.depths(ranked), lengths)
        return self.top(ranked.over_ties(ranked.labels)[1]) / jnp.maximum(depths, 1)

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """As of other metrics, a judged document having label 1, another one 0.

        Raises:
            TypeError: Where scores or labels are missing.
        """
        labels = jnp.asarray(pick(self, outputs, "labels"), jnp.float32)
        judged = mask_of(outputs, labels.shape) & ~jnp.isnan(labels)
        shown = jnp.where(jnp.any(judged, axis=0), judged.astype(jnp.float32), jnp.nan)
        return super().statistics(**{**outputs, "labels": shown})

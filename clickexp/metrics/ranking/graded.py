"""Ranking metrics of graded relevance: cumulative gain, plain, discounted and normalised, and reciprocal rank."""

from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt

from clickexp.metrics.ranking.base import RankingMetric
from clickexp.metrics.ranking.lists import PerRank, RankedLists, Values
from clickexp.types import Count
from clickexp.utils.bounds import OneOf


class CumulativeGain(RankingMetric):
    """Sum of the labels of the top k: sum over i <= k of y_i.

    (Järvelin & Kekäläinen 2002.)
    """

    def per_list(self, ranked: RankedLists) -> Values:
        """Sum of the labels of the top k of each list, [list, n]."""
        return self.top(ranked.over_ties(ranked.labels)[1])


@dataclass(eq=False, repr=False, kw_only=True)
class DCG(RankingMetric):
    """Discounted cumulative gain: sum over i <= k of gain(y_i) / discount(i), y_i being the label at rank i.

    form          gain      discount
    "exponential" 2^y - 1   log2(1 + i)      the most common one; Rax's (Burges et al. 2005)
    "linear"      y         log2(1 + i)      trec_eval's
    "original"    y         max(1, log2(i))  rank 1, and with it rank 2, undiscounted (Järvelin & Kekäläinen 2002)

    With ties, each of them has the mean gain of all. (McSherry & Najork 2008.)

    Args:
        cutoffs: See `RankingMetric`.
        form: As above.
        no_relevant: See `RankingMetric`.
        unjudged_documents: See `RankingMetric`.
    """

    form: Annotated[str, OneOf("exponential", "linear", "original")] = "exponential"

    def gain(self, labels: PerRank) -> PerRank:
        """The gain of each label, [list, rank]."""
        return jnp.expm1(labels * np.float32(np.log(2))) if self.form == "exponential" else labels

    def discounted(self, gains: PerRank) -> Values:
        """Sums over each top k of gains [list, rank] in the order of ranks, [list, n]."""
        ranks = np.arange(1, gains.shape[1] + 1)
        discounts = np.maximum(1, np.log2(ranks)) if self.form == "original" else np.log2(1 + ranks)
        return self.top(gains * (1 / discounts).astype(np.float32))

    def per_list(self, ranked: RankedLists) -> Values:
        """DCG@k of each list, [list, n]."""
        return self.discounted(ranked.over_ties(self.gain(ranked.labels))[1])


class NDCG(DCG):
    """Normalised discounted cumulative gain: DCG@k over that of the ideal order of the list. Settings as in `DCG`."""

    def per_list(self, ranked: RankedLists) -> Values:
        """nDCG@k of each list, [list, n]."""
        ideal = self.discounted(self.gain(ranked.ideal))
        return super().per_list(ranked) / jnp.where(ideal > 0, ideal, 1)


@dataclass(eq=False, repr=False, kw_only=True)
class ExpectedReciprocalRank(RankingMetric):
    """Mean of 1 / the rank at which a user stops who is satisfied by a document with a probability R of its label.

        err@k = sum over i <= k of 1/i R_i product over j < i of (1 - R_j),   R_i = (2^y_i - 1) / 2^max_grade

    (Chapelle, Metzler, Zhang & Grinspan 2009.)

    Args:
        cutoffs: See `RankingMetric`.
        max_grade: Largest label; those above count as it.
        no_relevant: See `RankingMetric`.
        unjudged_documents: See `RankingMetric`.
    """

    max_grade: Annotated[int | float, Gt(0)] = 4

    def per_list(self, ranked: RankedLists) -> Values:
        """ERR@k of each list, [list, n]."""
        labels = jnp.minimum(ranked.labels, self.max_grade)
        stop = jnp.expm1(labels * np.float32(np.log(2))) * np.float32(0.5**self.max_grade)
        searching = _still_searching(1 - stop, ranked)
        before = jnp.pad(searching[:, :-1], ((0, 0), (1, 0)), constant_values=1)
        ranks = np.arange(1, labels.shape[1] + 1, dtype=np.float32)
        return self.top((before - searching) / ranks)


def _still_searching(go_on: PerRank, ranked: RankedLists) -> PerRank:
    """Mean over the orders of ties of the product of `go_on` over all ranks down to this one.

    The mean product of t of m tied documents follows from those of t and t - 1 of the first m - 1: the last one is
    among the t with probability t / m. So one document is added at a time, to all t at once.
    """
    ranks = go_on.shape[1]
    position = jnp.arange(1, ranks + 1)

    def add(i: Count, means: PerRank) -> PerRank:
        """means: [list, 1 + rank], final up to the start of the documents that document i is tied with."""
        start, factor = (jax.lax.dynamic_index_in_dim(x, i, axis=1) for x in (ranked.start, go_on))
        chosen, tied = position - start, i + 1 - start
        share = jnp.clip(chosen.astype(jnp.float32) / tied.astype(jnp.float32), 0, 1)
        new = (1 - share) * means[:, 1:] + share * factor * means[:, :-1]
        changed = jnp.where((chosen > 0) & (position <= i + 1), new, means[:, 1:])
        return jnp.concatenate([means[:, :1], changed], axis=1)

    means = jnp.pad(jnp.zeros_like(go_on), ((0, 0), (1, 0)), constant_values=1)
    return jax.lax.fori_loop(0, ranks, add, means)[:, 1:]

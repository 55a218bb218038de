"""Ranking metrics of pairs of documents: concordant pairs, Kendall's tau and its weighted form."""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer

from clickexp.metrics.ranking.base import Cutoffs, RankingMetric
from clickexp.metrics.ranking.lists import RankedLists, Values
from clickexp.types import Array, Count
from clickexp.utils.bounds import OneOf

_PerDocument = Integer[Array, "list rank"]


class _Pairs(NamedTuple):
    """Comparison of each document with all others of its list, in the order of `RankedLists`; 0 beyond its end.

    agreement: how many others have a score and a label that differ alike from its own, minus how many differ unlike.
    by_label:  its position, from 0, by decreasing label, those alike by decreasing score.
    alike:     how many have its label, itself included.
    decided:   how many others differ from it in both score and label.
    """

    agreement: _PerDocument
    by_label: _PerDocument
    alike: _PerDocument
    decided: _PerDocument


def _compare(ranked: RankedLists) -> _Pairs:
    """Compares every document with one other at a time: whole matrices take 12 times as long for 1,000 documents."""
    position = jnp.arange(ranked.where.shape[1], dtype=jnp.int32)

    def add(i: Count, pairs: _Pairs) -> _Pairs:
        label, start, where = (
            jax.lax.dynamic_index_in_dim(x, i, axis=1)
            for x in (ranked.labels, ranked.start, ranked.where)
        )
        score = jnp.sign(ranked.start - start)  # 1 where the other one is above
        higher, lower = label > ranked.labels, label < ranked.labels
        equal = ~higher & ~lower
        agreement = jnp.where(higher, score, jnp.where(lower, -score, 0))
        comparisons = agreement, higher | (equal & (i < position)), equal, agreement != 0
        counts = (jnp.where(where, new.astype(jnp.int32), 0) for new in comparisons)
        return jax.tree.map(jnp.add, pairs, _Pairs(*counts))

    nothing = jnp.zeros(ranked.where.shape, jnp.int32)
    pairs = jax.lax.fori_loop(0, len(position), add, _Pairs(nothing, nothing, nothing, nothing))
    return _Pairs(*(jnp.where(ranked.where, counts, 0) for counts in pairs))


@dataclass(eq=False, repr=False, kw_only=True)
class PairMetric(RankingMetric):
    """Base of metrics of the pairs of documents of a list, without a cutoff.

    Args:
        no_relevant: For lists in which no two labels differ: "skip" does not count them, "zero" does with the value 0.
        unjudged_documents: See `RankingMetric`.
    """

    cutoffs: Cutoffs = field(default=None, init=False)
    no_relevant: Annotated[str, OneOf("skip", "zero")] = "skip"

    def has_relevant(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether there are two documents with labels that differ."""
        lowest = jnp.min(jnp.where(ranked.where, ranked.labels, jnp.inf), axis=1)
        return ranked.ideal[:, 0] > lowest


@dataclass(eq=False, repr=False, kw_only=True)
class ConcordantPairs(PairMetric):
    """Share of the pairs with different labels whose scores are in the same order (ordered-pair accuracy).

        (concordant pairs + pairs with tied scores / 2) / pairs with different labels

    1/2 for a constant score or a random ranking; for labels 0 and 1 the area under the ROC curve of a list.
    (Joachims 2002.)

    Args:
        ties: "half", as above; or "skip", which leaves pairs with tied scores out, as the fraction of concordant pairs
            (FCP) of recommender systems does: concordant / (concordant + discordant) pairs. Lists without such a pair,
            as with a constant score, are then those that no_relevant is about. For scores 2, 2, 1 and labels 2, 1, 0
            the values are (2 + 1/2) / 3 = 0.833 and 2 / 2 = 1. (Koren & Sill 2011.)
        no_relevant: See `PairMetric`.
        unjudged_documents: See `RankingMetric`.
    """

    ties: Annotated[str, OneOf("half", "skip")] = "half"

    def has_relevant(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether there is a pair that counts."""
        has_relevant = super().has_relevant(ranked)
        # with two different scores and two different labels some pair differs in both
        return (
            has_relevant
            if self.ties == "half"
            else has_relevant & (ranked.size[:, 0] < ranked.lengths)
        )

    def per_list(self, ranked: RankedLists) -> Values:
        """The share of each list, [list, 1]."""
        pairs = _compare(ranked)
        counted = _others(ranked, pairs.alike) if self.ties == "half" else pairs.decided
        shares = jnp.sum(pairs.agreement, axis=1) / jnp.maximum(jnp.sum(counted, axis=1), 1)
        return (0.5 + 0.5 * shares)[:, None]


class KendallTau(PairMetric):
    """Kendall's rank correlation of scores and labels, with its correction for ties (tau-b); from -1 to 1.

        tau = (C - D) / sqrt((pairs with different scores) (pairs with different labels))

    over C concordant and D discordant pairs; 0, what a random ranking has, where all scores are tied.
    As scipy.stats.kendalltau has it. (Kendall 1945.)

    (1 + tau) / 2 is equation 9.130 of Murphy (2012) with all weights 1, where no scores and no labels are tied.
    """

    def per_list(self, ranked: RankedLists) -> Values:
        """Tau of each list, [list, 1]."""
        return _correlation(ranked, _compare(ranked), jnp.ones_like(ranked.labels))[:, None]


class WeightedKendallTau(PairMetric):
    """Kendall's correlation with a weight of 1/(1 + rank of i) + 1/(1 + rank of j) for a pair i, j; ranks from 0.

        tau = sum over pairs of w_ij sign(s_i - s_j) sign(y_i - y_j)
              / sqrt(sum over pairs with s_i != s_j of w_ij  sum over pairs with y_i != y_j of w_ij)

    the mean of the two that rank documents by score (those tied by label) and by label (those alike by score), as
    scipy.stats.weightedtau has it by default; 0 where all scores are tied. (Vigna 2015.)

    Murphy (2012, equation 9.130) has weights of any kind and values from 0 to 1:

        sum over pairs of w_ij (1 + sign(s_i - s_j) sign(y_i - y_j)) / (2 sum over pairs of w_ij)

    Where no scores and no labels are tied, (1 + tau) / 2 is the mean of its two values with the weights above.
    """

    def per_list(self, ranked: RankedLists) -> Values:
        """Weighted tau of each list, [list, 1]."""
        pairs = _compare(ranked)
        ranks = jnp.arange(ranked.labels.shape[1])[None], pairs.by_label
        by_score, by_label = (
            _correlation(ranked, pairs, 1 / (1 + rank.astype(jnp.float32))) for rank in ranks
        )
        return (by_score + by_label)[:, None] / 2


def _others(ranked: RankedLists, alike: _PerDocument) -> _PerDocument:
    """Documents of a list but for those that are alike; 0 where there is no document."""
    return jnp.where(ranked.where, ranked.lengths[:, None] - alike, 0)


def _correlation(
    ranked: RankedLists, pairs: _Pairs, weights: Float[Array, "#list rank"]
) -> Float[Array, "list"]:
    """Kendall's tau with weight w_i + w_j for a pair; a sum over pairs is one over i of w_i times a count of j."""
    agreement, scores, labels = (
        jnp.sum(weights * counts.astype(jnp.float32), axis=1)
        for counts in (pairs.agreement, _others(ranked, ranked.size), _others(ranked, pairs.alike))
    )
    norm = jnp.sqrt(scores) * jnp.sqrt(labels)
    return jnp.where(norm > 0, agreement / jnp.where(norm > 0, norm, 1), 0)

"""Ranking metrics of pairs of documents: concordant pairs, Kendall's tau and its weighted form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer

from clickexp.metrics.ranking import RankedLists, RankingMetric, Values
from clickexp.types import Array

LISTS_AT_A_TIME = 32
"""Lists whose pairs are compared together, so that they stay in the processor's cache."""

PerDocument = Integer[Array, "list rank"]


class Pairs(NamedTuple):
    """What comparing each document with all others of its list finds, in the order of `RankedLists`.

    agreement: how many others have a score and a label that differ alike from its own, minus how many differ unlike.
    by_label:  its position, from 0, by decreasing label, those alike by decreasing score.
    alike:     how many have its label, itself included.
    """

    agreement: PerDocument
    by_label: PerDocument
    alike: PerDocument


def compare(ranked: RankedLists) -> Pairs:
    """Compares the pairs of each list, [list, rank, rank] a few lists at a time; 0 where there is no document."""

    def of_list(labels: Array, start: Array, where: Array) -> tuple[Array, Array, Array]:
        # Axis 0 is the other document, so that sums over it run along the contiguous axis.
        both = where[:, None] & where
        equal = labels[:, None] == labels
        higher = labels[:, None] > labels
        signs = jnp.where(equal, 0, jnp.where(higher, 1, -1)) * jnp.sign(start - start[:, None])
        position = jnp.arange(len(labels))
        before = higher | (equal & (position[:, None] < position))
        counts = (jnp.where(both, signs, 0), before & both, equal & both)
        return tuple(jnp.sum(count, axis=0, dtype=jnp.int32) for count in counts)

    arrays = ranked.labels, ranked.start, ranked.where
    return Pairs(*jax.lax.map(lambda x: of_list(*x), arrays, batch_size=LISTS_AT_A_TIME))


class PairMetric(RankingMetric):
    """Base of metrics of the pairs of documents of a list, all of it.

    no_relevant: lists in which no two labels differ; "skip" does not count them, "zero" does with the value 0.
    """

    def __init__(self, *, no_relevant: str = "skip") -> None:
        super().__init__(no_relevant=no_relevant)

    def judged(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether there are two documents with labels that differ."""
        lowest = jnp.min(jnp.where(ranked.where, ranked.labels, jnp.inf), axis=1)
        return ranked.ideal[:, 0] > lowest


class ConcordantPairs(PairMetric):
    """Share of the pairs with different labels whose scores are in the same order (ordered-pair accuracy).

        (concordant pairs + pairs with tied scores / 2) / pairs with different labels

    1/2 for a constant score or a random ranking. Related to `KendallTau` as the area under the ROC curve is to
    Somers' D. (Joachims 2002.)
    """

    def per_list(self, ranked: RankedLists) -> Values:
        pairs = compare(ranked)
        differing = jnp.sum(_others(ranked, pairs.alike), axis=1)
        shares = jnp.sum(pairs.agreement, axis=1) / jnp.maximum(differing, 1)
        return (0.5 + 0.5 * shares)[:, None]


class KendallTau(PairMetric):
    """Kendall's rank correlation of scores and labels, with its correction for ties (tau-b); from -1 to 1.

        tau = (C - D) / sqrt((pairs with different scores) (pairs with different labels))

    over C concordant and D discordant pairs; 0, what a random ranking has, where all scores are tied.
    As scipy.stats.kendalltau has it. (Kendall 1945.)
    """

    def per_list(self, ranked: RankedLists) -> Values:
        return _correlation(ranked, compare(ranked), jnp.ones_like(ranked.labels))[:, None]


class WeightedKendallTau(PairMetric):
    """Kendall's correlation with a weight of 1/(1 + rank of i) + 1/(1 + rank of j) for a pair i, j; ranks from 0.

        tau = sum over pairs of w_ij sign(s_i - s_j) sign(y_i - y_j)
              / sqrt(sum over pairs with s_i != s_j of w_ij  sum over pairs with y_i != y_j of w_ij)

    the mean of the two that rank documents by score (those tied by label) and by label (those alike by score), as
    scipy.stats.weightedtau has it by default; 0 where all scores are tied. (Vigna 2015.)
    """

    def per_list(self, ranked: RankedLists) -> Values:
        pairs = compare(ranked)
        ranks = jnp.arange(ranked.labels.shape[1])[None], pairs.by_label
        both = [_correlation(ranked, pairs, 1 / (1 + rank.astype(jnp.float32))) for rank in ranks]
        return (sum(both) / 2)[:, None]


def _others(ranked: RankedLists, alike: PerDocument) -> PerDocument:
    """Documents of a list but for those that are alike; 0 where there is no document."""
    return jnp.where(ranked.where, ranked.lengths[:, None] - alike, 0)


def _correlation(
    ranked: RankedLists, pairs: Pairs, weights: Float[Array, "#list rank"]
) -> Float[Array, "list"]:
    """Kendall's tau with weight w_i + w_j for a pair; a sum over pairs is one over i of w_i times a count of j."""
    agreement, scores, labels = (
        jnp.sum(weights * counts.astype(jnp.float32), axis=1)
        for counts in (pairs.agreement, _others(ranked, ranked.size), _others(ranked, pairs.alike))
    )
    norm = jnp.sqrt(scores) * jnp.sqrt(labels)
    return jnp.where(norm > 0, agreement / jnp.where(norm > 0, norm, 1), 0)

"""Ranking metrics of pairs of documents: concordant pairs, Kendall's tau and its weighted form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer

from clickexp.errors import ConfigError
from clickexp.metrics.ranking.base import RankedLists, RankingMetric, Values
from clickexp.types import Array, Count

PerDocument = Integer[Array, "list rank"]


class Pairs(NamedTuple):
    """What comparing each document with all others of its list finds, in the order of `RankedLists`; 0 beyond its end.

    agreement: how many others have a score and a label that differ alike from its own, minus how many differ unlike.
    by_label:  its position, from 0, by decreasing label, those alike by decreasing score.
    alike:     how many have its label, itself included.
    decided:   how many others differ from it in both score and label.
    """

    agreement: PerDocument
    by_label: PerDocument
    alike: PerDocument
    decided: PerDocument


def compare(ranked: RankedLists) -> Pairs:
    """Compares every document with one other at a time, so that nothing is larger than the lists."""
    others = jnp.where(ranked.where, ranked.labels, jnp.nan)  # compares as neither higher, lower nor equal
    position = jnp.arange(others.shape[1], dtype=jnp.int32)

    def add(i: Count, pairs: Pairs) -> Pairs:
        label, start = (jax.lax.dynamic_index_in_dim(x, i, axis=1) for x in (others, ranked.start))
        above = jnp.sign(ranked.start - start)
        higher, lower, equal = label > ranked.labels, label < ranked.labels, label == ranked.labels
        return Pairs(
            agreement=pairs.agreement + jnp.where(higher, above, jnp.where(lower, -above, 0)),
            by_label=pairs.by_label + (higher | (equal & (i < position))).astype(jnp.int32),
            alike=pairs.alike + equal.astype(jnp.int32),
            decided=pairs.decided + ((higher | lower) & (above != 0)).astype(jnp.int32),
        )

    nothing = jnp.zeros(others.shape, jnp.int32)
    pairs = jax.lax.fori_loop(0, others.shape[1], add, Pairs(nothing, nothing, nothing, nothing))
    return jax.tree.map(lambda counts: jnp.where(ranked.where, counts, 0), pairs)


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

    1/2 for a constant score or a random ranking; for labels 0 and 1 the area under the ROC curve of a list.
    (Joachims 2002.)

    ties: "half", as above; or "skip", which leaves pairs with tied scores out, as the fraction of concordant pairs
        (FCP) of recommender systems does: concordant / (concordant + discordant) pairs. Lists without such a pair, as
        with a constant score, are then those that no_relevant is about. For scores 2, 2, 1 and labels 2, 1, 0 they
        make (2 + 1/2) / 3 = 0.833 and 2 / 2 = 1. (Koren & Sill 2011.)
    """

    higher_is_better = True

    def __init__(self, *, ties: str = "half", no_relevant: str = "skip") -> None:
        super().__init__(no_relevant=no_relevant)
        if ties not in ("half", "skip"):
            raise ConfigError(f"ties={ties!r}: give half or skip")
        self.ties = ties

    def judged(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether there is a pair that counts."""
        judged = super().judged(ranked)
        # with two different scores and two different labels some pair differs in both
        return judged if self.ties == "half" else judged & (ranked.size[:, 0] < ranked.lengths)

    def per_list(self, ranked: RankedLists) -> Values:
        pairs = compare(ranked)
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

    higher_is_better = True

    def per_list(self, ranked: RankedLists) -> Values:
        return _correlation(ranked, compare(ranked), jnp.ones_like(ranked.labels))[:, None]


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

    higher_is_better = True

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

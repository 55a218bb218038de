"""Ranking metrics of documents that are either relevant or not: precision and recall, first hits, all hits."""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt, Interval
from jaxtyping import Bool, Float

from clickexp.metrics.base import VALUE
from clickexp.metrics.ranking.base import RankingMetric
from clickexp.metrics.ranking.lists import PerRank, RankedLists, Values
from clickexp.types import Array
from clickexp.utils.bounds import OneOf

_Label = Annotated[int | float, Gt(0)]


@dataclass(eq=False, repr=False, kw_only=True)
class RelevanceMetric(RankingMetric):
    """Base of metrics of relevant documents: those with a label of at least `relevant_from`.

    In the formulas y_i is 1 if the document at rank i is relevant, else 0; R is the number of relevant documents
    of the list; k is the cutoff, or the list's length without one.

    Args:
        cutoffs: See `RankingMetric`.
        no_relevant: See `RankingMetric`.
        unjudged_documents: See `RankingMetric`.
        relevant_from: Smallest label of a relevant document.
    """

    relevant_from: _Label = 1.0

    def has_relevant(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether a list has a relevant document."""
        return ranked.ideal[:, 0] >= self.relevant_from

    def relevant(self, ranked: RankedLists) -> PerRank:
        """1 for relevant documents, else 0, [list, rank]."""
        return (ranked.labels >= self.relevant_from).astype(jnp.float32)

    def number(self, ranked: RankedLists) -> Float[Array, "list 1"]:
        """Relevant documents of a list, at least 1, [list, 1]."""
        return jnp.maximum(jnp.sum(self.relevant(ranked), axis=1, keepdims=True), 1)

    def chance(self, ranked: RankedLists) -> PerRank:
        """Probability, over the orders of ties, that the document at a rank is relevant, [list, rank]."""
        return ranked.over_ties(self.relevant(ranked))[1]

    def hits(self, ranked: RankedLists) -> Values:
        """Expected number of relevant documents in the top k, [list, n]."""
        return self.top(self.chance(ranked))


class ListsWithoutRelevant(RelevanceMetric):
    """Number of lists that have documents but no relevant one, which other metrics count as 0 or skip."""

    higher_is_better = None

    def __init__(self, *, relevant_from: _Label = 1.0) -> None:
        super().__init__(relevant_from=relevant_from)

    def has_relevant(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether a list has a document."""
        return jnp.any(ranked.where, axis=1)

    def per_list(self, ranked: RankedLists) -> Values:
        """1 for a list without a relevant document, [list, 1]."""
        return 1 - super().has_relevant(ranked).astype(jnp.float32)[:, None]

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """As of other metrics, but without values per list, whose mean it is not."""
        return {
            name: value for name, value in super().statistics(**outputs).items() if name != VALUE
        }

    def compute(self) -> int:
        """The number of lists."""
        return int(self.total("total").sum())


class Hits(RelevanceMetric):
    """Number of relevant documents in the top k: sum over i <= k of y_i. `HitRate` is whether there is any."""

    def per_list(self, ranked: RankedLists) -> Values:
        """Hits@k of each list, [list, n]."""
        return self.hits(ranked)


class Precision(RelevanceMetric):
    """Share of the top k that is relevant: hits@k / k, also where a list is shorter than k, as trec_eval has it."""

    def per_list(self, ranked: RankedLists) -> Values:
        """Hits@k / k of each list, [list, n]."""
        return self.hits(ranked) / jnp.maximum(self.depths(ranked), 1)


class Recall(RelevanceMetric):
    """Share of the relevant documents that is in the top k: hits@k / R."""

    def per_list(self, ranked: RankedLists) -> Values:
        """Hits@k / R of each list, [list, n]."""
        return self.hits(ranked) / self.number(ranked)


class F1(RelevanceMetric):
    """Harmonic mean of precision and recall: 2 hits@k / (k + R).

    (van Rijsbergen 1979.)
    """

    def per_list(self, ranked: RankedLists) -> Values:
        """2 hits@k / (k + R) of each list, [list, n]."""
        return 2 * self.hits(ranked) / (self.depths(ranked) + self.number(ranked))


class HitRate(RelevanceMetric):
    """Whether any of the top k is relevant, 1 or 0: success@k of trec_eval, hits@k of TF-Ranking.

    With ties, the probability: 1 minus that of drawing none, without replacement, from those at the cutoff.
    """

    def per_list(self, ranked: RankedLists) -> Values:
        """P(hits@k > 0) of each list, [list, n]."""
        return self.top(_first(ranked, self.relevant(ranked)))


class MRR(RelevanceMetric):
    """Reciprocal rank of the first relevant document, 0 if it is not in the top k; its mean over lists is MRR.

        rr@k = sum over i <= k of P(the first relevant document is at rank i) / i

    (Voorhees 1999; ties: McSherry & Najork 2008.)
    """

    def per_list(self, ranked: RankedLists) -> Values:
        """Reciprocal rank within the top k of each list, [list, n]."""
        return self.top(_first(ranked, self.relevant(ranked)) / _ranks(ranked))


class AverageReciprocalHitRate(RelevanceMetric):
    """Reciprocal ranks of all hits: sum over i <= k of y_i / i.

    (Deshpande & Karypis 2004.)
    """

    def per_list(self, ranked: RankedLists) -> Values:
        """Sum of y_i / i of each list, [list, n]."""
        return self.top(self.chance(ranked) / _ranks(ranked))


@dataclass(eq=False, repr=False, kw_only=True)
class RankBiasedPrecision(RelevanceMetric):
    """Share of relevant documents among those seen by a user who goes on with probability `persistence`.

        rbp@k = (1 - p) sum over i <= k of y_i p^(i-1)

    (Moffat & Zobel 2008.)

    Args:
        cutoffs: See `RankingMetric`.
        persistence: The probability p.
        no_relevant: See `RankingMetric`.
        unjudged_documents: See `RankingMetric`.
        relevant_from: Smallest label of a relevant document.
    """

    persistence: Annotated[int | float, Interval(ge=0, lt=1)] = 0.8

    def per_list(self, ranked: RankedLists) -> Values:
        """Discounted share of relevant documents of each list, [list, n]."""
        seen = (1 - self.persistence) * self.persistence ** np.arange(ranked.labels.shape[1])
        return self.top(self.chance(ranked) * seen.astype(np.float32))


@dataclass(eq=False, repr=False, kw_only=True)
class AveragePrecision(RelevanceMetric):
    """Mean over the relevant documents of the precision at their ranks; its mean over lists is MAP.

        ap@k = sum over i <= k of y_i precision@i / d,   d = R, or min(R, k)

    Tied documents i and j are relevant together with probability r (r - 1) / (m (m - 1)), r of m being relevant.
    (Buckley & Voorhees 2000; ties: McSherry & Najork 2008.)

    Args:
        cutoffs: See `RankingMetric`.
        denominator: "all" divides by R, as trec_eval does; "top" by min(R, k), so that 1 can be reached at every k.
        no_relevant: See `RankingMetric`.
        unjudged_documents: See `RankingMetric`.
        relevant_from: Smallest label of a relevant document.
    """

    denominator: Annotated[str, OneOf("all", "top")] = "all"

    def per_list(self, ranked: RankedLists) -> Values:
        """Average precision at k of each list, [list, n]."""
        above, chance = ranked.over_ties(self.relevant(ranked))
        tied = ranked.size.astype(jnp.float32)
        another = _drawn(ranked) * (chance * tied - 1) / jnp.maximum(tied - 1, 1)
        precision = chance * (1 + above + another) / _ranks(ranked)
        number = self.number(ranked)
        if self.denominator == "top":
            number = jnp.minimum(number, self.depths(ranked))
        return self.top(precision) / jnp.maximum(number, 1)


@dataclass(eq=False, repr=False, kw_only=True)
class AverageRecall(RelevanceMetric):
    """Mean of the recall at ranks 1 to k; its mean over lists is MAR.

        ar@k = 1/d sum over i <= k of recall@i = sum over i <= k of y_i (k - i + 1) / (d R)

    (Some libraries give this name to `AveragePrecision`, with one or the other denominator.)

    Args:
        cutoffs: See `RankingMetric`.
        denominator: "cutoff", d = k, the mean, at most 1; or "all", d = R, all relevant documents, as some texts define
            it: above 1 where k is much larger than R. For relevant documents at ranks 2 and 4, a third one below, and
            k = 4, the recalls 0, 1/3, 1/3, 2/3 make 0.333 with the first, 0.444 with the second.
        no_relevant: See `RankingMetric`.
        unjudged_documents: See `RankingMetric`.
        relevant_from: Smallest label of a relevant document.
    """

    denominator: Annotated[str, OneOf("cutoff", "all")] = "cutoff"

    def per_list(self, ranked: RankedLists) -> Values:
        """Average recall at k of each list, [list, n]."""
        chance = self.chance(ranked)
        depths = jnp.maximum(self.depths(ranked), 1)
        late = self.top(chance * (_ranks(ranked) - 1)) / depths
        mean = (self.top(chance) - late) / self.number(ranked)
        return mean if self.denominator == "cutoff" else mean * depths / self.number(ranked)


def _ranks(ranked: RankedLists) -> Float[np.ndarray, " rank"]:
    return np.arange(1, ranked.labels.shape[1] + 1, dtype=np.float32)


def _drawn(ranked: RankedLists) -> PerRank:
    """How many of the documents tied with the one at a rank stand above it."""
    return _ranks(ranked) - 1 - ranked.start.astype(jnp.float32)


def _first(ranked: RankedLists, relevant: PerRank) -> PerRank:
    """Probability that the first relevant document is at a rank.

    After t of m tied documents, of which r are relevant, the next one is with probability r / (m - t) if none was.
    """
    _, chance = ranked.over_ties(relevant)
    tied = ranked.size.astype(jnp.float32)
    next_one = jnp.minimum(jnp.round(chance * tied) / (tied - _drawn(ranked)), 1)
    none_yet = jax.lax.cumprod(1 - next_one, axis=1)
    none_before = jnp.pad(none_yet[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    return none_before * next_one

"""Base of the metrics of ranked lists."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from clickexp.errors import ConfigError
from clickexp.metrics.base import NAN, VALUE, Metric, PerList, mask_of, pick
from clickexp.metrics.ranking.lists import PerRank, RankedLists, Values, rank_lists
from clickexp.types import Array, swap_list_and_rank
from clickexp.utils.bounds import OneOf

Cutoffs = int | Sequence[int] | None
"""Documents at the top of a list that count: a number, several, or None for all."""


@dataclass(eq=False, repr=False)
class RankingMetric(Metric):
    """Base of the ranking metrics: the mean over lists of a value at each cutoff.

    A subclass defines `per_list`, from ranked lists to values. Higher values are better unless it states otherwise.
    Settings can be hashed.

    Reads, all of shape [..., rank] in `update`, [rank, list] in `statistics`:
        scores  any order-preserving score; -inf ranks a document last
        labels  graded relevance; below 0 (spam) counts as 0, NaN is a document that nobody judged
        where   True where a document was shown; without it every document counts

    Lists without a document do not count, nor do those of which no document was judged; `UnjudgedLists` counts these.
    A list with ties has the mean value over all orders of tied documents. A score of NaN where a document was shown is
    an error that names the batch.

    Rax 0.4, and CLAX 0.1.1, which calls it, count lists without a relevant document as 0 (no_relevant="zero" here), and
    differ in four more cases, so that their functions serve only where `RaxMetric` wraps them. DCG as an example:

    case              scores     labels    here                       there
    ties              1, 1       0, 1      (1 + 0.631) / 2 = 0.815    0.631, in the order of the input
    a score of -inf   -inf, 1    1, 0      0.631, ranked last         0, not retrieved
    a label below 0   2, 1       1, -1     1, the label counts as 0   1 - 0.5 * 0.631 = 0.685
    a masked list     2, 1       1, 0      nan, there is no list      0; CLAX also counts it as 0 among other lists

    Args:
        cutoffs: How many documents of the top count: a number, several (`compute` returns a vector), or all.
        no_relevant: For lists in which nothing is relevant, not `has_relevant`, and all orders are alike: "skip" does
            not count them, "zero" does with the value 0.
        unjudged_documents: What documents without a label are in lists that have some: "irrelevant", as trec_eval has
            it; or "removed" before the list is ranked, which makes it a condensed list (Sakai 2007, "Alternatives to
            Bpref").

    Raises:
        ConfigError: For a cutoff below 1, or another choice.

    Attributes:
        divisor: The statistic that the totals of lists are divided by.
    """

    higher_is_better = True
    divisor: ClassVar[str] = "lists"
    cutoffs: Cutoffs = None
    _: KW_ONLY
    no_relevant: Annotated[str, OneOf("skip", "zero")] = "skip"
    unjudged_documents: Annotated[str, OneOf("irrelevant", "removed")] = "irrelevant"

    def __post_init__(self) -> None:
        super().__post_init__()
        cutoffs = self.cutoffs
        self.cutoffs = tuple(cutoffs) if isinstance(cutoffs, Sequence) else cutoffs
        if not all(cutoff is None or cutoff >= 1 for cutoff in self._cutoffs) or not self._cutoffs:
            raise ConfigError(
                f"cutoffs={cutoffs!r}: give numbers of documents from 1, such as [1, 3, 10]"
            )

    @property
    def _cutoffs(self) -> tuple[int | None, ...]:
        return tuple(self.cutoffs) if isinstance(self.cutoffs, Sequence) else (self.cutoffs,)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Such as @10, one for each cutoff."""
        return tuple("" if cutoff is None else f"@{cutoff}" for cutoff in self._cutoffs)

    def per_list(self, ranked: RankedLists) -> Values:
        """The value of each list at each of `suffixes`, [list, n]; read where the list `has_relevant` documents."""
        raise NotImplementedError

    def has_relevant(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether a list has a relevant document: one with a label above 0."""
        return ranked.ideal[:, 0] > 0

    def top(self, values: PerRank) -> Values:
        """Sums over the documents above each cutoff, from [list, rank] to [list, n]."""
        ranks = values.shape[1]
        depths = np.array([min(cutoff or ranks, ranks) for cutoff in self._cutoffs])
        within = np.arange(depths.max())[:, None] < depths
        return jnp.matmul(values[:, : len(within)], within.astype(np.float32), precision="highest")

    def depths(self, ranked: RankedLists) -> Values:
        """The cutoffs as numbers, [list, n]; without one, the length of each list."""
        lengths = ranked.lengths.astype(jnp.float32)
        columns = [
            jnp.full_like(lengths, cutoff) if cutoff else lengths for cutoff in self._cutoffs
        ]
        return jnp.stack(columns, axis=-1)

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """The sums over the lists of one batch; pure.

        Returns:
            total: sums over lists [n]. lists: how many count. nan: how many have NaN scores. value: values per list, if
            kept.

        Raises:
            TypeError: Where scores or labels are missing.
            ValueError: Where the shapes differ.
        """
        scores = jnp.asarray(pick(self, outputs, "scores"), jnp.float32)
        labels = jnp.asarray(pick(self, outputs, "labels"), jnp.float32)
        where = mask_of(outputs, scores.shape)
        if not scores.shape == labels.shape == where.shape:
            shapes = ", ".join(str(array.shape[::-1]) for array in (scores, labels, where))
            raise ValueError(
                f"{self!r}: shapes [list, rank] of scores, labels and where differ: {shapes}"
            )
        settings = tuple(sorted(self._settings().items()))
        return _statistics(type(self), settings, self.keep_values, scores, labels, where)

    def compute(self) -> float | np.ndarray:
        """The mean over lists, or one for each cutoff if several were given; nan before the first list."""
        count = self.total(self.divisor).sum()
        means = self.total("total") / count if count else np.full(len(self.suffixes), np.nan)
        return means if isinstance(self.cutoffs, tuple) else float(means[0])


@partial(jax.jit, static_argnames=("kind", "settings", "keep_values"))
def _statistics(
    kind: type[RankingMetric],
    settings: tuple[tuple[str, Any], ...],
    keep_values: bool,
    scores: Float[Array, "rank list"],
    labels: Float[Array, "rank list"],
    where: Bool[Array, "rank list"],
) -> dict[str, Any]:
    """Compiled once for all metrics with the same settings, whatever was added to them."""
    metric = object.__new__(kind)
    vars(metric).update(settings)
    scores, labels, where = map(swap_list_and_rank, (scores, labels, where))  # to sort each list
    undefined = where & jnp.isnan(scores)
    judged = where & ~jnp.isnan(labels)
    ranked = rank_lists(
        jnp.where(undefined, 0, scores),
        jnp.where(judged, labels, 0),
        judged if metric.unjudged_documents == "removed" else where,
    )
    undefined = jnp.any(undefined, axis=1)
    has_relevant = metric.has_relevant(ranked)
    counted = jnp.any(judged, axis=1) & ~undefined & (has_relevant | (metric.no_relevant == "zero"))
    values = jnp.where(has_relevant[:, None], metric.per_list(ranked), 0)
    statistics: dict[str, Any] = {
        "total": jnp.sum(jnp.where(counted[:, None], values, 0), axis=0),
        "lists": jnp.sum(counted, dtype=jnp.int32),
        NAN: jnp.sum(undefined, dtype=jnp.int32),
    }
    if keep_values:
        statistics[VALUE] = PerList(jnp.where(counted[:, None], values, jnp.nan))
    return statistics

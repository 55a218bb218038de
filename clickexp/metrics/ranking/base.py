"""Ranking metrics: lists ranked once with their ties, and what all metrics of rankings have in common.

Rax takes one cutoff a call and breaks ties by one order, so the metrics beside this file are our own; where scores
differ they agree with Rax, whose other functions `RaxMetric` wraps.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

from clickexp.errors import ConfigError
from clickexp.metrics.base import NAN, VALUE, Metric, PerList, on_class_or_instance, pick
from clickexp.metrics.exact import Total, exact_sum
from clickexp.types import Array, Count

Values = Float[Array, "list n"]
"""One value for each list and cutoff."""

PerRank = Float[Array, "list rank"]


class RankedLists(NamedTuple):
    """Lists by decreasing score; tied documents by decreasing label, so that nothing is left of the input's order.

    scores, labels: scores and labels in that order; labels below 0 are 0, as they are beyond a list's end.
    where:  True up to the list's end.
    start:  the first position, from 0, of the documents tied with this one. size: how many they are, itself included.
    ideal:  labels in decreasing order.
    """

    scores: PerRank
    labels: PerRank
    where: Bool[Array, "list rank"]
    start: Integer[Array, "list rank"]
    size: Integer[Array, "list rank"]
    ideal: PerRank

    @property
    def lengths(self) -> Integer[Array, "list"]:
        return jnp.sum(self.where, axis=-1, dtype=jnp.int32)

    def over_ties(self, values: PerRank) -> tuple[PerRank, PerRank]:
        """Sum of the values of documents ranked above all that are tied with this one; mean value of those tied."""
        through = jax.lax.cumsum(values, axis=1)
        above = _take(through - values, self.start)
        mean = (_take(through, self.start + self.size - 1) - above) / self.size.astype(values.dtype)
        return above, jnp.where(self.size == 1, values, mean)


@jax.jit
def rank_lists(
    scores: Float[Array, "list rank"], labels: Float[Array, "list rank"], where: Bool[Array, "list rank"]
) -> RankedLists:
    """Ranks lists by score; -inf comes last, and no NaN may stand where a document is."""
    # Integers in the order of the floats: XLA sorts them faster. What is not shown sorts after -inf.
    keys = jnp.where(where, -1 - _ordered(scores), np.iinfo(np.int32).max)
    labels = jnp.where(where, jnp.maximum(labels, 0), 0)
    falling = -1 - _ordered(labels)
    keys, ranked = jax.lax.sort((keys, falling), num_keys=2, is_stable=False)
    shown = jnp.arange(where.shape[1]) < jnp.sum(where, axis=1, keepdims=True)
    start, size = tie_groups((keys[:, 1:] != keys[:, :-1]) | ~shown[:, 1:])
    return RankedLists(
        scores=_float(-1 - keys),
        labels=_float(-1 - ranked),
        where=shown,
        start=start,
        size=size,
        ideal=_float(-1 - jnp.sort(falling, stable=False)),
    )


def tie_groups(
    differs: Bool[Array, "list pairs"],
) -> tuple[Integer[Array, "list rank"], Integer[Array, "list rank"]]:
    """Start and size of runs of equal entries in sorted rows, from where one differs from the one before."""
    lists, ranks = len(differs), differs.shape[1] + 1
    edge = jnp.ones((lists, 1), bool)
    position = jnp.arange(ranks, dtype=jnp.int32)
    start = jax.lax.cummax(jnp.where(jnp.concatenate([edge, differs], axis=1), position, 0), axis=1)
    last = jnp.where(jnp.concatenate([differs, edge], axis=1), position, ranks)
    return start, jax.lax.cummin(last, axis=1, reverse=True) - start + 1


def _ordered(x: PerRank) -> Integer[Array, "list rank"]:
    """int32 that compare as the floats do; both zeros are one."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.int32)
    return jnp.where(bits < 0, bits ^ np.iinfo(np.int32).max, bits)


def _float(ordered: Integer[Array, "list rank"]) -> PerRank:
    bits = jnp.where(ordered < 0, ordered ^ np.iinfo(np.int32).max, ordered)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _take(
    values: Shaped[Array, "list rank"], index: Integer[Array, "list rank"]
) -> Shaped[Array, "list rank"]:
    return jnp.take_along_axis(values, index, axis=1)


class RankingMetric(Metric):
    """Base of the ranking metrics: the mean over lists of a value at each cutoff.

    A subclass defines `per_list`, from ranked lists to values. Settings are attributes that can be hashed.

    Reads, all of shape [..., rank]:
        scores  any order-preserving score; -inf ranks a document last. metrax's name, `predictions`, is read too
        labels  graded relevance; below 0 (spam) counts as 0
        where   True where a document was shown; without it every document counts
    Lists without a document do not count. A list with ties has the mean value over all orders of tied documents.
    NaN where a document was shown is an error that names the batch.

    Rax 0.4, and CLAX 0.1.1, which calls it, differ in four cases. DCG as an example:

    case              scores     labels    here                       there
    ties              1, 1       0, 1      (1 + 0.631) / 2 = 0.815    0.631, in the order of the input
    a score of -inf   -inf, 1    1, 0      0.631, ranked last         0, not retrieved
    a label below 0   2, 1       1, -1     1, the label counts as 0   1 - 0.5 * 0.631 = 0.685
    a masked list     2, 1       1, 0      nan, there is no list      0; CLAX also counts it as 0 among other lists

    In metrax's form, `MRR.from_model_output(predictions=p, labels=y, ks=[1, 10])` is MRR([1, 10]) after one batch, and
    `MRR.empty().merge(...)` takes its settings. Values equal those of metrax's MRR, AveragePrecisionAtK, PrecisionAtK,
    RecallAtK, DCGAtK and NDCGAtK for cutoffs up to the length of the lists and scores without ties; beyond it
    PrecisionAtK divides by the length, `Precision` by k. Before the first list `compute` is nan here, 0 there.

    cutoffs      how many documents of the top count: a number, several (`compute` returns a vector), or all
    no_relevant  lists in which nothing is relevant (`judged`): "zero" counts them with the value 0, "skip" does not
    """

    def __init__(self, cutoffs: int | Sequence[int] | None = None, *, no_relevant: str = "zero") -> None:
        super().__init__()
        self.cutoffs = tuple(cutoffs) if isinstance(cutoffs, Sequence) else cutoffs
        if not all(cutoff is None or cutoff >= 1 for cutoff in self._cutoffs) or not self._cutoffs:
            raise ConfigError(f"cutoffs={cutoffs!r}: give numbers of documents from 1, such as [1, 3, 10]")
        if no_relevant not in ("zero", "skip"):
            raise ConfigError(f"no_relevant={no_relevant!r}: give zero or skip")
        self.no_relevant = no_relevant

    @on_class_or_instance
    def from_model_output(self, *, ks: Any = None, **outputs: Any) -> "RankingMetric":
        """A fresh metric that has seen one batch, with the same settings; from the class, with the default ones.

        Args:
            ks: the cutoffs, in metrax's form: [n] integers. On a metric that has cutoffs they must be these.
            **outputs: what `statistics` reads.

        Raises:
            TypeError: for other cutoffs than the metric's, or a metric without cutoffs.
        """
        cutoffs = None if ks is None else tuple(map(operator.index, np.atleast_1d(ks).tolist()))
        unset = isinstance(self, type) or self.unset
        if cutoffs is not None and not unset and self.cutoffs != cutoffs:
            raise TypeError(f"{self!r} has cutoffs={self.cutoffs!r}, not ks={cutoffs!r}; leave ks out")
        kind = self if isinstance(self, type) else type(self)
        fresh = self.empty() if cutoffs is None or not unset else kind(cutoffs=cutoffs)
        fresh.update(**outputs)
        return fresh

    def replace(self, **sums: Any) -> "RankingMetric":
        """A copy with other sums: `total` [n], over lists for each cutoff, and `count` (or `lists`), how many lists.

        Raises:
            TypeError: for any other name.
            ValueError: for a total that has not one value for each cutoff.
        """
        needed = (len(self.suffixes),)
        if "total" in sums and np.shape(np.atleast_1d(sums["total"])) != needed:
            raise ValueError(f"{self!r}: total has the shape {np.shape(sums['total'])}, not {needed}")
        ready = self.reduce()
        ready.unset = False
        ready.sums = {"total": Total(), "lists": np.zeros(1, np.int64), **ready.sums}
        named = {"lists" if name == "count" else name: value for name, value in sums.items()}
        return super(RankingMetric, ready).replace(**named)

    @property
    def _cutoffs(self) -> tuple[int | None, ...]:
        return self.cutoffs if isinstance(self.cutoffs, tuple) else (self.cutoffs,)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple("" if cutoff is None else f"@{cutoff}" for cutoff in self._cutoffs)

    def per_list(self, ranked: RankedLists) -> Values:
        """The value of each list at each of `suffixes`; what lists that are not `judged` get does not matter."""
        raise NotImplementedError

    def judged(self, ranked: RankedLists) -> Bool[Array, "list"]:
        """Whether a list has a relevant document: one with a label above 0."""
        return ranked.ideal[:, 0] > 0

    def top(self, values: PerRank) -> Values:
        """Sums over the documents above each cutoff."""
        ranks = values.shape[1]
        depths = np.array([min(cutoff or ranks, ranks) for cutoff in self._cutoffs])
        within = np.arange(depths.max())[:, None] < depths
        return jnp.matmul(values[:, : len(within)], within.astype(np.float32), precision="highest")

    def depths(self, ranked: RankedLists) -> Values:
        """The cutoffs as numbers; without one, the length of each list."""
        lengths = ranked.lengths.astype(jnp.float32)
        columns = [jnp.full_like(lengths, cutoff) if cutoff else lengths for cutoff in self._cutoffs]
        return jnp.stack(columns, axis=-1)

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """total: sums over lists [n]; lists: how many count; nan: how many hold NaN; value: values of lists."""
        scores = jnp.asarray(pick(self, outputs, "scores", "predictions"), jnp.float32)
        labels = jnp.asarray(pick(self, outputs, "labels"), jnp.float32)
        where = outputs.get("where")
        where = jnp.ones(scores.shape, bool) if where is None else jnp.asarray(where, bool)
        if not scores.shape == labels.shape == where.shape:
            shapes = f"{scores.shape}, {labels.shape}, {where.shape}"
            raise ValueError(f"{self!r}: shapes of scores, labels and where differ: {shapes}")
        settings = tuple(sorted(self._settings().items()))
        return _statistics(type(self), settings, self.keep_values, scores, labels, where)

    def compute(self) -> float | np.ndarray:
        """The mean over lists, or one for each cutoff if several were given; nan before the first list."""
        lists = self.total("lists").sum()
        means = self.total("total") / lists if lists else np.full(len(self.suffixes), np.nan)
        return means if isinstance(self.cutoffs, tuple) else float(means[0])


@partial(jax.jit, static_argnames=("kind", "settings", "keep_values"))
def _statistics(
    kind: type[RankingMetric],
    settings: tuple[tuple[str, Any], ...],
    keep_values: bool,
    scores: Float[Array, "*lists rank"],
    labels: Float[Array, "*lists rank"],
    where: Bool[Array, "*lists rank"],
) -> dict[str, Any]:
    """Compiled once for all metrics with the same settings, whatever they have seen."""
    metric = object.__new__(kind)
    vars(metric).update(settings)
    scores, labels, where = (x.reshape(-1, x.shape[-1]) for x in (scores, labels, where))
    poisoned = where & (jnp.isnan(scores) | jnp.isnan(labels))
    ranked = rank_lists(*(jnp.where(poisoned, 0, x) for x in (scores, labels)), where)
    poisoned = jnp.any(poisoned, axis=1)
    judged = metric.judged(ranked)
    counted = jnp.any(where, axis=1) & ~poisoned & (judged | (metric.no_relevant == "zero"))
    values = jnp.where(judged[:, None], metric.per_list(ranked), 0)
    statistics = {
        "total": exact_sum(jnp.where(counted[:, None], values, 0)),
        "lists": jnp.sum(counted, dtype=jnp.int32),
        NAN: jnp.sum(poisoned, dtype=jnp.int32),
    }
    if keep_values:
        statistics[VALUE] = PerList(jnp.where(counted[:, None], values, jnp.nan))
    return statistics


class RaxMetric(RankingMetric):
    """Mean over lists of a Rax ranking metric, cut off at `top_n`.

        RaxMetric(rax.ndcg_metric, top_n=10).update(scores=scores, labels=labels, where=mask)

    Reads what every `RankingMetric` does, and so differs from a call of Rax, and from CLAX's metric of this name,
    for ties, scores of -inf, labels below 0 and lists that are all masked: `RankingMetric` has examples. Where none
    of these occur, values are Rax's. Lists without a relevant document count with Rax's value.

    Tied documents are ranked in `orders` different orders and the values averaged: the rotations of one
    random order of each list. With at least as many orders as ranks, a constant score has exactly the DCG
    expected of a random ranking. (Ties: McSherry & Najork 2008; Rax: Jagerman et al. 2022.)

    higher_is_better: True, as for every metric of Rax; to be stated for a function that is none.
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
        return ("",)

    def judged(self, ranked: RankedLists) -> Bool[Array, "list"]:
        return jnp.any(ranked.where, axis=1)

    def per_list(self, ranked: RankedLists) -> Values:
        cutoff = {} if self.cutoffs is None else {"topn": self.cutoffs}
        # Rax takes -inf for "not retrieved"; the lowest finite score means "ranked last".
        scores = jnp.maximum(jnp.where(ranked.where, ranked.scores, 0), jnp.finfo(jnp.float32).min)
        shuffled = jnp.argsort(jax.random.uniform(jax.random.key(self.seed), scores.shape), axis=1)

        def values(shift: Count) -> Float[Array, "list"]:
            # Rax sorts stably, so the order in which it receives tied documents decides between them.
            order = jnp.roll(shuffled, shift, axis=1)
            s, y, mask = (_take(array, order) for array in (scores, ranked.labels, ranked.where))
            return self.metric_fn(s, y, where=mask, reduce_fn=None, **cutoff)

        orders = min(self.orders, scores.shape[1])
        shifts = jnp.arange(orders) * scores.shape[1] // orders  # evenly spaced, each at most once
        with jax.numpy_dtype_promotion("standard"):  # Rax multiplies float masks by integer ranks
            return jax.vmap(values)(shifts).mean(axis=0)[:, None]

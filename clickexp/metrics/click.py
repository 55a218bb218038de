"""Metrics of click prediction: log-likelihood and perplexity, overall and per rank."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Shaped

from clickexp.errors import ConfigError
from clickexp.metrics.base import Metric, PerList, pick
from clickexp.metrics.exact import exact_sum, ranks_first, sum_and_count
from clickexp.numerics import LogPair, as_pair
from clickexp.types import Array
from clickexp.utils.checks import check_events

CONDITIONAL = ("conditional_log_probs", "cond_log_probs")
MARGINAL = ("log_probs",)
PYCLICK_RANKS = 10
LOG_2 = np.log(2)

Predictions = Float[Array, "*lists rank"] | LogPair
Observations = Shaped[Array, "*lists rank"]
Mask = Bool[Array, "*lists rank"]


class ClickMetric(Metric):
    """Base of the click metrics, which compare P(click) with the clicks.

    Reads, all of shape [..., rank]:
        log-probabilities  log P(click), or a LogPair (log P(click), log P(no click)); a plain array has
                           its complement computed, which loses digits where P(click) is next to 1
        clicks             0 or 1
        where              True where a document was shown; without it every document counts
    What stands where no document was shown never counts, be it -inf or NaN.
    Raises ValueError where the shapes differ, or clicks are neither 0 nor 1.
    """

    reads: tuple[str, ...] = MARGINAL

    def read(self, outputs: dict[str, Any]) -> tuple[Array | LogPair, Array, Array]:
        """Log-probabilities, clicks and mask, each [..., rank]."""
        log_probs = pick(self, outputs, *self.reads)
        clicks = jnp.asarray(pick(self, outputs, "clicks"))
        where = outputs.get("where")
        where = jnp.ones(clicks.shape, bool) if where is None else jnp.asarray(where, bool)
        shapes = [np.shape(array) for array in (*jax.tree.leaves(log_probs), clicks, where)]
        if len(set(shapes)) > 1:
            raise ValueError(f"{self!r}: shapes of log-probabilities, clicks and where differ: {shapes}")
        check_events(clicks, where)
        return log_probs, clicks, where

    @property
    def counts(self) -> np.ndarray:
        """Documents per rank, [ranks] int64, up to the last rank at which any was seen."""
        return np.trim_zeros(self.total("documents"), "b").astype(np.int64)

    def per_document(self, name: str) -> np.ndarray:
        """A sum per rank over the number of documents there, [ranks]; nan where there were none."""
        counts = self.counts
        return self.total(name)[: counts.size] / np.where(counts > 0, counts, np.nan)


class _Likelihood(ClickMetric):
    """Per rank, the sum of log P(observed) and the number of documents.

    of: "all" documents, or of "clicks" or "skips" only.
    short_lists: "own" divides what happened at a rank by the number of lists that reach it; "pyclick" does as
        that library does: every rank is divided by the number of all lists, and ranks 1 to 10 always count.
    """

    def __init__(self, of: str = "all", short_lists: str = "own") -> None:
        super().__init__()
        if of not in ("all", "clicks", "skips"):
            raise ConfigError(f"of={of!r}: give all, clicks or skips")
        if short_lists not in ("own", "pyclick"):
            raise ConfigError(f"short_lists={short_lists!r}: give own or pyclick")
        self.of = of
        self.short_lists = short_lists

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """log_prob [rank]: sum of log P(observed); documents [rank]; lists; list_mean: sum of means over lists."""
        read = self.read(outputs)
        statistics = _sums(self.of, *read)
        if self.short_lists == "pyclick":
            statistics |= _list_sums(self.of, *read)
        if self.keep_values and self.of == "all":
            statistics["observed_" + self.reads[0].removesuffix("s")] = PerList(_kept(*read))
        return statistics

    def _mean_log_prob(self) -> np.ndarray:
        """Per rank, as `short_lists` says."""
        if self.short_lists == "own":
            return self.per_document("log_prob")
        sums, lists = self.total("log_prob"), self.total("lists").sum()
        if not lists:
            return np.zeros(0)
        return pyclick_ranks(sums) / lists


class LogLikelihood(_Likelihood):
    """Mean over all documents of log P(c_r | c_<r), natural logarithm; at most 0, higher is better.

        ll = sum over lists and ranks of log P(c_r | c_1, ..., c_{r-1}) / number of documents

    With short_lists="pyclick", the mean over lists of the mean over their documents.
    Reads `conditional_log_probs` (or `cond_log_probs`), `clicks`, `where`. (Chuklin et al. 2015.)
    """

    higher_is_better = True
    reads = CONDITIONAL

    def compute(self) -> float:
        own = self.short_lists == "own"
        total, count = ("log_prob", "documents") if own else ("list_mean", "lists")
        count = self.total(count).sum()
        return float(self.total(total).sum() / count) if count else float("nan")

    def compute_per_rank(self) -> np.ndarray:
        """[ranks], as long as `counts`; nan where no document was seen."""
        return self._mean_log_prob()


class Perplexity(_Likelihood):
    """Perplexity of the marginal click prediction; at least 1, lower is better, 2 is a fair coin.

        ppl_r = 2 ^ (-mean over lists of log2 P(c_r)),   ppl = mean over the ranks that have documents

    Reads `log_probs`, `clicks`, `where`. (Dupret & Piwowarski 2008; Chuklin et al. 2015.)
    """

    higher_is_better = False

    def compute(self) -> float:
        per_rank = self.compute_per_rank()
        seen = per_rank[self.counts > 0] if self.short_lists == "own" else per_rank
        return float(seen.mean()) if seen.size else float("nan")

    def compute_per_rank(self) -> np.ndarray:
        """[ranks], as long as `counts`; nan where no document was seen."""
        return perplexity(self._mean_log_prob())


class ConditionalPerplexity(Perplexity):
    """Perplexity of the prediction that knows the clicks above: as `Perplexity`, with P(c_r | c_<r).

    Reads `conditional_log_probs` (or `cond_log_probs`), `clicks`, `where`. (Chuklin et al. 2015.)
    """

    reads = CONDITIONAL


class MicroPerplexity(_Likelihood):
    """Perplexity of the marginal click prediction over all documents alike, whatever their rank.

        micro_ppl = 2 ^ (-mean over documents of log2 P(c_r))

    Reads `log_probs`, `clicks`, `where`. (Dupret & Piwowarski 2008.)
    """

    higher_is_better = False

    def __init__(self, of: str = "all") -> None:
        super().__init__(of)

    def compute(self) -> float:
        documents = self.total("documents").sum()
        return float(perplexity(self.total("log_prob").sum() / documents)) if documents else float("nan")


def perplexity(mean_log_prob: np.ndarray | np.floating) -> np.ndarray | np.floating:
    """2 ^ -x for x the mean of base-2 logarithms, told by that of natural ones."""
    with np.errstate(over="ignore"):  # an observation deemed impossible has perplexity inf
        return np.exp2(-mean_log_prob / LOG_2)


def pyclick_ranks(sums: np.ndarray) -> np.ndarray:
    """Sums [..., ranks] as PyClick has them, with at least ten ranks."""
    missing = max(PYCLICK_RANKS - sums.shape[-1], 0)
    return np.pad(sums, [(0, 0)] * (sums.ndim - 1) + [(0, missing)])


def by_rank(
    log_probs: Predictions, clicks: Observations, where: Mask
) -> tuple[LogPair, Bool[Array, "rank list"], Bool[Array, "rank list"]]:
    """What `ClickMetric.read` gives, as a pair and as truth values, ranks first."""
    return jax.tree.map(ranks_first, (as_pair(log_probs), clicks.astype(bool), where))


@partial(jax.jit, static_argnums=0)
def _sums(of: str, *read: Any) -> dict[str, Any]:
    log_prob, documents = sum_and_count(*_observed(of, *read))
    return {"log_prob": log_prob, "documents": documents}


@partial(jax.jit, static_argnums=0)
def _list_sums(of: str, *read: Any) -> dict[str, Any]:
    log_probs, counted = _observed(of, *read)
    lengths = jnp.sum(counted, axis=0, dtype=jnp.float32)
    means = jnp.sum(log_probs, axis=0) / jnp.maximum(lengths, 1)
    return {"list_mean": exact_sum(means[:, None]), "lists": jnp.sum(lengths > 0, dtype=jnp.int32)}


@jax.jit
def _kept(*read: Any) -> Float[Array, "list rank"]:
    """log P(what was observed), NaN where nothing was."""
    log_probs, counted = _observed("all", *read)
    return jnp.where(counted, log_probs, jnp.nan).T


def _observed(
    of: str, log_probs: Predictions, clicks: Observations, where: Mask
) -> tuple[Float[Array, "rank list"], Bool[Array, "rank list"]]:
    """log P(what was observed), 0 where it does not count; and where it does."""
    pair, clicks, where = by_rank(log_probs, clicks, where)
    log_prob, counted = {
        "all": (jnp.where(clicks, pair.log, pair.complement), where),
        "clicks": (pair.log, where & clicks),
        "skips": (pair.complement, where & ~clicks),
    }[of]
    return jnp.where(counted, log_prob, 0), counted

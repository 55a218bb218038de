"""Metrics of click prediction: log-likelihood and perplexity, overall and per rank."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Shaped

from clickexp.metrics.base import Metric, PerList, Positions, by_position, mask_of, or_nan, pick
from clickexp.numerics import LogPair, as_pair
from clickexp.types import Array, swap_list_and_rank
from clickexp.utils.batches import check_events
from clickexp.utils.bounds import OneOf

CONDITIONAL = ("conditional_log_probs", "cond_log_probs")
MARGINAL = ("log_probs",)
_PYCLICK_RANKS = 10

_Predictions = Float[Array, "rank list"] | LogPair
_Observations = Shaped[Array, "rank list"]
_Mask = Bool[Array, "rank list"]
_Of = Annotated[str, OneOf("all", "clicks", "skips")]


class ClickMetric(Metric):
    """Base of the click metrics, which compare P(click) with the clicks.

    Reads, all of shape [..., rank] in `update`, [rank, list] in `statistics`:
        log-probabilities  log P(click), or a LogPair (log P(click), log P(no click)); a plain array has
                           its complement computed, which loses digits where P(click) is next to 1
        clicks             0 or 1
        where              True where a document was shown; without it every document counts
        positions          `Positions` of the documents, by which sums are taken; None for places in the list

    Values where no document was shown never count, be they -inf or NaN. ValueError where the shapes differ, or clicks
    are neither 0 nor 1.

    Attributes:
        reads: Names of the argument with the log-probabilities; the first that is passed is read.
    """

    reads: tuple[str, ...] = MARGINAL

    def read(self, outputs: dict[str, Any]) -> tuple[Array | LogPair, Array, Array]:
        """Log-probabilities, clicks and mask, each [rank, list]."""
        log_probs = pick(self, outputs, *self.reads)
        clicks = jnp.asarray(pick(self, outputs, "clicks"))
        where = mask_of(outputs, clicks.shape)
        shapes = [np.shape(array)[::-1] for array in (*jax.tree.leaves(log_probs), clicks, where)]
        if len(set(shapes)) > 1:
            raise ValueError(
                f"{self!r}: shapes [list, rank] of log-probabilities, clicks and where differ: {shapes}"
            )
        check_events(clicks, where)
        return log_probs, clicks, where

    @property
    def counts(self) -> np.ndarray:
        """Documents per rank, [ranks] int64, up to the last rank with any."""
        return np.trim_zeros(self.total("documents"), "b").astype(np.int64)

    def per_document(self, name: str) -> np.ndarray:
        """A sum per rank over the number of documents there, [ranks]; nan where there were none."""
        counts = self.counts
        return self.total(name)[: counts.size] / or_nan(counts)


@dataclass(eq=False, repr=False)
class _Likelihood(ClickMetric):
    """Per rank, the sum of log P(observed) and the number of documents.

    Args:
        of: "all" documents, or of "clicks" or "skips" only.
        rank_normalization: "own" divides the sum of a rank by the number of lists that reach it; "pyclick" does as
            that library does: every rank is divided by the number of all lists, and ranks 1 to 10 always count.
    """

    of: _Of = "all"
    rank_normalization: Annotated[str, OneOf("own", "pyclick")] = "own"

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """log_prob [rank]: sum of log P(observed); documents [rank]; lists; list_mean: sum of means over lists."""
        read = self.read(outputs)
        statistics = _sums(self.of, outputs.get("positions"), *read)
        if self.rank_normalization == "pyclick":
            statistics |= _list_sums(self.of, *read)
        if self.keep_values and self.of == "all":
            statistics["observed_" + self.reads[0].removesuffix("s")] = PerList(
                _per_document(*read)
            )
        return statistics

    def _mean_log_prob(self) -> np.ndarray:
        """Per rank, normalized as `rank_normalization` says."""
        if self.rank_normalization == "own":
            return self.per_document("log_prob")
        lists = self.total("lists").sum()
        return pyclick_ranks(self.total("log_prob")) / lists if lists else np.zeros(0)


class LogLikelihood(_Likelihood):
    """Mean over all documents of log P(c_r | c_<r), natural logarithm; at most 0, higher is better.

        ll = sum over lists and ranks of log P(c_r | c_1, ..., c_{r-1}) / number of documents

    With rank_normalization="pyclick", the mean over lists of the mean over their documents.
    Reads `conditional_log_probs` (or `cond_log_probs`), `clicks`, `where`. (Chuklin et al. 2015.)
    """

    higher_is_better = True
    reads = CONDITIONAL

    def compute(self) -> float:
        """The mean in nats per document; nan before the first document."""
        by_rank = self.rank_normalization == "own"
        total, count = ("log_prob", "documents") if by_rank else ("list_mean", "lists")
        return float(self.total(total).sum() / or_nan(self.total(count).sum()))

    def compute_per_rank(self) -> np.ndarray:
        """[ranks], as long as `counts`; nan where no document was shown."""
        return self._mean_log_prob()


class Perplexity(_Likelihood):
    """Perplexity of the marginal click prediction; at least 1, lower is better, 2 is a fair coin.

        ppl_r = 2 ^ (-mean over lists of log2 P(c_r)),   ppl = mean over the ranks that have documents

    Reads `log_probs`, `clicks`, `where`. (Dupret & Piwowarski 2008; Chuklin et al. 2015.)
    """

    higher_is_better = False

    def compute(self) -> float:
        """The mean over ranks; nan before the first document."""
        per_rank = self.compute_per_rank()
        seen = per_rank[self.counts > 0] if self.rank_normalization == "own" else per_rank
        return float(seen.mean()) if seen.size else float("nan")

    def compute_per_rank(self) -> np.ndarray:
        """[ranks], as long as `counts`; nan where no document was shown."""
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

    def __init__(self, of: _Of = "all") -> None:
        super().__init__(of)

    def compute(self) -> float:
        """The perplexity; nan before the first document."""
        return float(
            perplexity(self.total("log_prob").sum() / or_nan(self.total("documents").sum()))
        )


def perplexity(mean_log_prob: Any) -> Any:
    """2 ^ -(mean of base-2 logarithms), from the mean of natural ones.

    Args:
        mean_log_prob: Number or array of NumPy.
    """
    with np.errstate(over="ignore"):  # an observation deemed impossible has perplexity inf
        return np.exp2(-mean_log_prob / np.log(2))


def pyclick_ranks(sums: np.ndarray) -> np.ndarray:
    """Sums [..., ranks] as PyClick has them, with at least ten ranks."""
    missing = max(_PYCLICK_RANKS - sums.shape[-1], 0)
    return np.pad(sums, [(0, 0)] * (sums.ndim - 1) + [(0, missing)])


def as_events(
    log_probs: _Predictions, clicks: _Observations, where: _Mask
) -> tuple[LogPair, Bool[Array, "rank list"], _Mask]:
    """The result of `ClickMetric.read` as a pair of log-probabilities and as truth values."""
    return as_pair(log_probs), clicks.astype(bool), where


@partial(jax.jit, static_argnums=0)
def _sums(of: str, positions: Positions | None, *read: Any) -> dict[str, Any]:
    log_probs, counted = _observed(of, *read)
    return {
        "log_prob": by_position(log_probs, positions),
        "documents": by_position(counted, positions),
    }


@partial(jax.jit, static_argnums=0)
def _list_sums(of: str, *read: Any) -> dict[str, Any]:
    log_probs, counted = _observed(of, *read)
    lengths = jnp.sum(counted, axis=0, dtype=jnp.float32)
    means = jnp.sum(log_probs, axis=0) / jnp.maximum(lengths, 1)
    return {"list_mean": jnp.sum(means), "lists": jnp.sum(lengths > 0, dtype=jnp.int32)}


@jax.jit
def _per_document(*read: Any) -> Float[Array, "list rank"]:
    """Log P(observed), NaN where no document was shown."""
    log_probs, counted = _observed("all", *read)
    return swap_list_and_rank(jnp.where(counted, log_probs, jnp.nan))


def _observed(
    of: str, log_probs: _Predictions, clicks: _Observations, where: _Mask
) -> tuple[Float[Array, "rank list"], Bool[Array, "rank list"]]:
    """Log P(observed), 0 where it does not count; and where it does."""
    pair, clicks, where = as_events(log_probs, clicks, where)
    log_prob, counted = {
        "all": (jnp.where(clicks, pair.log, pair.complement), where),
        "clicks": (pair.log, where & clicks),
        "skips": (pair.complement, where & ~clicks),
    }[of]
    return jnp.where(counted, log_prob, 0), counted

"""Metrics of click prediction: log-likelihood and perplexity, overall and per rank."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Shaped

from clickexp.metrics.base import Metric, pick
from clickexp.numerics import LogPair, as_pair
from clickexp.types import Array

CONDITIONAL = ("conditional_log_probs", "cond_log_probs")
MARGINAL = ("log_probs",)


@jax.jit
def _sums_per_rank(
    log_probs: Float[Array, "*lists rank"] | LogPair,
    clicks: Shaped[Array, "*lists rank"],
    where: Bool[Array, "*lists rank"],
) -> dict[str, Shaped[Array, " rank"]]:
    """Sum over the lists of log P(observed click or no click), and number of documents."""
    pair = as_pair(log_probs)
    observed = jnp.where(clicks.astype(bool), pair.log, pair.complement)
    lists = tuple(range(observed.ndim - 1))
    return {
        "log_prob": jnp.sum(jnp.where(where, observed, 0), axis=lists),
        "documents": jnp.sum(where, axis=lists, dtype=jnp.int32),
    }


class ClickMetric(Metric):
    """Base of the click metrics: per rank, the sum of log P(observed) and the number of documents.

    Reads, all of shape [..., rank]:
        log-probabilities  log P(click), or a LogPair (log P(click), log P(no click)); a plain array has
                           its complement computed, which loses digits where P(click) is next to 1
        clicks             0 or 1
        where              True where a document was shown; without it every document counts
    What stands where no document was shown never counts, be it -inf or NaN.
    Raises ValueError where the shapes differ.
    """

    reads: tuple[str, ...] = MARGINAL

    def statistics(self, **outputs: Any) -> dict[str, Array]:
        """log_prob [rank]: sum of log P(observed); documents [rank]: how many."""
        log_probs = pick(self, outputs, *self.reads)
        clicks = jnp.asarray(pick(self, outputs, "clicks"))
        where = outputs.get("where")
        where = jnp.ones(clicks.shape, bool) if where is None else jnp.asarray(where, bool)
        self._check_shapes(log_probs, clicks, where)
        return _sums_per_rank(log_probs, clicks, where)

    @property
    def counts(self) -> np.ndarray:
        """Documents per rank, [ranks] int64, up to the last rank at which any was seen."""
        return np.trim_zeros(self.total("documents"), "b").astype(np.int64)

    def compute_per_rank(self) -> np.ndarray:
        """The metric at each rank, [ranks] float64, as long as `counts`; nan where no document was seen."""
        raise NotImplementedError

    def _mean_log_prob(self) -> np.ndarray:
        counts = self.counts
        seen = np.where(counts > 0, counts, np.nan)
        return self.total("log_prob")[: counts.size] / seen

    def _check_shapes(self, log_probs: Array | LogPair, clicks: Array, where: Array) -> None:
        shapes = [np.shape(array) for array in (*jax.tree.leaves(log_probs), clicks, where)]
        if len(set(shapes)) > 1:
            raise ValueError(f"{self!r}: shapes of log-probabilities, clicks and where differ: {shapes}")


class LogLikelihood(ClickMetric):
    """Mean over all documents of log P(c_r | c_<r), natural logarithm; at most 0, higher is better.

        ll = sum over lists and ranks of log P(c_r | c_1, ..., c_{r-1}) / number of documents

    Reads `conditional_log_probs` (or `cond_log_probs`), `clicks`, `where`. (Chuklin et al. 2015.)
    """

    reads = CONDITIONAL

    def compute(self) -> float:
        documents = self.total("documents").sum()
        return float(self.total("log_prob").sum() / documents) if documents else float("nan")

    def compute_per_rank(self) -> np.ndarray:
        return self._mean_log_prob()


class Perplexity(ClickMetric):
    """Perplexity of the marginal click prediction; at least 1, lower is better, 2 is a fair coin.

        ppl_r = 2 ^ (-mean over lists of log2 P(c_r)),   ppl = mean over the ranks that have documents

    Reads `log_probs`, `clicks`, `where`. (Dupret & Piwowarski 2008; Chuklin et al. 2015.)
    """

    def compute(self) -> float:
        per_rank = self.compute_per_rank()[self.counts > 0]
        return float(per_rank.mean()) if per_rank.size else float("nan")

    def compute_per_rank(self) -> np.ndarray:
        with np.errstate(over="ignore"):  # an observation deemed impossible has perplexity inf
            return np.exp2(-self._mean_log_prob() / np.log(2))


class ConditionalPerplexity(Perplexity):
    """Perplexity of the prediction that knows the clicks above: as `Perplexity`, with P(c_r | c_<r).

    Reads `conditional_log_probs` (or `cond_log_probs`), `clicks`, `where`. (Chuklin et al. 2015.)
    """

    reads = CONDITIONAL

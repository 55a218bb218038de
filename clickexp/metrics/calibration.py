"""Metrics of how good P(click) is as a number and as an order: calibration, click-rate error, AUC."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from clickexp.errors import ConfigError
from clickexp.metrics.click import CONDITIONAL, MARGINAL, ClickMetric, Mask, Observations, Predictions
from clickexp.metrics.exact import exact_sum
from clickexp.numerics import as_pair
from clickexp.types import Array

LOGITS_A_BIN = 0.02
LOGIT_BINS = 1024  # from -10.24 to 10.24
FRACTION = 2**11
"""P(click) is counted in units of FRACTION ** -1 and FRACTION ** -2, of which an int32 holds half a million lists."""


class _Predicted(ClickMetric):
    """conditional: whether predictions are those that know the clicks above, rather than the marginal ones."""

    def __init__(self, conditional: bool = False) -> None:
        super().__init__()
        self.reads = CONDITIONAL if conditional else MARGINAL


class ClickRateError(_Predicted):
    """How far the predicted click rate of a rank is from the observed one; 0 is best.

        error_r = mean over lists of P(c_r) - mean over lists of c_r,   error = mean over ranks of |error_r|

    Reads `log_probs` (or, conditional, `conditional_log_probs`), `clicks`, `where`.
    """

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """predicted, clicks, documents [rank]: sum of P(click), number of clicks and of documents."""
        return _rates(*self.read(outputs))

    def compute(self) -> float:
        errors = np.abs(self.compute_per_rank())[self.counts > 0]
        return float(errors.mean()) if errors.size else float("nan")

    def compute_per_rank(self) -> np.ndarray:
        """Predicted minus observed click rate, [ranks]."""
        return self.per_document("predicted") - self.per_document("clicks")


class ExpectedCalibrationError(_Predicted):
    """Expected calibration error: how far observed click rates are from the probabilities that were predicted.

        ece = sum over bins b of (n_b / n) |mean P(c) in b - mean c in b|

    over `bins` bins of equal width in P(click). `compute_per_rank` takes each rank by itself; `curve` gives what to
    draw. Reads `log_probs` (or, conditional, `conditional_log_probs`), `clicks`, `where`.
    (Naeini, Cooper and Hauskrecht 2015; Guo, Pleiss, Sun and Weinberger 2017.)
    """

    def __init__(self, bins: int = 20, conditional: bool = False) -> None:
        super().__init__(conditional)
        if bins < 1:
            raise ConfigError(f"bins={bins}: give at least 1")
        self.bins = bins

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """bins [documents, clicks or one of two parts of P(click); bin; rank]; documents [rank]."""
        return _reliability(self.bins, *self.read(outputs))

    def compute(self) -> float:
        documents, clicks, predicted = self._bins()
        if not documents.size:
            return float("nan")
        return float(np.abs((predicted - clicks).sum(axis=1)).sum() / documents.sum())

    def compute_per_rank(self) -> np.ndarray:
        """[ranks]; nan where no document was seen."""
        documents, clicks, predicted = self._bins()
        return np.abs(predicted - clicks).sum(axis=0) / _or_nan(documents.sum(axis=0))

    def curve(self) -> dict[str, np.ndarray]:
        """What to draw of each rank: mean P(click), click rate and documents, [bin, rank]; nan in empty bins."""
        documents, clicks, predicted = self._bins()
        filled = _or_nan(documents)
        return {"predicted": predicted / filled, "observed": clicks / filled, "documents": documents}

    def _bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Documents, clicks and the sum of P(click), each [bin, rank]."""
        bins = self.total("bins") if self.counts.size else np.zeros((4, self.bins, 0), np.int64)
        documents, clicks, coarse, fine = bins[..., : self.counts.size]
        return documents, clicks, (coarse + fine / FRACTION) / FRACTION


class AUC(_Predicted):
    """Area under the ROC curve: how likely a click has a higher P(click) than a skip; ties count one half.

        auc = P(p+ > p-) + P(p+ = p-) / 2    over pairs of a clicked and a skipped document

    Log-odds are counted in 1,024 bins of width 0.02, ties within a bin, so that any amount of data fits: off by
    some 1e-5, and exact for predictions that are equal or further apart. nan without clicks or without skips.
    Reads `log_probs` (or, conditional, `conditional_log_probs`), `clicks`, `where`. (Fawcett 2006.)
    """

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """histogram [click, bin, rank], documents [rank]."""
        return _histogram(*self.read(outputs))

    def compute(self) -> float:
        if not self.counts.size:
            return float("nan")
        return float(_auc(self.total("histogram").sum(axis=2, keepdims=True))[0])

    def compute_per_rank(self) -> np.ndarray:
        """[ranks]; nan where a rank had no clicks or no skips."""
        if not self.counts.size:
            return np.zeros(0)
        return _auc(self.total("histogram"))[: self.counts.size]


def _auc(histogram: np.ndarray) -> np.ndarray:
    """Of histograms [skips or clicks, bin, n], [n] float64; counts are exact integers throughout."""
    skips, clicks = histogram
    below = np.cumsum(skips, axis=0) - skips
    won = (clicks.astype(np.float64) * (below + skips / 2)).sum(axis=0)
    pairs = skips.sum(axis=0).astype(np.float64) * clicks.sum(axis=0)
    return won / _or_nan(pairs)


def _or_nan(counts: np.ndarray) -> np.ndarray:
    """Counts to divide by, nan in place of 0."""
    return np.where(counts > 0, counts, np.nan)


@jax.jit
def _rates(log_probs: Predictions, clicks: Observations, where: Mask) -> dict[str, Any]:
    return {
        "predicted": exact_sum(jnp.where(where, jnp.exp(as_pair(log_probs).log), 0)),
        "clicks": _documents(clicks.astype(bool) & where),
        "documents": _documents(where),
    }


@partial(jax.jit, static_argnames="bins")
def _reliability(
    bins: int, log_probs: Predictions, clicks: Observations, where: Mask
) -> dict[str, Integer[Array, "..."]]:
    """P(click) as two integers: what it holds of 2 ** -11, and the rest in 2 ** -22."""
    probability = jnp.exp(as_pair(log_probs).log)
    coarse = jnp.floor(probability * FRACTION)
    fine = jnp.round((probability * FRACTION - coarse) * FRACTION)
    amounts = jnp.stack([jnp.ones_like(coarse), clicks.astype(coarse.dtype), coarse, fine], axis=-1)
    index = jnp.clip(jnp.floor(probability * bins), 0, bins - 1)
    return {"bins": _scatter(bins, index, amounts, where), "documents": _documents(where)}


@jax.jit
def _histogram(log_probs: Predictions, clicks: Observations, where: Mask) -> dict[str, Integer[Array, "..."]]:
    pair = as_pair(log_probs)
    index = jnp.clip(
        jnp.floor((pair.log - pair.complement) / LOGITS_A_BIN) + LOGIT_BINS // 2, 0, LOGIT_BINS - 1
    )
    amounts = jnp.stack([~clicks.astype(bool), clicks.astype(bool)], axis=-1).astype(jnp.float32)
    return {"histogram": _scatter(LOGIT_BINS, index, amounts, where), "documents": _documents(where)}


def _scatter(
    bins: int,
    index: Float[Array, "*lists rank"],
    amounts: Float[Array, "*lists rank n"],
    where: Mask,
) -> Integer[Array, "n bins rank"]:
    """Adds up amounts by bin and rank; masked documents go nowhere."""
    ranks = where.shape[-1]
    rows = jnp.where(where, index, 0).astype(jnp.int32) * ranks + jnp.arange(ranks, dtype=jnp.int32)
    amounts = jnp.where(where[..., None], amounts, 0).astype(jnp.int32)
    sums = jnp.zeros((bins * ranks, amounts.shape[-1]), jnp.int32)
    sums = sums.at[rows.reshape(-1)].add(amounts.reshape(rows.size, -1))
    return jnp.moveaxis(sums.reshape(bins, ranks, -1), -1, 0)


def _documents(where: Mask) -> Integer[Array, " rank"]:
    return jnp.sum(where, axis=tuple(range(where.ndim - 1)), dtype=jnp.int32)

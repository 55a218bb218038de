"""Metrics of how good P(click) is as a number and as an order: calibration, click-rate error, AUC."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

from clickexp.metrics.base import Positions, by_position, or_nan
from clickexp.metrics.click import CONDITIONAL, MARGINAL, ClickMetric, as_events
from clickexp.types import Array
from clickexp.utils.bounds import Samples, bounded

_BINS_OF_ODDS = 4096
_FARTHEST = 5.3
"""Inverse hyperbolic sine of the largest log-odds that have a bin, which is about 100."""


class _Predicted(ClickMetric):
    """Base of metrics of P(click).

    Args:
        conditional: Whether predictions are those that know the clicks above, rather than the marginal ones.
    """

    def __init__(self, conditional: bool = False) -> None:
        super().__init__()
        self.reads = CONDITIONAL if conditional else MARGINAL


class ClickRateError(_Predicted):
    """How far the predicted click rate of a rank is from the observed one; 0 is best.

        error_r = mean over lists of P(c_r) - mean over lists of c_r,   error = mean over ranks of |error_r|

    Reads `log_probs` (or, conditional, `conditional_log_probs`), `clicks`, `where`.
    """

    higher_is_better = False
    heading = "calibration"

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """Predicted, clicks, documents [rank]: sum of P(click), number of clicks and of documents."""
        return _rates(outputs.get("positions"), *self.read(outputs))

    def compute(self) -> float:
        """The mean over ranks; nan before the first document."""
        errors = np.abs(self.compute_per_rank())[self.counts > 0]
        return float(errors.mean()) if errors.size else float("nan")

    def compute_per_rank(self) -> np.ndarray:
        """Predicted minus observed click rate, [ranks]."""
        return self.per_document("predicted") - self.per_document("clicks")


class ExpectedCalibrationError(_Predicted):
    """Expected calibration error: how far observed click rates are from the probabilities that were predicted.

        ece = sum over bins b of (n_b / n) |mean P(c) in b - mean c in b|

    over bins of equal width in P(click). `compute_per_rank` takes each rank separately.
    Reads `log_probs` (or, conditional, `conditional_log_probs`), `clicks`, `where`.
    (Naeini, Cooper and Hauskrecht 2015; Guo, Pleiss, Sun and Weinberger 2017.)

    Args:
        bins: Number of bins.
        conditional: Whether to read the conditional predictions.
    """

    higher_is_better = False
    heading = "calibration"

    @bounded
    def __init__(self, bins: Samples = 20, conditional: bool = False) -> None:
        super().__init__(conditional)
        self.bins = bins

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """The counts behind the error.

        Returns:
            bins [2, bin, rank]: skips and clicks. above [bin, rank]: sum of P(click) above the bin's lower end, in
            widths of a bin. documents [rank].
        """
        return _reliability(self.bins, outputs.get("positions"), *self.read(outputs))

    def compute(self) -> float:
        """The error over all ranks; nan before the first document."""
        documents, clicks, predicted = self._bins()
        return float(np.abs((predicted - clicks).sum(axis=1)).sum() / or_nan(documents.sum()))

    def compute_per_rank(self) -> np.ndarray:
        """[ranks]; nan where no document was seen."""
        documents, clicks, predicted = self._bins()
        return np.abs(predicted - clicks).sum(axis=0) / or_nan(documents.sum(axis=0))

    def curve(self) -> dict[str, np.ndarray]:
        """Mean P(click), click rate and documents of each rank, [bin, rank]; nan in empty bins."""
        documents, clicks, predicted = self._bins()
        filled = or_nan(documents)
        return {
            "predicted": predicted / filled,
            "observed": clicks / filled,
            "documents": documents,
        }

    def _bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Documents, clicks and the sum of P(click), each [bin, rank]."""
        size = self.counts.size
        if not size:
            nothing = np.zeros((self.bins, 0))
            return nothing, nothing, nothing
        skips, clicks = self.total("bins")[..., :size]
        documents, above = skips + clicks, self.total("above")[:, :size]
        return documents, clicks, (np.arange(self.bins)[:, None] * documents + above) / self.bins


class AUC(_Predicted):
    """Area under the ROC curve: how likely a click has a higher P(click) than a skip; ties count one half.

        auc = P(p+ > p-) + P(p+ = p-) / 2    over pairs of a clicked and a skipped document

    Log-odds x are counted in 4,096 bins of equal width in asinh(x), ties within a bin, so that any amount of data fits.
    A bin is 0.003 wide at 0, 0.01 at 4 and 0.05 at 20; there are bins up to 100. The area is off by half the share of
    pairs within a bin at most, and exact for predictions that are equal or further apart; nan without clicks or skips.
    Reads `log_probs` (or, conditional, `conditional_log_probs`), `clicks`, `where`. (Fawcett 2006.)
    """

    higher_is_better = True

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """Histogram [click, bin, rank]; documents [rank]."""
        return _order(outputs.get("positions"), *self.read(outputs))

    def compute(self) -> float:
        """The area over all ranks together; nan without clicks or without skips."""
        return float(_auc(self._histogram().sum(axis=2, keepdims=True))[0])

    def compute_per_rank(self) -> np.ndarray:
        """[ranks]; nan where a rank had no clicks or no skips."""
        return _auc(self._histogram())

    def _histogram(self) -> np.ndarray:
        """Skips and clicks, [2, bin, rank]."""
        counts = self.counts
        return (
            self.total("histogram")[..., : counts.size]
            if counts.size
            else np.zeros((2, 1, 0), np.int64)
        )


def _auc(histogram: np.ndarray) -> np.ndarray:
    """Of histograms [skips or clicks, bin, n], [n] float64; counts are exact integers throughout."""
    skips, clicks = histogram
    below = np.cumsum(skips, axis=0) - skips
    won = (clicks.astype(np.float64) * (below + skips / 2)).sum(axis=0)
    pairs = skips.sum(axis=0).astype(np.float64) * clicks.sum(axis=0)
    return won / or_nan(pairs)


@jax.jit
def _rates(positions: Positions | None, *read: Any) -> dict[str, Any]:
    pair, clicks, where = as_events(*read)
    probability = jnp.where(where, jnp.exp(pair.log), 0)
    return {
        "predicted": by_position(probability, positions),
        "clicks": by_position(where & clicks, positions),
        "documents": by_position(where, positions),
    }


@partial(jax.jit, static_argnums=0)
def _reliability(
    bins: int, positions: Positions | None, *read: Any
) -> dict[str, Shaped[Array, "..."]]:
    """Counts documents by the bin that P(click) is in, and adds up how far above its lower end it is.

    Sums above the lower end are small beside those of P(click), and so are their errors of rounding.
    """
    pair, clicks, where = as_events(*read)
    scaled = jnp.exp(pair.log) * bins
    place = jnp.clip(jnp.floor(scaled), 0, bins - 1)
    counts = _histogram(bins, positions, place, clicks, where)
    above = _histogram(bins, positions, place, clicks, where, scaled - place)
    sums = {"bins": counts, "above": jnp.sum(above, axis=0)}
    return {**sums, "documents": jnp.sum(counts, axis=(0, 1))}


@jax.jit
def _order(positions: Positions | None, *read: Any) -> dict[str, Integer[Array, "..."]]:
    pair, clicks, where = as_events(*read)
    share = jnp.arcsinh(pair.log - pair.complement) / _FARTHEST  # from -1 to 1
    index = jnp.clip(jnp.floor((share + 1) / 2 * _BINS_OF_ODDS), 0, _BINS_OF_ODDS - 1)
    histogram = _histogram(_BINS_OF_ODDS, positions, index, clicks, where)
    return {"histogram": histogram, "documents": jnp.sum(histogram, axis=(0, 1))}


def _histogram(
    bins: int,
    positions: Positions | None,
    index: Float[Array, "rank list"],
    clicks: Bool[Array, "rank list"],
    where: Bool[Array, "rank list"],
    amounts: Float[Array, "rank list"] | None = None,
) -> Shaped[Array, "2 bins position"]:
    """Adds up amounts, by default 1, by click, bin and rank; masked documents add nothing.

    One number per document, the click being part of the row: XLA on the CPU adds two at thrice the time.
    """
    ranks = len(where) if positions is None else positions.largest
    place = jnp.arange(ranks)[:, None] if positions is None else positions.values - 1
    rows = jnp.where(where, index, 0).astype(jnp.int32) + bins * clicks.astype(jnp.int32)
    rows = rows * ranks + place.astype(jnp.int32)
    amounts = where.astype(jnp.int32) if amounts is None else jnp.where(where, amounts, 0)
    sums = jnp.zeros(2 * bins * ranks, amounts.dtype).at[rows].add(amounts)
    return sums.reshape(2, bins, ranks)

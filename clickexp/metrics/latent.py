"""Metrics of the events behind clicks: examination by rank, and the distance of a fitted model to the truth."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from clickexp.metrics.base import Metric, Positions, by_position, or_nan, pick
from clickexp.types import Array

_RESOLUTION = 1e-7
"""Variances below this are rounding: squares are float32, and off by up to 6e-8."""

_LogProbs = Float[Array, "rank list"]
_Mask = Bool[Array, "rank list"]


class _OfDocuments(Metric):
    """Base of means over the documents shown."""

    def _mean(self, name: str) -> np.floating:
        return self.total(name).sum() / or_nan(self.total("documents").sum())


class Examination(_OfDocuments):
    """How likely a user examines each rank, whatever the clicks above: mean of P(e_r = 1) over lists.

    `compute` is the mean over all documents. Reads `examination_log_probs` and `where`, [..., rank].
    """

    heading = "hidden events"

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """Fitted [rank]: sum of P(e_r = 1); documents [rank]."""
        log_probs = pick(self, outputs, "examination_log_probs")
        where = pick(self, outputs, "where")
        return _sums(("fitted",), outputs.get("positions"), log_probs, log_probs, where)

    def compute(self) -> float:
        """The mean over all documents; nan before the first one."""
        return float(self._mean("fitted"))

    def compute_per_rank(self) -> np.ndarray:
        """[ranks]; nan where no document was shown."""
        documents = np.trim_zeros(self.total("documents"), "b")
        return self.total("fitted")[: documents.size] / or_nan(documents)


class _AgainstTruth(_OfDocuments):
    """Base of metrics that compare the probability of a hidden event with the true one.

    Args:
        event: "attraction" or "examination", of which `EVENT_log_probs` and `true_EVENT_log_probs` are read.
    """

    _names: tuple[str, ...]

    def __init__(self, event: str) -> None:
        super().__init__()
        self.event = event

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """Sums per rank over documents of functions of the fitted and the true probability; documents [rank]."""
        names = f"{self.event}_log_probs", f"true_{self.event}_log_probs"
        return _sums(self._names, None, *(pick(self, outputs, name) for name in (*names, "where")))


class RootMeanSquaredError(_AgainstTruth):
    """Root mean squared error of the probability of a hidden event, where the true one is known; 0 is best.

        rmse = sqrt(mean over documents shown of (P(event) - true P(event))^2)

    Reads `attraction_log_probs` and `true_attraction_log_probs`, or those of examination, and `where`, [..., rank].
    """

    higher_is_better = False
    _names = ("squared_error",)

    def compute(self) -> float:
        """The error; nan before the first document."""
        return float(np.sqrt(self._mean("squared_error")))


class RelativeError(_AgainstTruth):
    """Error of the probability of a hidden event times the best factor, where the true one is known; 0 is best.

        error = min over a of sqrt(mean (a P(event) - true P(event))^2 / mean true P(event)^2)

    Means are over documents shown. Clicks leave the factor open between examination and attraction. Reads as
    `RootMeanSquaredError` does.
    """

    higher_is_better = False
    _names = ("fitted_squared", "true_squared", "product")

    def compute(self) -> float:
        """The error, from 0 to 1; nan before the first document."""
        squares = self._mean("fitted_squared") * self._mean("true_squared")
        explained = self._mean("product") ** 2 / or_nan(squares)
        return float(np.sqrt(np.maximum(1 - explained, 0)))


class Correlation(_AgainstTruth):
    """Pearson correlation of the probability of a hidden event with the true one, over documents shown; 1 is best.

    It does not depend on the scale, which clicks leave open between examination and attraction. nan where one is
    constant. Reads as `RootMeanSquaredError` does.
    """

    higher_is_better = True
    _names = ("fitted", "true", "fitted_squared", "true_squared", "product")

    def compute(self) -> float:
        """The correlation, from -1 to 1; nan where a probability is constant."""
        fitted, true = self._mean("fitted"), self._mean("true")
        covariance = self._mean("product") - fitted * true
        variances = self._mean("fitted_squared") - fitted**2, self._mean("true_squared") - true**2
        if not min(variances) > _RESOLUTION:
            return float("nan")
        return float(covariance / np.sqrt(np.prod(variances)))


@partial(jax.jit, static_argnums=0)
def _sums(
    names: tuple[str, ...],
    positions: Positions | None,
    fitted: _LogProbs,
    true: _LogProbs,
    where: _Mask,
) -> dict[str, Any]:
    fitted, true = (jnp.where(where, jnp.exp(x), 0) for x in (fitted, true))
    of = {
        "fitted": fitted,
        "true": true,
        "fitted_squared": fitted**2,
        "true_squared": true**2,
        "product": fitted * true,
        "squared_error": (fitted - true) ** 2,
    }
    sums = {name: by_position(of[name], positions) for name in names}
    return {**sums, "documents": by_position(where, positions)}

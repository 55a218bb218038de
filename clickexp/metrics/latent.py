"""Metrics of the events behind clicks: examination by rank, and how near a fitted model is to the truth."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from clickexp.metrics.base import Metric, pick
from clickexp.metrics.exact import FRACTIONS, ranks_first, sum_and_count
from clickexp.types import Array

LogProbs = Float[Array, "*lists rank"]
Mask = Bool[Array, "*lists rank"]


class Examination(Metric):
    """How likely a user examines each rank, whatever the clicks above: mean of P(e_r = 1) over lists.

    `compute` is the mean over all documents. Reads `examination_log_probs` and `where`, [..., rank].
    """

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """fitted [rank]: sum of P(e_r = 1); documents [rank]."""
        log_probs, where = pick(self, outputs, "examination_log_probs"), pick(self, outputs, "where")
        sums = _sums(log_probs, log_probs, where)
        return {name: sums[name] for name in ("fitted", "documents")}

    def compute(self) -> float:
        documents = self.total("documents").sum()
        return float(self.total("fitted").sum() / documents) if documents else float("nan")

    def compute_per_rank(self) -> np.ndarray:
        """[ranks]; nan where no document was seen."""
        documents = np.trim_zeros(self.total("documents"), "b")
        return self.total("fitted")[: documents.size] / np.where(documents > 0, documents, np.nan)


class _AgainstTruth(Metric):
    """event: "attraction" or "examination", of which `EVENT_log_probs` and `true_EVENT_log_probs` are read."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self.event = event

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """Sums over documents of the fitted and the true probability, their squares, product, and squared error."""
        names = f"{self.event}_log_probs", f"true_{self.event}_log_probs"
        return _sums(*(pick(self, outputs, name) for name in (*names, "where")))

    def _mean(self, name: str) -> float:
        """Over all documents shown."""
        documents = self.total("documents").sum()
        return self.total(name).sum() / documents if documents else float("nan")


class RootMeanSquaredError(_AgainstTruth):
    """Root mean squared error of the probability of a hidden event, where the true one is known; 0 is best.

        rmse = sqrt(mean over documents shown of (P(event) - true P(event))^2)

    Reads `attraction_log_probs` and `true_attraction_log_probs`, or those of examination, and `where`, [..., rank].
    """

    higher_is_better = False

    def compute(self) -> float:
        return float(np.sqrt(self._mean("squared_error")))


class Correlation(_AgainstTruth):
    """Pearson correlation of the probability of a hidden event with the true one, over documents shown; 1 is best.

    It does not see the scale, which clicks leave open between examination and attraction. nan where one is constant.
    Reads as `RootMeanSquaredError` does.
    """

    higher_is_better = True

    def compute(self) -> float:
        fitted, true = self._mean("fitted"), self._mean("true")
        covariance = self._mean("product") - fitted * true
        variances = self._mean("fitted_squared") - fitted**2, self._mean("true_squared") - true**2
        if not min(variances) > RESOLUTION:
            return float("nan")
        return float(covariance / np.sqrt(np.prod(variances)))


RESOLUTION = 1e-7
"""Variances below this are rounding: squares are float32, and off by up to 6e-8."""


@jax.jit
def _sums(fitted: LogProbs, true: LogProbs, where: Mask) -> dict[str, Any]:
    fitted, true, where = map(ranks_first, (fitted, true, where))
    fitted, true = (jnp.where(where, jnp.exp(x), 0) for x in (fitted, true))
    total, documents = sum_and_count(fitted, where, units=FRACTIONS)
    others = {
        "true": true,
        "fitted_squared": fitted**2,
        "true_squared": true**2,
        "product": fitted * true,
        "squared_error": (fitted - true) ** 2,
    }
    sums = {name: sum_and_count(x, units=FRACTIONS)[0] for name, x in others.items()}
    return {"fitted": total, "documents": documents, **sums}

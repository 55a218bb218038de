"""Metrics in the interface of clu and metrax."""

import operator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from clickexp.metrics.base import Metric


@dataclass(frozen=True)
class CluMetric:
    """A metric as clu and metrax have it: made from the output of a model, merged, never changed.

        mrr = CluMetric(MRR([1, 10]))
        seen = mrr.from_model_output(predictions=p, labels=y).merge(mrr.from_model_output(...))

    Its settings take the place of arguments such as metrax's `ks`. Values equal those of metrax's MRR,
    AveragePrecisionAtK, PrecisionAtK, RecallAtK, DCGAtK and NDCGAtK for cutoffs up to the length of the lists and
    scores without ties; beyond it PrecisionAtK divides by the length, `Precision` by k. Before the first list
    `compute` is nan here, 0 there.

    Attributes:
        metric: The metric, and what was added to it.
    """

    metric: Metric

    def empty(self) -> "CluMetric":
        """A metric with the same settings before the first batch."""
        return CluMetric(self.metric.empty())

    def from_model_output(self, *, ks: Any = None, **outputs: Any) -> "CluMetric":
        """A metric with the same settings after one batch.

        Args:
            ks: Cutoffs as metrax takes them, which must be those of the metric.
            **outputs: What the metric reads, [..., rank]; metrax's `predictions` are scores.

        Raises:
            TypeError: For other cutoffs than the metric's.
        """
        cutoffs = getattr(self.metric, "cutoffs", None)
        if ks is not None and tuple(map(operator.index, np.atleast_1d(ks))) != cutoffs:
            raise TypeError(f"{self.metric!r} has cutoffs={cutoffs!r}, not ks={ks!r}; leave ks out")
        if "predictions" in outputs:
            outputs["scores"] = outputs.pop("predictions")
        fresh = self.metric.empty()
        fresh.update(**outputs)
        return CluMetric(fresh)

    def merge(self, other: "CluMetric") -> "CluMetric":
        """A metric over the batches of both; TypeError unless both have the same settings."""
        return CluMetric(self.metric.merge(other.metric))

    def reduce(self) -> "CluMetric":
        """The metric itself: sums over devices are added up when they are added."""
        return self

    def compute(self) -> float | int | np.ndarray:
        """The value over everything added so far."""
        return self.metric.compute()

    def compute_value(self) -> SimpleNamespace:
        """The same in the field `value`."""
        return SimpleNamespace(value=self.compute())

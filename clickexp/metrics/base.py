"""What every metric is: sums that add up over batches and devices, and a value computed from them."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from clickexp.types import Array


def pick(metric: object, outputs: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that was passed; TypeError naming the metric and the argument if none was."""
    for name in names:
        if outputs.get(name) is not None:
            return outputs[name]
    passed = ", ".join(outputs) or "nothing"
    raise TypeError(f"{metric!r} needs {' or '.join(names)}, and was passed {passed}")


def _add_aligned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sum of two vectors from rank 1; the shorter one counts as zero beyond its end."""
    short, long = (a, b) if a.size <= b.size else (b, a)
    total = long.copy()
    total[: short.size] += short
    return total


class Metric:
    """Base of the metrics: `statistics` on the device, float64 sums on the host, `compute` at the end.

    A subclass defines `statistics` and `compute`. Settings are attributes set in `__init__`.
    """

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        return type(self).__name__

    def statistics(self, **outputs: Any) -> dict[str, Array]:
        """Masked sums of one batch: scalars, or vectors [rank]. Pure, so it can be part of a jitted step.

        Arguments that the metric does not know are ignored; a missing one raises TypeError.
        """
        raise NotImplementedError

    def compute(self) -> float:
        """The value over everything added so far; nan before the first document."""
        raise NotImplementedError

    def add(self, statistics: Mapping[str, Array], *, stacked: bool = False) -> None:
        """Adds the sums of one batch, or of several stacked along a leading axis, in float64."""
        for name, value in statistics.items():
            batch = np.asarray(value, np.float64)
            batch = np.atleast_1d(batch.sum(axis=0) if stacked else batch)
            self.sums[name] = _add_aligned(self.total(name), batch)

    def update(self, **outputs: Any) -> None:
        """Adds one batch of model outputs; see `statistics` for what is read."""
        self.add(self.statistics(**outputs))

    def total(self, name: str) -> np.ndarray:
        """The float64 sum so far, [1] or [rank]; empty before the first batch."""
        return self.sums.get(name, np.zeros(0))

    def reset(self) -> None:
        """Forgets everything added so far."""
        self.sums = {}

    def empty(self) -> "Metric":
        """A fresh metric with the same settings."""
        fresh = copy.copy(self)
        fresh.reset()
        return fresh

    def merge(self, other: "Metric") -> "Metric":
        """A new metric that has seen what both have; TypeError unless both have the same settings."""
        if type(self) is not type(other) or self._settings() != other._settings():
            raise TypeError(f"cannot merge {self!r} with {other!r}: type or settings differ")
        merged = self.empty()
        merged.add(self.sums)
        merged.add(other.sums)
        return merged

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "sums"}

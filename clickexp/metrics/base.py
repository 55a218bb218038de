"""What every metric is: sums that add up over batches and devices, and a value computed from them."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from clickexp.metrics.exact import ExactSum, Total, add_aligned
from clickexp.types import Array

NAN = "nan"
"""Name of the statistic that counts lists with a NaN which a metric can make nothing of."""

VALUE = "value"
"""Name of the sum, or of the kept values, that are the metric's own, one for each of its suffixes."""


class PerList(NamedTuple):
    """One value a list, [lists] or [lists, n], NaN where a list does not count: kept as it is, not added up."""

    values: Array


def pick(metric: object, outputs: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that was passed; TypeError naming the metric and the argument if none was."""
    for name in names:
        if outputs.get(name) is not None:
            return outputs[name]
    passed = ", ".join(outputs) or "nothing"
    raise TypeError(f"{metric!r} needs {' or '.join(names)}, and was passed {passed}")


class Metric:
    """Base of the metrics: `statistics` on the device, exact sums on the host, `compute` at the end.

    A subclass defines `statistics` and `compute`. Settings are attributes set in `__init__`. Sums made by
    `exact_sum`, and those of integers, are the same to the last bit in whatever order and portions data comes.

    keep_values  whether values of single lists are kept as well, for confidence intervals and paired tests
    """

    keep_values = False

    def __init__(self) -> None:
        self.reset()

    def __repr__(self) -> str:
        return type(self).__name__

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What follows the metric's name in the name of each number that `compute` returns."""
        return ("",)

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """Masked sums of one batch; pure, so it can be part of a jitted step.

        Scalars or arrays [..., rank]: an `ExactSum`, integers, or floats. `PerList` values are kept instead.
        Arguments that the metric does not know are ignored; a missing one raises TypeError.
        """
        raise NotImplementedError

    def compute(self) -> float | int | np.ndarray:
        """The value over everything added so far, or one for each of `suffixes`; nan before the first document."""
        raise NotImplementedError

    def add(self, statistics: Mapping[str, Any], *, stacked: bool = False) -> None:
        """Adds the sums of one batch, or of several stacked along a leading axis.

        ValueError naming the batch where it held NaN that the metric can make nothing of.
        """
        counts = np.atleast_1d(statistics.get(NAN, 0))
        bad = np.flatnonzero(counts)
        if bad.size:
            batch, lists = self.batches + bad[0] + 1, counts[bad[0]]
            raise ValueError(f"{self!r}: {lists} lists of batch {batch} hold a NaN score or label; "
                             "check what the model predicts and the labels")  # fmt: skip
        self.batches += counts.size
        self._accumulate(statistics, stacked)

    def _accumulate(self, statistics: Mapping[str, Any], stacked: bool = False) -> None:
        for name, value in statistics.items():
            if isinstance(value, PerList):
                values = np.asarray(value.values)
                values = values.reshape(-1, *values.shape[2:]) if stacked else values
                self.kept.setdefault(name, []).append(values)
            elif isinstance(value, ExactSum | Total):
                self.sums.setdefault(name, Total()).add(value, stacked=stacked)
            else:
                self._add_plain(name, np.asarray(value), stacked)

    def update(self, **outputs: Any) -> None:
        """Adds one batch of model outputs; see `statistics` for what is read."""
        self.add(self.statistics(**outputs))

    def total(self, name: str) -> np.ndarray:
        """The sum so far, [..., n], float64 or int64; empty before the first batch."""
        total = self.sums.get(name, np.zeros(0))
        return total.value() if isinstance(total, Total) else total

    def values(self) -> dict[str, np.ndarray]:
        """What was kept of single lists, in the order in which they came."""
        return {name: np.concatenate(parts) for name, parts in self.kept.items()}

    def reset(self) -> None:
        """Forgets everything added so far."""
        self.sums: dict[str, Total | np.ndarray] = {}
        self.kept: dict[str, list[np.ndarray]] = {}
        self.batches = 0

    def empty(self) -> "Metric":
        """A fresh metric with the same settings."""
        fresh = copy.copy(self)
        fresh.reset()
        return fresh

    def from_model_output(self, **outputs: Any) -> "Metric":
        """A fresh metric with the same settings that has seen one batch."""
        fresh = self.empty()
        fresh.update(**outputs)
        return fresh

    def merge(self, other: "Metric") -> "Metric":
        """A new metric that has seen what both have; TypeError unless both have the same settings."""
        return self.reduce([other])

    def reduce(self, others: Iterable["Metric"]) -> "Metric":
        """A new metric that has seen what this and all the others have; TypeError unless settings agree."""
        merged = self.empty()
        for metric in (self, *others):
            if type(self) is not type(metric) or self._settings() != metric._settings():
                raise TypeError(f"cannot merge {self!r} with {metric!r}: type or settings differ")
            merged._accumulate(metric.sums)
            merged.batches += metric.batches
            for name, parts in metric.kept.items():
                merged.kept.setdefault(name, []).extend(parts)
        return merged

    def _settings(self) -> dict[str, Any]:
        state = ("sums", "kept", "batches", "keep_values")
        return {name: value for name, value in vars(self).items() if name not in state}

    def _add_plain(self, name: str, value: np.ndarray, stacked: bool) -> None:
        kind = np.float64 if value.dtype.kind == "f" else np.int64
        value = np.atleast_1d(value.sum(axis=0, dtype=kind) if stacked else value.astype(kind))
        self.sums[name] = add_aligned(self.sums[name], value) if name in self.sums else value

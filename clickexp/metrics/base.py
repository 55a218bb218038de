"""What every metric is: sums that add up over batches and devices, and a value computed from them."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from types import MethodType
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


@dataclasses.dataclass(frozen=True)
class Scalar:
    """The result of `Metric.compute_value`, with the one field of clu's `Scalar`."""

    value: float | int | np.ndarray


class on_class_or_instance:
    """A method that makes a metric: from an instance with its settings, from the class with default settings.

    The function receives the instance or the class.
    """

    def __init__(self, make: Callable[..., "Metric"]) -> None:
        self.make = make
        functools.update_wrapper(self, make)

    def __get__(self, metric: "Metric | None", kind: type) -> MethodType:
        return MethodType(self.make, kind if metric is None else metric)


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

    Metrics also answer in the form of metrax and clu: `from_model_output` and `empty` on the class, `merge`, `reduce`,
    `compute`, `compute_value`, `replace`.

    Attributes:
        higher_is_better: True where higher values are better, False where lower ones are, None where neither is or
            nothing is known. Early stopping, search, tables and pages read it, so a metric that they shall order states
            it. A metric whose `suffixes` differ in it states a mapping from suffixes.
        keep_values: whether values of single lists are kept as well, for confidence intervals and paired tests.
    """

    higher_is_better: bool | None | Mapping[str, bool | None] = None
    keep_values = False
    unset = False
    """Whether `empty` of the class made it and nothing was added: the settings are those of what it is merged with."""

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
        self.unset = False
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

    @on_class_or_instance
    def empty(self) -> "Metric":
        """A fresh metric with the same settings.

        From the class, one that takes the settings of the first metric that it is merged with.
        """
        if isinstance(self, type):
            fresh = self()
            fresh.unset = True
            return fresh
        fresh = copy.copy(self)
        fresh.reset()
        return fresh

    @on_class_or_instance
    def from_model_output(self, **outputs: Any) -> "Metric":
        """A fresh metric that has seen one batch, with the same settings; from the class, with the default ones."""
        fresh = self.empty()
        fresh.update(**outputs)
        return fresh

    def compute_value(self) -> Scalar:
        """What `compute` returns, in the field `value`, as metrics of clu and metrax have it."""
        return Scalar(self.compute())

    def replace(self, **sums: Any) -> "Metric":
        """A copy with other sums.

        Args:
            **sums: new sums by their names in `statistics`, each in the shape of `total`.

        Raises:
            TypeError: for a name that the metric has no sum of.
        """
        changed = self.reduce()
        for name, value in sums.items():
            if name not in changed.sums:
                known = ", ".join(changed.sums) or "none before the first batch"
                raise TypeError(f"{self!r} has no sum {name!r}; it has {known}")
            old = changed.sums[name]
            changed.sums[name] = Total.of(value) if isinstance(old, Total) else _as_sum(value, old.dtype)
        return changed

    def merge(self, other: "Metric") -> "Metric":
        """A new metric that has seen what both have; TypeError unless both have the same settings."""
        return self.reduce([other])

    def reduce(self, others: Iterable["Metric"] = ()) -> "Metric":
        """A new metric that has seen what this and all the others have.

        Without others a copy: sums that are stacked over devices are added up when they are added, so that nothing is
        left of the axis that clu's `reduce` sums over.

        Raises:
            TypeError: unless types and settings agree.
        """
        metrics = (self, *others)
        first = next((metric for metric in metrics if not metric.unset), self)
        merged = first.empty()
        for metric in metrics:
            if type(first) is not type(metric) or not (
                metric.unset or first._settings() == metric._settings()
            ):
                raise TypeError(f"cannot merge {self!r} with {metric!r}: type or settings differ")
            merged._accumulate(metric.sums)
            merged.batches += metric.batches
            for name, parts in metric.kept.items():
                merged.kept.setdefault(name, []).extend(parts)
        return merged

    def _settings(self) -> dict[str, Any]:
        state = ("sums", "kept", "batches", "keep_values", "unset", "higher_is_better")
        return {name: value for name, value in vars(self).items() if name not in state}

    def _add_plain(self, name: str, value: np.ndarray, stacked: bool) -> None:
        kind = np.float64 if value.dtype.kind == "f" else np.int64
        value = np.atleast_1d(value.sum(axis=0, dtype=kind) if stacked else value.astype(kind))
        self.sums[name] = add_aligned(self.sums[name], value) if name in self.sums else value


def _as_sum(value: Any, kind: np.dtype) -> np.ndarray:
    """ValueError for a count that is no whole number."""
    value = np.atleast_1d(np.asarray(value))
    if kind.kind == "i" and np.any(value != np.round(value)):
        raise ValueError(f"a count is a whole number, not {value.tolist()}")
    return value.astype(kind)

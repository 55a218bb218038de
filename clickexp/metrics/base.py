"""What every metric is: sums that add up over batches and devices, and a value computed from them."""

import copy
from collections.abc import Callable, Iterable, Mapping
from types import MethodType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

from clickexp.metrics.exact import ExactSum, add_aligned
from clickexp.types import Array
from clickexp.utils.bounds import check_numbers

NAN = "nan"
"""Name of the statistic that counts lists with a NaN which a metric can make nothing of."""

VALUE = "value"
"""Name of the sum, or of the values per list, that are the metric's own, one for each of its suffixes."""


class PerList(NamedTuple):
    """One value per list that a metric keeps as it is instead of adding it up.

    Attributes:
        values: [lists] or [lists, n], NaN where a list does not count.
    """

    values: Array


class InstanceOrClassMethod:
    """Decorator of a method that makes a metric: from an instance with its settings, from the class with the defaults.

    The function receives the instance or the class.
    """

    def __init__(self, make: Callable[..., "Metric"]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    def __get__(self, metric: "Metric | None", kind: type) -> MethodType:
        return MethodType(self.make, kind if metric is None else metric)


class Metric:
    """Base of the metrics: `statistics` on the device, exact sums on the host, `compute` at the end.

    A subclass defines `statistics` and `compute`. Settings are the fields of a dataclass, whose annotations are
    checked, or attributes set in `__init__`. Sums made by `exact_sum`, and those of integers, are the same to the last
    bit in whatever order and portions data comes.

    Metrics also have the interface of metrax and clu: `from_model_output` and `empty` on the class, `merge`, `reduce`,
    `compute`, `compute_value`, `replace`.

    Attributes:
        higher_is_better: True where higher values are better, False where lower ones are, None where neither is or
            nothing is known. Early stopping, search, tables and pages read it. A metric whose `suffixes` differ in it
            states a mapping from suffixes.
        keep_values: Whether values per list are kept too, for confidence intervals and paired tests.
        unset: Whether `empty` of the class made it and nothing was added: its settings are those of the metric that it
            is merged with.
        sums: What was added so far, by name.
        kept: Values per list of each batch, by name.
        batches: Number of batches added.
    """

    higher_is_better: bool | Mapping[str, bool | None] | None = None
    keep_values = False
    unset = False

    def __init__(self) -> None:
        self.__post_init__()

    def __post_init__(self) -> None:
        check_numbers(type(self), vars(self))
        self.reset()

    def __repr__(self) -> str:
        return type(self).__name__

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of the names of the numbers that `compute` returns, after the metric's own name."""
        return ("",)

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """Masked sums of one batch; pure, so that it can be part of a jitted step.

        Args:
            **outputs: What a model returned for the batch, and what was observed. Unknown arguments are ignored.

        Returns:
            By name a scalar or an array [..., rank]: an `ExactSum`, integers or floats. `PerList` values are kept
            instead of added.

        Raises:
            TypeError: Where an argument that the metric needs is missing.
        """
        raise NotImplementedError

    def compute(self) -> float | int | np.ndarray:
        """The value over everything added so far, or one for each of `suffixes`; nan before the first document."""
        raise NotImplementedError

    def compute_per_rank(self) -> np.ndarray | None:
        """The value for each rank, [ranks]; None for a metric that has none."""
        return None

    def curve(self) -> dict[str, np.ndarray] | None:
        """Arrays to draw, by name; None for a metric that has none."""
        return None

    def add(self, statistics: Mapping[str, Any], *, stacked: bool = False) -> None:
        """Adds the sums of one batch.

        Args:
            statistics: What `statistics` returned.
            stacked: Whether it is for several batches, stacked along a leading axis.

        Raises:
            ValueError: Naming the batch, where it holds NaN that the metric can make nothing of.
        """
        counts = np.atleast_1d(statistics.get(NAN, 0))
        bad = np.flatnonzero(counts)
        if bad.size:
            batch, lists = self.batches + bad[0] + 1, counts[bad[0]]
            raise ValueError(
                f"{self!r}: {lists} lists of batch {batch} hold a NaN score or label; "
                "check the predictions of the model and the labels"
            )
        self.batches += counts.size
        self.unset = False
        for name, value in statistics.items():
            if isinstance(value, PerList):
                values = np.asarray(value.values)
                self.kept.setdefault(name, []).append(
                    values.reshape(-1, *values.shape[2:]) if stacked else values
                )
            else:
                self._add_sum(name, _on_host(value, stacked))

    def update(self, **outputs: Any) -> None:
        """Adds one batch of model outputs; see `statistics` for what is read."""
        self.add(self.statistics(**outputs))

    def total(self, name: str) -> np.ndarray:
        """The sum so far, [..., n], float64 or int64; empty before the first batch."""
        total = self.sums.get(name, np.zeros(0))
        return total.value() if isinstance(total, ExactSum) else total

    def values(self) -> dict[str, np.ndarray]:
        """Values per list by name, in the order of the lists."""
        return {name: np.concatenate(parts) for name, parts in self.kept.items()}

    def reset(self) -> None:
        """Removes everything added so far."""
        self.sums: dict[str, ExactSum | np.ndarray] = {}
        self.kept: dict[str, list[np.ndarray]] = {}
        self.batches = 0

    @InstanceOrClassMethod
    def empty(self) -> "Metric":
        """A new metric with the same settings.

        From the class, one that takes the settings of the first metric that it is merged with.
        """
        if isinstance(self, type):
            fresh = self()
            fresh.unset = True
            return fresh
        fresh = copy.copy(self)
        fresh.reset()
        return fresh

    @InstanceOrClassMethod
    def from_model_output(self, **outputs: Any) -> "Metric":
        """A new metric that has received one batch, with the same settings; from the class, with the defaults."""
        fresh = self.empty()
        fresh.update(**outputs)
        return fresh

    def compute_value(self) -> SimpleNamespace:
        """The result of `compute` in the field `value`, as metrics of clu and metrax return it."""
        return SimpleNamespace(value=self.compute())

    def replace(self, **sums: Any) -> "Metric":
        """A copy with other sums.

        Args:
            **sums: New sums by their names in `statistics`, each in the shape of `total`.

        Raises:
            TypeError: For a name that the metric has no sum of.
            ValueError: For a count that is no whole number.
        """
        changed = self.reduce()
        for name, value in sums.items():
            if name not in changed.sums:
                known = ", ".join(changed.sums) or "none before the first batch"
                raise TypeError(f"{self!r} has no sum {name!r}; it has {known}")
            old, new = changed.sums[name], np.atleast_1d(np.asarray(value))
            if isinstance(old, ExactSum):
                changed.sums[name] = ExactSum.of(new)
            elif old.dtype.kind == "i" and np.any(new != np.round(new)):
                raise ValueError(f"a count is a whole number, not {new.tolist()}")
            else:
                changed.sums[name] = new.astype(old.dtype)
        return changed

    def merge(self, other: "Metric") -> "Metric":
        """A new metric over the batches of both; TypeError unless both have the same settings."""
        return self.reduce([other])

    def reduce(self, others: Iterable["Metric"] = ()) -> "Metric":
        """A new metric over the batches of this one and all the others.

        Without others a copy: sums that are stacked over devices are added up when they are added, so that nothing is
        left of the axis that clu's `reduce` sums over.

        Raises:
            TypeError: Unless types and settings agree.
        """
        metrics = (self, *others)
        first = next((metric for metric in metrics if not metric.unset), self)
        merged = first.empty()
        for metric in metrics:
            alike = metric.unset or first._settings() == metric._settings()
            if type(first) is not type(metric) or not alike:
                raise TypeError(f"cannot merge {self!r} with {metric!r}: type or settings differ")
            for name, total in metric.sums.items():
                merged._add_sum(name, total)
            for name, parts in metric.kept.items():
                merged.kept.setdefault(name, []).extend(parts)
            merged.batches += metric.batches
        return merged

    def _add_sum(self, name: str, value: ExactSum | np.ndarray) -> None:
        """Copies the value, which others may hold."""
        old = jax.tree.map(np.zeros_like, value) if name not in self.sums else self.sums[name]
        self.sums[name] = jax.tree.map(add_aligned, old, value)

    def _settings(self) -> dict[str, Any]:
        state = ("sums", "kept", "batches", "keep_values", "unset", "higher_is_better")
        return {name: value for name, value in vars(self).items() if name not in state}


def _on_host(value: Any, stacked: bool) -> ExactSum | np.ndarray:
    """A statistic in int64 or float64, over the leading axis where several are stacked."""
    if isinstance(value, ExactSum):
        return value.on_host(stacked=stacked)
    value = np.asarray(value)
    value = value.astype(np.float64 if value.dtype.kind == "f" else np.int64)
    return np.atleast_1d(value.sum(axis=0) if stacked else value)


def pick(metric: object, outputs: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that was passed; TypeError naming the metric and the argument if none was."""
    for name in names:
        if outputs.get(name) is not None:
            return outputs[name]
    passed = ", ".join(outputs) or "nothing"
    raise TypeError(f"{metric!r} needs {' or '.join(names)}, and was passed {passed}")


def or_nan(counts: np.ndarray | np.number) -> np.ndarray:
    """Counts to divide by, nan in place of 0."""
    return np.where(counts > 0, counts, np.nan)

"""Base of all metrics: sums that add up over batches and devices, and a value computed from them."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from clickexp.types import Array, ranks_first
from clickexp.utils.bounds import check_numbers

NAN = "nan"
"""Name of the statistic that counts lists with a NaN which a metric can make nothing of."""

VALUE = "value"
"""Name of the sum, or of the values per list, that are the metric's own, one for each of its suffixes."""

WEIGHTS = "weights"
"""Name of values per list whose sum the sum of the metric's own is divided by, if not their number."""


_Kind = TypeVar("_Kind", bound="Metric")


class PerList(NamedTuple):
    """One value per list that a metric keeps as it is instead of adding it up.

    Attributes:
        values: [lists] or [lists, n], NaN where a list does not count.
    """

    values: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Positions:
    """Positions of documents, of a log that shows them elsewhere than at their places in the list.

    Attributes:
        largest: Largest position of the log.
        values: One per document, from 1; None before a batch is read.
    """

    largest: int = field(metadata={"static": True})
    values: Any = None


def by_position(
    values: Shaped[Array, "rank list"], positions: Positions | None
) -> Shaped[Array, " position"]:
    """Sums of numbers over lists, or how often events are true, by the position of documents.

    Args:
        values: Numbers or events, 0 where no document is shown.
        positions: The argument `positions` of metrics of clicks; None where places in the list are the positions.
    """
    if positions is None:
        return jnp.sum(values, axis=1)
    lists = values.shape[1]
    values = values.astype(jnp.int32) if values.dtype == bool else values
    rows = jnp.zeros((positions.largest, lists), values.dtype)
    places = positions.values - 1, jnp.arange(lists)
    return jnp.sum(rows.at[places].add(values, mode="drop"), axis=1)


class Metric:
    """Base of the metrics: `statistics` on the device, sums of float64 on the host, `compute` at the end.

    A subclass defines `statistics` and `compute`. Settings are the fields of a dataclass, whose annotations are
    checked, or attributes set in `__init__`. Sums of integers are exact; those of one batch are of float32, so that
    sums differ by 1e-7 of themselves at most between sizes of batches.

    `clickexp.metrics.adapter.CluMetric` gives a metric the interface of clu and metrax.

    Attributes:
        higher_is_better: True where higher values are better, False where lower ones are, None where neither is or
            nothing is known. Early stopping, search, tables and pages read it. A metric whose `suffixes` differ in it
            states a mapping from suffixes.
        heading: Where results list its values, if not among those of its group; see `clickexp.evaluation.groups`.
        keep_values: Whether values per list are kept too, for confidence intervals and paired tests.
        sums: What was added so far, by name.
        kept: Values per list of each batch, by name.
        batches: Number of batches added.
    """

    higher_is_better: bool | Mapping[str, bool | None] | None = None
    heading: str | None = None
    keep_values = False

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
            **outputs: What a model returned for the batch, and what was observed, with ranks first: [rank, list].
                Unknown arguments are ignored.

        Returns:
            By name a scalar or an array [..., rank] of integers or floats. `PerList` values are kept instead of
            added.

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
                f"{self!r}: {lists} lists of batch {batch} hold a score that is NaN; "
                "check the predictions of the model"
            )
        self.batches += counts.size
        for name, value in statistics.items():
            if isinstance(value, PerList):
                values = np.asarray(value.values)
                self.kept.setdefault(name, []).append(
                    values.reshape(-1, *values.shape[2:]) if stacked else values
                )
            else:
                self._add_sum(name, _on_host(value, stacked))

    def update(self, **outputs: Any) -> None:
        """Adds one batch of model outputs [..., rank]; see `statistics` for what is read."""
        self.add(self.statistics(**outputs_by_rank(outputs)))

    def total(self, name: str) -> np.ndarray:
        """The sum so far, [..., n], float64 or int64; empty before the first batch."""
        return self.sums.get(name, np.zeros(0))

    def values(self) -> dict[str, np.ndarray]:
        """Values per list by name, in the order of the lists."""
        return {name: np.concatenate(parts) for name, parts in self.kept.items()}

    def reset(self) -> None:
        """Removes everything added so far."""
        self.sums: dict[str, np.ndarray] = {}
        self.kept: dict[str, list[np.ndarray]] = {}
        self.batches = 0

    def empty(self: _Kind) -> _Kind:
        """A new metric with the same settings."""
        fresh = copy.copy(self)
        fresh.reset()
        return fresh

    def merge(self: _Kind, other: "Metric") -> _Kind:
        """A new metric over the batches of both; TypeError unless both have the same type and settings."""
        if type(self) is not type(other) or self._settings() != other._settings():
            raise TypeError(f"cannot merge {self!r} with {other!r}: type or settings differ")
        merged = self.empty()
        for metric in (self, other):
            for name, total in metric.sums.items():
                merged._add_sum(name, total)
            for name, parts in metric.kept.items():
                merged.kept.setdefault(name, []).extend(parts)
            merged.batches += metric.batches
        return merged

    def _add_sum(self, name: str, value: np.ndarray) -> None:
        """Adds arrays [..., n] that are aligned at the first entry; the shorter one is 0 beyond its end."""
        old = self.sums.get(name, value[..., :0])
        short, long = sorted((old, value), key=lambda array: array.shape[-1])
        total = long.copy()
        total[..., : short.shape[-1]] += short
        self.sums[name] = total

    def _settings(self) -> dict[str, Any]:
        state = ("sums", "kept", "batches", "keep_values", "higher_is_better")
        return {name: value for name, value in vars(self).items() if name not in state}


def _on_host(value: Any, stacked: bool) -> np.ndarray:
    """A statistic in int64 or float64, over the leading axis where several are stacked."""
    value = np.asarray(value)
    value = value.astype(np.float64 if value.dtype.kind == "f" else np.int64)
    return np.atleast_1d(value.sum(axis=0) if stacked else value)


def outputs_by_rank(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs [..., rank] as `Metric.statistics` reads them, [rank, list]; numbers stay as they are."""

    def by_rank(values: Any) -> Any:
        return ranks_first(np.asarray(values) if isinstance(values, list) else values)

    arrays = {name: values for name, values in outputs.items() if np.ndim(values)}
    return outputs | jax.tree.map(by_rank, arrays, is_leaf=lambda values: isinstance(values, list))


def pick(metric: object, outputs: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that was passed; TypeError naming the metric and the argument if none was."""
    for name in names:
        if outputs.get(name) is not None:
            return outputs[name]
    passed = ", ".join(outputs) or "nothing"
    raise TypeError(f"{metric!r} needs {' or '.join(names)}, and was passed {passed}")


def mask_of(outputs: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
    """The mask of some outputs; every document counts without one."""
    where = outputs.get("where")
    return jnp.ones(shape, bool) if where is None else jnp.asarray(where, bool)


def or_nan(counts: np.ndarray | np.number) -> np.ndarray:
    """Counts to divide by, nan in place of 0."""
    return np.where(counts > 0, counts, np.nan)

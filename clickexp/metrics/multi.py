"""Several metrics updated by one call."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from clickexp.errors import ConfigError
from clickexp.metrics.base import VALUE, WEIGHTS, Metric, outputs_by_rank

_Kind = TypeVar("_Kind", bound="MultiMetric")


class MultiMetric:
    """Named metrics that share one `update`; each takes what it needs from the outputs.

        MultiMetric({"ll": LogLikelihood()})
        MultiMetric(**{"ll": LogLikelihood(), "ppl": Perplexity()})

    Args:
        metrics: Metrics by name; they are copied, and results keep their order.
        **named: More of them.
    """

    def __init__(self, metrics: Mapping[str, Metric] | None = None, /, **named: Metric) -> None:
        metrics = {**(metrics or {}), **named}
        self.metrics = {name: metric.merge(metric.empty()) for name, metric in metrics.items()}

    @property
    def names(self) -> list[str]:
        """Names of the numbers that `compute` gives."""
        return [
            name + suffix for name, metric in self.metrics.items() for suffix in metric.suffixes
        ]

    @property
    def higher_is_better(self) -> dict[str, bool | None]:
        """By name whether higher values are better, as each metric states it.

        Raises:
            ConfigError: For a statement that is neither True, False nor None.
        """
        return {
            name + suffix: _stated(name, metric, suffix)
            for name, metric in self.metrics.items()
            for suffix in metric.suffixes
        }

    def keep_values(self: _Kind) -> _Kind:
        """New metrics with the same names and settings that keep values per list."""
        fresh = self.empty()
        for metric in fresh.metrics.values():
            metric.keep_values = True
        return fresh

    def statistics(self, **outputs: Any) -> dict[str, dict[str, Any]]:
        """The masked sums of one batch [rank, list] for each metric; pure. TypeError where an argument is missing."""
        return {name: metric.statistics(**outputs) for name, metric in self.metrics.items()}

    def add(self, statistics: Mapping[str, Mapping[str, Any]], *, stacked: bool = False) -> None:
        """Adds what `statistics` returned, for one batch or for several stacked along a leading axis."""
        for name, metric in self.metrics.items():
            metric.add(statistics[name], stacked=stacked)

    def update(self, **outputs: Any) -> None:
        """Adds one batch of model outputs [..., rank] to every metric."""
        self.add(self.statistics(**outputs_by_rank(outputs)))

    def compute(self, prefix: str = "") -> dict[str, float | int]:
        """Every value of each metric under its prefixed name, such as ppl or ndcg@10; counts are integers."""
        values = [
            value
            for metric in self.metrics.values()
            for value in np.ravel(metric.compute()).tolist()
        ]
        return dict(zip((prefix + name for name in self.names), values, strict=True))

    def compute_per_rank(self, prefix: str = "") -> dict[str, np.ndarray]:
        """The vector [ranks] of each metric that has one, under its prefixed name."""
        vectors = {
            prefix + name: metric.compute_per_rank() for name, metric in self.metrics.items()
        }
        return {name: values for name, values in vectors.items() if values is not None}

    def compute_curves(self) -> dict[str, dict[str, np.ndarray]]:
        """Arrays to draw of each metric that has a curve."""
        curves = {name: metric.curve() for name, metric in self.metrics.items()}
        return {name: curve for name, curve in curves.items() if curve is not None}

    def values(self) -> dict[str, np.ndarray]:
        """Values per list, [lists] or [lists, rank], in the order of the lists."""
        kept: dict[str, np.ndarray] = {}
        for name, metric in self.metrics.items():
            for statistic, values in metric.values().items():
                if statistic == VALUE:
                    kept |= {name + end: values[:, at] for at, end in enumerate(metric.suffixes)}
                elif statistic == WEIGHTS:
                    kept[weight_of(name)] = values
                else:
                    kept[statistic] = values
        return kept

    def reset(self) -> None:
        """Removes everything added so far."""
        for metric in self.metrics.values():
            metric.reset()

    def empty(self: _Kind) -> _Kind:
        """New metrics with the same names and settings."""
        return type(self)({name: metric.empty() for name, metric in self.metrics.items()})

    def merge(self: _Kind, other: "MultiMetric") -> _Kind:
        """New metrics over the batches of both; TypeError unless names and settings agree."""
        if self.metrics.keys() != other.metrics.keys():
            raise TypeError(f"cannot merge metrics {list(self.metrics)} with {list(other.metrics)}")
        both = {name: metric.merge(other.metrics[name]) for name, metric in self.metrics.items()}
        return type(self)(both)


def weight_of(metric: str) -> str:
    """Returns the name of the weights per list that a metric keeps beside its values, whatever its cutoff."""
    return f"{metric.partition('@')[0]}.{WEIGHTS}"


def _stated(name: str, metric: Metric, suffix: str) -> bool | None:
    stated = metric.higher_is_better
    stated = stated.get(suffix) if isinstance(stated, Mapping) else stated
    if stated not in (True, False, None):
        kind = type(metric).__name__
        raise ConfigError(
            f"{name}: {kind}.higher_is_better is {stated!r}; give True, False or None"
        )
    return None if stated is None else bool(stated)

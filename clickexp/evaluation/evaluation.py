"""Results of an evaluation: values by name, vectors by rank, curves, and values of single queries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from clickexp.data import Dataset
from clickexp.evaluation.groups import HEADINGS, MetricGroup
from clickexp.metrics import (
    NDCG,
    ListsWithoutRelevant,
    LogLikelihood,
    MultiMetric,
    UnjudgedLists,
)

_MANY = 0.01
"""Share of lists without a relevant document from which they are mentioned."""

_EFFECTS = {"skip": "do not count", "zero": "count as 0"}
"""The part of lists without a relevant document in means, by the setting of ranking metrics."""

RankVectors = dict[str, list[float] | list[int]]
"""Vectors of one length, rank 1 first: each metric that has one, NaN where unknown, and the number of `sessions`."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics on held-out data.

    Attributes:
        groups: Metrics by group, such as `click`, `loss` and `ranking`, as far as they were computed.
    """

    groups: Mapping[str, MetricGroup]

    def values(self) -> dict[str, float | int]:
        """Every value by name, such as ppl or ndcg@10, and `loss`: the model's own, -ll of a click model."""
        values: dict[str, float | int] = {}
        for group in self.groups.values():
            values |= group.compute()
        if "loss" not in values:
            values["loss"] = -values["ll"]
        return values

    def per_rank(self) -> RankVectors:
        """The vectors of click metrics; none where there are no click metrics."""
        if "click" not in self.groups:
            return {}
        clicks = self.groups["click"]
        counts = cast(LogLikelihood, clicks.metrics["ll"]).counts
        vectors: RankVectors = {
            name: _padded(vector, counts.size) for name, vector in clicks.compute_per_rank().items()
        }
        return {**vectors, "sessions": counts.tolist()}

    def result(self) -> dict[str, Any]:
        """The entries of result.json.

        Returns:
            `test`: values by name. `groups`: their names by heading, such as clicks and ranking. `higher_is_better`: by
            name what each metric states. `per_rank`: vectors of one length, rank 1 first. `curves`: what else to draw.
        """
        directions: dict[str, bool | None] = {}
        for group in self.groups.values():
            directions |= group.higher_is_better
        return {
            "test": self.values(),
            "groups": self._headings(),
            "higher_is_better": {**directions, "loss": False},
            "per_rank": self.per_rank(),
            "curves": self.groups["click"].compute_curves() if "click" in self.groups else {},
        }

    def describe_judgments(self) -> Iterator[str]:
        """Yields what the means of ranking metrics leave out, and what they count as 0."""
        metrics = self.groups.get("ranking", MultiMetric()).metrics.values()
        unjudged = sum(m.compute() for m in metrics if isinstance(m, UnjudgedLists))
        if unjudged:
            yield f"{unjudged:,} lists have no labels and take no part in ranking metrics"
        conventions = [metric.no_relevant for metric in metrics if isinstance(metric, NDCG)]
        for metric in metrics if conventions else ():
            if isinstance(metric, ListsWithoutRelevant):
                zeros, lists = metric.compute(), int(metric.total("lists").sum())
                if _MANY * lists < zeros < lists:
                    yield (
                        f"{zeros:,} of {lists:,} lists with labels have no relevant document and "
                        f"{_EFFECTS[conventions[0]]} (metric.no_relevant={conventions[0]})"
                    )

    def _headings(self) -> dict[str, list[str]]:
        """Names of the values by heading; without the loss of a click model, which is -ll."""
        headings: dict[str, list[str]] = {heading: [] for heading in HEADINGS}
        for group in self.groups.values():
            for name, metric in group.metrics.items():
                names = headings.setdefault(metric.heading or group.heading, [])
                names += (name + suffix for suffix in metric.suffixes)
        return {heading: names for heading, names in headings.items() if names}

    def keep(self, dataset: Dataset, folder: Path) -> dict[str, list[float]]:
        """Writes the values of single sessions and lists; returns 95% intervals [low, high] of the metrics.

        Of fewer than six queries or search sessions there are none.
        """
        # here, since only such runs need what these import
        from clickexp.results.per_query import OBSERVED, samples, write_values
        from clickexp.utils.statistics.bootstrap import bootstrap_interval

        nothing = MultiMetric()
        keys = "click", "counterfactual", "ranking"
        clicks, by_clicks, lists = (self.groups.get(key, nothing) for key in keys)
        write_values(folder, dataset.test, clicks, by_clicks, dataset.ranking, lists)
        of_clicks = [name for name in clicks.names if name in OBSERVED]
        kept = by_clicks.values()
        of_rankings = [name for name in by_clicks.names if name in kept]
        names = [*of_clicks, *of_rankings, *lists.values()]
        intervals = {name: bootstrap_interval(samples(folder, name)) for name in names}
        bounds = {name: [interval.low, interval.high] for name, interval in intervals.items()}
        return {name: pair for name, pair in bounds.items() if not np.isnan(pair).any()}


def _padded(values: np.ndarray, length: int) -> list[float]:
    values = values[:length]
    return np.pad(values, (0, length - values.size), constant_values=np.nan).tolist()

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
"""Share of lists without a relevant document from which means say what these change."""

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
        ranking = [*self.groups.get("ranking", MultiMetric()).metrics.items()]
        unjudged = sum(m.compute() for _, m in ranking if isinstance(m, UnjudgedLists))
        if unjudged:
            yield f"{unjudged:,} lists have no labels and take no part in ranking metrics"
        zeros = sum(m.compute() for _, m in ranking if isinstance(m, ListsWithoutRelevant))
        means = {name: metric for name, metric in ranking if isinstance(metric, NDCG)}
        for name, metric in means.items():
            counted = metric.total("lists").sum()
            skips = metric.no_relevant == "skip"
            lists = counted + zeros if skips else counted
            if not _MANY * lists < zeros < lists:
                return
            value, at = metric.total("total")[-1], name + metric.suffixes[-1]
            without, with_them = f"{value / (lists - zeros):.4f}", f"{value / lists:.4f}"
            does, values = "count as 0", f"{with_them}, and {without} without them"
            other = "metric.no_relevant=skip"
            if skips:
                does, values = "do not count", f"{without}, and {with_them} if they count as 0"
                other = "metric.no_relevant=zero"
            what = f"{zeros:,} of {lists:,} lists with labels have no relevant document and {does}"
            yield f"{what}: {at} is {values} ({other})"
            return

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
        clicks, lists = self.groups.get("click", nothing), self.groups.get("ranking", nothing)
        write_values(folder, dataset.test, clicks, dataset.ranking, lists)
        names = [*(name for name in clicks.names if name in OBSERVED), *lists.values()]
        intervals = {name: bootstrap_interval(samples(folder, name)) for name in names}
        bounds = {name: [interval.low, interval.high] for name, interval in intervals.items()}
        return {name: pair for name, pair in bounds.items() if not np.isnan(pair).any()}


def _padded(values: np.ndarray, length: int) -> list[float]:
    values = values[:length]
    return np.pad(values, (0, length - values.size), constant_values=np.nan).tolist()

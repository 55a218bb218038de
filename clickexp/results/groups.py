"""Runs that differ in their seed only, summed up, and their names."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from clickexp.runs.run import RelativeExamination, Run
from clickexp.runs.settings import NAMED_GROUPS
from clickexp.runs.store import short_keys
from clickexp.utils.statistics.means import Spread
from clickexp.utils.text import without_module

_MOST_KEYS = 3
"""Keys of the configuration in a name, at most, where overrides do not distinguish groups."""


FEW_RUNS = 3
"""Runs over which a standard deviation says little, so that their values are shown instead."""


def with_bounds(
    points: Sequence[RelativeExamination | None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ratios of examination, and the lower and upper ends of their intervals; nan where unknown."""
    ratios, low, high = (
        np.array([getattr(point, kind, None) for point in points], np.float64)
        for kind in ("relative", "relative_low", "relative_high")
    )
    return ratios, low, high


def bounded_by(spread: Spread, runs: Sequence[Sequence[RelativeExamination | None]]) -> Spread:
    """Returns a spread of examination over few runs whose bounds are means of their intervals over their ratios.

    That of more runs, over which a spread says more, stays as it is, and so does one of runs without intervals.

    Args:
        spread: By rank.
        runs: Ratios of each run by rank, None where unknown.
    """
    of_runs = []
    for points in runs:
        ratios, low, high = with_bounds(points)
        of_runs.append([low / ratios, high / ratios])
    if len(runs) > FEW_RUNS or not np.isfinite(of_runs).any():
        return spread
    low, high = Spread.of(of_runs).mean
    return replace(spread, low=spread.mean * low, high=spread.mean * high)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in their seed or fold only.

    Attributes:
        runs: The runs, at least one.
        name: Distinguishes the group from others on its test set.
        rest: The name without overrides.
    """

    runs: tuple[Run, ...]
    name: str
    rest: str

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.runs[0].model

    @property
    def overrides(self) -> dict[str, Any]:
        """Overrides of all runs, without seed and fold."""
        return self.runs[0].overrides

    @property
    def tower(self) -> str:
        """Tower of the attraction, or those of all roles of a model without it."""
        towers = self.runs[0].towers
        return towers.get("attraction") or ", ".join(dict.fromkeys(towers.values()))

    @property
    def title(self) -> str:
        """The name, and whether a search chose one of the runs."""
        return f"{self.name} (chosen)" if self.chosen else self.name

    @property
    def chosen(self) -> bool:
        """Whether a search chose one of the runs."""
        return any(run.chosen for run in self.runs)

    @cached_property
    def test_sets(self) -> frozenset[str]:
        """Fingerprints of the test sets of the runs."""
        return frozenset(run.test_set for run in self.runs)

    def spread(self, metric: str) -> Spread:
        """Spread over the runs of a metric of the test, or, as val/..., of the validation; see `over_runs`."""
        return over_runs([run.value(metric) for run in self.runs])

    @property
    def repeats(self) -> str:
        """The difference between the runs: "seeds", "folds", or "folds and seeds"."""
        folds, seeds = {run.fold for run in self.runs}, {run.seed for run in self.runs}
        if len(folds) == 1:
            return "seeds"
        return "folds" if len(seeds) == 1 else "folds and seeds"

    @property
    def seconds(self) -> float:
        """Mean over the runs of the seconds of training without compilation; nan where unknown."""
        return float(Spread.of([run.train.training_seconds for run in self.runs]).mean)

    @property
    def compile_seconds(self) -> float:
        """Mean over the runs; nan where unknown."""
        return float(Spread.of([run.train.compile_seconds for run in self.runs]).mean)

    def interval(self, metric: str) -> tuple[float, float, str]:
        """Low, high, and over what; of two or three runs their lowest and highest value.

        That is `repeats`, or queries of the test set where a single run kept their values.
        """
        spread = self.spread(metric)
        if spread.count > 1:
            return float(spread.low), float(spread.high), self.repeats
        for run in self.runs:
            low, high = run.intervals.get(metric, (None, None))
            if low is not None and high is not None:
                return low, high, "queries"
        return np.nan, np.nan, ""

    def uncertainty(self, metric: str, over: str) -> float:
        """The one uncertainty that a cell shows; nan without one.

        Args:
            metric: One of the metrics.
            over: "queries" for half the 95% interval of a single run, "seeds" or "folds" for the standard deviation
                over these, or of two or three half their range.
        """
        if over not in ("", "queries"):
            spread = self.spread(metric)
            return float((spread.high - spread.low) / 2 if self.is_few(spread) else spread.sd)
        low, high, unit = self.interval(metric)
        return (high - low) / 2 if unit == over else np.nan

    def beside(self, metric: str, text: str, uncertainty: str) -> str:
        """Returns what stands beside a mean: "± 0.002", or of two or three runs their bounds, "(0.412, 0.415)".

        Args:
            metric: One of the metrics.
            text: Its mean, as shown.
            uncertainty: The same of its uncertainty; empty without one that shows.
        """
        spread, decimals = self.spread(metric), len(text.partition(".")[2])
        if not uncertainty or not self.is_few(spread):
            return uncertainty and f"± {uncertainty}"
        return f"({spread.low:.{decimals}f}, {spread.high:.{decimals}f})"

    @staticmethod
    def is_few(spread: Spread) -> bool:
        """Whether a spread is that of two or three values, whose lowest and highest are its bounds."""
        return bool(1 < spread.count <= FEW_RUNS)

    def per_rank(self, metric: str) -> Spread | None:
        """Spread of a vector of result.json, rank 1 first; None where no run has it.

        The bounds of two or three runs, over which a spread says little, are the lowest and the highest value. Those of
        examination of up to three runs are means of the intervals that the log leaves of their ratios to rank 1.
        """
        vectors = [run.per_rank[metric] for run in self.runs if run.per_rank.get(metric)]
        if not vectors:
            return None
        by_rank = itertools.zip_longest(*vectors)
        spread = over_runs([*zip(*by_rank, strict=True)])
        if metric != "examination":
            return spread
        ranks = range(1, len(spread.mean) + 1)
        return bounded_by(spread, [_ratios(run, ranks) for run in self.runs])

    def per_rank_difference(self, baseline: "Group", metric: str) -> Spread | None:
        """Spread of the differences to a baseline at each rank, over pairs of runs with one seed on one test set.

        Without a pair it is the difference of the means, without an interval.

        Args:
            baseline: Another group.
            metric: A vector of result.json.

        Returns:
            None where either group has no such vector.
        """
        spread, other = self.per_rank(metric), baseline.per_rank(metric)
        if spread is None or other is None:
            return None
        ranks = min(len(spread.mean), len(other.mean))
        of_baseline = {(run.test_set, run.seed): run.per_rank.get(metric) for run in baseline.runs}
        differences = []
        for run in self.runs:
            first, second = run.per_rank.get(metric), of_baseline.get((run.test_set, run.seed))
            if first and second and min(len(first), len(second)) >= ranks:
                pair = np.array([first[:ranks], second[:ranks]], np.float64)
                differences.append(pair[0] - pair[1])
        return over_runs(differences or [spread.mean[:ranks] - other.mean[:ranks]])

    def reliability(self) -> dict[str, np.ndarray] | None:
        """Mean P(click), click rate and documents of all runs together, [bin, rank]; None where no run has them."""
        curves = [run.curves.ece for run in self.runs if run.curves.ece]
        documents = [np.array(curve.documents, np.float64) for curve in curves]
        if len({of_run.shape for of_run in documents}) != 1:
            return None
        total = np.nansum(documents, axis=0)
        pooled = {"documents": total}
        for key in ("predicted", "observed"):
            rates = np.array([getattr(curve, key) for curve in curves], np.float64)
            sums = np.nansum(rates * documents, axis=0)
            pooled[key] = sums / np.where(total > 0, total, np.nan)
        return pooled


def _ratios(run: Run, ranks: Iterable[int]) -> list[RelativeExamination | None]:
    """Returns ratios of examination to the first rank; None where unknown, or where layouts have theirs."""
    by_rank = {ratio.position: ratio for ratio in run.propensity if not ratio.layout}
    return [by_rank.get(rank) for rank in ranks]


def over_runs(vectors: Sequence[Any] | np.ndarray) -> Spread:
    """Spread of numbers or vectors of runs; the bounds of two or three runs are their lowest and highest value."""
    spread = Spread.of(vectors)
    if not 1 < len(vectors) <= FEW_RUNS:
        return spread
    values = np.array(vectors, np.float64)
    low = np.min(values, axis=0, where=~np.isnan(values), initial=np.inf)
    high = np.max(values, axis=0, where=~np.isnan(values), initial=-np.inf)
    unknown = spread.count == 0
    return replace(spread, low=np.where(unknown, np.nan, low), high=np.where(unknown, np.nan, high))


def experiments(runs: Iterable[Run]) -> list[list[Run]]:
    """Puts runs of one configuration and log together, which differ in their seed or fold only.

    Logs are others where both the content of their files and the test sets are: a copy of a large file may have another
    hash, and each simulated seed has another test set.
    """
    by_experiment: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        sources = {} if run.origin is None else run.origin.sources
        by_sources = by_experiment.setdefault(run.experiment, {})
        by_sources.setdefault(json.dumps(sources, sort_keys=True), []).append(run)
    return [
        list(itertools.chain(*of_one_log))
        for by_sources in by_experiment.values()
        for of_one_log in sharing_test_sets(by_sources.values())
    ]


def sharing_test_sets(parts: Iterable[Sequence[Run]]) -> list[list[Sequence[Run]]]:
    """Runs in parts, of which those are put together that are linked by test sets."""
    linked: list[tuple[set[str], list[Sequence[Run]]]] = []
    for runs in parts:
        sets, together = {run.test_set for run in runs}, [runs]
        apart = []
        for other_sets, other in linked:
            if sets & other_sets:
                sets, together = sets | other_sets, [*other, *together]
            else:
                apart.append((other_sets, other))
        linked = [*apart, (sets, together)]
    return [together for _, together in linked]


def groups_of(experiments: Sequence[Sequence[Run]]) -> list[Group]:
    """Returns a group for each experiment, by names that distinguish it from the others."""
    names = _names(experiments)
    return [Group(tuple(runs), *name) for runs, name in zip(experiments, names, strict=True)]


_METHOD = "method"
"""The group that chooses model, loss and correction at once."""


def _names(experiments: Sequence[Sequence[Run]]) -> list[tuple[str, str]]:
    """The name of each group of runs, and the same without its overrides.

    A name is the model, in which rankers have loss and correction, and the overrides that differ between groups. Where
    these are alike, keys of the configuration that differ follow, or a number.
    """
    runs = [of_experiment[0] for of_experiment in experiments]
    differing = varying([run.overrides for run in runs])
    keys = [key for key in differing if key not in {*NAMED_GROUPS, _METHOD}]
    names = [", ".join([run.model, *_key_values(keys, run.overrides)]) for run in runs]
    by_name: dict[str, list[Run]] = {}
    for name, run in zip(_with_methods(names, runs), runs, strict=True):
        by_name.setdefault(name, []).append(run)
    of_run: dict[int, tuple[str, str]] = {}
    for name, same in by_name.items():
        for run, distinction in zip(same, _distinctions(same), strict=True):
            of_run[id(run)] = ", ".join([name, *distinction]), ", ".join([run.model, *distinction])
    return [of_run[id(run)] for run in runs]


def _with_methods(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Names that several runs have, with the method of each run that has one."""
    counts = Counter(names)
    methods = [run.overrides.get(_METHOD) for run in runs]
    return [
        f"{name}, {_METHOD}={method}" if method and counts[name] > 1 else name
        for name, method in zip(names, methods, strict=True)
    ]


def _distinctions(runs: Sequence[Run]) -> list[list[str]]:
    """Settings by which runs of one name differ, numbered where they do not; nothing for a single run."""
    if len(runs) == 1:
        return [[]]
    settings = [run.distinctions for run in runs]
    keys = varying(settings)[:_MOST_KEYS]
    texts = [_key_values(keys, of_run) for of_run in settings]
    return [
        text if text and text not in texts[:place] else [*text, f"no. {place + 1}"]
        for place, text in enumerate(texts)
    ]


def varying(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that some of the mappings have another value for, or not at all."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    return [key for key in keys if len({repr(mapping.get(key)) for mapping in mappings}) > 1]


def _key_values(keys: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Such as lr=0.1 for each key that has a value; keys are cut to their last part where that is unique."""
    named = zip(keys, short_keys(keys), strict=True)
    values = {key: without_module(value) for key, value in settings.items() if value is not None}
    return [f"{name}={values[key]}" for key, name in named if key in values]

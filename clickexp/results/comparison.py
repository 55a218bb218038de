"""Groups of runs that share a test set, ordered and compared."""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clickexp.errors import UserError
from clickexp.results.differences import Tests, run_tests, untested
from clickexp.results.groups import FEW_RUNS, Group, experiments, groups_of, sharing_test_sets
from clickexp.results.metric_names import direction, leading, name, short, uncapitalised
from clickexp.runs.objective import is_loss, mixes_losses, stated_by
from clickexp.runs.run import VALIDATION, Run, by_warning
from clickexp.utils.suggest import did_you_mean
from clickexp.utils.text import counted, listed

_MOST_NAMED = 6
"""Names in a message."""

_MOST_BASELINES = 30
"""Groups of a test set, best first, that others are tested against."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups that were tested on the same sessions, best first by the first of the metrics.

    Where runs are trials of a search, that is by default the metric that the search optimised. Groups are comparable as
    far as their test sets are the same: where each seed simulates its test set, all groups with that seed share it.

    Attributes:
        name: Name of the dataset, with a number where several comparisons are of it.
        groups: The groups, at least one.
        metrics: All metrics of test and validation (val/...), leading ones first.
        leading: Metrics that tables show.
        wanted: Name of the baseline that was asked for.
    """

    name: str
    groups: tuple[Group, ...]
    metrics: tuple[str, ...]
    leading: tuple[str, ...]
    wanted: str | None = None

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]

    @cached_property
    def _test_sets(self) -> frozenset[str]:
        """Fingerprints of the test sets of all runs."""
        return frozenset().union(*(group.test_sets for group in self.groups))

    @cached_property
    def _stated(self) -> dict[str, bool | None]:
        """By name whether higher values of a metric are better, as the runs state it."""
        return stated_by(self.runs)

    @cached_property
    def mixes_losses(self) -> bool:
        """Whether losses of the rows are of several kinds, whose values say nothing about each other."""
        return mixes_losses(self.runs)

    def is_comparable(self, metric: str) -> bool:
        """Whether values of a metric can be compared between rows, as losses of several kinds cannot."""
        return not (self.mixes_losses and is_loss(metric))

    def direction(self, metric: str) -> int:
        """1 where more is better, -1 where less is, 0 where neither is or nothing is known."""
        return direction(metric, self._stated) if self.is_comparable(metric) else 0

    @property
    def _optimized(self) -> list[str]:
        """Metrics that searches optimised of which runs are trials."""
        metrics = dict.fromkeys(run.optimized for run in self.runs if run.optimized)
        return [metric for metric in metrics if metric in self.metrics]

    @cached_property
    def uncertainty(self) -> str:
        """The units of the uncertainties in cells: seeds, folds, or queries of the test set; empty without any."""
        several = [group.repeats for group in self.groups if len(group.runs) > 1]
        if several:
            return max(several, key=len)
        kept = any(
            group.interval(metric)[2] == "queries"
            for group in self.groups
            for metric in self.leading
        )
        return "queries" if kept else ""

    @property
    def meaning(self) -> str:
        """The uncertainty that cells show beside their values."""
        counts = {len(group.runs) for group in self.groups}
        if not self.uncertainty:
            return "values without an uncertainty"
        if self.uncertainty == "queries":
            return "value ± half the 95% interval over queries, or search sessions where known"
        few, many = "(lowest, highest)", "± standard deviation"
        spread = few if max(counts) <= FEW_RUNS else many
        if spread == many and counts & {*range(2, FEW_RUNS + 1)}:
            spread = f"{many}, or {few} of up to {FEW_RUNS},"
        number = f"{max(counts)} " if len(counts) == 1 and " " not in self.uncertainty else ""
        return f"mean {spread} over {number}{self.uncertainty}"

    @property
    def shares_units(self) -> bool:
        """Whether all rows meet the same folds or queries, which differ more than the rows."""
        return "folds" in self.uncertainty or self.uncertainty == "queries"

    @property
    def choice(self) -> str:
        """How searches chose, in a sentence; empty without a search."""
        if not self._optimized:
            return ""
        by = " and ".join(uncapitalised(name(metric)) for metric in self._optimized)
        if self._optimized == [self.leading[0]]:
            text = f"Ordered by {by}, which the search optimised"
        else:
            text = f"Search was for the best {by}"
        return text + (
            "; (chosen): the trial that it chose" if any(g.chosen for g in self.groups) else ""
        )

    @property
    def warnings(self) -> list[str]:
        """Sentences that a reader must know before ranking the groups."""
        sentences = []
        if not all(map(self.is_comparable, self.leading)):
            sentences.append(
                "Losses of these rows are of several kinds, whose values say nothing about each other, so they neither "
                "order rows nor are tested; labels or metric=[counterfactual] make rankers comparable"
            )
        elif not self.direction(self.leading[0]):
            sentences.append(
                f"Neither way of {name(self.leading[0])} is known to be better, so rows are in no order"
            )
        partial = [group.name for group in self.groups if group.test_sets != self._test_sets]
        if partial:
            sentences.append(
                f"{len(partial)} of {len(self.groups)} rows average over some of the {len(self._test_sets)} test sets "
                f"only, so their means are not of the same data: {listed(partial, _MOST_NAMED)}"
            )
        return sentences

    @property
    def run_warnings(self) -> list[str]:
        """Warnings of runs, each once, with the rows whose runs have it."""
        named = {id(run): group.name for group in self.groups for run in group.runs}
        sentences = []
        for warning, warned in by_warning(self.runs).items():
            rows = list(dict.fromkeys(named[id(run)] for run in warned))
            names = listed(rows, _MOST_NAMED)
            sentences.append(f"{warning} ({len(warned)} of {len(self.runs)} runs: {names})")
        return sentences

    def describe(self) -> str:
        """Sessions, labelled lists and test sets in a line."""
        size = self._size
        if len(self._test_sets) == 1:
            return f"one test set{size}"
        return f"{len(self._test_sets)} test sets{size}{' each' if size else ''}{self._per}"

    @property
    def _size(self) -> str:
        """How many sessions and labelled lists a test set has, such as " of 45,000 sessions"."""
        of_runs = [run.per_rank.get("sessions") for run in self.runs]
        sizes = {int(sessions[0]) for sessions in of_runs if sessions and sessions[0]}
        counted = {"session": sizes, "labelled list": self._labelled_lists}
        sized = [_sizes(numbers, noun) for noun, numbers in counted.items() if numbers]
        return f" of {' and '.join(sized)}" if sized else ""

    @property
    def _labelled_lists(self) -> set[int]:
        """How many lists have labels, but for those of the test sessions."""
        ranked = [run for run in self.runs if run.groups.get("ranking")]
        lists = {run.data.sessions.get("ranking", 0) for run in ranked}
        return lists - {0, *(run.data.sessions.get("test", 0) for run in self.runs)}

    @property
    def _per(self) -> str:
        """The property of runs each value of which has another test set, such as ", one per seed"."""
        for part in ("fold", "seed"):
            if len({getattr(run, part) for run in self.runs}) == len(self._test_sets):
                return f", one per {part}"
        return ""

    def _find(self, wanted: str | None) -> Group | None:
        """The group of that name, or else the best of that model; without a name the best of all."""
        if wanted is None:
            return self.groups[0]
        by_name = [group for group in self.groups if group.name.lower() == wanted.lower()]
        by_model = [group for group in self.groups if group.model.lower() == wanted.lower()]
        return next(iter([*by_name, *by_model]), None)

    @property
    def baseline(self) -> Group:
        """The group that others are tested against in tables: the one asked for, or else the best."""
        return self._find(self.wanted) or self.groups[0]

    @property
    def baselines(self) -> list[int]:
        """Places of the groups that others are tested against: some of the best, and the one asked for."""
        return sorted(
            {self.groups.index(self.baseline), *range(min(_MOST_BASELINES, len(self.groups)))}
        )

    def difference(self, baseline: Group, group: Group, metric: str) -> tuple[float, float, float]:
        """Difference of a group's mean to another's, half its 95% interval, and the corrected p-value.

        The last two are nan where there is no test, as against groups that are none of the baselines.
        """
        value = float(group.spread(metric).mean - baseline.spread(metric).mean)
        if not self.is_comparable(metric):
            return math.nan, math.nan, math.nan
        row, column = self.groups.index(baseline), self.groups.index(group)
        if row not in self.baselines:
            return value, math.nan, math.nan
        tests, row = self.tests[metric], self.baselines.index(row)
        return value, float(tests.half[row, column]), float(tests.p[row, column])

    @cached_property
    def tests(self) -> dict[str, Tests]:
        """Tests by metric."""
        size = len(self.baselines), len(self.groups)
        return {
            metric: run_tests(self.groups, self.baselines, metric)
            if self.is_comparable(metric)
            else untested(*size)
            for metric in self.metrics
        }


def comparisons(
    runs: Sequence[Run], metrics: Sequence[str] | None = None, baseline: str | None = None
) -> list[Comparison]:
    """Compares the runs on each test set.

    Args:
        runs: The runs.
        metrics: The leading metrics; by default the usual ones.
        baseline: A group by its name or model; by default the best.

    Returns:
        One comparison for each test set, the one with most runs first, of a chain of updates the newest.

    Raises:
        UserError: For a metric that no run has, or a baseline that is none of the groups.
    """
    _check_metrics(metrics or (), _reported(runs))
    parts = sorted(sharing_test_sets(experiments(runs)), key=_first_shown)
    datasets = {run.dataset for run in runs}
    by_name: dict[str, Comparison] = {}
    for part in parts:
        name = part[0][0].dataset
        if name in by_name:
            name = _numbered(name, {*by_name, *datasets})
        by_name[name] = _comparison(name, part, metrics, baseline)
    if not any(comparison._find(baseline) for comparison in by_name.values()):
        groups = [group.name for comparison in by_name.values() for group in comparison.groups]
        choice = listed(list(dict.fromkeys(groups)), _MOST_NAMED)
        raise UserError(f"there is no baseline {baseline!r}: choose from {choice}")
    return list(by_name.values())


def _first_shown(part: Sequence[Sequence[Run]]) -> tuple[int, int]:
    """Returns the place of what shares test sets: by the number of runs, then of updates, most first."""
    runs = [run for runs in part for run in runs]
    updates = max(0 if run.update is None else run.update.updates for run in runs)
    return -len(runs), -updates


def _numbered(name: str, taken: Collection[str]) -> str:
    """The name with the first number that makes it new."""
    return next(numbered for at in itertools.count(2) if (numbered := f"{name}-{at}") not in taken)


def _check_metrics(metrics: Iterable[str], reported: Mapping[str, None]) -> None:
    """Raises UserError for a metric that is not reported."""
    unknown = next((metric for metric in metrics if metric not in reported), None)
    if unknown is None:
        return
    spelled = {of(metric).lower(): metric for of in (short, name) for metric in reported}
    meant = spelled.get(unknown.lower().replace("_", " "))
    question = f" Did you mean {meant}?" if meant else did_you_mean(unknown, reported)
    raise UserError(f"no run has the metric {unknown}.{question} Choose from {', '.join(reported)}")


def _comparison(
    name: str,
    part: Sequence[Sequence[Run]],
    metrics: Sequence[str] | None,
    baseline: str | None,
) -> Comparison:
    runs = [run for runs in part for run in runs]
    reported = _reported(runs)
    first = [metric for metric in metrics or () if metric in reported] or _usual(runs, reported)
    groups = groups_of(part)
    is_ordered = not (is_loss(first[0]) and mixes_losses(runs))
    ranked = best_first(groups, first[0]) if is_ordered else groups
    return Comparison(
        name, tuple(ranked), tuple(dict.fromkeys([*first, *reported])), tuple(first), baseline
    )


def best_first(groups: Sequence[Group], metric: str) -> list[Group]:
    """The groups by a metric, those without it last; as they came where neither way is better."""
    sign = direction(metric, stated_by(run for group in groups for run in group.runs))

    def loss(group: Group) -> float:
        return float(np.nan_to_num(-sign * group.spread(metric).mean, nan=np.inf))

    return sorted(groups, key=loss)


def _usual(runs: Sequence[Run], reported: Mapping[str, None]) -> list[str]:
    """The leading metrics where none were asked for, behind the one that searches optimised."""
    optimized = {run.optimized for run in runs if run.optimized} & reported.keys()
    if mixes_losses(runs):
        reported = {metric: None for metric in reported if not is_loss(metric)} or reported
    metrics = leading(reported, clicks=all("ll" in run.metrics for run in runs))
    return list(dict.fromkeys([*optimized, *metrics])) if len(optimized) == 1 else metrics


def _reported(runs: Iterable[Run]) -> dict[str, None]:
    """Names of all metrics, those of the test first."""
    names = dict.fromkeys(metric for run in runs for metric in run.metrics)
    return dict.fromkeys(sorted(names, key=lambda metric: metric.startswith(VALIDATION)))


def _sizes(counts: Collection[int], noun: str) -> str:
    """Returns the counts of test sets: "500 or 1,000 sessions"."""
    *others, last = sorted(counts)
    return " or ".join([*(f"{count:,}" for count in others), counted(last, noun)])

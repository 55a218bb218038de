"""Groups of runs that share a test set, ordered and compared."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clickexp.errors import UserError
from clickexp.results.differences import Tests, run_tests
from clickexp.results.groups import FEW_RUNS, Group, experiments, groups_of
from clickexp.results.metric_names import direction, leading, name, short, uncapitalised
from clickexp.runs.objective import stated_by
from clickexp.runs.run import VALIDATION, Run
from clickexp.utils.suggest import did_you_mean
from clickexp.utils.text import listed

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

    def direction(self, metric: str) -> int:
        """1 where more is better, -1 where less is, 0 where neither is or nothing is known."""
        return direction(metric, self._stated)

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
        """What cells show beside their values."""
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
        if not self.direction(self.leading[0]):
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

    def describe(self) -> str:
        """Sessions and test sets in a line."""
        sizes = {int(own[0]) for run in self.runs if (own := _sessions_per_rank(run)) and own[0]}
        sessions = " or ".join(f"{size:,}" for size in sorted(sizes))
        size = f" of {sessions} session{'' if sizes == {1} else 's'}" if sessions else ""
        if len(self._test_sets) == 1:
            return f"one test set{size}"
        per = ""
        for what in ("fold", "seed"):
            if len({getattr(run, what) for run in self.runs}) == len(self._test_sets):
                per = per or f", one per {what}"
        return f"{len(self._test_sets)} test sets{size}{' each' if size else ''}{per}"

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
        row, column = self.groups.index(baseline), self.groups.index(group)
        if row not in self.baselines:
            return value, math.nan, math.nan
        tests, row = self.tests[metric], self.baselines.index(row)
        return value, float(tests.half[row, column]), float(tests.p[row, column])

    @cached_property
    def tests(self) -> dict[str, Tests]:
        """Tests by metric."""
        return {metric: run_tests(self.groups, self.baselines, metric) for metric in self.metrics}


def comparisons(
    runs: Sequence[Run], metrics: Sequence[str] | None = None, baseline: str | None = None
) -> list[Comparison]:
    """Compares the runs on each test set.

    Args:
        runs: The runs.
        metrics: The leading metrics; by default the usual ones.
        baseline: A group by its name or model; by default the best.

    Returns:
        One comparison for each test set, the one with most runs first.

    Raises:
        UserError: For a metric that no run has, or a baseline that is none of the groups.
    """
    reported = _reported(runs)
    if unknown := [metric for metric in metrics or () if metric not in reported]:
        spelled = {of(metric).lower(): metric for of in (short, name) for metric in reported}
        meant = spelled.get(unknown[0].lower().replace("_", " "))
        question = f" Did you mean {meant}?" if meant else did_you_mean(unknown[0], reported)
        raise UserError(
            f"no run has the metric {unknown[0]}.{question} Choose from {', '.join(reported)}"
        )
    parts = sorted(_sharing_test_sets(experiments(runs)), key=lambda part: -sum(map(len, part)))
    taken = {run.dataset for run in runs}
    by_name: dict[str, Comparison] = {}
    for part in parts:
        dataset = part[0][0].dataset
        numbered = (f"{dataset}-{number}" for number in itertools.count(2))
        free = (
            dataset
            if dataset not in by_name
            else next(name for name in numbered if name not in {*by_name, *taken})
        )
        by_name[free] = _comparison(free, part, metrics, baseline)
    if not any(comparison._find(baseline) for comparison in by_name.values()):
        choice = dict.fromkeys(
            group.name for comparison in by_name.values() for group in comparison.groups
        )
        raise UserError(
            f"there is no baseline {baseline!r}: choose from {listed(list(choice), _MOST_NAMED)}"
        )
    return list(by_name.values())


def _comparison(
    name: str,
    part: Sequence[Sequence[Run]],
    metrics: Sequence[str] | None,
    baseline: str | None,
) -> Comparison:
    runs = [run for runs in part for run in runs]
    reported = _reported(runs)
    first = [metric for metric in metrics or () if metric in reported]
    if not first:
        optimized = {run.optimized for run in runs if run.optimized} & reported.keys()
        clicks = all("ll" in run.metrics for run in runs)
        first = list(
            dict.fromkeys([*(optimized if len(optimized) == 1 else ()), *leading(reported, clicks)])
        )
    sign = direction(first[0], stated_by(runs))
    # best first, groups without the metric last; as they came where neither way is better
    ranked = sorted(
        groups_of(part),
        key=lambda group: np.nan_to_num(-sign * group.spread(first[0]).mean, nan=np.inf),
    )
    return Comparison(
        name, tuple(ranked), tuple(dict.fromkeys([*first, *reported])), tuple(first), baseline
    )


def _reported(runs: Iterable[Run]) -> dict[str, None]:
    """Names of all metrics, those of the test first."""
    names = dict.fromkeys(metric for run in runs for metric in run.metrics)
    return dict.fromkeys(sorted(names, key=lambda metric: metric.startswith(VALIDATION)))


def _sharing_test_sets(of_experiments: Iterable[Sequence[Run]]) -> list[list[Sequence[Run]]]:
    """Experiments linked by test sets that they share."""
    parts: list[tuple[set[str], list[Sequence[Run]]]] = []
    for runs in of_experiments:
        sets, together = {run.test_set for run in runs}, [runs]
        apart = []
        for other_sets, other in parts:
            if sets & other_sets:
                sets, together = sets | other_sets, [*other, *together]
            else:
                apart.append((other_sets, other))
        parts = [*apart, (sets, together)]
    return [together for _, together in parts]


def _sessions_per_rank(run: Run) -> list[float | None]:
    return run.per_rank.get("sessions", [])

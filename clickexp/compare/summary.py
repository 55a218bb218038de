"""Runs that differ in their seed only, summed up; which of them share a test set; and how sure differences are."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special

from clickexp.compare.names import direction, leading, uncapitalised
from clickexp.compare.names import name as name_of
from clickexp.errors import UserError
from clickexp.runs.load import SEED, UNTOLD, Run
from clickexp.runs.objective import VALIDATION, stated_by

CONFIDENCE = 0.95
SIGNIFICANT = 0.05
BASELINES = 30
"""Groups of a test set, best first, that others are tested against."""
TOLD = 3
"""Keys of the configuration that a name tells at most, where overrides do not tell experiments apart."""


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation and 95% interval of a number over runs; arrays where the runs have vectors.

    low, high: Student's t-interval of the mean, low = mean - t sd / sqrt(count), t the quantile with count - 1 degrees
    of freedom; nan from fewer than two values. Missing values are left out.
    """

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, values: Sequence[Any]) -> "Spread":
        """values: [run, ...], nan or None where there is none."""
        array = np.array(values, np.float64)
        known = np.isfinite(array)
        count = known.sum(axis=0)
        mean = np.where(known, array, 0).sum(axis=0) / np.where(count, count, np.nan)
        squares = (np.where(known, array - mean, 0) ** 2).sum(axis=0)
        sd = np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
        half = (
            special.stdtrit(np.maximum(count - 1, 1), (1 + CONFIDENCE) / 2)
            * sd
            / np.sqrt(np.maximum(count, 1))
        )
        return cls(mean, sd, mean - half, mean + half, count)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ in their seed only.

    name: tells it apart from others on its test set. rest: the name without overrides.
    """

    runs: tuple[Run, ...]
    name: str
    rest: str

    @property
    def model(self) -> str:
        return self.runs[0].model

    @property
    def overrides(self) -> dict[str, Any]:
        return self.runs[0].overrides

    @property
    def tower(self) -> str:
        """That of the attraction, or of all roles of a model without it."""
        towers = self.runs[0].towers
        return towers.get("attraction") or ", ".join(dict.fromkeys(towers.values()))

    @property
    def title(self) -> str:
        """The name, and whether a search chose one of the runs."""
        return f"{self.name} (chosen)" if self.chosen else self.name

    @property
    def chosen(self) -> bool:
        return any(run.chosen for run in self.runs)

    @cached_property
    def test_sets(self) -> frozenset[str]:
        return frozenset(run.test_set for run in self.runs)

    def spread(self, metric: str) -> Spread:
        """Of a number of the test, or, as val/..., of the validation, over the runs."""
        return Spread.of([_nan(run.value(metric)) for run in self.runs])

    @property
    def seconds(self) -> float:
        """Mean over the runs of the seconds of training without compilation; nan where unknown."""
        return float(Spread.of([_nan(run.seconds) for run in self.runs]).mean)

    @property
    def compile_seconds(self) -> float:
        """Mean over the runs; nan where unknown."""
        return float(Spread.of([_nan(run.compile_seconds) for run in self.runs]).mean)

    def interval(self, metric: str) -> tuple[float, float, str]:
        """Low, high, and over what: seeds, or queries of the test set where a single run kept their values."""
        spread = self.spread(metric)
        if spread.count > 1:
            return float(spread.low), float(spread.high), "seeds"
        for run in self.runs:
            bounds = (run.result.get("intervals") or {}).get(metric)
            if isinstance(bounds, list) and len(bounds) == 2 and None not in bounds:
                return bounds[0], bounds[1], "queries"
        return np.nan, np.nan, ""

    def per_rank(self, metric: str) -> Spread | None:
        """Of a vector of result.json, rank 1 first; None where no run has it."""
        vectors = [run.result.get("per_rank", {}).get(metric) for run in self.runs]
        vectors = [vector for vector in vectors if vector]
        if not vectors:
            return None
        ranks = max(map(len, vectors))
        return Spread.of([[*map(_nan, vector), *[np.nan] * (ranks - len(vector))] for vector in vectors])

    def reliability(self) -> dict[str, np.ndarray] | None:
        """Mean P(click), click rate and documents of all runs together, [bin, rank]; None where no run has them."""
        curves = [(run.result.get("curves") or {}).get("ece") for run in self.runs]
        curves = [
            {key: np.array(part, np.float64) for key, part in curve.items()} for curve in curves if curve
        ]
        if not curves or len({curve["documents"].shape for curve in curves}) > 1:
            return None
        documents = sum(np.nan_to_num(curve["documents"]) for curve in curves)
        filled = np.where(documents > 0, documents, np.nan)
        weighted = {
            key: sum(np.nan_to_num(curve[key] * curve["documents"]) for curve in curves) / filled
            for key in ("predicted", "observed")
        }
        return {**weighted, "documents": documents}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups that were tested on the same sessions, best first by the first of the metrics.

    Where runs are trials of a search, that is by default the metric that the search optimised.

    groups are comparable as far as their test sets are the same: where each seed simulates its own, all groups with
    that seed share it. metrics: all of test and validation (val/...), leading ones first. wanted: the baseline's name,
    if one was asked for.
    """

    name: str
    groups: tuple[Group, ...]
    metrics: tuple[str, ...]
    leading: tuple[str, ...]
    wanted: str | None = None

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @cached_property
    def test_sets(self) -> frozenset[str]:
        return frozenset().union(*(group.test_sets for group in self.groups))

    @cached_property
    def stated(self) -> dict[str, bool | None]:
        """By name which way metrics are better, as the runs state it."""
        return stated_by(run.result for run in self.runs)

    def direction(self, metric: str) -> int:
        """1 where more is better, -1 where less is, 0 where neither is or nothing is known."""
        return direction(metric, self.stated)

    @property
    def optimized(self) -> list[str]:
        """Metrics that searches optimised of which runs are trials."""
        return list(dict.fromkeys(run.optimized for run in self.runs if run.optimized in self.metrics))

    @property
    def choice(self) -> str:
        """How searches chose, in a sentence; empty without a search."""
        if not self.optimized:
            return ""
        by = " and ".join(uncapitalised(name_of(metric)) for metric in self.optimized)
        if self.optimized == [self.leading[0]]:
            text = f"Ordered by {by}, which the search optimised"
        else:
            text = f"Search was for the best {by}"
        return text + ("; (chosen): the trial that it chose" if any(g.chosen for g in self.groups) else "")

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before ranking the groups."""
        told = []
        if not self.direction(self.leading[0]):
            told.append(
                f"Neither way of {name_of(self.leading[0])} is known to be better, so rows are in no order"
            )
        partial = [group.name for group in self.groups if group.test_sets != self.test_sets]
        if partial:
            count = len(self.test_sets)
            told.append(
                f"{len(partial)} of {len(self.groups)} rows average over some of the {count} test sets only, "
                f"so their means are not of the same data: {_few(partial)}"
            )
        if any(test_set.startswith("guess-") for test_set in self.test_sets):
            told.append(
                "Some results were written before runs told their test set; equal dataset settings and "
                "session counts stand in for it"
            )
        return told

    def describe(self) -> str:
        """Sessions and test sets in a line."""
        counts = {
            int(sum(run.result["per_rank"]["sessions"][:1]))
            for run in self.runs
            if (run.result.get("per_rank") or {}).get("sessions") and run.result["per_rank"]["sessions"][0]
        }
        sessions = " or ".join(f"{count:,}" for count in sorted(counts))
        size = f" of {sessions} sessions" if sessions else ""
        if len(self.test_sets) == 1:
            return f"one test set{size}"
        seeds = {run.seed for run in self.runs}
        each = ", one a seed" if len(seeds) == len(self.test_sets) else ""
        return f"{len(self.test_sets)} test sets{size}{' each' if size else ''}{each}"

    def find(self, name: str | None) -> Group | None:
        """The group of that name, or else the best of that model; without a name the best of all."""
        if name is None:
            return self.groups[0]
        by_name = [group for group in self.groups if group.name.lower() == name.lower()]
        by_model = [group for group in self.groups if group.model.lower() == name.lower()]
        return next(iter([*by_name, *by_model]), None)

    @property
    def baseline(self) -> Group:
        """What others are tested against in tables: the group asked for, or the best where there is none."""
        return self.find(self.wanted) or self.groups[0]

    @property
    def baselines(self) -> list[int]:
        """Places of the groups that others are tested against: some of the best, and the one asked for."""
        return sorted({self.groups.index(self.baseline), *range(min(BASELINES, len(self.groups)))})

    @cached_property
    def tests(self) -> dict[str, "Tests"]:
        """Of each metric."""
        return {metric: tests(self, metric) for metric in self.metrics}


def comparisons(
    runs: Sequence[Run], metrics: Sequence[str] | None = None, baseline: str | None = None
) -> list[Comparison]:
    """The runs by test set, the largest comparison first.

    metrics: the leading ones; by default the usual ones. baseline: a group by its name or model; by default the best.
    UserError for a metric that no run has, or a baseline that is none of the groups.
    """
    reported = _reported(runs)
    if unknown := [metric for metric in metrics or () if metric not in reported]:
        raise UserError(f"no run has the metric {unknown[0]}: choose from {', '.join(reported)}")
    experiments = defaultdict(list)
    for run in runs:
        experiments[run.experiment].append(run)
    parts = sorted(_sharing_test_sets(experiments.values()), key=lambda part: -sum(map(len, part)))
    datasets = {run.dataset for run in runs}
    names: list[str] = []
    for part in parts:
        dataset = part[0][0].dataset
        numbered = (f"{dataset}-{number}" for number in itertools.count(2))
        free = (name for name in numbered if name not in (*names, *datasets))
        names.append(next(free) if dataset in names else dataset)
    made = [_comparison(name, part, metrics, baseline) for name, part in zip(names, parts, strict=True)]
    if not any(comparison.find(baseline) for comparison in made):
        choice = dict.fromkeys(group.name for comparison in made for group in comparison.groups)
        raise UserError(f"there is no baseline {baseline!r}: choose from {_few(list(choice))}")
    return made


def _comparison(
    name: str, experiments: Sequence[Sequence[Run]], metrics: Sequence[str] | None, baseline: str | None
) -> Comparison:
    runs = [run for runs in experiments for run in runs]
    reported = _reported(runs)
    first = [metric for metric in metrics if metric in reported] if metrics else []
    optimized = {run.optimized for run in runs} & reported.keys()
    first = first or [*(optimized if len(optimized) == 1 else ()), *leading(reported)]
    ordered = tuple(dict.fromkeys([*first, *reported]))
    groups = tuple(
        Group(tuple(runs), *names) for runs, names in zip(experiments, group_names(experiments), strict=True)
    )
    ranked = _ranked(groups, first[0], direction(first[0], stated_by(run.result for run in runs)))
    return Comparison(name, ranked, ordered, tuple(dict.fromkeys(first)), baseline)


def _reported(runs: Iterable[Run]) -> dict[str, None]:
    """Names of all metrics, those of the test first."""
    names = dict.fromkeys(metric for run in runs for metric in run.metrics)
    return dict.fromkeys(sorted(names, key=lambda metric: metric.startswith(VALIDATION)))


def _ranked(groups: Sequence[Group], metric: str, direction: int) -> tuple[Group, ...]:
    """Best first; groups without the metric last. Where neither way is better, as they came."""
    values = {id(group): -direction * float(group.spread(metric).mean) for group in groups}
    return tuple(sorted(groups, key=lambda group: np.nan_to_num(values[id(group)], nan=np.inf)))


def _sharing_test_sets(experiments: Iterable[Sequence[Run]]) -> list[list[Sequence[Run]]]:
    """Experiments linked by test sets that they share."""
    parts: list[tuple[set[str], list[Sequence[Run]]]] = []
    for runs in experiments:
        sets, together = {run.test_set for run in runs}, [runs]
        apart = []
        for other_sets, other in parts:
            if sets & other_sets:
                sets, together = sets | other_sets, [*other, *together]
            else:
                apart.append((other_sets, other))
        parts = [*apart, (sets, together)]
    return [together for _, together in parts]


def group_names(experiments: Sequence[Sequence[Run]]) -> list[tuple[str, str]]:
    """The model and what tells it from others, overrides that differ, else keys of the configuration that do; and
    the same without the overrides."""
    given = [runs[0].overrides for runs in experiments]
    keys = [key for key in varying(given) if key not in ("model", "dataset")]
    overrides = [_told(keys, own) for own in given]
    names = [", ".join([runs[0].model, *own]) for runs, own in zip(experiments, overrides, strict=True)]
    more: list[list[str]] = [[] for _ in names]
    for name in {name for name in names if names.count(name) > 1}:
        same = [i for i, other in enumerate(names) if other == name]
        settings = [
            {key: value for key, value in experiments[i][0].settings.items() if not _untold(key)}
            for i in same
        ]
        differ = varying(settings)[:TOLD]
        for number, (i, own) in enumerate(zip(same, settings, strict=True), start=1):
            told = _told(differ, own)
            more[i] = (
                told if told and told not in [more[j] for j in same if j != i] else [*told, f"no. {number}"]
            )
    return [
        (", ".join([name, *own]), ", ".join([runs[0].model, *own]))
        for name, own, runs in zip(names, more, experiments, strict=True)
    ]


def varying(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that some of the mappings have another value for, or not at all."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    return [key for key in keys if len({repr(mapping.get(key)) for mapping in mappings}) > 1]


def short_key(key: str, among: Sequence[str]) -> str:
    """The last part of a dotted key, as far as it names one key only."""
    last = key.split("@")[-1].split(".")[-1]
    return last if sum(other.split("@")[-1].split(".")[-1] == last for other in among) == 1 else key


def _told(keys: Sequence[str], own: Mapping[str, Any]) -> list[str]:
    return [f"{short_key(key, keys)}={own[key]}" for key in keys if own.get(key) is not None]


def _untold(key: str) -> bool:
    parts = key.split(".")
    return parts[0] in UNTOLD or parts[-1] == SEED


def paired_p(values: np.ndarray, baseline: int) -> np.ndarray:
    """Two-sided p-values of Student's paired t-test of each row of [group, unit] against the baseline's row.

    Units (queries or seeds) that either row lacks, nan, are left out; nan from fewer than two, 1 without a difference.
    """
    differences = values - values[baseline]
    known = np.isfinite(differences)
    count = known.sum(axis=1)
    mean = np.where(known, differences, 0).sum(axis=1) / np.maximum(count, 1)
    squares = (np.where(known, differences - mean[:, None], 0) ** 2).sum(axis=1)
    error = np.sqrt(squares / np.maximum(count - 1, 1) / np.maximum(count, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0, np.abs(mean) / error)
    p = 2 * special.stdtr(np.maximum(count - 1, 1), -t)
    p[(count < 2) | (np.arange(len(values)) == baseline)] = np.nan
    return p


def holm(p: np.ndarray) -> np.ndarray:
    """P-values corrected for how many there are: the i-th smallest of n times n - i + 1, never below a smaller one's.

    nan stays nan and does not count. (Holm 1979, "A simple sequentially rejective multiple test procedure".)
    """
    adjusted = np.full(p.shape, np.nan)
    order = [i for i in np.argsort(p) if np.isfinite(p[i])]
    scaled = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return adjusted


@dataclass(frozen=True)
class Tests:
    """Differences of a metric between groups, tested in pairs.

    unit: what is paired, "queries" of the test set where runs kept their values, else "seeds". p: [baseline, group],
    corrected by Holm for all groups compared with a baseline; nan where there is no test.
    """

    unit: str
    p: np.ndarray


def tests(comparison: Comparison, metric: str) -> Tests:
    """Tests each group against each of the comparison's baselines.

    Queries: the pseudo-value of each, from the sums of all seeds that met it on the same test set; test sets follow
    one another. With one seed this is the t-test of `clickexp.evaluation.per_query.paired_test`.
    """
    values, unit = per_query(comparison, metric), "queries"
    if values is None:
        values, unit = per_seed(comparison, metric), "seeds"
    return Tests(unit, np.array([holm(paired_p(values, baseline)) for baseline in comparison.baselines]))


def per_seed(comparison: Comparison, metric: str) -> np.ndarray:
    """[group, seed on some test set], nan where a group has none."""
    units = sorted({(run.test_set, run.seed or 0) for run in comparison.runs})
    place = {unit: i for i, unit in enumerate(units)}
    values = np.full((len(comparison.groups), len(units)), np.nan)
    for row, group in zip(values, comparison.groups, strict=True):
        for run in group.runs:
            row[place[run.test_set, run.seed or 0]] = _nan(run.value(metric))
    return values


def per_query(comparison: Comparison, metric: str) -> np.ndarray | None:
    """[group, query of some test set], nan where a group has no values; None unless two groups kept theirs."""
    if sum(any(_kept(run, metric) for run in group.runs) for group in comparison.groups) < 2:
        return None
    from clickexp.evaluation.per_query import samples  # here, since only such runs need what it imports

    columns: list[np.ndarray] = []
    for test_set in sorted(comparison.test_sets):
        rows: dict[int, np.ndarray] = {}
        queries = None
        for i, group in enumerate(comparison.groups):
            pooled = None
            for run in group.runs:
                if run.test_set != test_set or not _kept(run, metric):
                    continue
                try:
                    own = samples(run.folder, metric)
                except (UserError, OSError, ValueError, KeyError):
                    continue
                queries = own.queries if queries is None else queries
                if not np.array_equal(queries, own.queries):
                    continue
                pooled = own if pooled is None else type(own)(queries, pooled.sums + own.sums, own.value)
            if pooled is not None:
                rows[i] = pooled.pseudo_values()
        if rows:
            block = np.full((len(comparison.groups), len(queries)), np.nan)
            for i, row in rows.items():
                block[i] = row
            columns.append(block)
    return np.concatenate(columns, axis=1) if columns else None


def _kept(run: Run, metric: str) -> bool:
    """Whether values of single queries were kept, which the intervals in the result tell."""
    return metric in (run.result.get("intervals") or {})


def _nan(value: float | None) -> float:
    return np.nan if value is None else value


def _few(names: Sequence[str], count: int = 6) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")

"""Tests of the differences between groups of runs."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from clickexp.errors import UserError
from clickexp.results.groups import Group
from clickexp.runs.run import Run
from clickexp.runs.store import LISTS, SESSIONS
from clickexp.utils.statistics.means import holm, paired_tests

if TYPE_CHECKING:
    from clickexp.utils.statistics.bootstrap import Samples


@dataclass(frozen=True)
class Tests:
    """Differences of a metric between groups, tested in pairs.

    Attributes:
        unit: What is paired: "queries" of the test set where runs kept their values, or "search sessions" where these
            name them; else "seeds".
        p: P-values [baseline, group], corrected by Holm for all groups compared with a baseline; nan where there is no
            test.
        half: Half the 95% interval of the difference [baseline, group]: Student's t over the same pairs, not corrected;
            nan where there is no test.
    """

    unit: str
    p: np.ndarray
    half: np.ndarray


def run_tests(groups: Sequence[Group], baselines: Sequence[int], metric: str) -> Tests:
    """Tests each group against each of the baselines.

    Queries, or search sessions: the pseudo-value of each, from the sums of all seeds that met it on the same test set;
    test sets follow one another. With one seed this is the t-test of `clickexp.results.per_query.paired_test`.

    Args:
        groups: The groups.
        baselines: Places of the baselines among them.
        metric: The metric that is compared.
    """
    values, unit = _per_query(groups, metric)
    if values is None:
        values, unit = _per_seed(groups, metric), "seeds"
    p, half = zip(*(paired_tests(values, baseline) for baseline in baselines), strict=True)
    return Tests(unit, np.array([holm(of_baseline) for of_baseline in p]), np.array(half))


def untested(baselines: int, groups: int) -> Tests:
    """Returns no test of any of so many groups against so many baselines."""
    unknown = np.full((baselines, groups), np.nan)
    return Tests("", unknown, unknown)


def _per_seed(groups: Sequence[Group], metric: str) -> np.ndarray:
    """[group, seed on some test set], nan where a group has none."""
    units = {(run.test_set, run.seed or 0) for group in groups for run in group.runs}
    column = {unit: place for place, unit in enumerate(sorted(units))}
    values = np.full((len(groups), len(units)), np.nan)
    for row, group in zip(values, groups, strict=True):
        for run in group.runs:
            row[column[run.test_set, run.seed or 0]] = run.value(metric)
    return values


def _per_query(groups: Sequence[Group], metric: str) -> tuple[np.ndarray | None, str]:
    """[group, query of some test set], nan where a group has no values, and the unit; None unless two kept theirs."""
    if sum(map(partial(_keeps_values, metric=metric), groups)) < 2:
        return None, ""
    columns: list[np.ndarray] = []
    units: list[str] = []
    for test_set in sorted({run.test_set for group in groups for run in group.runs}):
        runs = [[run for run in group.runs if run.test_set == test_set] for group in groups]
        columns += _pseudo_values(runs, metric, units)
    return np.concatenate(columns, axis=1) if columns else None, " and ".join(sorted({*units}))


def _pseudo_values(
    groups: Sequence[Sequence[Run]], metric: str, units: list[str]
) -> list[np.ndarray]:
    """One array [group, query] for the groups' runs on one test set, whose unit is noted; none without values."""
    rows: dict[int, np.ndarray] = {}
    queries = None
    for place, runs in enumerate(groups):
        pooled = _pooled(runs, metric, queries)
        if pooled is not None:
            queries, rows[place] = pooled.queries, pooled.pseudo_values()
            units.append(pooled.unit)
    if queries is None:
        return []
    values = np.full((len(groups), len(queries)), np.nan)
    for place, row in rows.items():
        values[place] = row
    return [values]


def _pooled(runs: Sequence[Run], metric: str, queries: np.ndarray | None) -> "Samples | None":
    """Samples of runs that kept values of these queries, by default of those of the first; None without any."""
    pooled = None
    for run in runs:
        of_run = _samples(run, metric)
        if of_run is None:
            continue
        queries = of_run.queries if queries is None else queries
        if np.array_equal(queries, of_run.queries):
            sums = of_run.sums if pooled is None else pooled.sums + of_run.sums
            pooled = replace(of_run, sums=sums)
    return pooled


def _samples(run: Run, metric: str) -> "Samples | None":
    """Samples of a metric of the run; None where it kept none that can be read."""
    from clickexp.results.per_query import samples  # here, since it imports polars

    if not _has_values(run, metric):
        return None
    with contextlib.suppress(UserError):
        return samples(run.folder, metric)
    return None


def _keeps_values(group: Group, metric: str) -> bool:
    """Whether any run of the group kept values per query."""
    return any(_has_values(run, metric) for run in group.runs)


def _has_values(run: Run, metric: str) -> bool:
    """Whether values of a metric per query were kept."""
    return kept_values(run) and metric in run.test


def kept_values(run: Run) -> bool:
    """Returns whether a run kept values per query."""
    return any((run.folder / name).is_file() for name in (SESSIONS, LISTS))

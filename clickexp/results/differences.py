"""Tests of the differences between groups of runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from clickexp.errors import UserError
from clickexp.results.groups import Group
from clickexp.runs.run import Run
from clickexp.runs.store import LISTS, SESSIONS
from clickexp.utils.statistics.means import holm, paired_tests


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
    if sum(any(_has_values(run, metric) for run in group.runs) for group in groups) < 2:
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
    from clickexp.results.per_query import samples  # here, since it imports polars

    values, queries = None, None
    for place, runs in enumerate(groups):
        pooled = None
        for run in runs:
            try:
                of_run = samples(run.folder, metric) if _has_values(run, metric) else None
            except (UserError, OSError, ValueError, KeyError):
                continue
            if of_run is None or (
                queries is not None and not np.array_equal(queries, of_run.queries)
            ):
                continue
            queries = of_run.queries
            pooled = of_run if pooled is None else replace(of_run, sums=pooled.sums + of_run.sums)
        if pooled is not None:
            values = (
                np.full((len(groups), len(pooled.queries)), np.nan) if values is None else values
            )
            values[place] = pooled.pseudo_values()
            units.append(pooled.unit)
    return [] if values is None else [values]


def _has_values(run: Run, metric: str) -> bool:
    """Whether values per query were kept."""
    kept = any((run.folder / name).is_file() for name in (SESSIONS, LISTS))
    return kept and metric in run.test

"""Chains of runs, each of which has had the posterior of the one before for a prior."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clickexp.errors import UserError
from clickexp.runs.run import Run, Update
from clickexp.runs.store import RESULT
from clickexp.utils.tables.numbers import number
from clickexp.utils.tables.table import Table

_MOST = 366
"""Updates that are followed back."""
_LL = "ll"


def chain_of(run: Run) -> list[Run]:
    """Returns the runs that a run goes on from, the oldest first, and itself; those that are not there are left out."""
    found = [run]
    while found[0].update is not None and len(found) < _MOST:
        folder = folder_before(found[0])
        try:
            earlier = Run.read(folder) if (folder / RESULT).is_file() else None
        except UserError:
            earlier = None
        if earlier is None:
            break
        found.insert(0, earlier)
    return found


def folder_before(run: Run) -> Path:
    """Returns the folder of the run that an update goes on from, from where the update was started."""
    there = Path() if run.origin is None else Path(run.origin.directory)
    return there / Path("" if run.update is None else run.update.run).expanduser()


def chains(runs: Sequence[Run]) -> list[list[Run]]:
    """Returns the chains among runs, of two at least, the oldest run of each first."""
    by_folder = {run.folder.resolve(): run for run in runs}
    before = {
        run.folder.resolve(): folder_before(run).resolve() for run in runs if run.update is not None
    }
    last = [folder for folder in before if folder not in before.values()]
    found = []
    for folder in last:
        chain = [by_folder[folder]]
        while (folder := before.get(folder, Path())) in by_folder and len(chain) < _MOST:
            chain.insert(0, by_folder[folder])
        if len(chain) > 1:
            found.append(chain)
    return found


def click_rate(run: Run) -> float | None:
    """Returns clicks per document of the test sessions; None where the run has not counted them."""
    bins = run.curves.ece
    if bins is None:
        return None
    observed, documents = (
        np.nan_to_num(np.array(table, np.float64)) for table in (bins.observed, bins.documents)
    )
    return float((observed * documents).sum() / documents.sum()) if documents.any() else None


def before_update(run: Run) -> float | None:
    """Returns the test log-likelihood of the model of the run before."""
    return None if run.update is None else run.update.before.get(_LL)


def after_next(runs: Sequence[Run]) -> list[float | None]:
    """Returns the test log-likelihood on the log of each run of a chain of the model of the run after it."""
    updates = [run.update for run in runs[1:]]
    return [*(None if each is None else each.backward.get(_LL) for each in updates), None]


def chain_table(runs: Sequence[Run], short: bool = False) -> Table:
    """Returns a row per run of a chain.

    Args:
        runs: The runs, the oldest first.
        short: Leave out what a terminal has no room for: counts and click rates.
    """
    positions = _positions(runs)
    rows = []
    for run, later in zip(runs, after_next(runs), strict=True):
        update = run.update
        ratios = {each.position: each.relative for each in run.propensity if not each.layout}
        rows.append(
            [
                run.folder.name,
                f"{run.data.sessions.get('train', 0):,}",
                number(click_rate(run), missing=""),
                number(before_update(run), missing=""),
                number(run.test.get(_LL), missing=""),
                number(later, missing=""),
                *(number(ratios.get(position), missing="") for position in positions),
                "" if update is None else f"{update.new_documents:,}",
                "" if update is None else f"{update.forgotten:.0%}",
                "" if update is None else ", ".join(each.parameter for each in update.changes),
            ]
        )
    header = [
        "Run",
        "Sessions",
        "Clicks",
        "ll before",
        "ll",
        "ll next",
        *(f"e({at})" for at in positions),
    ]
    header += ["New", "Forgotten", "Changed"]
    left_out = ("Sessions", "Clicks", "New", "Forgotten") if short else ()
    caption = (
        "A chain of updates: sessions, click rate, test log-likelihood on the log of each run before and after its "
        "update and after the next one, examination e relative to the first position, and ids that no earlier log has"
    )
    return Table(header, rows, caption).without_empty_columns(*left_out)


def _positions(runs: Sequence[Run]) -> list[int]:
    """The second and the last position that all runs have examination of."""
    each = [{point.position for point in run.propensity if not point.layout} for run in runs]
    common = sorted(set.intersection(*each) - {1}) if each else []
    return list(dict.fromkeys([common[0], common[-1]])) if common else []


def moved_table(update: Update) -> Table:
    """Returns the documents that an update has moved most."""
    rows = [
        [
            str(each.id) if each.document is None else str(each.document),
            "" if each.query is None else str(each.query),
            number(each.before),
            number(each.after),
            f"{each.deviations:+.1f}",
        ]
        for each in update.moved
    ]
    header = ["Document", "Query", "Attraction before", "After", "Standard deviations"]
    caption = (
        "Documents that the update has moved most, in standard deviations of what was known before"
    )
    return Table(header, rows, caption).without_empty_columns()

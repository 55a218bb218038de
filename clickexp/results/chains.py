"""Chains of runs, each of which has had the posterior of the one before for a prior."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clickexp.errors import UserError
from clickexp.results.layouts import (
    Points,
    in_order,
    layout_table,
    layouts_of,
    named_references,
    points_by_layout,
    references_of,
)
from clickexp.runs.run import RelativeExamination, Run, Update
from clickexp.runs.store import RESULT
from clickexp.utils.tables.numbers import number
from clickexp.utils.tables.table import Table
from clickexp.utils.text import listed

_MOST = 366
"""Updates that are followed back."""
_MOST_POSITIONS, _MOST_LAYOUTS = 3, 3
"""That lines are drawn of."""
_LL = "ll"
LIKELIHOOD = "Test log-likelihood"
EXAMINATION = "Relative examination"
_CLICK_RATE = "Click rate of test sessions"
_TRAINED = "Training sessions"

Values = Sequence[float | None]


class Line(NamedTuple):
    """A series over the runs of a chain.

    Attributes:
        name: What distinguishes it from others of its axes.
        values: Of each run.
        low: Start of their 95% intervals; nothing where they have none.
        high: End of these.
    """

    name: str
    values: Values
    low: Values = ()
    high: Values = ()


def chain_of(run: Run) -> list[Run]:
    """Returns the runs that a run goes on from, the oldest first, and itself; those that are not there are left out."""
    chain = [run]
    with contextlib.suppress(UserError):
        while chain[0].update is not None and len(chain) < _MOST:
            chain.insert(0, Run.read(folder_before(chain[0])))
    return chain


def folder_before(run: Run) -> Path:
    """Returns the folder of the run that an update goes on from: beside a chain that was copied, or where it was."""
    if run.update is not None and run.update.beside:
        beside = Path(os.path.normpath(run.folder.resolve() / run.update.beside))
        if (beside / RESULT).is_file():
            return beside
    there = Path() if run.origin is None else Path(run.origin.directory)
    return there / Path("" if run.update is None else run.update.run).expanduser()


def chains(runs: Sequence[Run]) -> list[list[Run]]:
    """Returns the chains among runs, of two at least, the oldest run of each first; a run that is missing ends one."""
    folders = {run.folder.resolve() for run in runs}
    earlier = {folder_before(run).resolve() for run in runs if run.update is not None}
    last = [run for run in runs if run.folder.resolve() not in earlier]
    of_runs = []
    for end in last:
        newest_first = reversed(chain_of(end))
        there = itertools.takewhile(lambda run: run.folder.resolve() in folders, newest_first)
        chain = list(there)[::-1]
        if len(chain) > 1:
            of_runs.append(chain)
    return of_runs


def examination_by_position(run: Run) -> dict[int, RelativeExamination]:
    """Returns examination relative to the first position, where it does not differ between layouts."""
    return points_by_layout(run.propensity).get("", {})


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
    return [*(None if update is None else update.backward.get(_LL) for update in updates), None]


def lines(runs: Sequence[Run]) -> dict[str, list[Line]]:
    """Returns the lines of a chain by the label of their axis, the most important first."""
    drawn = {
        LIKELIHOOD: [
            Line("after", [run.test.get(_LL) for run in runs]),
            Line("before", [before_update(run) for run in runs]),
            Line("after the next", after_next(runs)),
        ],
        **_examination(runs),
    }
    rates = [click_rate(run) for run in runs]
    if any(rate is not None for rate in rates):
        drawn[_CLICK_RATE] = [Line("", rates)]
    return {label: of_label for label, of_label in drawn.items() if of_label}


def _examination(runs: Sequence[Run]) -> dict[str, list[Line]]:
    """Relative examination at some positions by label: of all runs, or of each of the first layouts."""
    of_all = [examination_by_position(run) for run in runs]
    by_layout = _by_layout(runs)
    shared = set.intersection(*map(_positions_of, by_layout.values())) if by_layout else set()
    drawn = {EXAMINATION: _lines(of_all, _some(_positions_of(of_all) - {1}))}
    for name, curves in [*by_layout.items()][:_MOST_LAYOUTS]:
        positions = _some(shared or _positions_of(curves))
        drawn[f"{EXAMINATION}, {name}"] = _lines(curves, positions)
    return drawn


def _positions_of(curves: Iterable[Points]) -> set[int]:
    """Positions that any of some runs has examination of."""
    return {position for curve in curves for position in curve}


def _some(positions: Iterable[int]) -> list[int]:
    """Returns positions from the first to the last, as many as are drawn."""
    ordered = sorted(positions)
    chosen = np.linspace(0, len(ordered) - 1, min(_MOST_POSITIONS, len(ordered))).astype(int)
    return [ordered[at] for at in chosen]


def _by_layout(runs: Sequence[Run]) -> dict[str, list[Points]]:
    """Examination by position of each run, by layout; nothing where a run has none of a layout."""
    references = references_of(runs)
    of_runs = [layouts_of(run, references) for run in runs]
    names = dict.fromkeys(name for of_run in of_runs for name in of_run)
    return {name: [of_run.get(name, {}) for of_run in of_runs] for name in names}


def _lines(curves: Sequence[Points], positions: Iterable[int]) -> list[Line]:
    """Lines over runs of examination at some positions."""
    lines = []
    for position in positions:
        points = [curve.get(position) for curve in curves]
        values, low, high = (
            [None if point is None else getattr(point, name) for point in points]
            for name in ("relative", "relative_low", "relative_high")
        )
        lines.append(Line(f"position {position}", values, low, high))
    return lines


def chain_table(runs: Sequence[Run], short: bool = False) -> Table:
    """Returns a row per run of a chain.

    Args:
        runs: The runs, the oldest first.
        short: Leave out what a terminal has no room for: counts and click rates.
    """
    positions = _positions(runs)
    rows = [
        _cells(run, later, positions) for run, later in zip(runs, after_next(runs), strict=True)
    ]
    header = ["Run", _TRAINED, _CLICK_RATE, "ll before", "ll", "ll next"]
    header += [*(f"e({at})" for at in positions), "New", "Forgotten", "Changed"]
    left_out = [name for name in (_TRAINED, _CLICK_RATE, "New", "Forgotten") if short]
    notes = [f"the tables in files also have {listed(left_out, len(left_out))}"] if short else []
    caption = (
        "A chain of updates: sessions of training, click rate of those of the test, test log-likelihood on the log of "
        "each run before and after its update and after the next one, examination e relative to the first position, "
        "and ids that no earlier log has"
    )
    return Table(header, rows, caption, notes=notes).without_empty_columns(*left_out)


def _cells(run: Run, later: float | None, positions: Sequence[int]) -> list[str]:
    """The row of a run in `chain_table`; `later` is its log-likelihood after the next update."""
    points = examination_by_position(run)
    ratios = {position: point.relative for position, point in points.items()}
    cells = [
        run.folder.name,
        f"{run.data.sessions.get('train', 0):,}",
        number(click_rate(run), missing=""),
        number(before_update(run), missing=""),
        number(run.test.get(_LL), missing=""),
        number(later, missing=""),
        *(number(ratios.get(position), missing="") for position in positions),
    ]
    update = run.update
    if update is None:
        return [*cells, "", "", ""]
    changed = ", ".join(change.parameter for change in update.changes)
    return [*cells, f"{update.new_documents:,}", f"{update.forgotten:.0%}", changed]


def chain_layouts(runs: Sequence[Run]) -> Table | None:
    """Returns a row per run of a chain and layout, with examination at each position; None without layouts."""
    by_layout = _by_layout(runs)
    if not by_layout:
        return None
    curves: list[tuple[str, dict[str, list[float | None]]]] = []
    for at, run in enumerate(runs):
        points = {layout: of_runs[at] for layout, of_runs in by_layout.items() if of_runs[at]}
        relative: dict[str, list[float | None]] = {
            layout: [point and point.relative for point in in_order(of_layout)]
            for layout, of_layout in points.items()
        }
        curves.append((run.folder.name, relative))
    caption = f"A chain of updates: examination relative to {named_references(references_of(runs))}"
    return layout_table("Run", curves, caption)


def _positions(runs: Sequence[Run]) -> list[int]:
    """The second and the last position that all runs have examination of."""
    of_runs = [{*examination_by_position(run)} for run in runs]
    common = sorted(set.intersection(*of_runs) - {1}) if of_runs else []
    return list(dict.fromkeys([common[0], common[-1]])) if common else []


def moved_table(update: Update) -> Table:
    """Returns the documents that an update has moved most."""
    rows = [
        [
            str(moved.id) if moved.document is None else str(moved.document),
            "" if moved.query is None else str(moved.query),
            number(moved.before),
            number(moved.after),
            f"{moved.deviations:+.1f}",
        ]
        for moved in update.moved
    ]
    header = ["Document", "Query", "Attraction before", "After", "Standard deviations"]
    caption = (
        "Documents that the update has moved most, in standard deviations of what was known before"
    )
    return Table(header, rows, caption).without_empty_columns()

"""Runs judged by users: two fitted rankers, and a fitted or true click model that clicks."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clickexp.data import Dataset
from clickexp.errors import UserError
from clickexp.export.fitted import fitted
from clickexp.models import ClickModel
from clickexp.online.comparison import OnlineComparison, check_trial, compare_rankers
from clickexp.online.lists import candidate_lists, check_same_lists
from clickexp.runs.run import Run

_TRUE_USER = "true"


def compare_runs(
    a: str | Path,
    b: str | Path,
    user: str | Path = _TRUE_USER,
    *,
    dataset: str | Path | None = None,
    trust: bool = False,
    positions: int | None = None,
    **settings: Any,
) -> OnlineComparison:
    """Lets users judge the rankers of two runs, on the test lists of their dataset.

    Args:
        a: Folder of the first run, which kept its model.
        b: Folder of the second.
        user: Folder of the run whose fitted click model is the user, or "true": that of a simulation.
        dataset: The log of the runs, if it is no longer where they read it.
        trust: See `clickexp.export.fitted.fitted`.
        positions: Documents shown; by default as many as in the dataset.
        settings: Those of `compare_rankers`.

    Raises:
        UserError: The runs are of other documents or lists, or the user cannot click on them.
    """
    check_trial(**settings, **({} if positions is None else {"positions": positions}))
    opened: dict[str, Dataset] = {}
    folders = [Path(a), Path(b)]
    ranker_a, ranker_b = (fitted(folder, dataset, trust, opened) for folder in folders)
    first = ranker_a.log
    check_same_lists(first, ranker_b.log, (str(folders[0]), str(folders[1])))
    if str(user) == _TRUE_USER:
        clicker, name = true_user(folders[0], first), "true user"
    else:
        clicker, users_dataset, _ = fitted(Path(user), dataset, trust, opened)
        check_same_lists(first, users_dataset, (str(folders[0]), str(user)))
        name = str(user)
    names = (str(a), str(b), name)
    shown = positions or first.positions
    options = {**settings, "positions": shown, "names": names}
    result = compare_rankers(
        ranker_a.model,
        ranker_b.model,
        clicker,  # pyright: ignore[reportArgumentType]  # User checks it
        candidate_lists(first),
        **options,
    )
    kinds = [_name_of(folder) for folder in folders]
    caveats = tuple(
        _caveats(folders[0], folders[1], None if str(user) == _TRUE_USER else Path(user))
    )
    return dataclasses.replace(
        result, user=f"{clicker.name} ({name})", models=(kinds[0], kinds[1]), caveats=caveats
    )


def _caveats(a: Path, b: Path, user: Path | None) -> Iterator[str]:
    """Says where rankers judge themselves."""
    if a.resolve() == b.resolve():
        yield "A and B are the same run: what differs is noise."
    for name, run in (("A", a), ("B", b)):
        if user is not None and user.resolve() == run.resolve():
            yield (
                f"The user is the click model of {name}, which such users favour: take that of another run, or several."
            )


def true_user(run: Path, dataset: Dataset) -> ClickModel:
    """Returns the click model whose clicks a run was fitted to.

    Args:
        run: The run.
        dataset: Its dataset.

    Raises:
        UserError: Its clicks were not simulated.
    """
    if dataset.truth is None:
        raise UserError(
            f"{run}: its clicks are not simulated. Give --user RUN, a run whose click model is the user."
        )
    return dataset.truth


def _name_of(run: Path) -> str:
    """The name of a run's model, as its result has it."""
    try:
        return Run.read(run).model
    except UserError as error:
        raise UserError(f"{run}: {error}") from error

"""The study of a search in its storage: new or continued, its grid, and its best trial."""

import contextlib
import dataclasses
import shlex
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import optuna
import yaml
from hydra.utils import instantiate
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from clickexp.errors import ConfigError, UserError
from clickexp.runs.store import BEST, HOW
from clickexp.sweeps.space import Space, overrides
from clickexp.sweeps.view import print_plain
from clickexp.utils.bounds import PositiveInt
from clickexp.utils.files import whole

FOLDER = "folder"
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of trials that count; failed and interrupted ones are run again."""
_SUBJECT = "subject"
_FILE = "search.db"
_SWEEP = "+sweep="
"""How the preset of a search is chosen, which has no part in its trials."""

Direction = Literal["minimize", "maximize"]


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """The keys of the group `search`; see conf/search/grid.yaml."""

    study: str
    trials: PositiveInt | None
    sampler: dict[str, Any] | None
    pruner: dict[str, Any] | None
    storage: str | None


@contextlib.contextmanager
def writing_study(folder: Path) -> Iterator[None]:
    """Raises a UserError where the study in a folder cannot be written, as on a full disk."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None)  # of SQLAlchemy's errors
        if isinstance(cause, sqlite3.Error):
            raise UserError(f"{folder / _FILE}: {cause}. Free some space, or choose another place.") from error
        raise


def open_study(
    settings: SearchSettings, folder: Path, space: Space, metric: str, digest: str, direction: Direction
) -> optuna.Study:
    """Creates a study, or opens it as an earlier call has left it.

    Args:
        settings: Those of the search.
        folder: That of the search.
        space: The space of its trials.
        metric: What it optimises.
        digest: Hash of the configuration that all trials have in common.
        direction: minimize or maximize.

    Raises:
        ConfigError: The study is of another configuration, metric or space.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=settings.storage or _storage(folder / _FILE),
        study_name=settings.study,
        direction=direction,
        load_if_exists=True,
    )
    if settings.sampler:
        sampler = settings.sampler
        if sampler.get("seed") is not None:  # else it would repeat what it drew for the earlier trials
            sampler = {**sampler, "seed": sampler["seed"] + len(study.trials)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.sampler = instantiate(sampler)
    study.pruner = instantiate(settings.pruner) if settings.pruner else optuna.pruners.NopPruner()
    subject = {
        "configuration": digest,
        "metric": metric,
        "space": {key: optuna.distributions.distribution_to_json(value) for key, value in space.items()},
    }
    known = study.user_attrs.get(_SUBJECT, subject)
    differ = [name for name in subject if subject[name] != known.get(name)]
    differ += ["direction"] * (study.direction.name.lower() != direction)
    if differ:
        raise ConfigError(
            f"search.study={settings.study} has another {', '.join(differ)}; give this search another name"
        )
    study.set_user_attr(_SUBJECT, subject)
    _enqueue_interrupted(study, folder)
    if settings.sampler is None:
        _enqueue_grid(study, space)
    return study


def report_best(study: optuna.Study, fixed: Sequence[str], metric: str, folder: Path) -> None:
    """Prints the best trial of a study, if it has any, and writes it to best.yaml."""
    if not study.get_trials(states=(TrialState.COMPLETE,)):
        return
    trial = study.best_trial
    given = overrides(trial.params)
    words = ["clickexp", *(each for each in fixed if not each.startswith((*HOW, _SWEEP))), *given]
    best = {
        "metric": metric,
        "value": trial.value,
        "trial": trial.number,
        "overrides": given,
        "command": shlex.join(words),
    }
    with whole(folder / BEST) as part:
        part.write_text(yaml.safe_dump(best, sort_keys=False))
    line = f"best of {len(study.get_trials(states=ENDED))} trials: {metric} {trial.value:.6g} in trial {trial.number}"
    print_plain(f"{line}: {' '.join(given)}")


def _storage(file: Path) -> optuna.storages.RDBStorage:
    """Returns a file of SQLite whose connections are closed after each use, not by the garbage collector."""
    return optuna.storages.RDBStorage(f"sqlite:///{file}", engine_kwargs={"poolclass": NullPool})


def _enqueue_interrupted(study: optuna.Study, folder: Path) -> None:
    """Enqueues again what an earlier call in this folder, which has ended, left running."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        if trial.user_attrs.get(FOLDER) == str(folder):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)


def _enqueue_grid(study: optuna.Study, space: Space) -> None:
    """Enqueues the points that have no trial, or only failed ones."""
    trials = [trial for trial in study.get_trials() if trial.state is not TrialState.FAIL]
    known = [trial.params or trial.system_attrs.get("fixed_params") for trial in trials]
    choices = {name: distribution.choices for name, distribution in space.items()}  # pyright: ignore[reportAttributeAccessIssue]  # of a grid
    for values in product(*choices.values()):
        point = dict(zip(space, values, strict=True))
        if point not in known:
            study.enqueue_trial(point)

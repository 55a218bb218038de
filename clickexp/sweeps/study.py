"""The study of a search in its storage: new or continued, its grid, and its best trial."""

import contextlib
import dataclasses
import inspect
import shlex
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import optuna
import yaml
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from clickexp.errors import ConfigError, UserError
from clickexp.runs.hashing import config_hash
from clickexp.runs.settings import LAUNCHING
from clickexp.runs.sources import Sources, changed
from clickexp.runs.store import BEST, MULTIRUN
from clickexp.sweeps.space import Space, overrides
from clickexp.sweeps.view import print_plain
from clickexp.utils.bounds import PositiveInt
from clickexp.utils.files import whole

FOLDER = "folder"
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of trials that count; failed and interrupted ones are run again."""
_SUBJECT = "subject"
_SOURCES = "sources"
_FILE = "search.db"
_SWEEP = "+sweep="
"""How the preset of a search is chosen, which has no part in its trials."""

_Kind = TypeVar("_Kind")
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
    """Raises a UserError where the study in a folder cannot be written, as on a full disk.

    A new study whose search ends before its first job is removed, and its folder if that is new.
    """
    file = folder / _FILE
    is_new, makes_folder = not file.exists(), not folder.exists()
    try:
        yield
    except BaseException as error:
        if is_new and not any(place.is_dir() for place in folder.glob("[!.]*")):
            file.unlink(missing_ok=True)
            (folder / MULTIRUN).unlink(missing_ok=True)
            if makes_folder:
                with contextlib.suppress(OSError):  # it may be absent, or another's by now
                    folder.rmdir()
        cause = getattr(error, "orig", None)  # of SQLAlchemy's errors
        if isinstance(cause, sqlite3.Error):
            raise UserError(
                f"{file}: {cause}. Free some space, or choose another place."
            ) from error
        raise


class SearchParts(NamedTuple):
    """Parts of a search.

    Attributes:
        storage: Where its study is.
        sampler: What proposes trials; None for a grid.
        pruner: What stops trials.
    """

    storage: BaseStorage
    sampler: BaseSampler | None
    pruner: BasePruner


def build_parts(settings: SearchSettings, folder: Path) -> SearchParts:
    """Builds sampler, pruner and storage of a search.

    Args:
        settings: Those of the search.
        folder: That of the search.

    Raises:
        ConfigError: Sampler or pruner cannot be built, or the storage is none.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    if settings.storage:
        storage = _shared_storage(settings.storage)
    else:  # its connections are closed after each use, not by the garbage collector
        url, pooling = f"sqlite:///{folder / _FILE}", {"poolclass": NullPool}
        storage = optuna.storages.RDBStorage(url, engine_kwargs=pooling)
    sampler, pruner = None, optuna.pruners.NopPruner()
    if settings.sampler:
        node = dict(settings.sampler)
        # with the same seed it would repeat what it drew for earlier trials
        if isinstance(node.get("seed"), int):
            node["seed"] += _count_trials(storage, settings.study)
        sampler = _part(node, BaseSampler, "search.sampler")
    if settings.pruner:
        pruner = _part(settings.pruner, BasePruner, "search.pruner")
    return SearchParts(storage, sampler, pruner)


def _count_trials(storage: BaseStorage, study: str) -> int:
    """The trials that a study has, 0 where there is none of this name."""
    summaries = optuna.get_all_study_summaries(storage, include_best_trial=False)
    return next((one.n_trials for one in summaries if one.study_name == study), 0)


def open_study(
    name: str,
    parts: SearchParts,
    folder: Path,
    space: Space,
    metric: str,
    common: Mapping[str, Any],
    contents: Sources,
    direction: Direction,
) -> optuna.Study:
    """Creates a study, or opens it as an earlier call has left it.

    Args:
        name: Of the study.
        parts: Those of the search.
        folder: That of the search.
        space: The space of its trials.
        metric: What it optimises.
        common: The configuration that all trials have in common.
        contents: Those of what its trials name.
        direction: minimize or maximize.

    Raises:
        ConfigError: The study is of another configuration, metric or space, or files that it names have changed.
    """
    study = optuna.create_study(
        storage=parts.storage,
        sampler=parts.sampler,
        pruner=parts.pruner,
        study_name=name,
        direction=direction,
        load_if_exists=True,
    )
    subject = {
        "configuration": config_hash(common),
        "metric": metric,
        "space": {
            key: optuna.distributions.distribution_to_json(value) for key, value in space.items()
        },
    }
    earlier = study.user_attrs.get(_SUBJECT, subject)
    differ = [name for name in subject if subject[name] != earlier.get(name)]
    differ += ["direction"] * (study.direction.name.lower() != direction)
    if differ:
        raise ConfigError(
            f"search.study={name} has another {', '.join(differ)}; give this search another name"
        )
    if keys := changed(study.user_attrs.get(_SOURCES, {} if study.trials else contents), contents):
        raise ConfigError(
            f"search.study={name}: what {', '.join(keys)} names has changed since its trials ran; give this search "
            "another name"
        )
    study.set_user_attr(_SUBJECT, subject)
    study.set_user_attr(_SOURCES, contents)
    _enqueue_interrupted(study, folder)
    if parts.sampler is None:
        _enqueue_grid(study, space)
    return study


def _part(node: Mapping[str, Any], kind: type[_Kind], key: str) -> _Kind:
    """Returns what a node describes by _target_, which must be of a kind of Optuna's."""
    from clickexp.experiment.instantiate import instantiate  # here, since it imports JAX

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        part = instantiate(node, key)
    if not isinstance(part, kind):
        name = kind.__name__.removeprefix("Base").lower()
        raise ConfigError(
            f"{key} is a {type(part).__name__}: give the path of a {name} of Optuna as {key}._target_, or null"
        )
    # Optuna's annotations may name what only type checkers import, so that they say nothing
    for name, parameter in inspect.signature(type(part)).parameters.items():
        if isinstance(parameter.default, int | float) and isinstance(node.get(name), str):
            raise ConfigError(f"{key}.{name}={node[name]!r}: give a number, or true or false")
    return part


def _shared_storage(url: str) -> BaseStorage:
    """Opens the database that several machines share."""
    try:
        return optuna.storages.get_storage(url)
    except Exception as error:  # of the database, whichever it is, or of its driver
        raise ConfigError(
            f"search.storage={url}: it cannot be opened ({error}). Give the URL of a database, such as "
            "sqlite:///search.db"
        ) from error


def report_best(study: optuna.Study, fixed: Sequence[str], metric: str, folder: Path) -> None:
    """Prints the best trial of a study, if it has any, and writes it to best.yaml."""
    if not study.get_trials(states=(TrialState.COMPLETE,)):
        return
    trial = study.best_trial
    of_trial = overrides(trial.params)
    kept = [word for word in fixed if not word.startswith((*LAUNCHING, _SWEEP))]
    best = {
        "metric": metric,
        "value": trial.value,
        "trial": trial.number,
        "overrides": of_trial,
        "command": shlex.join(["clickexp", *kept, *of_trial]),
    }
    with whole(folder / BEST) as part:
        part.write_text(yaml.safe_dump(best, sort_keys=False))
    line = f"best of {len(study.get_trials(states=ENDED))} trials: {metric} {trial.value:.6g} in trial {trial.number}"
    print_plain(f"{line}: {' '.join(of_trial)}")


def _enqueue_interrupted(study: optuna.Study, folder: Path) -> None:
    """Enqueues again what an earlier call in this folder, which has ended, left running."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        if trial.user_attrs.get(FOLDER) == str(folder):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)


def _enqueue_grid(study: optuna.Study, space: Space) -> None:
    """Enqueues the points that have no trial, or only failed ones."""
    trials = [trial for trial in study.get_trials() if trial.state is not TrialState.FAIL]
    points = [trial.params or trial.system_attrs.get("fixed_params") for trial in trials]
    choices = {name: distribution.choices for name, distribution in space.items()}  # pyright: ignore[reportAttributeAccessIssue]  # of a grid
    for values in product(*choices.values()):
        point = dict(zip(space, values, strict=True))
        if point not in points:
            study.enqueue_trial(point)

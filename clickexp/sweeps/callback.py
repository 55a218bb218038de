"""What Hydra tells of a run or sweep: the folder is taken when it starts, results are collected when it ends."""

import contextlib
import errno
import itertools
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from clickexp.errors import ConfigError, UserError
from clickexp.experiment.overrides import canonical
from clickexp.runs.store import CONFIG, is_whole, records, remove_parts
from clickexp.utils.files import LOCK, locked

REPEAT = "repeat-"
OF_HYDRA = (".hydra", "multirun.yaml", "main.log", LOCK)
"""What is in a folder before its run or sweep starts; what was logged by then was on the terminal, too."""
RUN_DIR = "hydra.run.dir"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Errors of file systems that have no locks."""

Claim = tuple[Path, TextIO, Sequence[Path]]
"""A folder, its lock until this process ends, and the folders that did not exist before, the innermost first."""


class Refused(BaseException):
    """What must not start, by its cause; Hydra only warns of an Exception in a callback, and goes on."""


class SweepCallback(Callback):
    """Gives each run a folder that no other run has, and each sweep job folders in a folder that no other sweep has.

    made: the folders that did not exist before, the innermost first.

    A run whose folder is not named on the command line gets a new one: FOLDER-2 and so on where another was first.
    In a named folder an interrupted run goes on; one that runs, or has a result whose model can be read, is not
    disturbed.

    The folder of a sweep that still runs is left to it for FOLDER-2 and so on. In a folder that an earlier
    sweep has left, jobs go to repeat-2, repeat-3, ..., so that no result is overwritten; only a search goes on
    with the numbers of its earlier trials.
    """

    lock: TextIO | None = None
    config: DictConfig | None = None
    made: Sequence[Path] = ()

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        with current(config):
            wanted = Path(config.hydra.run.dir)
        named = any(
            override.lstrip("+").startswith(f"{RUN_DIR}=") for override in config.hydra.overrides.hydra
        )
        with _refusing(RUN_DIR, wanted):
            claim = _named if named else _new
            folder, SweepCallback.lock, SweepCallback.made = claim(wanted)
        with read_write(config.hydra):
            config.hydra.run.dir = str(folder)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        wanted = Path(config.hydra.sweep.dir)
        with _refusing("hydra.sweep.dir", wanted):
            folder, SweepCallback.lock, SweepCallback.made = _claimed(wanted)
        subdir = OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"]
        earlier = records(folder)
        for job, _ in earlier:
            remove_parts(job)
        if earlier and config.get("search") is None:
            number = 2
            while (folder / f"{REPEAT}{number}").exists():
                number += 1
            subdir = f"{REPEAT}{number}/{subdir}"
            SweepCallback.made = [folder / f"{REPEAT}{number}"]
            SweepCallback.made[0].mkdir()
        with read_write(config), open_dict(config):
            config.hydra.sweep.dir, config.hydra.sweep.subdir = str(folder), subdir
            # jobs are composed anew, from the overrides
            places = dict(dir=str(folder), subdir=subdir)
            config.hydra.overrides.hydra += [f"hydra.sweep.{k}={_quoted(v)}" for k, v in places.items()]
        SweepCallback.config = config
        _name_roles(config)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Writes and prints the results of the sweep that runs inside, if one does, however it ends.

    What is refused before it starts leaves no folder behind.
    """
    try:
        yield
    finally:
        config = SweepCallback.config
        if config is not None:
            from clickexp.sweeps.table import collect

            collect(Path(config.hydra.sweep.dir), jobs_folder(config.hydra), config.optimized_metric)
        with contextlib.suppress(OSError):  # there is something in it, or never was a folder
            _remove_unused(SweepCallback.made)
        if SweepCallback.lock is not None:  # last: who has it next finds the folder as it stays
            SweepCallback.lock.close()
        SweepCallback.lock = SweepCallback.config = None
        SweepCallback.made = ()


def jobs_folder(hydra: HydraConf) -> Path:
    """The folder below which the sweep has its jobs, and only its own."""
    first = str(OmegaConf.to_container(hydra.sweep, resolve=False)["subdir"]).split("/")[0]
    folder = Path(hydra.sweep.dir)
    return folder / first if first.startswith(REPEAT) else folder


@contextlib.contextmanager
def current(config: DictConfig) -> Iterator[None]:
    """Lets ${hydra:...} mean that of the job."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def in_sweep(hydra: HydraConf) -> bool:
    return hydra.mode is RunMode.MULTIRUN


def _name_roles(config: DictConfig) -> None:
    """Lets the preset of a sweep choose towers as the command line does: attraction: deep,linear."""
    given = config.hydra.sweeper.get("params") or {}
    with contextlib.suppress(HydraException, ConfigError), read_write(config):  # the sweeper reads them next
        words = canonical([f"{key}={value}" for key, value in given.items()])
        config.hydra.sweeper.params = dict(word.split("=", 1) for word in words)


def _quoted(text: str) -> str:
    """As Hydra's grammar takes any text."""
    return "'" + text.replace("'", "\\'") + "'"


def _missing(folder: Path) -> list[Path]:
    """Those of the folder and its parents that do not exist, the innermost first."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


def _remove_unused(made: Sequence[Path]) -> None:
    """Removes the folders, the innermost first, unless there is more in it than Hydra's own. OSError if there is."""
    if made and {file.name for file in made[0].iterdir()} <= {*OF_HYDRA}:
        shutil.rmtree(made[0] / OF_HYDRA[0], ignore_errors=True)
        for name in OF_HYDRA[1:]:
            (made[0] / name).unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()


def _claimed(wanted: Path) -> Claim:
    """The folder of a sweep, or the next that no other process has locked."""
    for folder in _numbered(wanted):
        made = _missing(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (lock := _lock(folder)) is not None:
            return folder, lock, made


def _new(wanted: Path) -> Claim:
    """A new folder for a run, or the next that does not exist."""
    for folder in _numbered(wanted):
        made = _missing(folder)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder, _lock(folder), made


def _named(folder: Path) -> Claim:
    """A folder for a run that may have been interrupted there. ConfigError where one still runs, or has finished."""
    made = _missing(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (lock := _lock(folder)) is None:
        raise ConfigError(
            f"{RUN_DIR}={folder}: another run is writing there. Wait for it or choose another folder."
        )
    if is_whole(folder, _saved_model(folder)):
        lock.close()
        raise ConfigError(f"{RUN_DIR}={folder}: a finished run is there. Delete it or choose another folder.")
    remove_parts(folder)
    return folder, lock, made


def _saved_model(folder: Path) -> bool:
    """Whether the run that was there was to save its model."""
    try:
        return bool(OmegaConf.load(folder / CONFIG).get("save_model"))
    except Exception:  # there is no configuration, or none that can be read
        return False


def _numbered(wanted: Path) -> Iterator[Path]:
    """FOLDER, FOLDER-2, FOLDER-3, ..."""
    yield wanted
    for number in itertools.count(2):
        yield wanted.with_name(f"{wanted.name}-{number}")


def _lock(folder: Path) -> TextIO | None:
    """The lock of a folder until this process ends; None if another has it. Without locks, nobody is kept out."""
    try:
        return locked(folder / LOCK)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return (folder / LOCK).open("a")


def is_abandoned(folder: Path, own: Path | None = None) -> bool:
    """Whether no process has locked the folder or one that it is in, but for `own`, which the caller's sweep has."""
    folder, own = folder.resolve(), own and own.resolve()
    for place in (folder, *folder.parents):
        if place != own and (place / LOCK).exists():
            try:
                lock = locked(place / LOCK)
            except OSError:
                return False
            if lock is None:
                return False
            lock.close()
    return True


@contextlib.contextmanager
def _refusing(key: str, folder: Path) -> Iterator[None]:
    """Ends the command, through Hydra, where the folder cannot be had."""
    try:
        yield
    except UserError as error:
        raise Refused from error
    except OSError as error:
        reason = f"{key}={folder}: it cannot be written ({error.strerror}). Choose another folder."
        raise Refused from ConfigError(reason)

"""What Hydra tells of a run or sweep: the folder is taken when it starts, results are collected when it ends."""

import contextlib
import fcntl
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

from clickexp.errors import ConfigError
from clickexp.overrides import canonical
from clickexp.sweeps.resume import records

LOCK = ".lock"
REPEAT = "repeat-"
OF_HYDRA = (".hydra", "multirun.yaml", "main.log", LOCK)
"""What is in a folder before its run or sweep starts; what was logged by then was on the terminal, too."""


class SweepCallback(Callback):
    """Gives each sweep job folders of its own, in a sweep folder that no other sweep is writing to.

    made: the folders that did not exist before, the innermost first.

    The folder of a sweep that still runs is left to it for FOLDER-2 and so on. In a folder that an earlier
    sweep has left, jobs go to repeat-2, repeat-3, ..., so that no result is overwritten; only a search goes on
    with the numbers of its earlier trials.
    """

    lock: TextIO | None = None
    config: DictConfig | None = None
    made: Sequence[Path] = ()

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        with current(config):
            SweepCallback.made = _missing(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        folder, SweepCallback.lock, SweepCallback.made = _claimed(Path(config.hydra.sweep.dir))
        subdir = OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"]
        if records(folder) and config.get("search") is None:
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
            SweepCallback.lock.close()
        with contextlib.suppress(OSError):  # there is something in it, or never was a folder
            _remove_unused(SweepCallback.made)
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


def _claimed(wanted: Path) -> tuple[Path, TextIO, list[Path]]:
    """The folder, or the next that no other process has locked, its lock until this process ends, and what was made."""
    folder, number = wanted, 1
    while True:
        made = _missing(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, lock, made
        except BlockingIOError:
            lock.close()
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")

"""What Hydra tells of a sweep: the folder is taken when it starts, and its results are collected when it ends."""

import contextlib
import fcntl
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from hydra.conf import HydraConf
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from clickexp.sweeps.resume import records

LOCK = ".lock"
REPEAT = "repeat-"


class SweepCallback(Callback):
    """Gives each sweep job folders of its own, in a sweep folder that no other sweep is writing to.

    The folder of a sweep that still runs is left to it for FOLDER-2 and so on. In a folder that an earlier
    sweep has left, jobs go to repeat-2, repeat-3, ..., so that no result is overwritten; only a search goes on
    with the numbers of its earlier trials.
    """

    lock: TextIO | None = None
    config: DictConfig | None = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        folder, SweepCallback.lock = _claimed(Path(config.hydra.sweep.dir))
        subdir = OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"]
        if records(folder) and config.get("search") is None:
            number = 2
            while (folder / f"{REPEAT}{number}").exists():
                number += 1
            subdir = f"{REPEAT}{number}/{subdir}"
            (folder / f"{REPEAT}{number}").mkdir()
        with read_write(config), open_dict(config):
            config.hydra.sweep.dir, config.hydra.sweep.subdir = str(folder), subdir
            # jobs are composed anew, from the overrides
            places = dict(dir=str(folder), subdir=subdir)
            config.hydra.overrides.hydra += [f"hydra.sweep.{k}={_quoted(v)}" for k, v in places.items()]
        SweepCallback.config = config
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Writes and prints the results of the sweep that runs inside, if one does, however it ends."""
    try:
        yield
    finally:
        config = SweepCallback.config
        if config is not None:
            from clickexp.sweeps.table import collect

            collect(Path(config.hydra.sweep.dir), jobs_folder(config.hydra), config.optimized_metric)
            SweepCallback.lock.close()
            SweepCallback.lock = SweepCallback.config = None


def jobs_folder(hydra: HydraConf) -> Path:
    """The folder below which the sweep has its jobs, and only its own."""
    first = str(OmegaConf.to_container(hydra.sweep, resolve=False)["subdir"]).split("/")[0]
    folder = Path(hydra.sweep.dir)
    return folder / first if first.startswith(REPEAT) else folder


def in_sweep(hydra: HydraConf) -> bool:
    return hydra.mode is RunMode.MULTIRUN


def _quoted(text: str) -> str:
    """As Hydra's grammar takes any text."""
    return "'" + text.replace("'", "\\'") + "'"


def _claimed(wanted: Path) -> tuple[Path, TextIO]:
    """The folder, or the next one that no other process has locked, and its lock, which ends with the process."""
    folder, number = wanted, 1
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, lock
        except BlockingIOError:
            lock.close()
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")

"""Hydra's callback: a run or sweep claims its folder when it starts, and results are collected when it ends."""

import contextlib
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from clickexp.errors import ConfigError, UserError
from clickexp.experiment.values import compose_values, current, without_hydra
from clickexp.runs.claims import RUN_DIR, Claim, claim_named, claim_new, claim_sweep
from clickexp.runs.run import Run
from clickexp.runs.store import KEPT, REPEAT, Record, records

_SWEEP_DIR = "hydra.sweep.dir"


class RefusedError(BaseException):
    """A run or sweep that must not start, by its cause.

    It is no Exception, because Hydra only warns of an Exception in a callback, and continues.
    """


class SweepCallback(Callback):
    """Claims folders, so that no run or sweep writes where another does.

    A run whose folder is not named on the command line gets a new one: FOLDER-2 and so on where another was first.
    In a named folder an interrupted run continues; one that is active, or finished with a readable model, is not
    disturbed.

    A sweep leaves a folder in which another one is active to it, and takes FOLDER-2 and so on. In the folder of an
    earlier sweep, jobs go to repeat-2, repeat-3, ..., so that no result is overwritten; only a search continues with
    the numbers of its earlier trials.
    """

    claim: Claim | None = None
    config: DictConfig | None = None
    earlier: list[tuple[Path, Record]] | None = None

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Claims the folder of a run; see Hydra's Callback."""
        with current(config), _refusing(config, RUN_DIR):
            wanted, words = Path(config.hydra.run.dir), config.hydra.overrides.hydra
            named = any(override.lstrip("+").startswith(f"{RUN_DIR}=") for override in words)
            claim = claim_named(wanted, lambda: _resolved(config)) if named else claim_new(wanted)
        SweepCallback.claim = claim
        with read_write(config.hydra):
            config.hydra.run.dir = str(claim.folder)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Claims the folder of a sweep, and folders of its jobs in it; see Hydra's Callback."""
        with _refusing(config, _SWEEP_DIR):
            claim = claim_sweep(Path(config.hydra.sweep.dir))
        subdir = _subdir(config.hydra)
        earlier = records(claim.folder)
        if earlier and config.get("search") is None:
            number = 2
            while (repeat := claim.folder / f"{REPEAT}{number}").exists():
                number += 1
            repeat.mkdir()
            subdir, claim = f"{repeat.name}/{subdir}", claim._replace(made=[repeat])
        SweepCallback.claim = claim
        with read_write(config), open_dict(config):
            config.hydra.sweep.dir, config.hydra.sweep.subdir = str(claim.folder), subdir
            # each job is composed again, from the overrides
            for key, place in (("dir", str(claim.folder)), ("subdir", subdir)):
                quoted = QuotedString(place, Quote.single).with_quotes()
                config.hydra.overrides.hydra.append(f"hydra.sweep.{key}={quoted}")
        SweepCallback.config, SweepCallback.earlier = config, earlier
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Writes and prints the results of the sweep that runs inside, if one does, however it ends.

    What is refused before it starts leaves no folder behind, nor does a repetition without a new result. Of a search
    that is refused, the results of before are not printed.
    """
    refused = ended = False
    try:
        yield
        ended = True
    except UserError:
        config = SweepCallback.config
        refused = config is not None and records(jobs_folder(config.hydra)) == SweepCallback.earlier
        raise
    finally:
        config, claim = SweepCallback.config, SweepCallback.claim
        if config is not None and not refused:
            _collect(config, ended)
        if claim is not None:
            claim.release()
        SweepCallback.claim = SweepCallback.config = SweepCallback.earlier = None


def _collect(config: DictConfig, ended: bool) -> None:
    """Writes and prints the results of a sweep, and reports the best of those that are new once it has `ended`."""
    from clickexp.sweeps.table import collect

    jobs, folder = jobs_folder(config.hydra), Path(config.hydra.sweep.dir)
    best = collect(folder, jobs, config.optimized_metric)
    if {record.status for _, record in records(jobs)} == {KEPT}:
        if jobs.name.startswith(REPEAT):
            shutil.rmtree(jobs, ignore_errors=True)
    elif best is not None and ended:
        _report_best(config, folder, best)


def _report_best(config: DictConfig, folder: Path, best: Run) -> None:
    """Reports the best run of a sweep to the loggers of its jobs."""
    from clickexp.experiment.instantiate import instantiate
    from clickexp.loggers import FanOut, RunInfo

    with current(config), contextlib.suppress(UserError, OmegaConfBaseException):
        nodes = OmegaConf.to_container(config.logger or OmegaConf.create(), resolve=True)
        name, group = folder.name, config.group or folder.name
        info = RunInfo(folder, {"group": group}, f"best of {name}", config.project, group, "best")
        FanOut(instantiate(nodes, "logger").values()).best_run(info, best)


def jobs_folder(hydra: HydraConf) -> Path:
    """Returns the folder below which a sweep has its jobs, and only its own."""
    first = _subdir(hydra).split("/")[0]
    folder = Path(hydra.sweep.dir)
    return folder / first if first.startswith(REPEAT) else folder


def in_sweep(hydra: HydraConf) -> bool:
    """Returns whether a run is a job of a sweep."""
    return hydra.mode is RunMode.MULTIRUN


def all_overrides(hydra: HydraConf) -> list[str]:
    """Returns the overrides of a run, those of Hydra's own keys included."""
    return [*hydra.overrides.hydra, *hydra.overrides.task]


def composed_config(cfg: DictConfig, hydra: HydraConf) -> dict[str, Any]:
    """Returns the configuration of a run as plain values, with the components of a mixture."""
    return compose_values(cfg, all_overrides(hydra)).values


def _subdir(hydra: HydraConf) -> str:
    """Returns the folder of a job below that of its sweep, as a pattern."""
    return str(OmegaConf.to_container(hydra.sweep, resolve=False)["subdir"])  # pyright: ignore[reportCallIssue, reportArgumentType, reportOptionalSubscript]  # a mapping


def _resolved(config: DictConfig) -> dict[str, Any] | None:
    """Returns the configuration as plain values; None where a value is missing, which ends the run later."""
    try:
        return composed_config(without_hydra(config), config.hydra)
    except OmegaConfBaseException:
        return None


@contextlib.contextmanager
def _refusing(config: DictConfig, key: str) -> Iterator[None]:
    """Ends the command, through Hydra, where a folder is not given, or cannot be had."""
    try:
        for name in ("cache_dir", "sweeps_dir", key):
            if not str(OmegaConf.select(config, name, default="-")).strip():
                raise ConfigError(f"{name}= is empty: give a folder, or leave it out")
        yield
    except UserError as error:
        raise RefusedError from error
    except OSError as error:
        folder = OmegaConf.select(config, key)
        reason = f"{key}={folder}: it cannot be written ({error.strerror}). Choose another folder."
        raise RefusedError from ConfigError(reason)

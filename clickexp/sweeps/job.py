"""One run as a job: a job of a sweep is skipped where its result exists, and recorded however it ends."""

import contextlib
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.conf import HydraConf
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from clickexp.errors import ConfigError, UserError, with_class
from clickexp.experiment.overrides import check_launcher
from clickexp.runs.claims import is_abandoned
from clickexp.runs.hashing import config_hash
from clickexp.runs.objective import objective
from clickexp.runs.run import Run
from clickexp.runs.sources import changed, sources
from clickexp.runs.store import (
    CHECKPOINT,
    DASHBOARD,
    KEPT,
    REPORT,
    RESULT,
    Record,
    finished,
    is_whole,
    unfinished,
)
from clickexp.sweeps.callback import all_overrides, composed_config, current, in_sweep, jobs_folder
from clickexp.sweeps.view import print_plain
from clickexp.utils.exits import importing
from clickexp.utils.paths import display_path

_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: "
"""Start of JAX's errors where a device, or this machine, has too little memory."""

_UNFINISHED = ("running", "interrupted")
"""States of a job that was ended."""


def run_job(cfg: DictConfig, hydra: HydraConf) -> float:
    """Runs the experiment, or finds its earlier result in a sweep.

    Args:
        cfg: The configuration without Hydra's own.
        hydra: Hydra's own.

    Returns:
        The value of optimized_metric.
    """
    if in_sweep(hydra):
        return _run_in_sweep(cfg, hydra)
    check_launcher(hydra.overrides.task)
    folder = Path(hydra.runtime.output_dir)
    try:
        return _run_experiment(cfg, hydra)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"interrupted; {_way_on(folder, hydra)}") from stop


def _way_on(folder: Path, hydra: HydraConf) -> str:
    """Returns what an interrupted run has left in its folder, and the command that goes on from there."""
    from clickexp.experiment.differences import finishing_command

    if (folder / RESULT).exists():
        command = shlex.join(["clickexp-compare", display_path(folder), "--figures"])
        return f"its result is there, and no {REPORT}; this shows the result: {command}"
    command = finishing_command(folder, list(hydra.overrides.task))
    if (folder / CHECKPOINT).exists():
        return f"this continues from its checkpoint: {command}"
    return f"it has no checkpoint yet, and this starts it again: {command}"


def compose_job(
    context: HydraContext, config: DictConfig, number: int, overrides: Sequence[str]
) -> DictConfig:
    """Composes the configuration of a job of a sweep, with its number and folder."""
    composed = context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    with current(composed):
        folder = Path(composed.hydra.sweep.dir, composed.hydra.sweep.subdir)
    with flag_override(composed.hydra, "readonly", False), open_dict(composed.hydra.runtime):
        composed.hydra.runtime.output_dir = str(folder.absolute())
    return composed


def new_record(cfg: DictConfig, hydra: HydraConf) -> Record:
    """Returns the record of a job that is about to run."""
    config, folder = composed_config(cfg, hydra), str(hydra.runtime.output_dir)
    number, overrides = int(hydra.job.num), list(hydra.overrides.task)
    return Record(
        number, overrides, config_hash(config), "running", folder, sources=sources(config)
    )


def searched(cfg: DictConfig, hydra: HydraConf) -> tuple[Path, ...]:
    """Returns where a result of the same configuration counts: any sweep, or, with resume=false, this one."""
    return (Path(cfg.sweeps_dir), Path(hydra.sweep.dir)) if cfg.resume else (jobs_folder(hydra),)


def reason_to_rerun(record: Record, earlier: Path, cfg: DictConfig) -> str | None:
    """Returns a line about a job whose earlier result cannot be reused; None where it can."""
    job, place = f"job {record.number}", display_path(earlier)
    if not is_whole(earlier, cfg.save_model):
        return f"{job}: the model in {place} is damaged or missing; it is run again"
    try:
        result = Run.read(earlier)
        objective(result, cfg.optimized_metric)
    except ConfigError:
        return f"{job}: the result in {place} has no {cfg.optimized_metric}; it is run again"
    except UserError as error:
        return f"{job}: {place}: {error}; it is run again"
    if result.origin is None:
        return f"{job}: the result in {place} does not say what data it is of; it is run again"
    if keys := changed(result.origin.sources, record.sources):
        named = ", ".join(f"{key}={OmegaConf.select(cfg, key)}" for key in keys)
        return f"{job}: {named} has changed since the result in {place}; it is run again"
    return None


def complete(run: Run, sweep: Path, report: bool) -> str | None:
    """Writes what a job lacks that was ended between its result and its report.

    Args:
        run: The job; one on which another process works is left alone.
        sweep: The folder of the sweep that takes its result.
        report: It is to have a report.

    Returns:
        A line about the report, where it was missing.
    """
    if not is_abandoned(run.folder, sweep):
        return None
    record = Record.read(run.folder)
    if record is not None and record.status in _UNFINISHED:
        record.status = "finished"
        with contextlib.suppress(OSError):  # the sweep may be someone else's
            record.write(run.folder)
    if not report or (run.folder / REPORT).exists():
        return None
    from clickexp.experiment.report import report_later  # here, since few need it

    return report_later(run)


def _run_in_sweep(cfg: DictConfig, hydra: HydraConf) -> float:
    if cfg.continue_from is not None:
        raise ConfigError(
            "continue_from is for a single run; a sweep that is repeated continues its jobs itself"
        )
    folder, record, places = (
        Path(hydra.runtime.output_dir),
        new_record(cfg, hydra),
        searched(cfg, hydra),
    )
    earlier = finished(*places).get(record.config_hash)
    again = earlier and reason_to_rerun(record, earlier, cfg)
    # its own sweep runs no other job of this configuration now
    sweep = Path(hydra.sweep.dir)
    if earlier is not None and not again:
        run = Run.read(earlier)
        if line := complete(run, sweep, cfg.report):
            print_plain(line)
        record.status, record.result = KEPT, str(earlier)
        record.write(folder)
        return objective(run, cfg.optimized_metric)
    if again:
        print_plain(again)
    left = [job for job in unfinished(record.config_hash, *places) if is_abandoned(job, sweep)]
    with _recorded(record, folder):
        _take_checkpoint(left, folder)
        return _run_experiment(cfg, hydra)


def _take_checkpoint(left: Sequence[Path], folder: Path) -> None:
    """Moves the checkpoint of the first interrupted job that has one, with the name of its run on a dashboard."""
    for job in left:
        with contextlib.suppress(FileNotFoundError):  # none was written, or another job was faster
            shutil.move(job / CHECKPOINT, folder / CHECKPOINT)
            if (job / DASHBOARD).is_file():
                shutil.move(job / DASHBOARD, folder / DASHBOARD)
            return


@contextlib.contextmanager
def _recorded(record: Record, folder: Path) -> Iterator[None]:
    """Writes the record at the start and at the end, whatever the end."""
    record.write(folder)
    start = time.monotonic()
    try:
        yield
        record.status = "finished"
    except Exception as error:
        record.status, record.error = "failed", with_class(error).rstrip(".")
        raise
    except BaseException:
        record.status = "finished" if (folder / RESULT).exists() else "interrupted"
        raise
    finally:
        record.seconds = time.monotonic() - start
        with contextlib.suppress(OSError):  # the disk may be what failed
            record.write(folder)


def _run_experiment(cfg: DictConfig, hydra: HydraConf) -> float:
    with importing():
        from clickexp.experiment.run import run_experiment

    sweep = Path(hydra.sweep.dir) if in_sweep(hydra) else None
    try:
        result = run_experiment(cfg, Path(hydra.runtime.output_dir), sweep, all_overrides(hydra))
    except RuntimeError as error:
        if str(error).startswith(_OUT_OF_MEMORY):
            raise MemoryError(
                " ".join(str(error).removeprefix(_OUT_OF_MEMORY).split()).rstrip(".")
            ) from error
        raise
    return objective(result, cfg.optimized_metric)

"""One run as a job: that of a sweep is skipped where its result exists, and recorded however it ends."""

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from clickexp.errors import ConfigError
from clickexp.experiment.mixtures import with_components
from clickexp.experiment.overrides import check_launcher
from clickexp.runs.objective import objective
from clickexp.runs.store import (
    CHECKPOINT,
    RESULT,
    Record,
    config_hash,
    finished,
    is_whole,
    read_json,
    remove_parts,
    unfinished,
)
from clickexp.sweeps.callback import in_sweep, is_abandoned, jobs_folder
from clickexp.utils.files import whole
from clickexp.utils.limits import check_address_space
from clickexp.utils.paths import shown

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: "
"""Start of JAX's errors where a device, or this machine, has too little memory."""


def run_job(cfg: DictConfig, hydra: HydraConf) -> float:
    """Runs the experiment, or finds what it came to before, and returns the value of optimized_metric."""
    folder = Path(hydra.runtime.output_dir)
    if not in_sweep(hydra):
        check_launcher(hydra.overrides.task)
        with _interrupted_in(folder), _checkpoint_of(cfg, hydra):
            return _run(cfg, hydra)
    if cfg.continue_from is not None:
        raise ConfigError(
            "continue_from is for a single run; a sweep that is repeated continues its jobs itself"
        )
    record = new_record(cfg, hydra)
    earlier = finished(*searched(cfg, hydra)).get(record.config_hash)
    if earlier is not None and is_whole(earlier, cfg.save_model):
        keep(record, folder, earlier)
        return objective(read_json(earlier / RESULT), cfg.optimized_metric)
    # its own sweep runs no other job of this configuration now
    places, own = searched(cfg, hydra), Path(hydra.sweep.dir)
    left = [each for each in unfinished(record.config_hash, *places) if is_abandoned(each, own)]
    for each in left:
        remove_parts(each)
    with _recorded(record, folder):
        for each in left:
            with contextlib.suppress(FileNotFoundError):  # none was written, or another job was faster
                shutil.move(each / CHECKPOINT, folder / CHECKPOINT)
                break
        return _run(cfg, hydra)


def new_record(cfg: DictConfig, hydra: HydraConf) -> Record:
    """The record of a job that is about to run."""
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    digest = config_hash(with_components(config, all_overrides(hydra)))
    return Record(
        number=int(hydra.job.num),
        overrides=list(hydra.overrides.task),
        config_hash=digest,
        status="running",
        result=str(hydra.runtime.output_dir),
    )


def all_overrides(hydra: HydraConf) -> list[str]:
    return [*hydra.overrides.hydra, *hydra.overrides.task]


def searched(cfg: DictConfig, hydra: HydraConf) -> tuple[Path, ...]:
    """Where a result of the same configuration counts: in any sweep, or, with resume=false, in this one."""
    return (Path(cfg.sweeps_dir), Path(hydra.sweep.dir)) if cfg.resume else (jobs_folder(hydra),)


def keep(record: Record, folder: Path, earlier: Path) -> None:
    """Records that a job's result is in the folder of an earlier one."""
    record.status, record.result = "kept", str(earlier)
    record.write(folder)


@contextlib.contextmanager
def _recorded(record: Record, folder: Path) -> Iterator[None]:
    """Writes the record at the start and at the end, whatever the end."""
    record.write(folder)
    start = time.monotonic()
    try:
        yield
        record.status = "finished"
    except Exception as error:
        record.status, record.error = (
            "failed",
            f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}",
        )
        raise
    except BaseException:
        record.status = "interrupted"
        raise
    finally:
        record.seconds = time.monotonic() - start
        with contextlib.suppress(OSError):  # the disk may be what failed
            record.write(folder)


@contextlib.contextmanager
def _interrupted_in(folder: Path) -> Iterator[None]:
    """Tells of an interruption, and how to go on from there."""
    try:
        yield
    except KeyboardInterrupt:
        hint = (
            f"; continue_from={shown(folder)} goes on from its checkpoint"
            if (folder / CHECKPOINT).exists()
            else ""
        )
        print(f"clickexp: interrupted{hint}", file=sys.stderr)
        raise


@contextlib.contextmanager
def _checkpoint_of(cfg: DictConfig, hydra: HydraConf) -> Iterator[None]:
    """Copies the checkpoint of an earlier run, which stays whatever becomes of this one."""
    earlier, folder = cfg.continue_from, Path(hydra.runtime.output_dir)
    if earlier is None or Path(str(earlier)).resolve() == folder.resolve():
        yield
        return
    _copy_checkpoint(Path(str(earlier)), folder, cfg, hydra)
    try:
        yield
    except ConfigError:  # it is refused: nothing of it is left here
        (folder / CHECKPOINT).unlink(missing_ok=True)
        raise


def _copy_checkpoint(earlier: Path, folder: Path, cfg: DictConfig, hydra: HydraConf) -> None:
    if is_abandoned(earlier):
        remove_parts(earlier)
    try:
        (earlier / CHECKPOINT).open("rb").close()
        _check_settings(earlier, cfg, hydra)  # before gigabytes are copied
        with whole(folder / CHECKPOINT) as part:
            shutil.copyfile(earlier / CHECKPOINT, part)
    except OSError as error:
        hint = "it is there only after the first trainer.checkpoint_minutes and until the run has finished"
        raise ConfigError(
            f"continue_from={earlier}: {CHECKPOINT} cannot be read ({error.strerror}); {hint}"
        ) from error


def _check_settings(earlier: Path, cfg: DictConfig, hydra: HydraConf) -> None:
    """ConfigError where the checkpoint is of other settings."""
    check_address_space()
    from clickexp.experiment.run import check_continues

    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    check_continues(str(earlier), earlier / CHECKPOINT, with_components(config, all_overrides(hydra)))


def _run(cfg: DictConfig, hydra: HydraConf) -> float:
    check_address_space()
    from clickexp.experiment.run import run_experiment

    sweep = Path(hydra.sweep.dir).name if in_sweep(hydra) else None
    try:
        result = run_experiment(cfg, Path(hydra.runtime.output_dir), sweep, all_overrides(hydra))
    except RuntimeError as error:
        if str(error).startswith(OUT_OF_MEMORY):
            raise MemoryError(" ".join(str(error).removeprefix(OUT_OF_MEMORY).split()).rstrip(".")) from error
        raise
    return objective(result, cfg.optimized_metric)

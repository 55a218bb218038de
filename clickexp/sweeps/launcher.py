"""Hydra's jobs in a pool: each composed here, and run in a fresh process on the next free device."""

import contextlib
import copy
import dataclasses
import importlib
import inspect
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, configure_log, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from clickexp.errors import ConfigError, UserError, install
from clickexp.runs.objective import objective
from clickexp.runs.store import DONE, PRUNED, RESULT, Record, finished, is_whole, read_json
from clickexp.sweeps.backends.pool import LOG, Job, Pool
from clickexp.sweeps.backends.remote import RemoteJob, RemotePool
from clickexp.sweeps.callback import current
from clickexp.sweeps.job import all_overrides, new_record, searched
from clickexp.sweeps.view import View
from clickexp.utils.paths import shown
from clickexp.utils.signatures import located

SECONDS_BETWEEN_FRAMES = 0.5
EXTRAS = {"submitit": "slurm", "ray": "ray"}
Numbered = tuple[int, JobReturn]


class JobError(UserError):
    """A job of a sweep that failed."""


def launch(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
) -> list[JobReturn]:
    """Runs all jobs; one that fails does not stop the others."""
    check_data(context, config, job_overrides)
    check_jobs(context, config, job_overrides)
    waiting, returns = deque(enumerate(job_overrides, first)), {}
    with Queue(context, task, config, len(waiting)) as queue:
        while len(returns) < len(job_overrides):
            while waiting and queue.free:
                queue.start(*waiting.popleft())
            returns.update(queue.wait())
    return [returns[number] for number in sorted(returns)]


def check_data(context: HydraContext, config: DictConfig, job_overrides: Sequence[Sequence[str]]) -> None:
    """ConfigError where no job of the sweep has a result, or data on this machine, if it is there that they run."""
    if _runs_elsewhere(config):
        return
    for number, overrides in enumerate(job_overrides):
        composed = _composed(context, config, number, overrides)
        if OmegaConf.is_missing(composed.dataset, "path"):
            continue
        with current(composed):
            path = composed.dataset.get("path")
            if path is None or Path(str(path)).expanduser().exists():
                return
            earlier = finished(*searched(composed, HydraConfig.get()))
            folder = earlier.get(_planned(composed).record.config_hash)
            if folder is not None and is_whole(folder, composed.save_model):
                return
    raise ConfigError(f"{composed.dataset.path}: no such file or folder. Check the path.")


def check_jobs(context: HydraContext, config: DictConfig, job_overrides: Sequence[Sequence[str]]) -> None:
    """ConfigError for what is known to be wrong with jobs before one starts.

    Jobs are composed until each override that any has was in one, not in all their combinations.
    """
    from clickexp.experiment.run import plan

    seen: set[str] = set()
    for number, overrides in enumerate(job_overrides):
        if not seen.issuperset(overrides):
            seen.update(overrides)
            composed = _composed(context, config, number, overrides)
            with current(composed):
                plan(_without_hydra(composed), all_overrides(HydraConfig.get()))


@dataclasses.dataclass
class _Planned:
    """A job of the sweep, what is recorded of it, and what Hydra wants to hear of it."""

    number: int
    folder: Path
    record: Record
    returns: JobReturn


class Queue:
    """Jobs of a sweep on the free devices, for a launcher or an asynchronous sweeper.

    hydra.launcher of the configuration tells the devices. `start` takes a job while `free` is above 0; `wait`
    tells which have ended. A job whose result exists is not run, and jobs of one configuration run once.
    A context manager: leaving it stops what still runs.
    """

    def __init__(
        self, context: HydraContext, task: TaskFunction, config: DictConfig, total: int | None = None
    ):
        setup_globals()
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        self.context, self.task, self.config = context, task, config
        self.pool = new_pool(config)
        names = [*dict.fromkeys(slot.name for slot in self.pool.free)]
        common = list(config.hydra.overrides.task)
        self.view = View(config.progress, config.optimized_metric, names, total, common)
        self.results: dict[str, Path] = {}
        self.twins: dict[str, list[_Planned]] = {}
        self.ended: list[Numbered] = []

    def __enter__(self) -> "Queue":
        self.view.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.pool.stop()
        finally:
            self.view.stop()

    @property
    def free(self) -> int:
        """Devices without a job."""
        return len(self.pool.free)

    @property
    def running(self) -> dict[int, Path]:
        """Numbers and folders of the jobs that run."""
        return {job.key.number: job.folder for job in self.pool.running}

    def start(self, number: int, overrides: Sequence[str]) -> None:
        """Starts the job on a free device, of which there must be one, or finds its result."""
        composed = _composed(self.context, self.config, number, overrides)
        with current(composed):
            job = _planned(composed)
            digest = job.record.config_hash
            if digest not in self.results and digest not in self.twins:  # another sweep may have it by now
                self.results = finished(*searched(self.config, HydraConfig.get()))
            if digest in self.results and not is_whole(self.results[digest], composed.save_model):
                del self.results[digest]  # the job that runs in its place has another folder
            if digest in self.results:
                self._keep(job, self.results[digest])
            elif digest in self.twins:
                self.twins[digest].append(job)
            else:
                self._submit(job, composed)

    def wait(self, timeout: float | None = None) -> list[Numbered]:
        """Numbers and returns of jobs that have ended since.

        At least one, unless none runs or the time, in seconds, is up.
        """
        while not self.ended and self.pool.running:
            for job in self.pool.wait(SECONDS_BETWEEN_FRAMES if timeout is None else timeout):
                self._finish(job)
            self.view.update()
            if timeout is not None:
                break
        ended, self.ended = self.ended, []
        return ended

    def prune(self, number: int) -> None:
        """Stops a running job, whose status becomes pruned unless it has just finished."""
        for job in self.pool.stop([job for job in self.pool.running if job.key.number == number]):
            self._finish(job, pruned=True)

    def _submit(self, job: _Planned, composed: DictConfig) -> None:
        function = f"{self.task.__module__}:{self.task.__qualname__}"
        name = JobRuntime.instance().get("name")
        arguments = (GlobalHydra.instance().hydra, self.context, composed, function, name)
        try:
            started = self.pool.submit(job, job.folder, execute, arguments)
        except OSError as error:  # a full disk, say
            return self._fail(job, f"{type(error).__name__}: {error}")
        self.twins[job.record.config_hash] = []
        self.view.started(job.number, job.record.overrides, started.slot.name, job.folder)

    def _finish(self, ended: Job | RemoteJob, pruned: bool = False) -> None:
        """What came of a process: its own record, or how it ended if it could not write one."""
        job = ended.key
        job.record = Record.read(job.folder) or job.record
        job.record.device, job.record.seconds = ended.slot.name, ended.seconds
        result = read_json(Path(job.record.result) / RESULT)
        twins = self.twins.pop(job.record.config_hash)
        if result is not None and (job.record.status in DONE or ended.returncode == 0):
            if job.record.status not in DONE:
                job.record.status = "finished"
            self._succeed(job, result)
            for twin in twins:
                self._keep(twin, Path(job.record.result))
        else:
            for failed in (job, *twins):
                failed.record.status = PRUNED if pruned else failed.record.status
                self._fail(failed, job.record.error or ended.end, job.folder / LOG)

    def _keep(self, job: _Planned, earlier: Path) -> None:
        job.record.status, job.record.result = "kept", str(earlier)
        self._succeed(job, read_json(earlier / RESULT))

    def _succeed(self, job: _Planned, result: dict) -> None:
        try:
            job.returns.return_value = objective(result, self.config.optimized_metric)
        except UserError as error:
            return self._fail(job, str(error))
        job.returns.status = JobStatus.COMPLETED
        self._close(job)

    def _fail(self, job: _Planned, reason: str, log: Path | None = None) -> None:
        if job.record.status not in ("failed", "interrupted", PRUNED):
            job.record.status = "failed"
        job.record.error = None if job.record.status == PRUNED else reason
        see = f". Its log: {shown(log)}" if log else ""
        job.returns.return_value = JobError(f"job {job.number} failed: {reason}{see}")
        job.returns.status = JobStatus.FAILED
        self._close(job)

    def _close(self, job: _Planned) -> None:
        with contextlib.suppress(OSError):  # a full disk is no reason to stop the other jobs
            job.record.write(job.folder)
        self.view.ended(job.number, job.record, job.folder)
        self.ended.append((job.number, job.returns))


def new_pool(config: DictConfig) -> Pool | RemotePool:
    """The places for jobs: what hydra.launcher.pool names, called with its other keys and the folder of the sweep.

    Raises:
        UserError: What it needs is not installed.
    """
    options = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    options |= options.pop("options", {})
    del options["_target_"], options["pool"]
    return _pool_class(config)(options, Path(config.hydra.sweep.dir).absolute())


def _pool_class(config: DictConfig) -> Callable[[Mapping[str, Any], Path], Pool | RemotePool]:
    try:
        return located(config.hydra.launcher.pool)
    except ConfigError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing not in EXTRAS:
            raise
        extra = EXTRAS[missing]
        raise UserError(f"launcher={extra} needs {missing}: {install(extra)}") from error


def _runs_elsewhere(config: DictConfig) -> bool:
    """Whether jobs run on other machines, which may have data that this one lacks."""
    name = config.hydra.launcher.get("pool")
    return name is not None and issubclass(_pool_class(config), RemotePool)


def execute(hydra: object, context: HydraContext, config: DictConfig, function: str, task_name: str) -> None:
    """Runs a composed job in this process, as Hydra's own launcher would."""
    setup_globals()
    GlobalHydra.instance().initialize(hydra)
    JobRuntime.instance().set("name", task_name)
    module, _, name = function.partition(":")
    task = inspect.unwrap(getattr(importlib.import_module(module), name))
    returned = run_job(
        hydra_context=context,
        task_function=task,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    _ = returned.return_value  # raises what the job raised


def _composed(context: HydraContext, config: DictConfig, number: int, overrides: Sequence[str]) -> DictConfig:
    composed = context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    with current(composed):
        folder = Path(composed.hydra.sweep.dir, composed.hydra.sweep.subdir)
    with flag_override(composed.hydra, "readonly", False), open_dict(composed.hydra.runtime):
        composed.hydra.runtime.output_dir = str(folder.absolute())
    return composed


def _without_hydra(composed: DictConfig) -> DictConfig:
    cfg = copy.deepcopy(composed)
    with flag_override(cfg, ["struct", "readonly"], False):
        del cfg["hydra"]
    return cfg


def _planned(composed: DictConfig) -> _Planned:
    hydra = HydraConfig.get()
    cfg = _without_hydra(composed)
    record = new_record(cfg, hydra)
    returns = JobReturn(
        overrides=record.overrides,
        cfg=cfg,
        hydra_cfg=copy.deepcopy(HydraConfig.instance().cfg),
        working_dir=os.getcwd(),
        task_name=JobRuntime.instance().get("name"),
    )
    return _Planned(record.number, Path(hydra.runtime.output_dir), record, returns)

"""Hydra's jobs in a pool: each composed here, and run in a fresh process on the next free device."""

import contextlib
import dataclasses
import importlib
import inspect
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, configure_log, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override

from clickexp.errors import ConfigError, UserError, install, with_class
from clickexp.experiment.conf import CONF
from clickexp.experiment.hydra_errors import MENDABLE, format_hydra_error
from clickexp.experiment.values import current, plain, without_hydra
from clickexp.runs.objective import objective
from clickexp.runs.run import Run
from clickexp.runs.store import DONE, KEPT, PRUNED, Record, finished
from clickexp.sweeps.backends.base import LOG, BasePool, Job
from clickexp.sweeps.backends.remote import RemotePool
from clickexp.sweeps.callback import all_overrides
from clickexp.sweeps.job import complete, compose_job, new_record, reason_to_rerun, searched
from clickexp.sweeps.view import View, describe_end, see_log
from clickexp.utils import hosts
from clickexp.utils.signatures import accepted, check_arguments, located

LAUNCHER = "hydra_plugins.clickexp_launcher.launcher.QueueLauncher"
"""The class of all our launchers, which differ in their pools."""
_SECONDS_BETWEEN_FRAMES = 0.5
_EXTRAS = {"submitit": "slurm", "ray": "ray"}


class JobError(UserError):
    """A job of a sweep that failed."""


@dataclasses.dataclass
class _Planned:
    """A job of the sweep, its record, and what it returns to Hydra."""

    number: int
    folder: Path
    record: Record
    returns: JobReturn


def launch(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
) -> list[JobReturn]:
    """Runs all jobs; one that fails does not stop the others.

    Args:
        context: Hydra's.
        task: The function of a job.
        config: The configuration of the sweep.
        job_overrides: The overrides of each job.
        first: The number of the first job.

    Returns:
        What Hydra expects of each job.
    """
    waiting, returns = deque(enumerate(job_overrides, first)), {}
    with Queue(context, task, config, len(waiting)) as queue:
        while len(returns) < len(job_overrides):
            while waiting and queue.free:
                queue.start(*waiting.popleft())
            returns.update(queue.wait())
    return [returns[number] for number in sorted(returns)]


class Queue:
    """Jobs of a sweep on the free devices of hydra.launcher, for a launcher or an asynchronous sweeper.

    `start` takes a job while `free` is above 0; `wait` returns those that have ended. A job whose result exists is
    not run, and jobs of one configuration run once. A context manager: leaving it stops what still runs.

    Args:
        context: Hydra's.
        task: The function of a job.
        config: The configuration of the sweep.
        total: The number of jobs, if it is known.
    """

    def __init__(
        self,
        context: HydraContext,
        task: TaskFunction,
        config: DictConfig,
        total: int | None = None,
    ):
        setup_globals()
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        self._context, self._task, self._config = context, task, config
        self._pool = _new_pool(config)
        names = [*dict.fromkeys(slot.name for slot in self._pool.free)]
        common = list(config.hydra.overrides.task)
        self._view = View(config.progress, config.optimized_metric, names, total, common)
        self._results: dict[str, Path] = {}
        self._duplicates: dict[str, list[_Planned]] = {}
        self._ended: list[tuple[int, JobReturn]] = []

    def __enter__(self) -> "Queue":
        self._view.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._pool.stop()
        finally:
            self._view.stop()

    @property
    def free(self) -> int:
        """Devices without a job."""
        return len(self._pool.free)

    @property
    def running(self) -> dict[int, Path]:
        """Numbers and folders of the jobs that run."""
        return {job.key.number: job.folder for job in self._pool.running}

    def start(self, number: int, overrides: Sequence[str]) -> None:
        """Starts a job on a free device, of which there must be one, or finds its result."""
        composed = compose_job(self._context, self._config, number, overrides)
        with current(composed):
            job = _planned(composed)
            digest = job.record.config_hash
            # another sweep may have it by now
            if digest not in self._results and digest not in self._duplicates:
                self._results = finished(*searched(self._config, HydraConfig.get()))
            earlier = self._results.get(digest)
            if earlier is not None and (again := reason_to_rerun(job.record, earlier, composed)):
                self._view.line(again)
                del self._results[digest]  # the job that runs in its place has another folder
            if digest in self._results:
                run, sweep = Run.read(self._results[digest]), Path(self._config.hydra.sweep.dir)
                if line := complete(run, sweep, composed.report):
                    self._view.line(line)
                self._keep(job, self._results[digest])
            elif digest in self._duplicates:
                self._duplicates[digest].append(job)
            else:
                self._submit(job, composed)

    def wait(self, timeout: float | None = None) -> list[tuple[int, JobReturn]]:
        """Waits for jobs to end.

        Args:
            timeout: Seconds.

        Returns:
            Numbers and returns of those that have ended since: at least one, unless none runs or the time is up.
        """
        while not self._ended and self._pool.running:
            for job in self._pool.wait(_SECONDS_BETWEEN_FRAMES if timeout is None else timeout):
                self._finish(job)
            self._view.update()
            if timeout is not None:
                break
        ended, self._ended = self._ended, []
        return ended

    def prune(self, number: int) -> None:
        """Stops a running job, whose status becomes pruned unless it has just finished."""
        for job in self._pool.stop([job for job in self._pool.running if job.key.number == number]):
            self._finish(job, pruned=True)

    def _submit(self, job: _Planned, composed: DictConfig) -> None:
        function = f"{self._task.__module__}:{self._task.__qualname__}"
        name = JobRuntime.instance().get("name")
        arguments = (GlobalHydra.instance().hydra, self._context, composed, function, name)
        try:
            started = self._pool.submit(job, job.folder, execute, arguments)
        except OSError as error:  # a full disk, say
            self._fail(job, with_class(error))
            return
        self._duplicates[job.record.config_hash] = []
        self._view.started(job.number, job.record.overrides, started.slot.name, job.folder)

    def _finish(self, ended: Job, pruned: bool = False) -> None:
        """Reads the record that a process wrote, or notes how it ended if it could not write one."""
        job: _Planned = ended.key
        job.record = Record.read(job.folder) or job.record
        job.record.device, job.record.seconds = ended.slot.name, ended.seconds
        result = _result_in(Path(job.record.result))
        duplicates = self._duplicates.pop(job.record.config_hash)
        # what ends after its result, for whatever reason, has finished
        if result is not None and (job.record.status != "failed" or ended.returncode == 0):
            if job.record.status not in DONE:
                job.record.status = "finished"
            self._succeed(job, result)
            for other in duplicates:
                self._keep(other, Path(job.record.result))
        else:
            self._fail_all([job, *duplicates], ended, pruned)

    def _fail_all(self, jobs: Sequence[_Planned], ended: Job, pruned: bool) -> None:
        """Ends a job without a result, and behind it those that were to have it."""
        record, log = jobs[0].record, jobs[0].folder / LOG
        if ended.ended_for:
            record.status = "failed"
            record.error = describe_end(ended.ended_for, ended.folder, ended.seconds)
        reason = record.error or ended.end
        for job in jobs:
            if pruned:
                job.record.status = PRUNED
            self._fail(job, reason, log)

    def _keep(self, job: _Planned, earlier: Path) -> None:
        job.record.status, job.record.result = KEPT, str(earlier)
        self._succeed(job, Run.read(earlier))

    def _succeed(self, job: _Planned, result: Run) -> None:
        try:
            job.returns.return_value = objective(result, self._config.optimized_metric)
        except UserError as error:
            self._fail(job, str(error))
            return
        job.returns.status = JobStatus.COMPLETED
        self._close(job)

    def _fail(self, job: _Planned, reason: str, log: Path | None = None) -> None:
        if job.record.status not in ("failed", "interrupted", PRUNED):
            job.record.status = "failed"
        job.record.error = None if job.record.status == PRUNED else reason
        job.returns.return_value = JobError(
            f"job {job.number} failed: {reason}{see_log(log) if log else ''}"
        )
        job.returns.status = JobStatus.FAILED
        self._close(job)

    def _close(self, job: _Planned) -> None:
        with contextlib.suppress(OSError):  # a full disk is no reason to stop the other jobs
            job.record.write(job.folder)
        self._view.ended(job.number, job.record, job.folder)
        self._ended.append((job.number, job.returns))


def runs_elsewhere(config: DictConfig) -> bool:
    """Returns whether jobs run on other machines, which may have data that this one lacks."""
    pool = config.hydra.launcher.get("pool") and _pool_class(config)
    return inspect.isclass(pool) and issubclass(pool, RemotePool)


def execute(
    hydra: Any, context: HydraContext, config: DictConfig, function: str, task_name: str
) -> None:
    """Runs a composed job in this process, as Hydra's own launcher would; of several processes, the first does.

    Args:
        hydra: Hydra of the parent process.
        context: Hydra's.
        config: The composed configuration, Hydra's included.
        function: The function of a job, as module:name.
        task_name: Its name for Hydra.
    """
    setup_globals()
    if hosts.index():
        from clickexp.experiment.run import follow  # here, since the sweep itself does without JAX

        with current(config):
            follow(without_hydra(config), all_overrides(config.hydra))
        return
    GlobalHydra.instance().initialize(hydra)
    JobRuntime.instance().set("name", task_name)
    module, _, name = function.partition(":")
    returned = run_job(
        hydra_context=context,
        task_function=inspect.unwrap(getattr(importlib.import_module(module), name)),
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    if returned.status is JobStatus.FAILED:
        raise returned._return_value


def check_pool(config: DictConfig) -> tuple[Any, dict[str, Any]]:
    """Returns what hydra.launcher.pool names, and the launcher's other keys.

    Raises:
        ConfigError: A key does not exist, or its value does not fit.
    """
    options, pool = plain(config.hydra.launcher), _pool_class(config)
    del options["_target_"], options["pool"]
    check_arguments(pool, options, "hydra.launcher")
    return pool, options


def composed_pool(overrides: Sequence[str], folder: Path) -> BasePool:
    """Returns the pool of a launcher for other work than runs.

    Args:
        overrides: The launcher and its keys, as on the command line.
        folder: Takes the files of a scheduler.

    Raises:
        UserError: There is no such key, or no cluster.
    """
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", [*overrides], return_hydra_config=True)
    except MENDABLE as error:
        raise ConfigError(format_hydra_error(error, overrides)) from error
    with flag_override(config, "readonly", False):
        config.hydra.sweep.dir = str(folder)
    return _new_pool(config)


def _new_pool(config: DictConfig) -> BasePool:
    """Calls what hydra.launcher.pool names with the launcher's other keys, and with the folder of the sweep."""
    pool, options = check_pool(config)
    return pool(**accepted(pool, {"folder": Path(config.hydra.sweep.dir).absolute()}), **options)


def _pool_class(config: DictConfig) -> Any:
    """Returns the class or function that hydra.launcher.pool names; a UserError where its extra is not installed."""
    try:
        return located(config.hydra.launcher.pool)
    except ConfigError as error:
        missing = getattr(error.__cause__, "name", None)
        if missing not in _EXTRAS:
            raise
        extra = _EXTRAS[missing]
        raise UserError(f"launcher={extra} needs {missing}: {install(extra)}") from error


def _planned(composed: DictConfig) -> _Planned:
    hydra, cfg = HydraConfig.get(), without_hydra(composed)
    record = new_record(cfg, hydra)
    returns = JobReturn(
        overrides=record.overrides,
        cfg=cfg,
        hydra_cfg=OmegaConf.masked_copy(composed, ["hydra"]),
        working_dir=os.getcwd(),
        task_name=JobRuntime.instance().get("name"),
    )
    return _Planned(record.number, Path(hydra.runtime.output_dir), record, returns)


def _result_in(folder: Path) -> Run | None:
    """Returns the result of a run; None where it left none, or a damaged one."""
    with contextlib.suppress(UserError):
        return Run.read(folder)
    return None

"""Jobs as fresh processes, at most one a slot."""

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from clickexp.sweeps.backends.worker import GRACE, HELD, work

LOG = "job.log"
SECONDS_BETWEEN_LOOKS = 0.05
FORKS = sys.platform == "linux"  # elsewhere the libraries of the system do not stand it
IMPORTED = (
    "clickexp.cli.main",
    "clickexp.sweeps.launcher",
    "clickexp.experiment.run",
    "clickexp.loggers.wandb",
    "wandb.sdk.launch",  # which each run of W&B's imports when it starts
)
"""Imported once, by the process whose copies the jobs are, which starts neither JAX nor any thread."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """A place for one job at a time: variables that its process starts with, and the CPU cores it may use."""

    name: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cores: tuple[int, ...] | None = None


@dataclasses.dataclass
class Job:
    """A call in a process of its own. `returncode` is None until it has ended, and negative for a signal."""

    key: Any
    folder: Path
    slot: Slot
    process: BaseProcess
    started: float
    returncode: int | None = None
    seconds: float = 0.0

    @property
    def log(self) -> Path:
        return self.folder / LOG

    @property
    def end(self) -> str:
        """How it ended, for a reader."""
        if self.returncode >= 0:
            return f"exit code {self.returncode}"
        name = signal.Signals(-self.returncode).name
        hint = ", perhaps by the system for want of memory" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"


class Pool:
    """Starts jobs on free slots and tells which have ended.

    A context manager: leaving it stops what still runs. Should the parent be killed, its jobs end by
    themselves. path: folders where jobs look for modules, by default those of this process.

        with Pool(slots) as pool:
            pool.submit("a", folder, function, arguments)
            for job in pool.wait():
                print(job.key, job.returncode)
    """

    def __init__(self, slots: Sequence[Slot], path: Sequence[str] | None = None):
        self.free = list(slots)
        self.path = module_path() if path is None else path
        self.running: list[Job] = []
        self.processes = multiprocessing.get_context("forkserver" if FORKS else "spawn")
        if FORKS:
            self.processes.set_forkserver_preload(list(IMPORTED))
            with _blocked(HELD):
                resource_tracker.ensure_running()  # which the other would start, and then let signals through
            with _blocked(HELD):
                forkserver.ensure_running()  # imports while jobs are prepared

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(self, key: Any, folder: Path, function: Callable, arguments: Sequence[Any] = ()) -> Job:
        """Calls a function of a module in a new process on the first free slot; IndexError if there is none.

        What the process prints is appended to job.log in the folder.
        """
        call = pickle.dumps((function, tuple(arguments)))
        slot = self.free[0]
        folder.mkdir(parents=True, exist_ok=True)
        log = folder.absolute() / LOG
        log.touch()
        environment = {**os.environ, **slot.environment}
        process = self.processes.Process(
            target=work, args=(str(log), environment, slot.cores, self.path, call)
        )
        with _blocked(HELD):
            process.start()
        job = Job(key, folder, self.free.pop(0), process, time.monotonic())
        self.running.append(job)
        return job

    def wait(self, timeout: float | None = None) -> list[Job]:
        """The jobs that have ended since, at least one unless none runs or the time, in seconds, is up."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            ended = [job for job in self.running if _has_ended(job)]
            if ended or not self.running or (until is not None and time.monotonic() >= until):
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
        for job in ended:
            self._reap(job)
        return ended

    def stop(self, jobs: Sequence[Job] | None = None) -> list[Job]:
        """Ends these jobs, or all: a request, then, after GRACE seconds or if interrupted, by force. Returns them."""
        stopped = list(self.running if jobs is None else jobs)
        try:
            for job in stopped:
                _signal(job, signal.SIGTERM)
            until = time.monotonic() + GRACE
            while time.monotonic() < until and not all(map(_has_ended, stopped)):
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            for job in stopped:
                self._reap(job)
        return stopped

    def _reap(self, job: Job) -> None:
        """Ends what is left of the job's process group."""
        _signal(job, signal.SIGKILL)
        job.process.join()
        job.returncode = job.process.exitcode
        job.seconds = time.monotonic() - job.started
        job.process.close()
        self.running.remove(job)
        self.free.append(job.slot)


def module_path() -> list[str]:
    """Where this process looks for modules, wherever another may be that shall find them, too."""
    return [folder or os.getcwd() for folder in sys.path]


def _has_ended(job: Job) -> bool:
    return job.process.exitcode is not None


def _signal(job: Job, number: int) -> None:
    """Sends a signal to the job and to all that it started."""
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(job.process.pid, number)
        except ProcessLookupError:  # it has ended, or has only just started
            if not _has_ended(job):
                os.kill(job.process.pid, number)


@contextlib.contextmanager
def _blocked(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """For processes that start here, which inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

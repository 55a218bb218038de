"""The base of every pool of jobs: slots, jobs, and waiting for their ends."""

import abc
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

LOG = "job.log"
CANCELLED = "cancelled"
"""How a job ended that the pool has stopped."""
OVERDUE = "longer than hydra.launcher.job_minutes"
"""Why a job was ended."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """A place for one job at a time.

    Attributes:
        name: Of the device, for a reader.
        environment: Variables that its process starts with.
        cores: The CPU cores that it may use; None for all.
    """

    name: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cores: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the process of a job ended.

    Attributes:
        slot: The machine and device that it ran on.
        returncode: Its exit code, negative for a signal.
        end: How it ended, for a reader.
        seconds: Wall time.
        ended_for: Why it was ended; empty where it ended by itself.
    """

    slot: str
    returncode: int
    end: str
    seconds: float
    ended_for: str = ""


@dataclasses.dataclass
class Job:
    """A call in another process.

    Attributes:
        key: The caller's name for it.
        folder: Its folder, with what the process prints in job.log.
        slot: Where it runs.
        started: Time of its start, by time.monotonic.
        handle: The pool's name for it; None until it has been sent.
        returncode: Exit code, negative for a signal; None until it has ended, or if none is known.
        end: How it ended, for a reader.
        seconds: Wall time.
        ended_for: Why the pool has ended it; empty where it ended by itself, or all were stopped.
    """

    key: Any
    folder: Path
    slot: Slot
    started: float
    handle: Any = None
    returncode: int | None = None
    end: str = ""
    seconds: float = 0.0
    ended_for: str = ""

    @property
    def log(self) -> Path:
        """File with what the process prints."""
        return self.folder / LOG


IMPORTED = (
    "clickexp.cli.experiment",
    "clickexp.sweeps.launcher",
    "clickexp.experiment.run",
    "clickexp.loggers.wandb",
    "wandb.sdk.launch",  # which each run of W&B's imports when it starts
)
"""Imported once, by the process whose copies the jobs are, which starts neither JAX nor any thread.

Importing takes 2.4 s of CPU, which eight runs of the default experiment, 62 s on one core, would spend once each.
"""


class BasePool(contextlib.AbstractContextManager, abc.ABC):
    """Starts jobs on free slots and reports which have ended.

    A context manager: leaving it stops what still runs.

    Args:
        slots: The places for jobs.
        job_minutes: Minutes after which a job is ended that `wait` still finds running; None for no limit.

    Attributes:
        free: Slots without a job.
        running: Jobs that have not ended.
        imported: Modules that jobs have in common.
    """

    seconds_between_looks = 0.5
    imported: Sequence[str] = IMPORTED

    def __init__(self, slots: Sequence[Slot], job_minutes: float | None = None) -> None:
        self.free = list(slots)
        self.job_minutes = job_minutes
        self.running: list[Job] = []

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(
        self, key: Any, folder: Path, function: Callable, arguments: Sequence[Any] = ()
    ) -> Job:
        """Calls a function of a module in a new process on the first free slot.

        Args:
            key: The caller's name for the job.
            folder: Its folder, created before the job starts; what it prints is appended to job.log there.
            function: Any that pickle finds by its name.
            arguments: Of the function.

        Raises:
            IndexError: No slot is free.
        """
        job = Job(key, folder, self.free[0], time.monotonic())
        job.handle = self._submit(job, function, tuple(arguments))
        self.running.append(job)
        del self.free[0]
        return job

    def wait(self, timeout: float | None = None) -> list[Job]:
        """Waits for jobs to end, and ends those that take too long or hang.

        Args:
            timeout: Seconds.

        Returns:
            Those that have ended since: at least one, unless none runs or the time is up.
        """
        until = float("inf") if timeout is None else time.monotonic() + timeout
        ended, hanging = self._look()
        while self.running and not (ended or hanging):
            left = until - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(self.seconds_between_looks, left))
            ended, hanging = self._look()
        for job in ended:
            self._leave(job, self.outcome(job.handle))
        return ended + (self.stop(hanging) if hanging else [])

    def _look(self) -> tuple[list[Job], list[Job]]:
        """Returns the jobs that have ended, and others that are to be ended."""
        ended, hanging = [], []
        for job in self.running:
            if self.has_ended(job.handle):
                ended.append(job)
            elif reason := self._reason_to_end(job):
                job.ended_for = reason
                hanging.append(job)
        return ended, hanging

    def stop(self, jobs: Sequence[Job] | None = None) -> list[Job]:
        """Ends these jobs, or all, and returns them."""
        stopped = list(self.running if jobs is None else jobs)
        try:
            if handles := [job.handle for job in stopped if job.handle is not None]:
                self.cancel(handles)
        finally:
            for job in stopped:
                self._leave(job, CANCELLED)
        return stopped

    def _reason_to_end(self, job: Job) -> str:
        """Returns why a running job is to be ended; empty where it may go on."""
        if self.job_minutes is None or time.monotonic() - job.started <= 60 * self.job_minutes:
            return ""
        return OVERDUE

    def _leave(self, job: Job, outcome: Outcome | str) -> None:
        """Frees the slot of a job that has ended, and notes how."""
        self.running.remove(job)
        self.free.append(job.slot)
        if isinstance(outcome, str):
            job.end, job.seconds = outcome, time.monotonic() - job.started
        else:
            job.slot, job.returncode = Slot(outcome.slot), outcome.returncode
            job.end, job.seconds = outcome.end, outcome.seconds
            job.ended_for = outcome.ended_for

    @abc.abstractmethod
    def _submit(self, job: Job, function: Callable, arguments: tuple[Any, ...]) -> Any:
        """Starts a job, and returns a handle of it."""

    @abc.abstractmethod
    def has_ended(self, handle: Any) -> bool:
        """Returns whether a job is over, well or badly."""

    @abc.abstractmethod
    def outcome(self, handle: Any) -> Outcome | str:
        """Returns how a job ended; text where no process lived to report it."""

    @abc.abstractmethod
    def cancel(self, handles: Sequence[Any]) -> None:
        """Ends jobs, and takes them out of the queue of a scheduler."""

"""Jobs that the scheduler of a cluster places, on machines that share the folders and the Python of this one."""

import abc
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clickexp.sweeps.backends.pool import Pool, Slot, module_path
from clickexp.sweeps.backends.slots import this_slot

SECONDS_BETWEEN_LOOKS = 0.5


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the process of a job ended, as the machine that ran it tells; seconds of wall time there."""

    slot: str
    returncode: int
    end: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Call:
    """A call in a fresh process on whatever machine and device this is called on, with job.log in the folder."""

    place: str
    folder: Path
    function: Callable
    arguments: Sequence[Any]
    path: Sequence[str]

    def __call__(self) -> Outcome:
        os.chdir(self.place)  # configurations hold relative paths
        with Pool([Slot(this_slot())], self.path) as pool:
            pool.submit(None, self.folder, self.function, self.arguments)
            (job,) = pool.wait()
        return Outcome(job.slot.name, job.returncode, job.end, job.seconds)


@dataclasses.dataclass
class RemoteJob:
    """As pool.Job tells of a process; `handle` is what the scheduler knows it by, None until it has been sent."""

    key: Any
    folder: Path
    slot: Slot
    started: float
    handle: Any = None
    returncode: int | None = None
    end: str = ""
    seconds: float = 0.0


class RemotePool(abc.ABC):
    """What Pool is for the processes of this machine.

    Jobs are sent together when `wait` is called. places: how many may be with the scheduler at a time.
    """

    def __init__(self, name: str, places: int):
        self.free = [Slot(name)] * places
        self.running: list[RemoteJob] = []
        self.calls: list[tuple[RemoteJob, Call]] = []

    def submit(self, key: Any, folder: Path, function: Callable, arguments: Sequence[Any] = ()) -> RemoteJob:
        """Takes a call of a function of a module; IndexError if all places are taken."""
        folder.mkdir(parents=True, exist_ok=True)
        job = RemoteJob(key, folder, self.free.pop(0), time.monotonic())
        self.running.append(job)
        call = Call(os.getcwd(), folder.absolute(), function, tuple(arguments), module_path())
        self.calls.append((job, call))
        return job

    def wait(self, timeout: float | None = None) -> list[RemoteJob]:
        """The jobs that have ended since, at least one unless none runs or the time, in seconds, is up."""
        self._send_all()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            ended = [job for job in self.running if self.has_ended(job.handle)]
            if ended or not self.running or (until is not None and time.monotonic() >= until):
                break
            left = SECONDS_BETWEEN_LOOKS if until is None else until - time.monotonic()
            time.sleep(max(min(SECONDS_BETWEEN_LOOKS, left), 0))
        for job in ended:
            self._leave(job, self.outcome(job.handle))
        return ended

    def stop(self, jobs: Sequence[RemoteJob] | None = None) -> list[RemoteJob]:
        """Cancels these jobs, or all, and returns them."""
        stopped = list(self.running if jobs is None else jobs)
        self.calls = [(job, call) for job, call in self.calls if job not in stopped]
        handles = [job.handle for job in stopped if job.handle is not None]
        if handles:
            self.cancel(handles)
        for job in stopped:
            self._leave(job, "cancelled")
        return stopped

    def _send_all(self) -> None:
        waiting, self.calls = self.calls, []
        if waiting:
            handles = self.send([call for _, call in waiting])
            for (job, _), handle in zip(waiting, handles, strict=True):
                job.handle = handle

    def _leave(self, job: RemoteJob, outcome: Outcome | str) -> None:
        self.running.remove(job)
        self.free.append(job.slot)
        if isinstance(outcome, Outcome):
            job.slot, job.returncode = Slot(outcome.slot), outcome.returncode
            job.end, job.seconds = outcome.end, outcome.seconds
        else:
            job.end, job.seconds = outcome, time.monotonic() - job.started

    @abc.abstractmethod
    def send(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Hands calls to the scheduler; a handle for each."""

    @abc.abstractmethod
    def has_ended(self, handle: Any) -> bool:
        """Whether the scheduler is done with it, well or badly."""

    @abc.abstractmethod
    def outcome(self, handle: Any) -> Outcome | str:
        """What came of one that has ended; text where no process lived to tell."""

    @abc.abstractmethod
    def cancel(self, handles: Sequence[Any]) -> None:
        """Ends them, and takes them out of the scheduler's queue."""

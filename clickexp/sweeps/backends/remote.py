"""Jobs that the scheduler of a cluster places, on machines that share the folders and the Python of this one."""

import abc
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clickexp.sweeps.backends.base import IMPORTED, OVERDUE, BasePool, Job, Outcome, Slot
from clickexp.sweeps.backends.pool import Pool, module_path
from clickexp.sweeps.backends.slots import this_slot

_GRACE = 15.0
"""Seconds after which a job that should have been ended where it runs is taken to hang there."""

__all__ = ["Call", "Outcome", "RemotePool"]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call in a fresh process on whatever machine and device this is called on, with job.log in the folder.

    Attributes:
        place: The working directory.
        folder: The folder of the job.
        function: Any that pickle finds by its name.
        arguments: Of the function.
        path: Folders where the process looks for modules.
        job_minutes: Minutes after which the process is ended; None for no limit.
        imported: Modules that are imported before.
        environment: Variables that the process starts with.
    """

    place: str
    folder: Path
    function: Callable
    arguments: Sequence[Any]
    path: Sequence[str]
    job_minutes: float | None = None
    imported: Sequence[str] = IMPORTED
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __call__(self) -> Outcome:
        """Makes the call and returns how its process ended."""
        os.chdir(self.place)  # configurations hold relative paths
        slot = Slot(this_slot(), self.environment)
        with Pool([slot], self.path, self.job_minutes, self.imported) as pool:
            pool.submit(None, self.folder, self.function, self.arguments)
            (job,) = pool.wait()
        return Outcome(job.slot.name, job.returncode or 0, job.end, job.seconds, job.ended_for)


class RemotePool(BasePool):
    """Jobs of a scheduler, which are sent together when `wait` is called.

    A backend states how calls are sent, whether one has ended and how, and how it is cancelled.

    Args:
        name: Of the backend.
        places: How many jobs may be with the scheduler at a time.
        call_minutes: Minutes after which a job is ended where it runs, its time in a queue not counted; None for no
            limit.
    """

    def __init__(self, name: str, places: int, call_minutes: float | None = None) -> None:
        super().__init__([Slot(name)] * places)
        self._call_minutes = call_minutes
        self._calls: list[tuple[Job, Call]] = []

    def wait(self, timeout: float | None = None) -> list[Job]:
        """Sends the calls of new jobs, and waits as any pool does."""
        waiting, self._calls = self._calls, []
        if waiting:
            handles = self.send([call for _, call in waiting])
            for (job, _), handle in zip(waiting, handles, strict=True):
                job.handle = handle
        return super().wait(timeout)

    def stop(self, jobs: Sequence[Job] | None = None) -> list[Job]:
        """Cancels these jobs, or all, and returns them."""
        stopped = self.running if jobs is None else jobs
        self._calls = [(job, call) for job, call in self._calls if job not in stopped]
        return super().stop(jobs)

    def _reason_to_end(self, job: Job) -> str:
        """Returns a reason where nothing has been printed for longer than a job may take: its worker hangs, too.

        A job in a queue has not touched its log since it was sent.
        """
        if self._call_minutes is None or not job.log.exists():
            return ""
        printed, age = job.log.stat().st_mtime, time.monotonic() - job.started
        silence = time.time() - printed
        hangs = 60 * self._call_minutes + _GRACE < silence < age
        return OVERDUE if hangs else ""

    def _submit(self, job: Job, function: Callable, arguments: tuple[Any, ...]) -> None:
        folder = job.folder.absolute()
        call = Call(
            os.getcwd(),
            folder,
            function,
            arguments,
            module_path(),
            self._call_minutes,
            self.imported,
        )
        self._calls.append((job, call))

    @abc.abstractmethod
    def send(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Hands calls to the scheduler and returns a handle for each."""

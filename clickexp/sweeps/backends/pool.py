"""Jobs as fresh processes of this machine, at most one per slot."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from clickexp.sweeps.backends.base import IMPORTED, LOG, BasePool, Job, Outcome, Slot
from clickexp.sweeps.backends.worker import GRACE, HELD, WHERE, work

SILENCE = 600.0
"""Seconds without a sign of life after which a process is ended: it has been stopped, or hangs."""
_LOOK = 1.0
"""Seconds that count between two looks, at most: this process may have been stopped itself, as by SLURM."""
_FORKS = sys.platform == "linux"  # elsewhere the libraries of the system do not survive a fork


class _Worker:
    """The process of a job, and its signs of life.

    Attributes:
        process: The process.
        silence: Seconds without a sign.
    """

    def __init__(self, process: BaseProcess, signs: Connection) -> None:
        self.process, self._signs = process, signs
        self.silence, self._looked = 0.0, time.monotonic()

    def look(self) -> None:
        """Takes signs of life, and counts the seconds without one."""
        now = time.monotonic()
        self.silence += min(now - self._looked, _LOOK)
        self._looked = now
        with contextlib.suppress(EOFError):  # the process ends
            while self._signs.poll():
                self._signs.recv_bytes()
                self.silence = 0.0

    def close(self) -> None:
        """Frees what the system has for a process that has ended."""
        self._signs.close()
        self.process.close()


class Pool(BasePool):
    """Starts each job in a fresh process. Should the parent be killed, its jobs end by themselves.

        with Pool(slots) as pool:
            pool.submit("a", folder, function, arguments)
            for job in pool.wait():
                print(job.key, job.returncode)

    Args:
        slots: The places for jobs.
        path: Folders where jobs look for modules, by default those of this process.
        job_minutes: See `BasePool`. A process that shows no sign of life for SILENCE seconds is ended without it.
        imported: Modules that are imported once for all jobs.
    """

    seconds_between_looks = 0.05

    def __init__(
        self,
        slots: Sequence[Slot],
        path: Sequence[str] | None = None,
        job_minutes: float | None = None,
        imported: Sequence[str] = IMPORTED,
    ) -> None:
        super().__init__(slots, job_minutes)
        self._path = module_path() if path is None else path
        # each context has its class of processes, which typeshed states for no union of them
        self._processes: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
        if _FORKS:
            self._processes.set_forkserver_preload(list(imported))
            with _blocked(HELD):
                resource_tracker.ensure_running()  # which the other would start, and then let signals through
            with _blocked(HELD):
                forkserver.ensure_running()  # imports while jobs are prepared

    def _submit(self, job: Job, function: Callable, arguments: tuple[Any, ...]) -> _Worker:
        call = pickle.dumps((function, arguments))
        job.folder.mkdir(parents=True, exist_ok=True)
        log = job.folder.absolute() / LOG
        log.touch()
        environment = {**os.environ, **job.slot.environment}
        signs, sent = self._processes.Pipe(duplex=False)
        arguments = str(log), environment, job.slot.cores, self._path, call, sent
        process = self._processes.Process(target=work, args=arguments)
        with sent, _blocked(HELD):
            process.start()
        return _Worker(process, signs)

    def has_ended(self, handle: _Worker) -> bool:
        """Returns whether the process is over."""
        return handle.process.exitcode is not None

    def _reason_to_end(self, job: Job) -> str:
        job.handle.look()
        if job.handle.silence > SILENCE:
            return f"no sign of life of its process for {SILENCE / 60:g} minutes"
        reason = super()._reason_to_end(job)
        if reason:
            os.kill(job.handle.process.pid, WHERE)
        return reason

    def outcome(self, handle: _Worker) -> Outcome | str:
        """Returns nothing: `_leave` notes how the process ended."""
        return ""

    def cancel(self, handles: Sequence[_Worker]) -> None:
        """Asks processes to end, and waits up to GRACE seconds; then, or if interrupted, they are killed."""
        for worker in handles:
            _signal(worker.process, signal.SIGTERM)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not all(map(self.has_ended, handles)):
            time.sleep(self.seconds_between_looks)

    def _leave(self, job: Job, outcome: Outcome | str) -> None:
        """Ends what is left of the job's process group."""
        process = job.handle.process
        _signal(process, signal.SIGKILL)
        process.join()
        job.returncode = process.exitcode
        super()._leave(job, _end(process.exitcode))
        job.handle.close()


def module_path() -> list[str]:
    """Returns where this process looks for modules, as any other process can use it."""
    return [folder or os.getcwd() for folder in sys.path]


def _end(returncode: int) -> str:
    """Describes the end of a process."""
    if returncode >= 0:
        return f"exit code {returncode}"
    name = signal.Signals(-returncode).name
    hint = ", perhaps by the system for want of memory" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def _signal(process: BaseProcess, number: int) -> None:
    """Sends a signal to a job and to all that it started."""
    pid = process.pid
    assert pid is not None  # noqa: S101  # it has been started
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:  # it has ended, or has only just started
            if process.exitcode is None:
                os.kill(pid, number)


@contextlib.contextmanager
def _blocked(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Blocks signals for processes that start here, which inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

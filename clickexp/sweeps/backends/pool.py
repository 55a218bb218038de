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
from multiprocessing.process import BaseProcess
from typing import Any

from clickexp.sweeps.backends.base import IMPORTED, LOG, BasePool, Job, Outcome, Slot
from clickexp.sweeps.backends.worker import GRACE, HELD, work

_FORKS = sys.platform == "linux"  # elsewhere the libraries of the system do not survive a fork


class Pool(BasePool):
    """Starts each job in a fresh process. Should the parent be killed, its jobs end by themselves.

        with Pool(slots) as pool:
            pool.submit("a", folder, function, arguments)
            for job in pool.wait():
                print(job.key, job.returncode)

    Args:
        slots: The places for jobs.
        path: Folders where jobs look for modules, by default those of this process.
        job_minutes: See `BasePool`; also a process that has been stopped, and answers no request, is ended.
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

    def _submit(self, job: Job, function: Callable, arguments: tuple[Any, ...]) -> BaseProcess:
        call = pickle.dumps((function, arguments))
        job.folder.mkdir(parents=True, exist_ok=True)
        log = job.folder.absolute() / LOG
        log.touch()
        environment = {**os.environ, **job.slot.environment}
        arguments = str(log), environment, job.slot.cores, self._path, call
        process = self._processes.Process(target=work, args=arguments)
        with _blocked(HELD):
            process.start()
        return process

    def has_ended(self, handle: BaseProcess) -> bool:
        """Returns whether the process is over."""
        return handle.exitcode is not None

    def outcome(self, handle: BaseProcess) -> Outcome | str:
        """Returns nothing: `_leave` notes how the process ended."""
        return ""

    def cancel(self, handles: Sequence[BaseProcess]) -> None:
        """Asks processes to end, and waits up to GRACE seconds; then, or if interrupted, they are killed."""
        for process in handles:
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not all(map(self.has_ended, handles)):
            time.sleep(self.seconds_between_looks)

    def _leave(self, job: Job, outcome: Outcome | str) -> None:
        """Ends what is left of the job's process group."""
        _signal(job.handle, signal.SIGKILL)
        job.handle.join()
        job.returncode = job.handle.exitcode
        super()._leave(job, _end(job.handle.exitcode))
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

"""The process of a job: it takes its place among devices and cores, then makes its call."""

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

GRACE = 5.0
"""Seconds that a process has to tidy up after a request to stop."""

_SECONDS_BETWEEN_SIGNS = 1.0

WHERE = signal.SIGUSR1
"""Has a job write into its log where each of its threads is."""

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, WHERE)
"""Signals that are blocked where a job's process comes from, until it has its own handlers."""


def work(
    log: str,
    environment: Mapping[str, str],
    cores: Sequence[int] | None,
    path: Sequence[str],
    call: bytes,
    signs: Connection,
) -> None:
    """Makes a call in a separate session of processes.

    Args:
        log: The file to which its output is appended.
        environment: Variables to add.
        cores: The CPU cores that it may use; None for all.
        path: Folders where it looks for modules.
        call: A function and its arguments, pickled.
        signs: Takes signs of life as long as the call takes.
    """
    os.setsid()
    for file, mode, numbers in (
        (os.devnull, os.O_RDONLY, (0,)),
        (log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, (1, 2)),
    ):
        descriptor = os.open(file, mode)
        for number in numbers:
            os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(environment)
    sys.path[:] = path
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before JAX starts its threads
    signal.signal(signal.SIGTERM, _interrupt)
    faulthandler.register(WHERE)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM warns; the parent does what is needed
    alone = threading.Event()
    threading.Thread(target=_end_with_parent, args=(alone,), daemon=True).start()
    threading.Thread(target=_show_life, args=(signs,), daemon=True).start()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        function, arguments = pickle.loads(call)  # noqa: S301  # from the parent
        function(*arguments)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
    finally:
        if alone.is_set():
            os.killpg(0, signal.SIGKILL)  # what the job started, which nobody else would end


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise KeyboardInterrupt


def _show_life(signs: Connection) -> None:
    """Sends signs of life, which end where the process is stopped, or where no thread has its turn any more."""
    with contextlib.suppress(OSError):  # the parent has died
        while True:
            signs.send_bytes(b".")
            time.sleep(_SECONDS_BETWEEN_SIGNS)


def _end_with_parent(alone: threading.Event) -> None:
    """Stops this process and all that it started when the parent has died, however it did."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101  # this is a child
    parent.join()
    alone.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.killpg(0, signal.SIGKILL)

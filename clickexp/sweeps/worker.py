"""The fresh process of a job. Standard input tells it what to call; where that ends, its parent has died."""

import os
import pickle
import signal
import sys
import threading
import time

GRACE = 5.0
"""Seconds that a process which is told to stop has for tidying up."""


def main() -> None:
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with os.fdopen(pipe, "rb", closefd=False) as stream:
        cores = pickle.load(stream)
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)  # before JAX starts its threads
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM warns; the parent does what is needed
        function, arguments = pickle.load(stream)
    alone = threading.Event()
    threading.Thread(target=_end_with_parent, args=(pipe, alone), daemon=True).start()
    try:
        function(*arguments)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
    finally:
        if alone.is_set():
            os.killpg(0, signal.SIGKILL)  # what the job started, which nobody else would end


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise KeyboardInterrupt


def _end_with_parent(pipe: int, alone: threading.Event) -> None:
    """Stops this process and all that it started when the parent closes the pipe, however it ends."""
    os.read(pipe, 1)
    alone.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()

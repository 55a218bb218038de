"""Other processes: ports for them, and waiting, which always ends: a test that waits in vain fails."""

import socket
import subprocess
import time
from collections.abc import Callable

import psutil


class Process(subprocess.Popen):
    """A command that ends with the test that started it, should the test fail."""

    def __exit__(self, failure, *details):
        if failure:
            self.kill()
        super().__exit__(failure, *details)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_until(condition: Callable, seconds: float = 30.0):
    """The first true value that the condition has; AssertionError if it has none in so many seconds."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"not within {seconds:g} seconds"
        time.sleep(0.02)
    return value


def read(file) -> str:
    return file.read_text() if file.exists() else ""


def has_ended(pid: int) -> bool:
    """A zombie, which nobody in a container collects, has ended, too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(pid: int, seconds: float = 10.0) -> bool:
    return wait_until(lambda: has_ended(pid), seconds)

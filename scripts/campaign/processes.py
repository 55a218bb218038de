"""Commands as processes: short ones as copies of one that has imported clickexp, others as users start them."""

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

LIMIT = 90.0
"""Seconds of processor time, or of waiting, after which a command hangs."""
_LOOK = 0.02
"""Seconds between two looks at a process."""
_IDLE = 0.05
"""Share of processor time up to which a process waits: its threads may look for something now and then."""
_MEMORY = 8 << 30
MODULES = {
    "clickexp": "clickexp.cli.main",
    "clickexp-data": "clickexp.cli.data",
    "clickexp-compare": "clickexp.cli.compare",
    "clickexp-export": "clickexp.cli.export",
    "clickexp-update": "clickexp.cli.update",
}
"""The modules of the commands."""
_IMPORTED = [
    *MODULES.values(),
    "clickexp.cli.log_commands",
    "clickexp.results.commands.compare",
    "clickexp.experiment.run",
    "clickexp.export.drawn",
    "clickexp.sweeps.launcher",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
]
_CODES = (0, 1, 2)
_WARNING = re.compile(r"\.py:\d+: \w*Warning: .*")
_TRACE = "Traceback (most recent call last)"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        code: Exit code, negative for a signal; None if it was ended because it took too long.
        output: Its standard output.
        errors: Its standard error.
    """

    code: int | None
    output: str
    errors: str


def call(command: Sequence[str], folder: Path, seconds: float) -> Outcome:
    """Runs a command in a copy of a process that has imported clickexp, so that nothing of it stays.

    Args:
        command: One of the four, and its arguments.
        folder: Where it runs.
        seconds: It hangs if it takes longer; see `waited`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with tempfile.TemporaryDirectory() as name:
        streams = Path(name) / "output", Path(name) / "errors"
        process = context.Process(
            target=_work, args=(MODULES[command[0]], list(command), folder, streams)
        )
        process.start()
        code = waited(process.pid, lambda: process.exitcode, seconds)
        if code is None:
            end_tree(process.pid)
            process.join()
        texts = [file.read_text(errors="replace") if file.exists() else "" for file in streams]
    return Outcome(code, *texts)


def _work(module: str, command: list[str], folder: Path, streams: tuple[Path, Path]) -> None:
    os.setsid()
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    for number, file in enumerate(streams, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, number)
    sys.argv = command
    importlib.import_module(module).main()


def faults_of(outcome: Outcome, command: str) -> list[str]:
    """Returns what no command may do: hang, crash, print a trace or a warning of Python, or fail without a message."""
    found = []
    if outcome.code is None:
        found.append("hangs")
    elif outcome.code < 0:
        found.append(f"ended by {signal.Signals(-outcome.code).name}")
    elif outcome.code not in _CODES:
        found.append(f"exit code {outcome.code}")
    if outcome.code in (1, 2) and command not in outcome.errors:
        found.append("fails without a message")
    return found + faults_of_text(outcome.output + outcome.errors)


def faults_of_text(text: str) -> list[str]:
    """Returns what no command may print: traces, and warnings of Python."""
    found = [f"warning: {warning}" for warning in sorted(set(_WARNING.findall(text)))]
    if _TRACE in text:
        found.append(f"trace: {text.strip().splitlines()[-1]}")
    return found


@contextlib.contextmanager
def started(words: Sequence[str], folder: Path) -> Iterator[psutil.Popen]:
    """Yields `clickexp` as a user starts it, in a session of its own; what is left of it ends with the block."""
    command = [sys.executable, "-m", "clickexp", *words]
    with (folder / "output.txt").open("w") as output:
        process = psutil.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            end_tree(process.pid)
            process.wait()


def waited(
    pid: int | None, exit_code: Callable[[], int | None], seconds: float = LIMIT
) -> int | None:
    """Waits for a process to end.

    Time in which a busy machine keeps it from the processor does not count.

    Args:
        pid: Of the process.
        exit_code: Returns None as long as it runs.
        seconds: Of the processor, or of waiting for something else, that it may take with all that it has started.

    Returns:
        The exit code; None if it hangs.
    """
    idle, used, looked = 0.0, 0.0, time.monotonic()
    while (code := exit_code()) is None and max(used, idle) <= seconds:
        time.sleep(_LOOK)
        before, used = used, seconds_used(pid)
        since, looked = time.monotonic() - looked, time.monotonic()
        if used - before <= _IDLE * since and not is_runnable(pid):
            idle += min(since, 1.0)  # this process may have been kept from the processor, too
    return code


def seconds_used(pid: int | None) -> float:
    """Returns the processor time of a process and of all that it has started."""
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def is_runnable(pid: int | None) -> bool:
    """Returns whether a thread of a process, or of one that it has started, could go on, or waits for a disk."""
    for process in tree(pid):
        for file in Path(f"/proc/{process.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                if file.read_text().rpartition(")")[2].split()[0] in "RD":
                    return True
    return False


def tree(pid: int | None) -> list[psutil.Process]:
    """Returns a process and all that it has started, as far as they live."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end_tree(pid: int | None) -> None:
    """Kills a process and all that it has started."""
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

"""Progress of readers and exports, which have no logger."""

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_SHORTEST = 1.0
"""Seconds of work without lines of progress."""


Report = Callable[[int, int], None]
"""Receives how much is done, and how much there is, 0 if that is not known."""


def no_report(done: int, total: int) -> None:
    """Reports nothing."""


class Steps:
    """Progress on stderr: a bar on a terminal, else a line for each tenth that is done after the first second.

    Args:
        what: Name of the work.
    """

    def __init__(self, what: str):
        self.what, self.tenths, self.began = what, 0, time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            TextColumn("{task.fields[where]}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(
            *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        )

    def __enter__(self) -> "Steps":
        self.bar.start()
        self.task = self.bar.add_task(self.what, total=None, where="")
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, done: int, total: int, where: str = "", /) -> None:
        """Reports progress: done of total, and where the work is."""
        if not self.bar.disable:
            self.bar.update(self.task, completed=done, total=total, where=where)
        elif total and 10 * done // total > self.tenths:
            self.tenths = 10 * done // total
            if (seconds := time.monotonic() - self.began) >= _SHORTEST:
                place = f", {where}" if where else ""
                sys.stderr.write(f"{self.what}: {10 * self.tenths}%{place} in {seconds:.0f} s\n")
                sys.stderr.flush()

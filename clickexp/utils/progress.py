"""Progress of readers, passes and exports: who receives it, and what shows it where there is no logger."""

import sys
import time
from collections.abc import Callable
from typing import Protocol

_SHORTEST = 1.0
"""Seconds of work without lines of progress."""


Report = Callable[[int, int], None]
"""Receives how much is done, and how much there is, 0 if that is not known."""


class Progress(Protocol):
    """Receives the progress of a reader."""

    def __call__(self, done: int, total: int, where: str = "", /) -> None:
        """Receives what is done so far and the total, in sessions, bytes or another unit of the reader.

        Args:
            done: What is done.
            total: The total.
            where: File and rows, of a reader of several files.
        """
        ...


def no_report(done: int, total: int, where: str = "", /) -> None:
    """Reports nothing."""


class Steps:
    """Progress on stderr: a bar on a terminal, else a line for each tenth that is done after the first second.

    Args:
        what: Name of the work.
    """

    def __init__(self, what: str):
        # here, since readers without it import this module, too
        from rich import progress
        from rich.console import Console

        self.what, self.tenths, self.began = what, 0, time.monotonic()
        columns = (
            progress.TextColumn("{task.description}"),
            progress.TextColumn("{task.fields[where]}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
        )
        self.bar = progress.Progress(
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

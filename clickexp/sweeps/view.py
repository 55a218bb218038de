"""A running sweep on the terminal, or as plain lines in a pipe."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich import get_console
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clickexp.loggers.console import is_terminal
from clickexp.loggers.tables import number
from clickexp.runs.store import PRUNED, Record, told
from clickexp.sweeps.backends.pool import LOG
from clickexp.utils.paths import display_path

METRICS = "metrics.jsonl"
TAIL_BYTES = 8192


class View:
    """One line for each job that starts or ends and, on a terminal, a table of what runs below them.

    progress: as in runs; `off` leaves the jobs that failed. metric: the one whose latest value is shown.
    total: jobs in all, if that is known. common: overrides of every job, which are not worth telling.
    """

    def __init__(
        self,
        progress: Literal["auto", "bar", "plain", "off"],
        metric: str,
        slots: Sequence[str],
        total: int | None = None,
        common: Sequence[str] = (),
        console: Console | None = None,
    ):
        self.console = console or Console()
        self.mode = progress if progress != "auto" else "bar" if is_terminal(self.console) else "plain"
        self.metric, self.slots, self.total, self.common = metric, slots, total, common
        self.running: dict[int, tuple[str, str, Path]] = {}
        self.counts: Counter[str] = Counter()
        self.live = Live(console=self.console, auto_refresh=False, transient=True)

    def start(self) -> None:
        jobs = f"{self.total} jobs" if self.total is not None else "jobs"
        self.line(f"{jobs} on {', '.join(self.slots)}")
        if self.mode == "bar":
            self.live.start()

    def stop(self) -> None:
        self.live.stop()

    def started(self, job: int, overrides: Sequence[str], slot: str, folder: Path) -> None:
        self.running[job] = slot, told(overrides, self.common), folder
        self.line(f"{self._name(job, overrides)} on {slot}")
        self.update()

    def ended(self, job: int, record: Record, folder: Path) -> None:
        self.running.pop(job, None)
        self.counts[record.status] += 1
        name = self._name(job, record.overrides)
        if record.status == "finished":
            self.line(f"{name} finished in {record.seconds:.0f} s{self._progress()}")
        elif record.status == "kept":
            self.line(f"{name} kept, its result is in {display_path(record.result)}{self._progress()}")
        elif record.status == PRUNED:
            epoch = last_epoch(folder).get("epoch")
            self.line(f"{name} pruned after epoch {epoch}{self._progress()}")
        else:
            self.line(f"{name} {record.status}: {record.error}. Its log: {display_path(folder / LOG)}", always=True)
        self.update()

    def update(self) -> None:
        """Draws the table anew."""
        if self.mode == "bar":
            self.live.update(self._table(), refresh=True)

    def _table(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("device", "job", "overrides", "epoch", self.metric):
            table.add_column(name, no_wrap=True)
        for job, (slot, overrides, folder) in self.running.items():
            epoch = last_epoch(folder)
            values = str(epoch.get("epoch", "-")), number(epoch.get(self.metric))
            table.add_row(slot, f"{job}", overrides, *values)
        states = {"running": len(self.running), **self.counts}
        if self.total is not None:
            states = {"queued": self.total - sum(states.values()), **states}
        return Group(table, Text(", ".join(f"{count} {state}" for state, count in states.items())))

    def _name(self, job: int, overrides: Sequence[str]) -> str:
        text = told(overrides, self.common)
        return f"job {job} ({text})" if text else f"job {job}"

    def _progress(self) -> str:
        return f" ({sum(self.counts.values())} of {self.total})" if self.total is not None else ""

    def line(self, text: str, always: bool = False) -> None:
        """Prints a line above the table; `off` leaves those that are always printed."""
        if always or self.mode != "off":
            say(text, self.console)


def say(text: str, console: Console | None = None) -> None:
    """Prints text as it is: no markup, and long paths are not broken into lines."""
    (console or get_console()).print(text, markup=False, highlight=False, soft_wrap=True)


def damaged(record: Record, earlier: Path) -> str:
    """Returns a line about a job that runs again because its earlier model cannot be read."""
    return f"job {record.number}: the model in {display_path(earlier)} is damaged or missing; it is run again"


def last_epoch(folder: Path) -> dict:
    """The latest whole line of metrics.jsonl, empty before the first epoch."""
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - TAIL_BYTES, 0))
            whole, _, _ = file.read().rpartition(b"\n")
            return json.loads(whole.splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}

"""A running sweep on the terminal, or as plain lines in a pipe."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import get_console
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from clickexp.loggers.console import shown_as
from clickexp.runs.settings import ProgressMode
from clickexp.runs.store import CHECKPOINT, KEPT, PRUNED, Record, describe_overrides, read_epochs
from clickexp.sweeps.backends.base import LOG
from clickexp.utils.paths import display_path
from clickexp.utils.tables.numbers import number
from clickexp.utils.tables.terminal import console_table, folded


class View:
    """One line for each job that starts or ends and, on a terminal, a table of the active jobs below them.

    Args:
        progress: As in runs; `off` leaves the jobs that failed.
        metric: The metric whose latest value is shown.
        slots: Names of the devices.
        total: The number of jobs, if it is known.
        common: Overrides of every job, which are not shown.
        console: By default a new one.
    """

    def __init__(
        self,
        progress: ProgressMode,
        metric: str,
        slots: Sequence[str],
        total: int | None = None,
        common: Sequence[str] = (),
        console: Console | None = None,
    ):
        self._console = console or Console()
        self._mode = shown_as(progress, self._console)
        self._metric, self._slots, self._total, self._common = metric, slots, total, common
        self._running: dict[int, tuple[str, str, Path]] = {}
        self._counts: Counter[str] = Counter()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def start(self) -> None:
        """Prints the number of jobs and the devices."""
        jobs = f"{self._total} jobs" if self._total is not None else "jobs"
        self.line(f"{jobs} on {', '.join(self._slots)}")
        if self._mode == "bar":
            self._live.start()

    def stop(self) -> None:
        """Removes the table."""
        self._live.stop()

    def started(self, job: int, overrides: Sequence[str], slot: str, folder: Path) -> None:
        """Prints that a job has started on a device."""
        self._running[job] = slot, describe_overrides(overrides, self._common), folder
        self.line(f"{self._name(job, overrides)} on {slot}")
        self.update()

    def ended(self, job: int, record: Record, folder: Path) -> None:
        """Prints how a job has ended."""
        self._running.pop(job, None)
        self._counts[record.status] += 1
        failed = record.status not in ("finished", KEPT, PRUNED)
        done = (
            f" ({sum(self._counts.values())} of {self._total})" if self._total is not None else ""
        )
        ends = {
            "finished": f"finished in {record.seconds or 0:.0f} s{done}",
            KEPT: f"kept, its result is in {display_path(record.result)}{done}",
            PRUNED: f"pruned after epoch {last_epoch(folder).get('epoch')}{done}",
        }
        error = f"{record.status}: {record.error}{see_log(folder / LOG)}"
        self.line(
            f"{self._name(job, record.overrides)} {ends.get(record.status, error)}", always=failed
        )
        self.update()

    def update(self) -> None:
        """Draws the table again."""
        if self._mode == "bar":
            self._live.update(self._table(), refresh=True)

    def line(self, text: str, always: bool = False) -> None:
        """Prints a line above the table; progress=off leaves those that are always printed."""
        if always or self._mode != "off":
            print_plain(folded(text, self._console), self._console)

    def _table(self) -> Group:
        table = console_table(["device", "overrides", "job", "epoch", self._metric], text_columns=2)
        for job, (slot, overrides, folder) in self._running.items():
            epoch = last_epoch(folder)
            cells = (
                slot,
                overrides,
                f"{job}",
                str(epoch.get("epoch", "-")),
                number(epoch.get(self._metric)),
            )
            table.add_row(*map(Text, cells))
        states = {"running": len(self._running), **self._counts}
        if self._total is not None:
            states = {"queued": self._total - sum(states.values()), **states}
        return Group(table, Text(", ".join(f"{count} {state}" for state, count in states.items())))

    def _name(self, job: int, overrides: Sequence[str]) -> str:
        text = describe_overrides(overrides, self._common)
        return f"job {job} ({text})" if text else f"job {job}"


def print_plain(text: str, console: Console | None = None) -> None:
    """Prints text as it is: no markup, and long paths are not broken into lines."""
    (console or get_console()).print(text, markup=False, highlight=False, soft_wrap=True)


def see_log(log: Path) -> str:
    """Returns the end of a message that names the log; empty where there is none, or nothing in it."""
    has_lines = log.exists() and log.stat().st_size
    return f". Its log: {display_path(log)}" if has_lines else ""


def describe_end(reason: str, folder: Path, seconds: float) -> str:
    """Returns why a job was ended, when, and what is lost of it."""
    epoch = last_epoch(folder).get("epoch")
    after = f"after epoch {epoch}" if epoch else "before its first epoch had ended"
    kept = (folder / CHECKPOINT).exists()
    lost = (
        "the same command continues from its checkpoint"
        if kept
        else "without a checkpoint all of it is lost"
    )
    return f"{reason}: ended {after}, in {seconds:.0f} s; {lost}"


def last_epoch(folder: Path) -> dict[str, Any]:
    """Returns the record of the latest epoch, empty before the first."""
    return (read_epochs(folder) or [{}])[-1]

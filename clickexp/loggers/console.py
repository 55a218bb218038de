"""A run on the terminal, or as plain lines in a pipe."""

from collections.abc import Mapping
from typing import Any, Literal, TextIO

from rich import get_console
from rich.console import Console, RenderableType
from rich.table import Table

from clickexp.loggers.base import Logger, Phase, RunInfo
from clickexp.loggers.live import LiveLine
from clickexp.loggers.tables import EpochTable, count, metric_table, number, rank_table, side_by_side, widest
from clickexp.utils.paths import display_path

FEWEST = 3
"""Columns per rank without which a table goes below rather than beside another."""


class ConsoleLogger(Logger):
    """Prints one line per epoch, and the test metrics, overall and per rank, at the end.

    Args:
        progress: `bar` adds a live line below them, `plain` does not, `off` leaves only messages and results, `auto` is
            `bar` on a terminal and `plain` elsewhere.
        metric: The watched metric: the live line shows its best value, and the table of epochs always holds it.
        stream: Defaults to rich's own console, which a `rich.logging.RichHandler` shares, so that log lines and the
            live line do not collide; a handler that writes to a terminal directly would.

    Raises:
        ValueError: For another kind of progress.
    """

    def __init__(
        self,
        progress: Literal["auto", "bar", "plain", "off"] = "auto",
        metric: str = "val/ll",
        stream: TextIO | None = None,
    ) -> None:
        if progress not in ("auto", "bar", "plain", "off"):
            raise ValueError(f"progress={progress!r}: choose auto, bar, plain or off")
        self.console = Console(file=stream) if stream else get_console()
        self.mode = progress if progress != "auto" else "bar" if is_terminal(self.console) else "plain"
        self.metric = metric
        self.line = LiveLine(self.console)
        self.table: EpochTable | None = None
        self.best = ""

    @property
    def destination(self) -> str:
        """The console."""
        return "the console"

    def start(self, info: RunInfo) -> None:
        """Prints the name and the folder."""
        self.message(f"run {info.name} in {display_path(info.folder)}")

    def progress(self, phase: Phase, epoch: int, done: int, total: int, loss: float | None = None) -> None:
        """Draws the live line."""
        if self.mode == "bar":
            self.line.update(phase, epoch, done, total, loss, self.best)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Prints a line of the table of epochs."""
        if record.get("improved") and self.metric in record:
            self.best = f"best {self.metric.removeprefix('val/')} {number(record[self.metric])}"
        if self.mode == "off":
            return
        if self.table is None:
            self.table = EpochTable(record, self.console.width, self.metric)
            self._print(self.table.header(), style="bold")
        self._print(self.table.row(record))

    def message(self, text: str) -> None:
        """Prints the line."""
        self._print(text)

    def result(self, result: Mapping[str, Any]) -> None:
        """Prints the test metrics and the cost of training."""
        self.line.stop()
        for block in (*self._blocks(result), *_draws(result.get("test_draws"))):
            self._print("")
            self._print(block)
        self._print("\n" + _training(result["train"]))

    def finish(self, ok: bool) -> None:
        """Removes the live line."""
        self.line.stop()

    def _blocks(self, result: Mapping[str, Any]) -> list[Table]:
        """Test metrics with as many columns per rank as the width holds beside them, or else below."""
        metrics = metric_table("test", result["test"], result.get("intervals"))
        per_rank = dict(result.get("per_rank") or {})
        if not per_rank:
            return [metrics]
        sessions = {name: per_rank.pop(name) for name in ("sessions",) if name in per_rank}
        columns = [dict(list(per_rank.items())[:count]) | sessions for count in range(len(per_rank), 0, -1)]
        fewest = min(FEWEST + len(sessions), len(columns[0]))
        enough = [some for some in columns if len(some) >= fewest]
        beside = widest(lambda some: side_by_side(metrics, rank_table(some)), enough, self.console)
        if beside is not None:
            return [beside]
        return [metrics, widest(rank_table, columns, self.console) or rank_table(columns[-1])]

    def _print(self, what: RenderableType, style: str | None = None) -> None:
        """Prints without markup, and long paths without line breaks."""
        text = isinstance(what, str)
        self.console.print(what, style=style, markup=False, highlight=False, soft_wrap=text)


def _draws(intervals: Mapping[str, Mapping[str, float]] | None) -> list[Table]:
    """The table of metrics over posterior draws, where there are any."""
    if not intervals:
        return []
    means = {name: each["mean"] for name, each in intervals.items()}
    return [metric_table("posterior draws", means, {n: (each["low"], each["high"]) for n, each in intervals.items()})]


def is_terminal(console: Console) -> bool:
    """Whether a console can be drawn on; rich alone would say so of a pipe where FORCE_COLOR is set."""
    return console.is_interactive and console.file.isatty()


def _training(train: Mapping[str, Any]) -> str:
    return (
        f"epochs {train['epochs']} (best {train['best_epoch']}), {count(train['sessions'])} sessions in "
        f"{train['seconds']:.1f} s (compiling {train['compile_seconds']:.1f} s), "
        f"{count(train['sessions_per_second'])}/s"
    )

"""A run on the terminal, or as plain lines in a pipe."""

from collections.abc import Mapping
from typing import Any, TextIO, get_args

from rich import get_console
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from clickexp.loggers.base import Logger, Phase, RunInfo
from clickexp.loggers.epochs import EpochTable
from clickexp.loggers.live import LiveLine
from clickexp.results.run_tables import rank_table, result_tables, run_conclusion
from clickexp.runs.run import Run, Training, seconds_without_compilation
from clickexp.runs.settings import ProgressMode
from clickexp.utils.escape import printable, printable_lines
from clickexp.utils.paths import display_path
from clickexp.utils.tables.numbers import count, number
from clickexp.utils.tables.terminal import (
    first_ranks,
    fits,
    fitting,
    folded,
    is_terminal,
    side_by_side,
    terminal,
)

_FIRST = ("ll", "ppl", "cond_ppl", "ndcg@10", "loss")
"""Metrics of the line on a job, as far as it has them."""
_MOST = 2


class ConsoleLogger(Logger):
    """Prints one line per epoch, and the test metrics, overall and per rank, at the end; of a job of a sweep one line.

    Args:
        progress: `bar` adds a live line below them, `plain` does not, `off` leaves only messages and results, `auto` is
            `bar` on a terminal and `plain` elsewhere. Jobs of a sweep print all of it unless this is `auto`.
        metric: The watched metric: the live line shows its best value, and the table of epochs always holds it.
        stream: Defaults to rich's own console, which a `rich.logging.RichHandler` shares, so that log lines and the
            live line do not collide; a handler that writes to a terminal directly would.
        passes: Most epochs, if it is known, from which the live line estimates the time left.

    Raises:
        ValueError: For another kind of progress.
    """

    def __init__(
        self,
        progress: ProgressMode = "auto",
        metric: str = "val/ll",
        stream: TextIO | None = None,
        passes: int | None = None,
    ) -> None:
        if progress not in get_args(ProgressMode):
            raise ValueError(f"progress={progress!r}: choose auto, bar, plain or off")
        self.console = Console(file=stream) if stream else get_console()
        if self.console.is_jupyter:  # which would make each line a separate output
            self.console = Console(force_jupyter=False, force_terminal=False)
        self.automatic = progress == "auto"
        self.mode = shown_as(progress, self.console)
        self.metric = metric
        self.line = LiveLine(self.console)
        self.line.passes = passes
        self.table: EpochTable | None = None
        self.job, self.folder = "", ""
        self.best = ""
        self.epochs, self.seconds, self.compiled = 0, 0.0, False

    @property
    def destination(self) -> str:
        """The console."""
        return "the console"

    def start(self, info: RunInfo) -> None:
        """Prints model, data and seed, and the other overrides."""
        title = info.title or f"run {info.name} in {display_path(info.folder)}"
        words = Text(printable(title))
        for change in info.changes:
            words.append(" · ").append(printable(change), style="bold")
        if info.job_type == "sweep" and self.automatic:
            self.folder = info.folder.name
            self.job, self.line.title = f"job {self.folder}: {words.plain}", f"job {self.folder} "
        else:
            self._print(words)

    def progress(
        self, phase: Phase, epoch: int, done: int, total: int, loss: float | None = None
    ) -> None:
        """Draws the live line."""
        if self.mode == "bar":
            self.line.update(
                phase, epoch, done, total, loss, self.best, self._left(phase, epoch, done, total)
            )

    def compiling(self, active: bool) -> None:
        """Draws in the live line that compilation lasts; without one prints it, once."""
        if active and self.mode == "bar":
            self.line.compiling(0 if self.epochs else 1)  # later, it may be for the test
        elif active and self.mode == "plain" and not self.compiled:
            self.message("compiling …")
        self.compiled = True

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Prints a line of the table of epochs."""
        self.epochs = record["epoch"]
        if "seconds" in record:
            self.seconds += seconds_without_compilation(record)
        if record.get("improved") and self.metric in record:
            self.best = f"best {self.metric.removeprefix('val/')} {number(record[self.metric])}"
        if self.mode == "off" or self.job:
            return
        if self.table is None:
            self.table = EpochTable(record, self.console.width, self.metric)
            self._print(self.table.header(), style="bold")
        self._print(self.table.row(record))

    def message(self, text: str) -> None:
        """Prints the line."""
        if not self.job:
            self._print(text)

    def warning(self, text: str) -> None:
        """Prints the line, in a sweep with the job that it is about."""
        self._print(f"job {self.folder}: {text}" if self.job else text)

    def result(self, result: Run) -> None:
        """Prints the test metrics and the cost of training, and how far the model is from its references."""
        self.line.stop()
        if self.job:
            values = [
                f"{name} {number(result.test[name])}" for name in _FIRST if name in result.test
            ]
            line = f"{self.job}: {', '.join(values[:_MOST])}, {result.train.training_seconds or 0:.1f} s"
            self._print(folded(line, self.console))
            return
        for block in _blocks(result, self.console):
            self._print("")
            self._print(block)
        self._print("\n" + _training(result.train))
        if result.references:
            self._print(folded(run_conclusion(result), self.console))

    def finish(self, ok: bool) -> None:
        """Removes the live line."""
        self.line.stop()

    def _left(self, phase: Phase, epoch: int, done: int, total: int) -> float | None:
        """Seconds that the epochs take that are left, if they take as long as the earlier ones."""
        if not (epoch and self.epochs and self.line.passes):
            return None
        share = done / total if phase == "train" and total else 1.0
        return self.seconds / self.epochs * (self.line.passes - epoch + 1 - share)

    def _print(self, what: RenderableType, style: str | None = None) -> None:
        """Prints without markup, and text printable; off a terminal it stays one line."""
        what = printable_lines(what) if isinstance(what, str) else what
        whole = isinstance(what, str | Text) and not is_terminal(self.console)
        self.console.print(what, style=style, markup=False, highlight=False, soft_wrap=whole)


def shown_as(progress: ProgressMode, console: Console) -> ProgressMode:
    """How progress is shown on a console."""
    if progress != "auto":
        return progress
    return "bar" if is_terminal(console) else "plain"


def _blocks(result: Run, console: Console) -> list[RichTable]:
    """Tables of a result, side by side as far as the console is wide enough; by rank as many metrics as it holds."""
    blocks: list[list[RichTable]] = []
    for table in map(terminal, result_tables(result)):
        if blocks and fits(side_by_side(*blocks[-1], table), console):
            blocks[-1].append(table)
        else:
            blocks.append([table])
    rows = [block[0] if len(block) == 1 else side_by_side(*block) for block in blocks]
    if result.per_rank:
        rows.append(fitting(first_ranks(rank_table(result), "in result.json"), console))
    return rows


def _training(train: Training) -> str:
    return (
        f"epochs {train.epochs} (best {train.best_epoch}), {count(train.sessions or 0)} sessions in "
        f"{train.training_seconds or 0:.1f} s (+ {train.compile_seconds or 0:.1f} s compiling), "
        f"{count(train.sessions_per_second or 0)}/s"
    )

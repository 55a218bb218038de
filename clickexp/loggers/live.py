"""The line at the foot of a terminal that shows the progress of a run."""

import time

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clickexp.loggers.base import Phase
from clickexp.utils.tables.numbers import count, number

_SECONDS_BETWEEN_FRAMES = 0.1
_USUAL_PARTS = (
    "epoch 17/50 train",
    None,
    "1.23M/s",
    "loss 0.1234",
    "best ll -0.1234",
    "≤ 1:23 left",
)
"""Each part keeps this width when it is empty, so that the line does not jump. None is the bar."""


class LiveLine:
    """Epoch of epochs, phase, share done, sessions per second, loss, the best value so far, and the time left.

    Whatever else goes through the console, or through sys.stdout and sys.stderr, appears above it. Frames are
    drawn by `update` itself, so no thread competes with training.

    Attributes:
        passes: Most epochs, if it is known.
        title: What goes before the rest, such as the number of a job.
    """

    def __init__(self, console: Console) -> None:
        self.passes: int | None = None
        self.title = ""
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.phase: tuple[str, int] = "", 0
        self.first = (0.0, 0)
        self.shown, self.done = 0.0, 0

    def update(
        self,
        phase: Phase,
        epoch: int,
        done: int,
        total: int,
        loss: float | None,
        best: str,
        left: float | None = None,
    ) -> None:
        """Draws a frame, unless the last one is younger than _SECONDS_BETWEEN_FRAMES and the phase goes on.

        Args:
            phase: Phase of the run.
            epoch: Number of the epoch, from 1; 0 outside of training.
            done: Sessions done in this phase.
            total: Sessions of this phase.
            loss: Mean loss so far.
            best: Text on the best value so far.
            left: Seconds until the last epoch ends, if all take place.
        """
        now = time.monotonic()
        begun, self.done = done < self.done, done
        if begun or (phase, epoch) != self.phase:
            self.phase, self.first = (phase, epoch), (now, done)
        elif done < total and now - self.shown < _SECONDS_BETWEEN_FRAMES:
            return
        self.shown = now
        self.live.start()
        self.live.update(self._frame(now, done, total, loss, best, left), refresh=True)

    def compiling(self, epoch: int) -> None:
        """Draws that compilation lasts, before or in an epoch."""
        self.phase = "", -1  # the next update draws, and measures speed from there
        what = f"{self._epoch(epoch)} " if epoch else ""
        self.live.start()
        self.live.update(Text(f"{self.title}{what}compiling …"), refresh=True)

    def stop(self) -> None:
        """Removes the line."""
        self.live.stop()

    def _epoch(self, epoch: int) -> str:
        return f"epoch {epoch}/{self.passes}" if self.passes else f"epoch {epoch}"

    def _frame(
        self, now: float, done: int, total: int, loss: float | None, best: str, left: float | None
    ) -> Table:
        phase, epoch = self.phase
        began, done_before = self.first
        speed = f"{count((done - done_before) / (now - began))}/s" if now > began else ""
        line = Table.grid(padding=(0, 2), expand=True)
        for part in _USUAL_PARTS:
            line.add_column(min_width=part and len(part), ratio=None if part else 1, no_wrap=True)
        line.add_row(
            self.title
            + (
                f"{self._epoch(epoch)} {phase}"
                if epoch
                else f"{phase} {count(done)}/{count(total)}"
            ),
            ProgressBar(total=max(total, 1), completed=done),
            speed,
            "" if loss is None else f"loss {number(loss)}",
            best,
            "" if left is None else f"≤ {_clock(left)} left",
        )
        return line


def _clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

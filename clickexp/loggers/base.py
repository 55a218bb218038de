"""What a run tells its loggers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Phase = Literal["train", "val", "test"]


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run before it starts.

    `folder` is where the run keeps its files; `config` is the resolved configuration as plain dicts and
    lists.
    """

    folder: Path
    config: dict[str, Any]
    name: str
    project: str
    group: str | None = None
    job_type: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None


class Logger:
    """Receives what a run reports, in the order start, (progress, epoch, per_rank, message)*, result, finish.

    Every method does nothing here: a backend overrides those that it needs, and may raise in any of them
    when it stands behind `FanOut`.
    """

    @property
    def destination(self) -> str:
        """Where the results go, for a sentence such as "results still go to ..."."""
        return type(self).__name__

    def start(self, info: RunInfo) -> str | None:
        """Opens the run; may return a line for the reader, which `FanOut` passes on as a message."""

    def progress(self, phase: Phase, epoch: int, done: int, total: int, loss: float | None = None) -> None:
        """Sessions done of total in a phase of an epoch, from 1; called often, so it must be cheap."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Numbers of an epoch: `epoch`, `train/loss`, `val/...`, `seconds` and the `compile_seconds` among them,
        `sessions`, `improved`, ...
        """

    def per_rank(self, split: Literal["val", "test"], values: Mapping[str, Sequence[float | None]]) -> None:
        """A value per rank for each metric, None where unknown; index 0 is rank 1. Comes once a split."""

    def message(self, text: str) -> None:
        """One line for the reader."""

    def result(self, result: Mapping[str, Any]) -> None:
        """The run's result, as written to `result.json`."""

    def finish(self, ok: bool) -> None:
        """Closes the run; `ok` is False if it failed. May come without a start."""

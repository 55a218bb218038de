"""The interface of all loggers: what a run reports, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clickexp.runs.run import Run

Phase = Literal["read", "train", "val", "continuation", "test", "intervals"]
Split = Literal["val", "test"]
Vectors = Mapping[str, Sequence[float | None]]
"""By metric a value per rank, None where unknown."""


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run that are known before it starts.

    Attributes:
        folder: Where the run keeps its files.
        config: The resolved configuration as plain dicts and lists.
        name: Name of the run.
        project: Project on a dashboard.
        group: Group of runs on a dashboard, such as a sweep.
        job_type: Kind of run on a dashboard.
        tags: Tags on a dashboard.
        notes: Text on a dashboard.
        model: Name of the model.
        dataset: Name of the dataset.
        experiment: The option of the group `experiment`, where one was chosen.
        title: The run in a few words: model, data and seed.
        changes: Its other overrides, such as optimizer.learning_rate=0.1; of a job, those that others lack.
        fingerprint: Of the data.
        continues: The folder of the run whose training it continues, if that is another one.
        sweep: The folder of the sweep that it is a job of.
    """

    folder: Path
    config: dict[str, Any]
    name: str
    project: str
    group: str | None = None
    job_type: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    model: str = ""
    dataset: str = ""
    experiment: str | None = None
    title: str = ""
    changes: tuple[str, ...] = ()
    fingerprint: str = ""
    continues: Path | None = None
    sweep: Path | None = None


class Logger:
    """Receives what a run reports: start, (progress, compiling, epoch, per_rank, message)*, result, report, finish.

    Every method does nothing here: a backend overrides those that it needs, and may raise in any of them
    when it stands behind `FanOut`. Constructors open nothing, since checks of a configuration run them; `start` does.

    Attributes:
        warned: Each warning so far, once, for the result; only `FanOut` keeps them.
    """

    warned: Sequence[str] = ()

    @property
    def destination(self) -> str:
        """Where the results go, for a sentence such as "results still go to ..."."""
        return type(self).__name__

    def start(self, info: RunInfo) -> str | None:
        """Opens the run; may return a line for the reader, which `FanOut` passes on as a message."""

    def progress(
        self, phase: Phase, epoch: int, done: int, total: int, loss: float | None = None
    ) -> None:
        """Reports sessions done of total in a phase of an epoch, from 1; called often, so it must be cheap."""

    def compiling(self, active: bool) -> None:
        """Reports that compilation begins (True) or has ended."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Reports the numbers of an epoch.

        Args:
            record: `epoch`, `train/loss`, `val/...`, `seconds` and the `compile_seconds` among them, `sessions`,
                `improved`, ...
        """

    def per_rank(self, split: Split, values: Vectors) -> None:
        """Reports a value per rank for each metric, once for each split.

        Args:
            split: The sessions that the values are of.
            values: By metric; index 0 is rank 1, None where unknown.
        """

    def message(self, text: str) -> None:
        """Reports one line for the reader."""

    def warning(self, text: str) -> None:
        """Reports a line that readers should not miss, by default as a message."""
        self.message(text)

    def result(self, result: Run) -> None:
        """Reports the run's result, as written to `result.json`."""

    def report(self, page: Path, figures: Mapping[str, str]) -> None:
        """Reports the page of the finished run.

        Args:
            page: `report.html`.
            figures: Those in it, as SVG by name; a figure of several panels is several, with numbers.
        """

    def failed(self, reason: str) -> None:
        """Reports the error that ends the run, such as a loss that is not finite; not that somebody interrupted it."""

    def best_run(self, info: RunInfo, run: Run) -> None:
        """Reports the best run of a sweep that has ended, to a logger that was not started.

        Args:
            info: Facts about the sweep, whose folder it has.
            run: The run that its objective puts first.
        """

    def finish(self, ok: bool) -> None:
        """Closes the run; `ok` is False if it failed. May come without a start."""

"""A run in TensorBoard's files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickexp.loggers.base import Logger, RunInfo, Split, Vectors
from clickexp.loggers.values import (
    epoch_metrics,
    final_values,
    hyperparameters,
    missing_extra,
    rows_by_rank,
    spelled,
)
from clickexp.runs.run import Run
from clickexp.utils.paths import display_path


class TensorBoardLogger(Logger):
    """Writes TensorBoard's files into `tensorboard` in the folder of the run.

    `tensorboard --logdir outputs` shows all runs below a folder. Epochs are steps of train/*, val/* and speed/*; ranks
    are steps of rank/SPLIT/METRIC. Values by rank of references, such as rank-CTR, lie in a run beside it, so that they
    share the charts rank/test/METRIC. Hyperparameters and final values are in the tab HParams. ndcg@10 is ndcg_at_10.

    Args:
        folder: Name of the folder in that of the run.

    Raises:
        UserError: tensorboardX is not installed.
    """

    def __init__(self, folder: str = "tensorboard") -> None:
        try:
            import tensorboardX  # noqa: F401  # before the run starts
        except ImportError as error:
            raise missing_extra("tensorboard", error) from error
        self.folder = folder
        self.place = Path(folder)
        self._config: Mapping[str, Any] = {}
        self._writer: Any = None

    @property
    def destination(self) -> str:
        """The folder."""
        return display_path(self.place)

    def start(self, info: RunInfo) -> None:
        """Opens a file."""
        self.place, self._config = info.folder / self.folder, info.config
        self._writer = self._open(self.place)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Writes the metrics of an epoch."""
        for name, value in epoch_metrics(record).items():
            self._writer.add_scalar(spelled(name), value, record["epoch"])
        self._writer.flush()

    def per_rank(self, split: Split, values: Vectors) -> None:
        """Writes the values by rank, ranks as steps."""
        _write_ranks(self._writer, split, values)

    def result(self, result: Run) -> None:
        """Writes hyperparameters and final values, and curves of references beside the run."""
        values = {spelled(name): value for name, value in final_values(result).items()}
        for name, value in values.items():
            self._writer.add_scalar(f"final/{name}", value, 0)
        metrics = {f"final/{name}": value for name, value in values.items()}
        started, experiment, ended = _hparams()(hyperparameters(self._config), metrics)
        for summary in (started, experiment, ended):
            self._writer.file_writer.add_summary(summary)
        for name, reference in result.references.items():
            with self._open(self.place / name.replace(" ", "-")) as writer:
                _write_ranks(writer, "test", reference.per_rank)

    def finish(self, ok: bool) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()

    @staticmethod
    def _open(folder: Path) -> Any:
        from tensorboardX import SummaryWriter

        return SummaryWriter(str(folder))


def _hparams() -> Any:
    from tensorboardX.summary import hparams

    return hparams


def _write_ranks(writer: Any, split: str, values: Vectors) -> None:
    for rank, row in rows_by_rank(values):
        for name, value in row.items():
            writer.add_scalar(f"rank/{split}/{spelled(name)}", value, rank)

"""A run in TensorBoard's files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickexp.loggers.base import RunInfo, Vectors
from clickexp.loggers.scalars import ScalarLogger
from clickexp.loggers.values import (
    final_values,
    hyperparameters,
    missing_extra,
    spelled,
    steps_by_rank,
)
from clickexp.runs.run import Run
from clickexp.utils.paths import display_path


class TensorBoardLogger(ScalarLogger):
    """Writes TensorBoard's files into `tensorboard` in the folder of the run.

    `tensorboard --logdir outputs` shows all runs below a folder. Values by rank of references, such as rank-CTR, lie in
    a run beside it, so that they share the charts rank/test/METRIC. Hyperparameters and final values are in the tab
    HParams. ndcg@10 is ndcg_at_10.

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

    def scalars(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        """Writes metrics by step."""
        _write(self._writer, steps)

    def reference(self, name: str, values: Vectors) -> None:
        """Writes the values by rank of a reference into a run beside this one."""
        with self._open(self.place / name.replace(" ", "-")) as writer:
            _write(writer, steps_by_rank("test", values))

    def result(self, result: Run) -> None:
        """Writes final values, also beside the hyperparameters, and curves of references."""
        from tensorboardX.summary import hparams

        super().result(result)
        metrics = {f"final/{spelled(name)}": x for name, x in final_values(result).items()}
        for summary in hparams(hyperparameters(self._config), metrics):
            self._writer.file_writer.add_summary(summary)

    def finish(self, ok: bool) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()

    @staticmethod
    def _open(folder: Path) -> Any:
        from tensorboardX import SummaryWriter

        return SummaryWriter(str(folder))


def _write(writer: Any, steps: Mapping[int, Mapping[str, float]]) -> None:
    for step, values in steps.items():
        for name, value in values.items():
            writer.add_scalar(spelled(name), value, step)
    writer.flush()

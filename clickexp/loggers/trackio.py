"""A run in Trackio: a database on this machine, or a server of one's own."""

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import Any

from clickexp.loggers.base import Logger, RunInfo, Split, Vectors
from clickexp.loggers.values import (
    epoch_metrics,
    final_values,
    hyperparameters,
    missing_extra,
    rows_by_rank,
)
from clickexp.runs.run import Run


class TrackioLogger(Logger):
    """Sends a run to Trackio, which keeps it below `TRACKIO_DIR`, and shows it by `trackio show`.

    Epochs are steps of train/*, val/* and speed/*; ranks are steps of rank/SPLIT/METRIC, and of rank/NAME/METRIC for
    references such as rank-CTR. Test metrics, intervals and values of the best epoch are final/test/ll and the like.
    An error that ends a run is an alert.

    Args:
        server_url: Of a server of one's own, with its write token; None for this machine.

    Raises:
        UserError: Trackio is not installed.
    """

    def __init__(self, server_url: str | None = None) -> None:
        try:
            import trackio  # noqa: F401  # before the run starts
        except ImportError as error:
            raise missing_extra("trackio", error) from error
        self.server_url = server_url
        self._run: Any = None

    @property
    def destination(self) -> str:
        """The service."""
        return "Trackio"

    def start(self, info: RunInfo) -> str:
        """Creates the run, with its settings; returns how to look at it."""
        import trackio

        self._run = _quietly(
            trackio.init,
            project=info.project,
            name=info.name,
            group=info.group,
            server_url=self.server_url,
            config=hyperparameters(info.config),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return f"Trackio: trackio show --project {info.project}"

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Logs the metrics of an epoch."""
        self._run.log(epoch_metrics(record), step=record["epoch"])

    def per_rank(self, split: Split, values: Vectors) -> None:
        """Logs the values by rank, ranks as steps."""
        self._log_ranks(split, values)

    def result(self, result: Run) -> None:
        """Logs final values, and curves of references."""
        final = {f"final/{name}": value for name, value in final_values(result).items()}
        self._run.log(final, step=0)
        for name, reference in result.references.items():
            self._log_ranks(name, reference.per_rank)

    def failed(self, reason: str) -> None:
        """Logs an alert."""
        import trackio

        if self._run is not None:
            _quietly(self._run.alert, "Run failed", reason, level=trackio.AlertLevel.ERROR)

    def finish(self, ok: bool) -> None:
        """Closes the run, if it was created."""
        import trackio

        if self._run is not None:
            _quietly(trackio.finish)

    def _log_ranks(self, name: str, values: Vectors) -> None:
        for rank, row in rows_by_rank(values):
            self._run.log({f"rank/{name}/{metric}": x for metric, x in row.items()}, step=rank)


def _quietly(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Calls a function of Trackio, which prints on its way."""
    with contextlib.redirect_stdout(io.StringIO()):
        return call(*args, **named)

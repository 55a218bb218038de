"""A run in Trackio: a database on this machine, or a server of one's own."""

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import Any

from clickexp.loggers.base import RunInfo
from clickexp.loggers.scalars import ScalarLogger
from clickexp.loggers.values import hyperparameters, missing_extra
from clickexp.runs.run import Run
from clickexp.utils.paths import display_path


class TrackioLogger(ScalarLogger):
    """Sends a run to Trackio, which keeps it below `TRACKIO_DIR`, and shows it by `trackio show`.

    An error that ends a run is an alert, and so is which run of a sweep is the best.

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

    def scalars(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        """Logs metrics by step."""
        for step, values in steps.items():
            self._run.log({**values}, step=step)

    def best_run(self, info: RunInfo, run: Run) -> None:
        """Logs the values of the best run once more, in a run of the sweep whose alert names its folder."""
        import trackio

        self.start(info)
        self.result(run)
        title, place = f"Best run of {info.folder.name}", display_path(run.folder)
        _quietly(self._run.alert, title, place, level=trackio.AlertLevel.INFO)
        self.finish(True)

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


def _quietly(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Calls a function of Trackio, which prints on its way."""
    with contextlib.redirect_stdout(io.StringIO()):
        return call(*args, **named)

"""One logger that passes every call on to several."""

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from clickexp.errors import with_class
from clickexp.loggers.base import Logger, RunInfo
from clickexp.utils.paths import display_path

log = logging.getLogger(__name__)
_WARNING = "warning: "
"""Begins most warnings where they are printed."""


def _to_each(method: Callable[..., None]) -> Callable[..., None]:
    """A method of `FanOut` that calls this one of each active logger."""

    @functools.wraps(method)
    def call(self: "FanOut", *args: Any, **named: Any) -> None:
        self._each(method.__name__, *args, **named)

    return call


class FanOut(Logger):
    """Passes every call on to each logger, and outlives those that fail.

    A logger that raises gets no more calls but `finish`; one warning names it, the error, and where the
    results still go. `finish` reaches every logger, whatever happened before. Nothing here ever raises.
    """

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self.loggers = list(loggers)
        self.active = list(self.loggers)
        self.folder: Path | None = None
        self.warned: Sequence[str] = ()

    @property
    def destination(self) -> str:
        """Those of the active loggers, and the result file."""
        places = [logger.destination for logger in self.active]
        return ", ".join(
            places + ([display_path(self.folder / "result.json")] if self.folder else [])
        )

    def start(self, info: RunInfo) -> None:
        """Opens the run in each logger; lines that they return become messages."""
        self.folder = info.folder
        for line in self._each("start", info):
            if line:
                self.message(line)

    progress = _to_each(Logger.progress)
    compiling = _to_each(Logger.compiling)
    epoch = _to_each(Logger.epoch)
    per_rank = _to_each(Logger.per_rank)
    message = _to_each(Logger.message)
    result = _to_each(Logger.result)
    report = _to_each(Logger.report)
    failed = _to_each(Logger.failed)
    best_run = _to_each(Logger.best_run)

    def warning(self, text: str) -> None:
        """Reports a line that readers should not miss, and keeps it for the result."""
        warned = text.removeprefix(_WARNING)
        if warned not in self.warned:
            self.warned = (*self.warned, warned)
        self._each("warning", text)

    def finish(self, ok: bool) -> None:
        """Closes the run in every logger, also in those that failed."""
        for logger in self.loggers:
            self._call(logger, "finish", ok)

    def _each(self, method: str, *args: Any, **named: Any) -> list[Any]:
        return [self._call(logger, method, *args, **named) for logger in list(self.active)]

    def _call(self, logger: Logger, method: str, *args: Any, **named: Any) -> Any:
        try:
            return getattr(logger, method)(*args, **named)
        except Exception as error:
            self._drop(logger, method, error)

    def _drop(self, logger: Logger, method: str, error: Exception) -> None:
        """Warns once for each logger: the error of its `finish` after an earlier one adds nothing."""
        if logger not in self.active:
            return
        self.active.remove(logger)
        name, places = type(logger).__name__, self.destination or "nowhere"
        log.warning(
            "%s failed in %s and is left out from here (%s). Results still go to: %s.",
            *(name, method, with_class(error), places),
        )

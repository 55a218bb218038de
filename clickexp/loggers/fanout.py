"""One logger that passes every call on to several."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from clickexp.loggers.base import Logger, Phase, RunInfo
from clickexp.utils.paths import shown

log = logging.getLogger(__name__)


class FanOut(Logger):
    """Passes every call on to each logger, and outlives those that fail.

    A logger that raises gets no more calls but `finish`; one warning names it, the error, and where the
    results still go. `finish` reaches every logger, whatever happened before. Nothing here ever raises.
    """

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self.loggers = list(loggers)
        self.active = list(self.loggers)
        self.folder: Path | None = None

    @property
    def destination(self) -> str:
        places = [logger.destination for logger in self.active]
        return ", ".join(places + ([shown(self.folder / "result.json")] if self.folder else []))

    def start(self, info: RunInfo) -> None:
        self.folder = info.folder
        for line in self._each("start", info):
            if line:
                self.message(line)

    def progress(self, phase: Phase, epoch: int, done: int, total: int, loss: float | None = None) -> None:
        self._each("progress", phase, epoch, done, total, loss)

    def epoch(self, record: Mapping[str, Any]) -> None:
        self._each("epoch", record)

    def per_rank(self, split: Literal["val", "test"], values: Mapping[str, Sequence[float | None]]) -> None:
        self._each("per_rank", split, values)

    def message(self, text: str) -> None:
        self._each("message", text)

    def result(self, result: Mapping[str, Any]) -> None:
        self._each("result", result)

    def finish(self, ok: bool) -> None:
        for logger in self.loggers:
            self._call(logger, "finish", ok)

    def _each(self, method: str, *args: Any) -> list[Any]:
        return [self._call(logger, method, *args) for logger in list(self.active)]

    def _call(self, logger: Logger, method: str, *args: Any) -> Any:
        try:
            return getattr(logger, method)(*args)
        except Exception as error:
            self._drop(logger, method, error)

    def _drop(self, logger: Logger, method: str, error: Exception) -> None:
        """Warns once a logger: the error of its `finish` after an earlier one adds nothing."""
        if logger not in self.active:
            return
        self.active.remove(logger)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        log.warning(
            "%s failed in %s and is left out from here (%s). Results still go to: %s.",
            type(logger).__name__,
            method,
            reason,
            self.destination or "nowhere",
        )

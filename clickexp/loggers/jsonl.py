"""One JSON line per epoch, in a file beside the run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickexp.loggers.base import Logger, RunInfo
from clickexp.utils.documents import plain
from clickexp.utils.paths import display_path


class JsonlLogger(Logger):
    """Appends each epoch's record to `filename` in the run's folder.

    A line is on its way to disk before the call returns, so a killed run keeps its lines. Those of an earlier process
    in the same folder stay, the last one ended if it was half-written, until this process reports epoch 1: a training
    that continues repeats all lines, and another one has nothing to do with them.

    Args:
        filename: Name of the file in the run's folder.
    """

    def __init__(self, filename: str = "metrics.jsonl") -> None:
        self.filename = filename
        self.path = Path(filename)
        self.first = False

    @property
    def destination(self) -> str:
        """The file."""
        return display_path(self.path)

    def start(self, info: RunInfo) -> None:
        """Ends a half-written last line."""
        self.path = info.folder / self.filename
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.first = True
        if self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n"):
            self._append("\n")

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Appends a line; at epoch 1, after the file is emptied."""
        if self.first and record["epoch"] == 1:
            self.path.write_text("")
        self.first = False
        self._append(json.dumps(plain(record), allow_nan=False) + "\n")

    def _append(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

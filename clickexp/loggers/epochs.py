"""The table of epochs, which grows by a line per epoch."""

import math
from collections.abc import Mapping
from typing import Any

from clickexp.runs.run import seconds_without_compilation
from clickexp.utils.tables.numbers import MISSING, number

_WIDTHS = {"epoch": 5, "seconds": 7, "best": 4}
_LL = "val/ll"
_NUMBER_WIDTH = len("-0.12345")
_DECIMALS = 5
"""Of the numbers of an epoch: early stopping takes a smaller change for none, by default."""


class EpochTable:
    """One line per epoch: the watched metric, others of the first record that the width holds, a star if best so far.

    Of a log-likelihood that is minus the loss only the loss is shown.

    Args:
        record: The first epoch's record.
        width: Characters per line.
        watched: The metric that is shown whatever the width.
    """

    def __init__(self, record: Mapping[str, Any], width: int, watched: str = "") -> None:
        names = [name for name in record if "/" in name]
        if watched != _LL and _is_minus_loss(record):
            names.remove(_LL)
        self.metrics = [watched] if watched in names else []
        for name in names:
            before = self.metrics
            self.metrics = [other for other in names if other in {name, *before}]
            if len(self.header()) > width:
                self.metrics = before

    def header(self) -> str:
        """The names of the columns."""
        return self._line({name: name for name in ("epoch", *self.metrics, "seconds", "best")})

    def row(self, record: Mapping[str, Any]) -> str:
        """The numbers of one epoch; its seconds without compilation."""
        metrics = {name: number(record.get(name), _DECIMALS) for name in self.metrics}
        spent = seconds_without_compilation(record)
        seconds = f"{spent:.1f}" if math.isfinite(spent) else MISSING
        best = "*" if record.get("improved") else ""
        return self._line(
            {"epoch": str(record["epoch"]), **metrics, "seconds": seconds, "best": best}
        )

    @staticmethod
    def _line(cells: Mapping[str, str]) -> str:
        widths = {name: _WIDTHS.get(name, max(len(name), _NUMBER_WIDTH)) for name in cells}
        return "  ".join(f"{text:>{widths[name]}}" for name, text in cells.items()).rstrip()


def _is_minus_loss(record: Mapping[str, Any]) -> bool:
    """Whether the log-likelihood of a record is minus its loss."""
    loss = record.get("val/loss")
    return loss is not None and record.get(_LL) == -loss

"""Numbers of a run as dashboards take them: rows by rank, single values by name, hyperparameters by dotted key."""

import math
import re
from collections.abc import Mapping
from typing import Any

from clickexp.errors import UserError, install
from clickexp.loggers.base import Vectors
from clickexp.results.layouts import points_by_layout
from clickexp.runs.hashing import flat
from clickexp.runs.run import Run, seconds_without_compilation

_LEFT_OUT = ("experiment", "overrides")
"""Keys that loggers receive besides the configuration."""
_REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)


def missing_extra(logger: str, error: ImportError) -> UserError:
    """Returns the error for a logger whose package is not installed.

    Args:
        logger: The option, which has the name of its extra.
        error: Of the import.
    """
    return UserError(f"logger={logger} needs {error.name}: {install(logger)}")


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the values of a record that are known numbers, as floats by name."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def epoch_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns train/... and val/... of an epoch, and its seconds without compilation."""
    metrics = {name: value for name, value in record.items() if "/" in name}
    metrics["speed/seconds_per_epoch"] = seconds_without_compilation(record)
    return numbers(metrics)


def rows(vectors: Vectors) -> list[dict[str, float | None]]:
    """Returns a row per rank, with values that are unknown as None."""
    return [dict(zip(vectors, row, strict=True)) for row in zip(*vectors.values(), strict=True)]


def steps_by_rank(name: str, vectors: Vectors) -> dict[int, dict[str, float]]:
    """Returns by rank, from 1, rank/NAME/METRIC of the metrics that are known there."""
    return {
        rank: {f"rank/{name}/{metric}": value for metric, value in numbers(row).items()}
        for rank, row in enumerate(rows(vectors), start=1)
    }


def by_layout(result: Run) -> Vectors:
    """Returns relative examination by position, from 1, of each layout, such as "examination/device_phone"."""
    layouts = points_by_layout(point for point in result.propensity if point.layout)
    largest = max((position for points in layouts.values() for position in points), default=0)
    curves = {}
    for layout, points in layouts.items():
        by_position = [points.get(position) for position in range(1, largest + 1)]
        name = "_".join(layout.split())
        curves[f"examination/{name}"] = [point and point.relative for point in by_position]
    return curves


def spelled(name: str) -> str:
    """Returns a name without the signs that some dashboards refuse.

    ndcg@10 is ndcg_at_10, cold_ll@51+ is cold_ll_at_51_up, and another sign is an underscore.
    """
    return _REFUSED.sub("_", name.replace("@", "_at_").replace("+", "_up"))


def final_values(result: Run) -> dict[str, float]:
    """Returns the `named_values` that are known numbers."""
    return numbers(named_values(result))


def named_values(result: Run) -> dict[str, Any]:
    """Returns test/..., val/... of the best epoch, train/..., bounds of intervals and the number of parameters."""
    values: dict[str, Any] = {"parameters": result.parameters}
    for part, named in result.parts().items():
        values |= {f"{part}/{name}": value for name, value in named.items()}
    for name, (low, high) in result.intervals.items():
        values |= {f"test_low/{name}": low, f"test_high/{name}": high}
    return values


def hyperparameters(config: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Returns the configuration by dotted key, values that are no numbers as text."""
    kept = {key: value for key, value in config.items() if key not in _LEFT_OUT}
    return {
        key: value if isinstance(value, str | int | float | bool) else str(value)
        for key, value in flat(kept).items()
    }

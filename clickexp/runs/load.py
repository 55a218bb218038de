"""Results of runs on disk: found below folders, checked, and read into one tidy data frame."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from annotated_types import Gt, MinLen
from pydantic import BaseModel, StringConstraints, ValidationError

from clickexp.errors import UserError
from clickexp.runs.run import Run
from clickexp.runs.store import (
    BEST,
    CONFIG,
    KEPT,
    OVERRIDES,
    RECORD,
    RESULT,
    natural,
    read_epochs,
    read_json,
    read_yaml,
    run_folders,
    values,
)
from clickexp.utils.escape import cleaned

_SCHEMA = {
    "run": pl.String,
    "model": pl.String,
    "dataset": pl.String,
    "seed": pl.Int64,
    "overrides": pl.String,
    "part": pl.String,
    "metric": pl.String,
    "rank": pl.Int64,
    "value": pl.Float64,
}
_Named = dict[str, float | None]
_Ranked = dict[str, list[float | None]]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Ratio(BaseModel, strict=True):
    """Examination at a position, relative to the first."""

    position: int
    relative: Annotated[float, Gt(0)]
    relative_low: float | None = None
    relative_high: float | None = None


class _Result(BaseModel, strict=True):
    """What makes result.json that of a run, and the types of its parts."""

    model: _Text
    dataset: _Text
    test: Annotated[_Named, MinLen(1)]
    seed: int | None = None
    val: _Named = {}
    train: _Named = {}
    higher_is_better: dict[str, bool | None] = {}
    per_rank: _Ranked = {}
    per_rank_val: _Ranked = {}
    curves: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    test_draws: dict[str, _Named] = {}
    propensity: list[_Ratio] = []
    environment: dict[str, Any] = {}


@dataclass(frozen=True)
class Skipped:
    """A folder without a result.

    Attributes:
        folder: The folder.
        reason: Why, in a few words.
    """

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}"


def load(*folders: str | Path) -> pl.DataFrame:
    """Reads the results of all runs below folders, one row per number.

    What is not a finished run is left out; `find_runs` lists it.

    Args:
        folders: Of a run, a sweep, or many of them.

    Returns:
        The columns run (its folder), model, dataset, seed, overrides, part (test, val of the best epoch, or train),
        metric, rank (from 1; null: over all ranks), value.

    Raises:
        UserError: There is no run at all.
    """
    runs, _ = find_runs(folders)
    return pl.DataFrame([row for run in runs for row in run.rows()], schema=_SCHEMA, orient="row")


def find_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[Skipped]]:
    """Finds the finished runs below folders.

    Args:
        folders: Of a run, a sweep, or many of them.

    Returns:
        Each run once, of those with the same configuration and seed the latest, and what else is there.

    Raises:
        UserError: There is no run.
    """
    found: dict[Path, Run] = {}
    trials: dict[Path, tuple[str, bool]] = {}
    skipped = []
    for folder in dict.fromkeys(folder for root in folders for folder in _below(Path(root))):
        target = _earlier(folder) or folder
        place, trial = target.resolve(), _trial(folder)
        if trial and not (place in trials and trials[place][1]):
            trials[place] = trial
        if place in found:
            continue
        try:
            found[place] = _read(target)
        except UserError as error:
            skipped.append(Skipped(folder, str(error)))
    runs = sorted(found.values(), key=lambda run: (run.folder / RESULT).stat().st_mtime_ns)
    latest = {run.same: run for run in runs}
    marks = defaultdict(list)
    for run in runs:
        again = latest[run.same].folder
        if again != run.folder:
            skipped.append(
                Skipped(run.folder, f"repeated later, with the same configuration, in {again}")
            )
        if (place := run.folder.resolve()) in trials:
            marks[run.same].append(trials[place])
    if not latest:
        where = ", ".join(str(folder) for folder in folders)
        reasons = "".join(f"; {reason}" for reason in skipped[:3])
        raise UserError(f"no finished runs below {where}: name folders with a result.json inside{reasons}")
    marked = [_marked(run, marks[same]) for same, run in latest.items()]
    return sorted(marked, key=lambda run: natural(run.folder)), skipped


def _marked(run: Run, trials: Sequence[tuple[str, bool]]) -> Run:
    """Adds to a run what searches state of its configuration; see `_trial`."""
    metric, chosen = max(trials, key=lambda trial: trial[1], default=(run.optimized, False))
    return replace(run, optimized=metric, chosen=chosen)


def _trial(folder: Path) -> tuple[str, bool] | None:
    """Returns the metric that a search optimised, and whether it chose this trial; None where it is no trial."""
    best, record = cleaned(read_yaml(folder.parent / BEST)), read_json(folder / RECORD)
    if not isinstance(best, dict) or not isinstance(best.get("metric"), str) or not isinstance(record, dict):
        return None
    return best["metric"].removeprefix("test/"), record.get("number") == best.get("trial")


def _below(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder")
    return run_folders(root)


def _earlier(folder: Path) -> Path | None:
    """Returns the folder of the earlier run whose result a job of a sweep was given."""
    record = read_json(folder / RECORD)
    if not isinstance(record, dict) or record.get("status") != KEPT or (folder / RESULT).exists():
        return None
    return Path(str(record.get("result")))


def _read(folder: Path) -> Run:
    if not (folder / RESULT).is_file():
        record = read_json(folder / RECORD)
        status = record.get("status") if isinstance(record, dict) else None
        raise UserError(f"it has no {RESULT} ({status or 'did not finish'})")
    try:
        result, given, config = (
            cleaned(content)
            for content in (
                read_json(folder / RESULT),
                read_yaml(folder / OVERRIDES),
                read_yaml(folder / CONFIG),
            )
        )
    except RecursionError as error:  # YAML may refer to itself
        raise UserError("its files are nested without end") from error
    if isinstance(result, dict):
        result = {name: value for name, value in result.items() if value is not None}
    if problem := _problem(result):
        raise UserError(f"{RESULT} {problem}")
    texts = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    config = config if isinstance(config, dict) else {}
    metric = config.get("optimized_metric")
    optimized = metric.removeprefix("test/") if config.get("search") and isinstance(metric, str) else None
    return Run(folder, result, config, values(texts), tuple(cleaned(read_epochs(folder))), optimized)


def _problem(result: Any) -> str | None:
    """Returns what makes this something else than the result of a run."""
    if not isinstance(result, dict):
        return "holds no JSON object"
    try:
        _Result.model_validate(result)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(map(str, first["loc"]))
        if first["type"] == "missing" or place in ("model", "dataset", "test"):
            return f"is not that of a run: it names no {place}"
        return f"is damaged: {place} is {first['input']!r}"
    return None

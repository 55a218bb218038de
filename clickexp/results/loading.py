"""Results of runs on disk: found below folders, checked, and read into one tidy data frame."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from clickexp.errors import UserError, with_class
from clickexp.runs.hashing import config_hash
from clickexp.runs.run import Run
from clickexp.runs.store import (
    BEST,
    CONFIG,
    KEPT,
    RECORD,
    REPEAT,
    RESULT,
    natural,
    read_object,
    run_folders,
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
        Each run once, of those with the same configuration and seed on one test set the latest, and of jobs that their
        sweep has repeated the last, on whatever data. And what else is there, but for runs without a result that have a
        later one elsewhere. One that another run has continued with other settings has none.

    Raises:
        UserError: There is no run.
    """
    by_folder, trials, unread = _read_runs(folders)
    if not by_folder:
        where = ", ".join(str(folder) for folder in folders)
        reasons = "".join(f"; {reason}" for reason in unread[:3])
        raise UserError(
            f"no finished runs below {where}: name folders with a result.json inside{reasons}"
        )
    times = {folder: (run.folder / RESULT).stat().st_mtime_ns for folder, run in by_folder.items()}
    order = sorted(by_folder, key=lambda folder: times[folder])
    runs = [by_folder[folder] for folder in order]
    ends = {by_folder[folder].config_hash: times[folder] for folder in order}
    continued = _continued(runs)
    skipped = []
    for one in unread:
        if _has_finished_since(one.folder, ends):
            continue
        if (later := continued.get(os.path.realpath(one.folder))) is not None:
            one = Skipped(one.folder, f"interrupted, and continued with other settings in {later}")
        skipped.append(one)
    latest = {run.same: run for run in runs}
    replaced = _replaced(runs)
    trials_of: dict[tuple, list[_Trial]] = defaultdict(list)
    for run in runs:
        trials_of[run.same] += trials[run.folder.resolve()]
        again = latest[run.same].folder
        if again != run.folder:
            reason = f"repeated later, with the same configuration, in {again}"
            skipped.append(Skipped(run.folder, reason))
        elif run.folder in replaced:
            reason = f"repeated later, on data that have changed, in {replaced[run.folder]}"
            skipped.append(Skipped(run.folder, reason))
            del latest[run.same]
    marked = [_marked(run, trials_of[same]) for same, run in latest.items()]
    return sorted(marked, key=lambda run: natural(run.folder)), skipped


def _has_finished_since(folder: Path, ends: Mapping[str, int]) -> bool:
    """Returns whether a run without a result has one elsewhere, of a later repetition, or of what continued it.

    Args:
        folder: That of the run.
        ends: When the latest run of each configuration finished, by its hash.
    """
    if (folder / RECORD).is_file():
        written = folder / RECORD
        configuration = read_object(written).get("config_hash")
    elif (folder / CONFIG).is_file():
        written = folder / CONFIG
        configuration = _hash_of_config(written)
    else:
        return False
    if not isinstance(configuration, str):  # a damaged record may hold anything
        return False
    return ends.get(configuration, 0) > written.stat().st_mtime_ns


def _replaced(runs: Iterable[Run]) -> dict[Path, Path]:
    """Returns, for folders of jobs, that of the same job in the last repetition of their sweep.

    A sweep repeats a job with a result where its data have changed.

    Args:
        runs: The runs, in the order in which they finished.
    """
    replaced: dict[Path, Path] = {}
    earlier: dict[str, list[Path]] = defaultdict(list)
    for run in runs:
        if not run.config_hash:  # a result that was written by hand
            continue
        folder, same = run.folder.resolve(), earlier[run.config_hash]
        for sweep in _repeated_sweeps(folder):
            replaced |= {job: run.folder for job in same if job.resolve().is_relative_to(sweep)}
        same.append(run.folder)
    return replaced


def _repeated_sweeps(folder: Path) -> Iterator[Path]:
    """Yields the folders of sweeps of which a folder is in a repetition."""
    return (place.parent for place in folder.parents if place.name.startswith(REPEAT))


def _continued(runs: Iterable[Run]) -> dict[str, Path]:
    """Returns, for each folder that a run has continued from, the folder of that run."""
    folders = {}
    for run in runs:
        earlier = run.config.get("continue_from")
        if isinstance(earlier, str) and run.origin is not None:
            # resolve fails where links are in a circle
            folders[os.path.realpath(run.origin.located(earlier))] = run.folder
    return folders


def _hash_of_config(file: Path) -> str | None:
    """Returns the hash of a configuration; None where no run has written it."""
    try:
        return config_hash(read_object(file))
    except TypeError:  # dates, or keys that are no text
        return None


_Trial = tuple[str, bool]
"""The metric that a search optimised, and whether it chose this trial."""


def _read_runs(
    folders: Iterable[str | Path],
) -> tuple[dict[Path, Run], dict[Path, list[_Trial]], list[Skipped]]:
    """Reads runs and trials of searches by their folders, and finds folders without a result."""
    by_folder: dict[Path, Run] = {}
    trials: dict[Path, list[_Trial]] = defaultdict(list)
    skipped = []
    for folder in dict.fromkeys(_folders_below(map(Path, folders))):
        try:
            target = _earlier(folder) or folder
            place = target.resolve()
            trials[place] += _trials(folder)
            if place not in by_folder:
                by_folder[place] = Run.read(target)
        except UserError as error:
            skipped.append(Skipped(folder, str(error)))
        except (OSError, ValueError) as error:  # such as a path in a record that no file can have
            skipped.append(Skipped(folder, f"it cannot be read ({with_class(error)})"))
    return by_folder, trials, skipped


def _folders_below(roots: Iterable[Path]) -> list[Path]:
    """Returns the folders of runs below others; a UserError where one of these is not there."""
    below = []
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root}: there is no such folder")
        below += run_folders(root)
    return below


def _marked(run: Run, trials: Sequence[_Trial]) -> Run:
    """Adds to a run what searches state of its configuration."""
    metric, chosen = max(trials, key=lambda trial: trial[1], default=(run.optimized, False))
    return run.model_copy(update={"optimized": metric, "chosen": chosen})


def _trials(folder: Path) -> list[_Trial]:
    """Returns the trial of a search that the folder is; nothing where it is none."""
    best, record = cleaned(read_object(folder.parent / BEST)), read_object(folder / RECORD)
    metric = best.get("metric")
    if not isinstance(metric, str) or not record:
        return []
    return [(metric.removeprefix("test/"), record.get("number") == best.get("trial"))]


def _earlier(folder: Path) -> Path | None:
    """Returns the folder of the earlier run whose result a job of a sweep was given."""
    record = read_object(folder / RECORD)
    if record.get("status") != KEPT or (folder / RESULT).exists():
        return None
    return Path(str(record.get("result")))

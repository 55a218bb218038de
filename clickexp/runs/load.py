"""What runs left on disk: found below folders, checked, and read into one tidy data frame."""

import hashlib
import json
import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.errors import UserError
from clickexp.runs.objective import VALIDATION
from clickexp.runs.store import NOT_HASHED, RECORD, RESULT, read_json, read_yaml, training_seconds, values
from clickexp.utils.escape import cleaned

EPOCHS = "metrics.jsonl"
CONFIG = "config.yaml"
OVERRIDES = ".hydra/overrides.yaml"
MODEL = "model.npz"
BEST = "best.yaml"
"""What a search leaves in its folder, beside those of its trials."""
SEED = "seed"
UNTOLD = (*NOT_HASHED, SEED, "keep_values")
"""Keys in which runs of one experiment may differ."""
SCHEMA = {
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
    """A folder that holds no result, and why in a few words."""

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its folder, result.json, and what else there is.

    config: the resolved configuration, empty where there is none. given: values of its overrides by key.
    epochs: one record per epoch. optimized: the metric by which a search chose among its trials, if the run is one of
    them, such as val/loss, or ll of the test. chosen: whether it is the one that the search chose.
    """

    folder: Path
    result: Mapping[str, Any]
    config: Mapping[str, Any]
    given: Mapping[str, Any]
    epochs: tuple[Mapping[str, Any], ...]
    optimized: str | None = None
    chosen: bool = False

    @property
    def metrics(self) -> list[str]:
        """Names of the numbers of the test, and, as val/..., of the validation in the best epoch."""
        return [*self.result["test"], *(f"{VALIDATION}{name}" for name in self.result.get("val", {}))]

    def value(self, metric: str) -> float | None:
        """Of one of `metrics`; None where the run does not have it."""
        part = "val" if metric.startswith(VALIDATION) else "test"
        return self.result.get(part, {}).get(metric.removeprefix(VALIDATION))

    @property
    def seconds(self) -> float | None:
        """Seconds of training without compilation."""
        return training_seconds(self.result.get("train", {}))

    @property
    def compile_seconds(self) -> float | None:
        return self.result.get("train", {}).get("compile_seconds")

    @property
    def epoch_seconds(self) -> list[float]:
        """Seconds of each epoch without compilation, nan where unknown.

        Where epochs do not record compilation, the first ones are taken to hold all of it.
        """
        recorded = any("compile_seconds" in epoch for epoch in self.epochs)
        left, made = 0.0 if recorded else self.compile_seconds or 0.0, []
        for epoch in self.epochs:
            seconds, compiled = (
                epoch.get(name) if isinstance(epoch.get(name), int | float) else None
                for name in ("seconds", "compile_seconds")
            )
            if not recorded and seconds is not None:
                compiled = min(left, seconds)
                left -= compiled
            made.append(float("nan") if seconds is None else seconds - (compiled or 0.0))
        return made

    @property
    def model(self) -> str:
        return self.result["model"]

    @property
    def dataset(self) -> str:
        return self.result["dataset"]

    @property
    def seed(self) -> int | None:
        return self.result.get("seed")

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """Those that tell experiments apart: neither the seed nor where runs report to."""
        return {key: value for key, value in self.given.items() if key.split(".")[0] not in UNTOLD}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration as dotted keys and plain values."""
        return dict(_flat(self.config))

    @cached_property
    def towers(self) -> dict[str, str]:
        """What computes each role of the model, such as {"attraction": "Embedding"}."""
        roles = self.config.get("model")
        towers = {role: _target(tower) for role, tower in roles.items()} if isinstance(roles, Mapping) else {}
        return {
            role: re.sub(r"Parameter(Config)?$", "", target.split(".")[-1])
            for role, target in towers.items()
            if target
        }

    @cached_property
    def parameters(self) -> int | None:
        """Numbers that were fitted, tables included; from model.npz where result.json does not tell."""
        told = self.result.get("parameters")
        return told if isinstance(told, int) else _parameters(self.folder / MODEL)

    @cached_property
    def test_set(self) -> str:
        """Tells test sets apart; results without `test_set` are told apart by dataset, seed and sessions per rank."""
        if isinstance(told := self.result.get("test_set"), str):
            return told
        dataset = {key: value for key, value in self.settings.items() if key.startswith("dataset.")}
        sessions = self.result.get("per_rank", {}).get("sessions")
        told = [dataset, self.settings.get("max_sessions")] if dataset else [self.seed]
        told += [self.dataset, sessions]
        return "guess-" + hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()[:16]

    @cached_property
    def experiment(self) -> str:
        """The same for runs that differ in their seed only, and in what follows it."""
        settings = {
            key: value
            for key, value in self.settings.items()
            if key.split(".")[0] not in UNTOLD and key.split(".")[-1] != SEED and key != "dataset.cache"
        }
        seeds = {key: value for key, value in self.overrides.items() if key.endswith(f".{SEED}")}
        told = [self.model, self.dataset, settings or self.overrides, seeds]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]

    @property
    def same(self) -> tuple[str, str, int | None]:
        """The same for runs of one configuration and seed on one test set."""
        return self.experiment, self.test_set, self.seed

    def told(self) -> str:
        """The overrides for a reader."""
        return ", ".join(f"{key}={value}" for key, value in self.overrides.items())

    def rows(self) -> Iterator[tuple]:
        """Rows of the tidy frame."""
        own = str(self.folder), self.model, self.dataset, self.seed, self.told()
        for part in ("test", "val", "train"):
            for name, value in self.result.get(part, {}).items():
                yield (*own, part, name, None, _number(value))
        yield (*own, "train", "parameters", None, _number(self.parameters))
        for part, vectors in (("test", "per_rank"), ("val", "per_rank_val")):
            for name, vector in self.result.get(vectors, {}).items():
                for rank, value in enumerate(vector, start=1):
                    yield (*own, part, name, rank, _number(value))


def load(*folders: str | Path) -> pl.DataFrame:
    """Results of all runs below the folders, a row a number.

    Columns: run (its folder), model, dataset, seed, overrides, part (test, val of the best epoch, or train), metric,
    rank (from 1; null: over all ranks), value. What is not a finished run is left out; `find_runs` names it.
    UserError where there is no run at all.
    """
    runs, _ = find_runs(folders)
    rows = [row for run in runs for row in run.rows()]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def find_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[Skipped]]:
    """Finished runs below the folders, each once, and what else is there. UserError where there is no run.

    Of runs with the same configuration and seed the latest stands.
    """
    found: dict[Path, Run] = {}
    trials: dict[Path, tuple[str, bool]] = {}
    skipped = []
    for folder in dict.fromkeys(folder for root in folders for folder in _below(Path(root))):
        target = _kept(folder) or folder
        trial = _trial(folder)
        if trial and not (target.resolve() in trials and trials[target.resolve()][1]):
            trials[target.resolve()] = trial
        if target.resolve() in found:
            continue
        try:
            found[target.resolve()] = _read(target)
        except UserError as error:
            skipped.append(Skipped(folder, str(error)))
    runs = sorted(found.values(), key=lambda run: (run.folder / RESULT).stat().st_mtime_ns)
    latest = {run.same: run for run in runs}
    repeated = [run for run in runs if latest[run.same] is not run]
    for run in repeated:
        again = latest[run.same].folder
        skipped.append(Skipped(run.folder, f"repeated later, with the same configuration, in {again}"))
    if not latest:
        where = ", ".join(str(folder) for folder in folders)
        reasons = "".join(f"; {reason}" for reason in skipped[:3])
        raise UserError(f"no finished runs below {where}: name folders with a result.json inside{reasons}")
    marks = defaultdict(list)
    for run in runs:
        if (key := run.folder.resolve()) in trials:
            marks[run.same].append(trials[key])
    marked = [_marked(run, marks[same]) for same, run in latest.items()]
    return sorted(marked, key=lambda run: _natural(run.folder)), skipped


def _marked(run: Run, trials: Sequence[tuple[str, bool]]) -> Run:
    """The run with what searches say of its configuration; see `_trial`."""
    metric, chosen = max(trials, key=lambda trial: trial[1], default=(run.optimized, False))
    return replace(run, optimized=metric, chosen=chosen)


def _trial(folder: Path) -> tuple[str, bool] | None:
    """Of a trial of a search the metric that was optimised, and whether the search chose the trial; else None."""
    best, record = cleaned(read_yaml(folder.parent / BEST)), read_json(folder / RECORD)
    if not isinstance(best, dict) or not isinstance(best.get("metric"), str) or not isinstance(record, dict):
        return None
    return best["metric"].removeprefix("test/"), record.get("number") == best.get("trial")


def _below(root: Path) -> Iterator[Path]:
    """Folders that look like those of runs; what is inside them is not searched."""
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder")
    for folder, inner, files in os.walk(root):
        inner.sort(key=lambda name: _natural(Path(name)))
        if RESULT in files or RECORD in files or (CONFIG in files and ".hydra" in inner):
            inner.clear()
            yield Path(folder)


def _kept(folder: Path) -> Path | None:
    """The folder of the earlier run whose result a job of a sweep was given."""
    record = read_json(folder / RECORD)
    if not isinstance(record, dict) or record.get("status") != "kept" or (folder / RESULT).exists():
        return None
    return Path(str(record.get("result")))


def _read(folder: Path) -> Run:
    if not (folder / RESULT).is_file():
        record = read_json(folder / RECORD)
        status = record.get("status") if isinstance(record, dict) else None
        raise UserError(f"it has no {RESULT} ({status or 'did not finish'})")
    try:
        return _read_files(folder)
    except RecursionError as error:  # YAML may refer to itself
        raise UserError("its files are nested without end") from error


def _read_files(folder: Path) -> Run:
    result = cleaned(read_json(folder / RESULT))
    if problem := _problem(result):
        raise UserError(f"{RESULT} {problem}")
    given = cleaned(read_yaml(folder / OVERRIDES))
    texts = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    config = cleaned(read_yaml(folder / CONFIG))
    config = config if isinstance(config, dict) else {}
    metric = config.get("optimized_metric")
    return Run(
        folder,
        result,
        config,
        values(texts),
        tuple(_epochs(folder / EPOCHS)),
        metric.removeprefix("test/") if config.get("search") and isinstance(metric, str) else None,
    )


def _problem(result: Any) -> str | None:
    """What makes this something else than the result of a run."""
    if not isinstance(result, dict):
        return "holds no JSON object"
    for name in ("model", "dataset"):
        if not isinstance(result.get(name), str) or not result[name].strip():
            return f"is not that of a run: it names no {name}"
    if not isinstance(result.get("test"), dict) or not result["test"]:
        return "is not that of a run: it has no test metrics"
    for part in ("test", "val", "train"):
        if not isinstance(result.get(part, {}), dict):
            return f"is damaged: {part} holds no numbers by name"
        for name, value in result.get(part, {}).items():
            if not _is_number(value):
                return f"is damaged: {part}/{name} is {value!r}"
    for part in ("curves", "intervals", "environment", "higher_is_better"):
        if not isinstance(result.get(part) or {}, dict):
            return f"is damaged: {part} holds nothing by name"
    for name, better in (result.get("higher_is_better") or {}).items():
        if not isinstance(better, bool | None):
            return f"is damaged: higher_is_better/{name} is {better!r}"
    for part in ("per_rank", "per_rank_val"):
        per_rank = result.get(part, {})
        if not isinstance(per_rank, dict) or not all(
            isinstance(vector, list) and all(map(_is_number, vector)) for vector in per_rank.values()
        ):
            return f"is damaged: {part} holds no lists of numbers"
    if not isinstance(result.get("seed"), int | None):
        return f"is damaged: seed is {result['seed']!r}"
    return None


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _epochs(file: Path) -> list[dict[str, Any]]:
    """The last record of each epoch; lines cut off by a killed process are passed over."""
    records: dict[int, dict[str, Any]] = {}
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("epoch"), int):
            records[record["epoch"]] = cleaned(record)
    return [records[epoch] for epoch in sorted(records)]


def _parameters(file: Path) -> int | None:
    """The sizes of the arrays in a NumPy archive, from their headers alone; None where it cannot be read."""
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(_size(archive, name) for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return None


def _size(archive: zipfile.ZipFile, name: str) -> int:
    with archive.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[version[0]]
        return int(np.prod(read(stream)[0], dtype=np.int64))


def _flat(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list) and any(isinstance(item, (Mapping, list)) for item in node):
        yield from _flat(dict(enumerate(node)), path)
    else:
        yield path, node


def _target(tower: Any) -> str | None:
    """What a tower is made by; of a table that is compressed, what compresses it."""
    if not isinstance(tower, Mapping):
        return None
    return _target(tower.get("embedding_fn")) or tower.get("_target_")


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Orders 2 before 10."""
    parts = [part for part in re.split(r"(\d+)", str(path)) if part]
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]

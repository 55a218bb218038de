"""What there is of earlier runs, found by their configuration: results, and runs that were interrupted."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULT = "result.json"
RECORD = "job.json"
CHECKPOINT = "checkpoint.npz"
DONE = ("finished", "kept")
"""Of a record: there is a result."""
PRUNED = "pruned"
NOT_HASHED = (
    "logger",
    "progress",
    "cache_dir",
    "save_model",
    "project",
    "group",
    "tags",
    "notes",
    "resume",
    "continue_from",
    "search",
    "sweeps_dir",
    "optimized_metric",
    "reproduction",
)
HOW = ("hydra", "launcher", "search")
NOT_HASHED_OF = {"dataset": "cache", "trainer": "checkpoint_minutes"}


@dataclasses.dataclass
class Record:
    """A job of a sweep, as job.json in its folder holds it.

    status: running, finished, failed, interrupted, pruned by a search, or kept, where an earlier run had the same
    configuration.
    result: the folder with result.json, that of the earlier run if kept. seconds: wall time of the process.
    """

    number: int
    overrides: list[str]
    config_hash: str
    status: str
    result: str
    device: str | None = None
    seconds: float | None = None
    error: str | None = None

    def write(self, folder: Path) -> None:
        """Whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(dataclasses.asdict(self), folder / RECORD)

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        """None where there is none, or one of another version."""
        content = read_json(folder / RECORD)
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**content) if isinstance(content, dict) and content.keys() == known else None


def config_hash(config: dict[str, Any]) -> str:
    """The same for resolved configurations that differ at most in where runs report to and keep their files."""
    told = {name: value for name, value in config.items() if name not in NOT_HASHED}
    for part, left in NOT_HASHED_OF.items():
        if isinstance(told.get(part), dict):
            told[part] = {name: value for name, value in told[part].items() if name != left}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def finished(*roots: Path) -> dict[str, Path]:
    """For each configuration with a result below the roots the folder of the latest."""
    found = [(folder, read_json(folder / RESULT)) for folder in _runs(roots, RESULT)]
    return {result["config_hash"]: folder for folder, result in found if "config_hash" in (result or {})}


def unfinished(digest: str, *roots: Path) -> Path | None:
    """The latest folder below the roots that a run of this configuration left with a checkpoint but no result."""
    for folder in reversed(_runs(roots, RECORD)):
        if (folder / CHECKPOINT).exists() and not (folder / RESULT).exists():
            if (read_json(folder / RECORD) or {}).get("config_hash") == digest:
                return folder
    return None


def records(root: Path) -> list[tuple[Path, Record]]:
    """The jobs below a folder in the order of their numbers."""
    found = [(folder, Record.read(folder)) for folder in _runs([root], RECORD)]
    return sorted(((folder, record) for folder, record in found if record), key=lambda pair: pair[1].number)


def training_seconds(train: Mapping[str, Any]) -> float | None:
    """Seconds of training without compilation, which depends on what ran before.

    Args:
        train: that part of a result. Where it lacks `training_seconds`, they are `seconds` less `compile_seconds`.
    """
    seconds = train.get("training_seconds")
    if seconds is None and train.get("seconds") is not None:
        seconds = train["seconds"] - (train.get("compile_seconds") or 0.0)
    return seconds


def values(overrides: Sequence[str]) -> dict[str, Any]:
    """The keys and values that overrides such as +experiment=yandex or seed=3 give, but for how jobs are launched."""
    pairs = (override.lstrip("+~").partition("=") for override in overrides)
    return {key: _value(text) for key, _, text in pairs if not key.startswith(HOW)}


def told(overrides: Sequence[str], common: Sequence[str] = ()) -> str:
    """The overrides of a job for a reader, but for those that all jobs of its sweep have in common."""
    shared = values(common).items()
    own = dict(pair for pair in values(overrides).items() if pair not in shared)
    return ", ".join(f"{key}={value}" for key, value in own.items())


def _value(text: str) -> Any:
    named = {"true": True, "false": False, "null": None}
    if text.lower() in named:
        return named[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def write_json(content: Any, file: Path) -> None:
    """Writes a file whole or not at all."""
    unfinished = file.with_name(file.name + ".part")
    unfinished.unlink(missing_ok=True)  # a link there would lead elsewhere
    unfinished.write_text(json.dumps(content, indent=2) + "\n")
    unfinished.replace(file)


def read_json(file: Path) -> Any:
    """None for a file that does not exist or does not hold JSON."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def _runs(roots: Iterable[Path], file: str) -> list[Path]:
    """Folders of runs with this file, the latest last."""
    dated = []
    for folder in {folder.resolve() for root in roots for folder in _folders(Path(root))}:
        try:
            dated.append(((folder / file).stat().st_mtime_ns, folder))
        except OSError:
            continue
    return [folder for _, folder in sorted(dated)]


def _folders(root: Path) -> Iterator[Path]:
    """Folders of runs; what is inside them is not searched."""
    for folder, inner, files in os.walk(root):
        if RESULT in files or RECORD in files:
            inner.clear()
            yield Path(folder)

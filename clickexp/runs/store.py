"""What there is of earlier runs, found by their configuration: results, and runs that were interrupted."""

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from clickexp.utils.files import whole

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RESULT = "result.json"
RECORD = "job.json"
CHECKPOINT = "checkpoint.npz"
MODEL = "model.npz"
CONFIG = "config.yaml"
SESSIONS, LISTS = "test_sessions.parquet", "test_lists.parquet"
"""Values of single sessions and lists."""
KEPT, PRUNED = "kept", "pruned"
DONE = ("finished", KEPT)
"""States of a job that has a result."""
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
HASHED_AS = {"trainer": {"steps_per_execution": "steps"}}
"""Earlier names of settings: configurations of earlier runs keep their hashes."""
MAY_CHANGE = ("trainer.epochs", "trainer.iterations", "keep_values", "dataset.path")
"""Settings that may differ where a training continues: its numbers do not depend on them."""


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
    return hashlib.sha256(json.dumps(_hashed(config), sort_keys=True).encode()).hexdigest()[:16]


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """Settings by name, such as optimizer.learning_rate, that are the same in the runs that one training is made of."""
    return {name: value for name, value in _flat(_hashed(config)).items() if name not in MAY_CHANGE}


def _hashed(config: dict[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in config.items() if name not in NOT_HASHED}
    for part, left in NOT_HASHED_OF.items():
        if isinstance(told.get(part), dict):
            earlier = HASHED_AS.get(part, {})
            told[part] = {earlier.get(name, name): value for name, value in told[part].items() if name != left}
    return told


def _flat(config: Any, name: str = "") -> dict[str, Any]:
    """The values of nested dictionaries and lists by the keys that lead to them."""
    inner = dict(enumerate(config)) if isinstance(config, list) else config
    if not isinstance(inner, dict):
        return {name: config}
    parts = (_flat(part, f"{name}.{key}" if name else str(key)) for key, part in inner.items())
    return {path: value for part in parts for path, value in part.items()}


def finished(*roots: Path) -> dict[str, Path]:
    """For each configuration with a result below the roots the folder of the latest, whole or not."""
    found = [(folder, read_json(folder / RESULT)) for folder in _runs(roots, RESULT)]
    return {result["config_hash"]: folder for folder, result in found if "config_hash" in (result or {})}


def is_whole(folder: Path, model: bool) -> bool:
    """Whether a run has finished there and its model, where one is, can be read: all of it is.

    Args:
        folder: That of a run.
        model: There must be one.
    """
    if not (folder / RESULT).exists():
        return False
    if not (folder / MODEL).exists():
        return not model
    try:
        with zipfile.ZipFile(folder / MODEL) as archive:
            return archive.testzip() is None
    except Exception:  # a flipped byte may come to anything: another compression, a password
        return False


def unfinished(digest: str, *roots: Path) -> list[Path]:
    """Folders below the roots that runs of this configuration left without a result, the latest first."""
    return [
        folder
        for folder in reversed(_runs(roots, RECORD))
        if not (folder / RESULT).exists() and (read_json(folder / RECORD) or {}).get("config_hash") == digest
    ]


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
    with whole(file) as part:
        part.write_text(json.dumps(content, indent=2) + "\n")


def read_json(file: Path) -> Any:
    """None for a file that does not exist or does not hold JSON."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def read_yaml(file: Path) -> Any:
    """Returns what a YAML file holds; None where it does not exist or is no YAML."""
    try:
        return yaml.load(file.read_bytes(), _LOADER)  # noqa: S506  # both are safe
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
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

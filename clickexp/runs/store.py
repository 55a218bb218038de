"""The files of a run folder, and earlier runs by their configuration: results, and runs that were interrupted."""

import contextlib
import dataclasses
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from clickexp.errors import UserError
from clickexp.runs.settings import LAUNCHING
from clickexp.utils.documents import EndlessError, parse_json, parse_yaml, read_file
from clickexp.utils.escape import cleaned
from clickexp.utils.files import whole

RESULT = "result.json"
RECORD = "job.json"
_METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.npz"
DASHBOARD = "dashboard.json"
"""Names the run on Weights & Biases until it has finished, for the run that continues it."""
MODEL = "model.npz"
SHARED = "shared.npz"
"""How sure the shared parameters of the model are."""
SEEN = "seen.npz"
"""Counts of training: documents by row of a table, and lists by query."""
RANKER = "export/ranker.npz"
"""Scores documents without the model, after an export."""
IDS = "ids.parquet"
"""Names of the ids that the tables of the model have rows for."""
ENCODING = "encoding.json"
"""Encoding of columns by training sessions: names of categories, and how feature vectors are made."""
CONFIG = "config.yaml"
SESSIONS, LISTS = "test_sessions.parquet", "test_lists.parquet"
"""Values of single sessions and lists."""
REPORT, FIGURES = "report.html", "figures"
"""The page of a run, and the folder that commands write figures to."""
ONLINE, ONLINE_FILE = "online", "online.json"
"""The folder in that of a run in which comparisons with others by users are, and the file of each."""
HYDRA = ".hydra"
OVERRIDES = f"{HYDRA}/overrides.yaml"
MULTIRUN = "multirun.yaml"
"""Hydra's record of a sweep."""
REPEAT = "repeat-"
"""How folders of a sweep are called in which it has its jobs when it is repeated, before their number."""
BEST = "best.yaml"
"""The best trial of a search, in its folder."""
KEPT, PRUNED = "kept", "pruned"
DONE = ("finished", KEPT)
"""States of a job that has a result."""
_WORDS = {"true": True, "false": False, "null": None}
_QUOTED = re.compile(r"""(['"])(.*)\1""", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
"""A sign with the backslash that Hydra wants before it outside of quotes."""


@dataclasses.dataclass
class Record:
    """A job of a sweep, as job.json in its folder holds it.

    Attributes:
        number: Of the job.
        overrides: Of the job.
        config_hash: Hash of its configuration.
        status: running, finished, failed, interrupted, pruned by a search, or kept, where an earlier run had the same
            configuration.
        result: The folder with result.json, that of the earlier run if kept.
        device: Where it ran.
        seconds: Wall time of the process.
        error: Why it failed.
        sources: What its configuration names, by content; see `clickexp.runs.sources`.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")

    number: int
    overrides: list[str]
    config_hash: str
    status: str
    result: str
    device: str | None = None
    seconds: float | None = None
    error: str | None = None
    sources: dict[str, str | None] = dataclasses.field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes the record whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(dataclasses.asdict(self), folder / RECORD)

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        """Returns the record in a folder; None where there is none, or one of another version."""
        try:
            return _RECORD.validate_json(json.dumps(cleaned(read_object(folder / RECORD))))
        except ValidationError:
            return None


_RECORD = TypeAdapter(Record)


def finished(*roots: Path) -> dict[str, Path]:
    """Returns, for each configuration with a result below the roots, the folder of the latest, whole or not."""
    digests = (
        (folder, read_object(folder / RESULT).get("config_hash")) for folder in _runs(roots, RESULT)
    )
    return {digest: folder for folder, digest in digests if isinstance(digest, str)}


def is_whole(folder: Path, model: bool) -> bool:
    """Returns whether a run has finished in a folder and its model, where there is one, can be read.

    Args:
        folder: That of a run.
        model: There must be a model.
    """
    if not (folder / RESULT).exists():
        return False
    if not (folder / MODEL).exists():
        return not model
    try:
        with zipfile.ZipFile(folder / MODEL) as archive:
            return archive.testzip() is None
    except Exception:  # a flipped byte may result in anything: another compression, a password
        return False


def unfinished(digest: str, *roots: Path) -> list[Path]:
    """Returns folders below the roots that runs of a configuration left without a result, the latest first."""
    return [
        folder
        for folder in reversed(_runs(roots, RECORD))
        if not (folder / RESULT).exists()
        and read_object(folder / RECORD).get("config_hash") == digest
    ]


def records(root: Path) -> list[tuple[Path, Record]]:
    """Returns the jobs below a folder in the order of their numbers."""
    jobs = [(folder, record) for folder in _runs([root], RECORD) if (record := Record.read(folder))]
    return sorted(jobs, key=lambda pair: pair[1].number)


def values(overrides: Sequence[str]) -> dict[str, Any]:
    """Returns keys and values of overrides such as +experiment=yandex or seed=3, but for how jobs are launched."""
    pairs = (override.lstrip("+~").partition("=") for override in overrides)
    return {key: _value(text) for key, _, text in pairs if not key.startswith(LAUNCHING)}


def describe_overrides(overrides: Sequence[str], common: Sequence[str] = ()) -> str:
    """Returns the overrides of a job for a reader, but for those that all jobs of its sweep have in common."""
    shared = values(common).items()
    of_job = dict(pair for pair in values(overrides).items() if pair not in shared)
    return ", ".join(f"{key}={value}" for key, value in of_job.items())


def short_keys(keys: Sequence[str]) -> list[str]:
    """Returns the keys cut to their last part but for _target_, such as lr of optimizer.lr, where that is unique."""
    lasts = [key.removesuffix("._target_").split("@")[-1].split(".")[-1] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]


def _value(text: str) -> Any:
    """Returns what the text of an override says, without Hydra's quotes and backslashes."""
    if quoted := _QUOTED.fullmatch(text):
        return quoted[2].replace(f"\\{quoted[1]}", quoted[1])
    text = _ESCAPED.sub(r"\1", text)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
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


def read_document(file: Path) -> Any:
    """Returns what `read_limited` does, and None also where the file exceeds the limits of documents."""
    with contextlib.suppress(UserError):
        return read_limited(file)


def read_object(file: Path) -> dict[str, Any]:
    """Returns the object that a file of JSON or YAML holds; an empty one without one."""
    content = read_document(file)
    return content if isinstance(content, dict) else {}


def read_limited(file: Path) -> Any:
    """Returns what a file of JSON or YAML, by its suffix, holds; None where it does not exist or is broken.

    Raises:
        UserError: It exceeds the limits of documents.
    """
    parse = parse_json if file.suffix == ".json" else parse_yaml
    try:
        return parse(read_file(file))
    except EndlessError as error:
        raise UserError(f"its files are {error}") from error
    except (OSError, ValueError):
        return None


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """Returns the last record of each epoch of a run, without lines that a killed process cut off."""
    epochs: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(OSError, EndlessError):  # before the first epoch, or a file of no run
        for line in read_file(folder / _METRICS).decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                record = parse_json(line)
                if isinstance(record, dict) and isinstance(record.get("epoch"), int):
                    epochs[record["epoch"]] = record
    return [epochs[epoch] for epoch in sorted(epochs)]


def natural(path: str | Path) -> list[tuple[int, int, str]]:
    """Returns a key that sorts 2 before 10."""
    parts = [part for part in re.split(r"(\d+)", str(path)) if part]
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _runs(roots: Iterable[Path], file: str) -> list[Path]:
    """Returns the folders of runs with a file, the latest last."""
    dated = []
    for folder in {folder.resolve() for root in roots for folder in run_folders(Path(root))}:
        try:
            dated.append(((folder / file).stat().st_mtime_ns, folder))
        except OSError:
            continue
    return [folder for _, folder in sorted(dated)]


def run_folders(root: Path) -> Iterator[Path]:
    """Yields folders that look like those of runs, in natural order; what is inside them is not searched."""
    for folder, inner, files in os.walk(root):
        inner.sort(key=natural)
        if RESULT in files or RECORD in files or (CONFIG in files and HYDRA in inner):
            inner.clear()
            yield Path(folder)

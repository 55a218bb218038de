"""The data of a run: the content of the files that its configuration names, and a fingerprint of its data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickexp.runs.hashing import flat, hashed
from clickexp.runs.store import MODEL, RANKER, RESULT
from clickexp.utils.content import content_of, content_of_all, content_of_target
from clickexp.utils.sources import files_below, source_path

_RUN_FILES = (RESULT, MODEL, RANKER)
"""Files of a run that others read: what it reported, and what it learned."""
_LOG = "log.json"
"""The file that makes a folder a prepared log, whose descriptions have the checksums of all its files."""
Sources = dict[str, str | None]
"""A hash of the content of each file, folder or module, by its key in the configuration; None of what is not there."""


def sources(config: Mapping[str, Any]) -> Sources:
    """Returns the content of what a configuration names: the log, other files, runs, and code outside the package.

    Args:
        config: Plain values, interpolations resolved.

    Raises:
        OSError: A file cannot be read.
    """
    contents: Sources = {}
    for key, value in flat(hashed(config)).items():
        texts = (
            {f"{key}.{at}": text for at, text in enumerate(value)}
            if isinstance(value, list)
            else {key: value}
        )
        for name, text in texts.items():
            if not isinstance(text, str):
                continue
            if key.rpartition(".")[2] == "_target_":
                code = content_of_target(text)
                contents |= {} if code is None else {name: code}
            elif path := _source(key, text):
                contents[name] = _content(path)
    return contents


def _source(key: str, value: str) -> Path | None:
    """Returns the path that a value names, if it is that of the log, another file of the dataset, or a run."""
    if key == "dataset.path":
        return source_path(value)
    path = Path(value).expanduser()
    is_of_dataset = key.startswith("dataset.") and path.exists()
    return path if is_of_dataset or (path / RESULT).is_file() else None


def changed(earlier: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    """Returns the keys whose content has changed.

    What is not on this machine counts as unchanged, since the machine that runs the job may have it.

    Args:
        earlier: The sources of a result.
        now: Those of the configuration on this machine.
    """
    return [
        key for key, content in now.items() if content is not None and content != earlier.get(key)
    ]


def _content(path: Path) -> str | None:
    if path.is_file() or not path.is_dir():
        return content_of(path) if path.is_file() else None
    if (path / RESULT).is_file():
        files = [path / name for name in _RUN_FILES]
    elif (path / _LOG).is_file():
        files = sorted(path.rglob("*.json"))
    else:
        return content_of_all(files_below(path), path)
    return content_of_all(file for file in files if file.is_file())

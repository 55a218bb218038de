"""Files and folders to read, on this machine or, as URLs such as s3://bucket/log, elsewhere."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import unquote

from clickexp.errors import DataError

_MARK = "://"
_PACKAGES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "hf": "hf",
    "http": "http",
    "https": "http",
}
"""The extra of this package that brings what a protocol needs."""


def source_path(path: str | Path) -> Path:
    """Returns a path to read, with ~ resolved; a URL becomes a `upath.UPath`, which has the methods of a Path.

    Args:
        path: Path or URL of a protocol that fsspec knows: s3://, gs://, hf://, https://, memory:// and others.

    Raises:
        DataError: The protocol is unknown, or its package is missing.
    """
    if is_remote(path) or _MARK not in str(path):
        return cast("Path", path) if is_remote(path) else Path(path).expanduser()
    from upath import UPath  # here, because most runs read files of this machine

    protocol = str(path).partition(_MARK)[0]
    try:
        remote = UPath(str(path))
        _ = remote.fs
    except ImportError as error:
        extra = _PACKAGES.get(protocol)
        remedy = f"Install clickexp[{extra}]" if extra else "Install that package"
        raise DataError(
            f"{path}: {protocol}{_MARK} needs a package ({error}). {remedy}."
        ) from error
    except ValueError as error:
        protocols = ", ".join(f"{name}{_MARK}" for name in ("s3", "gs", "hf", "https"))
        remedy = f"Give a path of this machine, or one that begins as {protocols}"
        raise DataError(f"{path}: there is no protocol {protocol!r}. {remedy}.") from error
    return cast("Path", remote)


def is_remote(path: Any) -> bool:
    """Returns whether `source_path` made it of a URL."""
    return not isinstance(path, str | Path) and hasattr(path, "fs")


def is_there(path: str | Path) -> bool:
    """Returns whether a path leads to a file or folder; of a URL it is taken for granted, which reading shows."""
    return _MARK in str(path) or Path(path).expanduser().exists()


def files_below(folder: Path) -> list[Path]:
    """Returns the files in a folder and in the folders inside, in the order of their names.

    What begins with a dot or, as the notes that Spark leaves, with _ is left out.
    """
    files = _remote_files(folder) if is_remote(folder) else _local_files(folder)
    shown = (file for file in files if not any(map(_is_hidden, parts_below(folder, file))))
    return sorted(shown, key=lambda file: parts_below(folder, file))


def parts_below(folder: Path, file: Path) -> tuple[str, ...]:
    """Returns the names of the folders from a folder down to a file, and that of the file."""
    return PurePosixPath(unquote(str(file)[len(str(folder).rstrip("/")) :].strip("/"))).parts


def _local_files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        yield from (file for name in names if (file := Path(place, name)).is_file())


def _remote_files(folder: Any) -> Iterator[Path]:
    files = folder.fs
    for name in files.find(folder.path):
        yield source_path(files.unstrip_protocol(name))


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))

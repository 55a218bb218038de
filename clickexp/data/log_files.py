"""Which files of a folder are the log: by a pattern, or by the endings of their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from clickexp.errors import DataError
from clickexp.utils.sources import files_below, is_remote, parts_below

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
"""Arrow's names of compressions, by the endings of compressed files."""
PARQUET = (".parquet",)
TEXT = (".csv", ".tsv", ".txt")
JSON_LINES = (".jsonl", ".ndjson")
_VERSIONED = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata": "Iceberg"}
"""Folders of tables whose files also hold rows that were deleted or replaced."""


class UnknownKindError(DataError):
    """Names of files show no kind of table; the files may be texts of another format."""


@dataclass(frozen=True)
class Share:
    """What one of several processes reads of a log.

    Attributes:
        spans: By file, the row groups of a Parquet file or the bytes of a text to read, None for all of them; without
            spans, a share is the whole log.
    """

    spans: Mapping[Path, range | None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether a single process reads the log."""
        return self.spans is None

    def has(self, file: Path) -> bool:
        """Returns whether it has a file, or a part of it."""
        return self.spans is None or file in self.spans

    def span(self, file: Path) -> range | None:
        """Returns what to read of a file that it has; None for all."""
        return None if self.spans is None else self.spans[file]


WHOLE = Share()


class Piece(NamedTuple):
    """The least of a log that a process reads: a file, or a range of one.

    Attributes:
        file: The file.
        size: Bytes.
        span: The row groups of a Parquet file, or the bytes of a text; None for the whole file.
    """

    file: Path
    size: float
    span: range | None = None

    @classmethod
    def of(cls, file: Path) -> "Piece":
        """Returns a whole file, of which only its reader says that it is none."""
        try:
            return cls(file, file.stat().st_size)
        except OSError:
            return cls(file, 0)


def also_compressed(*endings: str) -> tuple[str, ...]:
    """Returns endings of names, plain and with those of compressed files."""
    return tuple(f"{ending}{packed}" for packed in ("", *COMPRESSIONS) for ending in endings)


ENDINGS = (*PARQUET, *also_compressed(*TEXT, *JSON_LINES))
"""Endings of the files that are tables."""


def log_files(source: Path, pattern: str | None = None) -> list[Path]:
    """Returns the files of a log in the order of their paths.

    Args:
        source: A file, which is returned, or a folder.
        pattern: Of the paths below the folder, where ** stands for any folders; by default the files in the folder with
            one of ENDINGS or, where there are none, those in the folders inside.

    Raises:
        DataError: There are none, or the folder is a table with versions.
    """
    if (is_remote(source) and source.name.endswith(ENDINGS)) or not source.is_dir():
        return [source]
    _check_versions(source)
    below = files_below(source)
    paths = [parts_below(source, file) for file in below]
    wanted = _with_endings(paths) if pattern is None else _matching(source, pattern)
    matching = [file for file, path in zip(below, paths, strict=True) if path in wanted]
    if not matching:
        raise _no_files(source, pattern, below)
    return matching


def _with_endings(paths: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """The paths with one of ENDINGS: of files in the folder itself or, where there are none, of all."""
    tables = {path for path in paths if path[-1].lower().endswith(ENDINGS)}
    return {path for path in tables if len(path) == 1} or tables


def _no_files(source: Path, pattern: str | None, below: Sequence[Path]) -> DataError:
    """The error about a folder that has files below it, and none to read."""
    what = f"{source}: no {pattern or _listed()} file in this folder"
    remedy = "Check the path of the dataset, or name the files to read in `files`"
    if pattern and any(PurePosixPath(file.name).match(pattern) for file in below):
        remedy = f"Those in the folders inside are read with files='**/{pattern}'"
        return DataError(f"{what}. {remedy}.", {"files": f"**/{pattern}"})
    return UnknownKindError(f"{what}. {remedy}.")


def _listed() -> str:
    plain = [f"*{ending}" for ending in (*PARQUET, *TEXT, *JSON_LINES)]
    return f"{', '.join(plain[:-1])} or {plain[-1]}"


def _matching(source: Path, pattern: str) -> set[tuple[str, ...]]:
    """The paths below a folder that match a pattern, in which ** stands for any folders."""
    inside = f"{pattern}/*" if pattern.endswith("**") else pattern
    try:
        return {parts_below(source, path) for path in source.glob(inside)}
    except (ValueError, NotImplementedError):  # of an empty pattern, and one from the root on
        return set()


def _check_versions(source: Path) -> None:
    """DataError for a folder whose files are not the rows of its table."""
    for name, table in _VERSIONED.items():
        folder = source / name
        if folder.is_dir() and (name != "metadata" or any(folder.glob("*.metadata.json"))):
            what = f"{source}: a {table} table, some of whose files hold rows that were deleted"
            raise DataError(f"{what}. Write its rows to parquet, and read that.")

"""Prepared logs: packed sessions, feature vectors and names of ids in a folder that opens in milliseconds."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.data.checksums import (
    REMEDY,
    DamagedError,
    Progress,
    Stored,
    unsealed,
    verify,
    verify_once,
)
from clickexp.data.dataset import Dataset, Split, keep_queries_seen, split
from clickexp.data.features import Features
from clickexp.data.pack import UNREADABLE, stored_files
from clickexp.data.pairs import named_pairs
from clickexp.data.sessions import Sessions
from clickexp.errors import DataError, reason
from clickexp.utils.bounds import NonNegativeInt

LOG, FEATURES, NAMES = "log.json", "features.npy", "names.parquet"
_messages = logging.getLogger("clickexp.data.prepared")
_SPLIT = ("train", "val", "test")
_PARTS = ("sessions", *_SPLIT, "ranking")


@dataclass(frozen=True)
class Log:
    """A prepared log.

    Attributes:
        name: Name in results.
        format: Name of the reader.
        parts: "sessions", or "train", "val" and "test" where the source comes split; "ranking" for labelled lists.
        notes: Counts that the reader reports, such as what was dropped and why.
        names: Bytes of the file that names the ids, mapped, where a reader numbered them; see
            `clickexp.data.names`.
    """

    name: str
    format: str
    parts: Mapping[str, Sessions]
    notes: Mapping[str, int | str] = field(default_factory=dict)
    names: np.ndarray | None = None

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        cache: str | Path | None = None,
        progress: Progress | None = None,
        ids: Path | None = None,
    ) -> "Log":
        """Maps a prepared folder, in milliseconds once this machine has verified its checksums.

        Args:
            folder: What `clickexp-data prepare` or LogWriter wrote.
            cache: Folder that keeps the note of a verification where `folder` cannot be written.
            progress: Called during a verification with the bytes read so far and in all.
            ids: File that names the ids of another log; documents get the ids of their names there, and 0 where it
                has none.

        Raises:
            DataError: The folder is not a prepared log, or damaged; it names the files. Or ids cannot be compared.
        """
        folder = Path(folder).expanduser()
        verify_once(
            folder, log_files(folder), None if cache is None else Path(cache).expanduser(), progress
        )
        meta = _meta(folder)
        parts = {name: Sessions.open(folder / name, verified=True) for name in meta["parts"]}
        pairs = max(part.query_doc_pairs for part in parts.values())
        features = Features.open(folder / FEATURES) if (folder / FEATURES).exists() else None
        parts = {
            name: part.with_pairs(pairs).with_features(features) for name, part in parts.items()
        }
        names = np.memmap(folder / NAMES, np.uint8, "r") if (folder / NAMES).exists() else None
        if names is not None and ids is not None:
            parts, names = _renumbered(parts, pairs, names, np.memmap(ids, np.uint8, "r"))
        if names is not None:
            derived = named_pairs(names, max(part.query_doc_pairs for part in parts.values()))
            parts = {name: part.deriving(*derived) for name, part in parts.items()}
        parts = {name: part.with_context() for name, part in parts.items()}
        return cls(meta["name"], meta["format"], parts, meta["notes"], names)

    def dataset(
        self,
        name: str | None = None,
        train_sessions: Split = 0.8,
        val_sessions: Split = 0.1,
        test_sessions: Split = 0.1,
        min_train_sessions_per_query: NonNegativeInt = 0,
    ) -> Dataset:
        """Returns the log as a dataset.

        Args:
            name: Name in results, by default that of the log.
            train_sessions: Fraction or range of the sessions to train on, where the source did not come split.
            val_sessions: The same for validation.
            test_sessions: The same for the test.
            min_train_sessions_per_query: Least training sessions of the query of a validation or test session; others
                are left out.

        Raises:
            DataError: The splits do not fit the log.
        """
        if "sessions" in self.parts:
            train, *held_out = split(
                self.parts["sessions"], train_sessions, val_sessions, test_sessions
            )
        else:
            train, *held_out = (self.parts[part] for part in _SPLIT)
            _warn_of_shared_sessions(train, held_out)
        val, test = (
            keep_queries_seen(train, part, min_train_sessions_per_query) for part in held_out
        )
        if not (val.count and test.count):
            what = f"no session of validation or test has a query with {min_train_sessions_per_query} training sessions"
            raise DataError(f"{what}. Lower min_train_sessions_per_query.")
        return Dataset(
            name or self.name,
            train,
            val,
            test,
            query_doc_pairs=train.query_doc_pairs,
            positions=max(part.positions for part in (train, val, test)),
            ranking=self.parts.get("ranking", test if test.has_labels else None),
            notes=self.notes,
            names=self.names,
        )


def _renumbered(
    parts: Mapping[str, Sessions], pairs: int, names: np.ndarray, known: np.ndarray
) -> tuple[dict[str, Sessions], np.ndarray]:
    """Returns parts of a log whose documents have the ids of their names in another log, and the names of that."""
    if np.array_equal(names, known):
        return dict(parts), names
    # Here, because it needs Arrow, which a run that opens a prepared log does without.
    from clickexp.data.names import read_names, renumbering

    other = read_names(known)
    ids = renumbering(read_names(names, pairs), other)
    renumbered = {}
    for name, part in parts.items():
        features = None if part.features is None else part.features.renumbered(ids, len(other) + 1)
        renumbered[name] = (
            part.with_features(None).renumbered(ids, len(other)).with_features(features)
        )
    return renumbered, known


def _warn_of_shared_sessions(train: Sessions, held_out: Sequence[Sessions]) -> None:
    """Points out parts of a source that cut a search session: the context of its later lists lacks the earlier ones."""
    if "session_ids" not in train.columns:
        return
    known = np.unique(train.column("session_ids"))
    for part in held_out:
        ids = np.asarray(part.column("session_ids")) if "session_ids" in part.columns else known[:0]
        if shared := int(np.isin(ids, known).sum()):
            _messages.warning(
                "%s lists of validation or test belong to search sessions of training, as the source numbers them: "
                "their context lacks what came before there",
                f"{shared:,}",
            )


def open_prepared(
    path: str | Path,
    *,
    train_sessions: Split = 0.8,
    val_sessions: Split = 0.1,
    test_sessions: Split = 0.1,
    min_train_sessions_per_query: NonNegativeInt = 0,
    name: str | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    ids: Path | None = None,
) -> Dataset:
    """The dataset in a prepared folder, whatever format it came from.

    Args:
        path: What `clickexp-data prepare` wrote.
        train_sessions: See `Log.dataset`, as for the next four.
        val_sessions: Sessions to validate on.
        test_sessions: Sessions to test on.
        min_train_sessions_per_query: Least training sessions of a held-out query.
        name: Name in results.
        cache: See `Log.open`, as for `progress` and `ids`.
        progress: Called with what is done and the total.
        ids: File that names the ids of another log.

    Raises:
        DataError: The folder is not a prepared log or damaged, or the splits do not fit it.
    """
    log = Log.open(path, cache=cache, progress=progress, ids=ids)
    return log.dataset(
        name, train_sessions, val_sessions, test_sessions, min_train_sessions_per_query
    )


def is_log(folder: Path) -> bool:
    """Whether a completed log lies there."""
    return (folder / LOG).is_file()


def verify_log(folder: Path, progress: Progress | None = None) -> Sequence[Stored]:
    """Reads a prepared log against its checksums and returns its files; DamagedError names those that differ."""
    return verify(folder, log_files(folder), progress=progress)


def log_files(folder: Path) -> list[Stored]:
    """The files of a prepared log, with their checksums; features and names of earlier versions have none."""
    meta = _meta(folder)
    sums = meta["crc32"]
    own = [name for name in (FEATURES, NAMES) if name in sums or (folder / name).exists()]
    files = [Stored(folder / LOG), *(Stored(folder / name, *sums.get(name, ())) for name in own)]
    return files + [file for part in meta["parts"] for file in stored_files(folder / part)]


def _meta(folder: Path) -> dict[str, Any]:
    """log.json, its keys and types checked."""
    file = folder / LOG
    if not is_log(folder):
        raise DamagedError(
            f"{folder}: not a prepared log, {LOG} is missing", "Run clickexp-data prepare."
        )
    try:
        meta = unsealed(file.read_text())
        for key, kind in {"name": str, "format": str, "parts": list, "notes": dict}.items():
            if not isinstance(meta[key], kind):
                raise ValueError(f"{key} is {meta[key]!r}")
        parts = set(meta["parts"])
        if not (parts <= set(_PARTS) and (parts >= {"sessions"} or parts >= set(_SPLIT))):
            raise ValueError(f"parts is {meta['parts']}")
        if not all(isinstance(note, (int, str)) for note in meta["notes"].values()):
            raise ValueError(f"notes is {meta['notes']}")
        meta["crc32"] = {
            name: (int(size), int(crc)) for name, (size, crc) in meta.get("crc32", {}).items()
        }
        return meta
    except UNREADABLE as error:
        raise DamagedError(
            f"{file}: cannot be read ({reason(error, context=False)})", REMEDY
        ) from error

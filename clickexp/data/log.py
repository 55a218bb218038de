"""Prepared logs: what a reader makes of a source, once, and how a dataset is cut from it."""

import functools
import inspect
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.dataset import Dataset, Split, keep_queries_seen, split
from clickexp.data.features import Features
from clickexp.data.pack import GrowingArray, PackWriter, complete, discard, fingerprint, hidden
from clickexp.data.schema import DataError
from clickexp.data.sessions import Sessions

LOG, FEATURES, NAMES = "log.json", "features.npy", "names.parquet"
READ_AS = 2
"""Changes with what readers make of a source, so that caches are made anew."""

Progress = Callable[[int, int], None]
"""Called with what is done so far and the total, in sessions, bytes or whatever the reader counts."""


@dataclass(frozen=True)
class Log:
    """A prepared log.

    format  name of the reader
    parts   "sessions", or "train", "val" and "test" where the source comes split; "ranking" for labelled lists
    notes   counts that the reader has to tell, such as what was dropped and why
    names   bytes of the file that names the ids, mapped, where a reader numbered them; see clickexp.data.names
    """

    name: str
    format: str
    parts: Mapping[str, Sessions]
    notes: Mapping[str, int | str] = field(default_factory=dict)
    names: np.ndarray | None = None

    @classmethod
    def open(cls, folder: str | Path) -> "Log":
        """Maps a prepared folder, without reading it; DataError where it is none."""
        folder = Path(folder).expanduser()
        if not is_log(folder):
            raise DataError(f"{folder}: not a prepared log, {LOG} is missing. Run clickexp-data prepare.")
        meta = _meta(folder / LOG)
        parts = {name: Sessions.open(folder / name) for name in meta["parts"]}
        pairs = max(part.query_doc_pairs for part in parts.values())
        features = Features.open(folder / FEATURES) if (folder / FEATURES).exists() else None
        parts = {name: part.with_pairs(pairs).with_features(features) for name, part in parts.items()}
        names = np.memmap(folder / NAMES, np.uint8, "r") if (folder / NAMES).exists() else None
        return cls(meta["name"], meta["format"], parts, meta["notes"], names)

    def dataset(
        self,
        name: str | None = None,
        train_sessions: Split = 0.8,
        val_sessions: Split = 0.1,
        test_sessions: Split = 0.1,
        min_train_sessions_per_query: int = 0,
    ) -> Dataset:
        """The log as a dataset. Splits hold where the source did not come split.

        min_train_...: keeps the validation and test sessions whose query has that many training sessions.
        """
        if "sessions" in self.parts:
            cut = split(self.parts["sessions"], train_sessions, val_sessions, test_sessions)
        else:
            cut = (self.parts[part] for part in ("train", "val", "test"))
        train, *held_out = cut
        val, test = (_seen(train, part, min_train_sessions_per_query) for part in held_out)
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


class LogWriter:
    """Writes a prepared log into a new folder, whole or not at all.

        with LogWriter(folder, "my log", "parquet") as log:
            with log.part("sessions", ranks, ["query_doc_ids", "clicks", "lengths"]) as pack:
                pack.append(chunk, place)
            log.note("cut lists", 3)

    `progress` is for the reader to call, and `names` to name the ids that it numbers.
    """

    def __init__(self, folder: str | Path, name: str, format: str, progress: Progress | None = None):
        # Here, because it needs Arrow, which a run that opens a prepared log does without.
        from clickexp.data.names import NamesWriter

        self.folder, self.name, self.format = Path(folder), name, format
        self.progress = progress or (lambda done, total: None)
        self.notes: dict[str, int | str] = {}
        self._parts: list[str] = []
        self._features: GrowingArray | None = None
        self._part = hidden(self.folder)
        self.names = NamesWriter(self._part / NAMES)

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            if self._features is not None:
                self._features.close()
            self.names.close()
            if kind is None:
                self._finish()
        finally:
            discard(self._part)

    def part(self, name: str, ranks: int, columns: list[str], max_id: int | None = None) -> PackWriter:
        """A pack to append sessions to; ids above `max_id` are an error."""
        self._parts.append(name)
        return PackWriter(self._part / name, ranks, columns, max_id=max_id)

    def note(self, name: str, count: int = 1) -> None:
        """Adds to a count that the reader has to tell."""
        self.notes[name] = self.notes.get(name, 0) + int(count)

    def add_features(self, values: np.ndarray, dtype: DTypeLike = np.float16) -> None:
        """The feature vectors [ids, features] of the next ids, from 1; row 0, for padding, is added here."""
        if self._features is None:
            self._features = GrowingArray(self._part / FEATURES, dtype, values.shape[1:])
            self._features.append(np.zeros((1, *values.shape[1:])))
        self._features.append(values)

    def features(self) -> np.ndarray:
        """The feature vectors [ids, features] added so far, mapped."""
        return self._features.view()

    def _finish(self) -> None:
        keys = dict(name=self.name, format=self.format, parts=self._parts, notes=self.notes)
        (self._part / LOG).write_text(json.dumps(keys, indent=1))
        complete(self._part, self.folder, is_log)


Read = Callable[..., None]
"""Reads a source into a log: (source, log, **options)."""


def is_log(folder: Path) -> bool:
    """Whether a completed log lies there."""
    return (folder / LOG).is_file()


def prepare(read: Read, format: str, source: str | Path, folder: str | Path, **options: Any) -> Log:
    """Reads a source into a new folder; `options` are those of the reader, and `progress`, `name`."""
    source, folder = Path(source).expanduser(), Path(folder).expanduser()
    if folder.exists():
        raise DataError(f"{folder}: exists already. Delete it or choose another folder.")
    if not source.exists():
        raise DataError(f"{source}: no such file or folder. Check the path.")
    name, progress = options.pop("name", None) or source.stem, options.pop("progress", None)
    with LogWriter(folder, name, format, progress) as log:
        read(source, log, **options)
    return Log.open(folder)


def open_prepared(
    path: str | Path,
    *,
    name: str | None = None,
    train_sessions: Split = 0.8,
    val_sessions: Split = 0.1,
    test_sessions: Split = 0.1,
    min_train_sessions_per_query: int = 0,
) -> Dataset:
    """The dataset in a prepared folder, whatever format it came from; see Log.dataset."""
    splits = train_sessions, val_sessions, test_sessions
    return Log.open(path).dataset(name, *splits, min_train_sessions_per_query)


def log_format(format: str, *, comes_split: bool = False) -> Callable[[Read], Callable[..., Dataset]]:
    """Makes of a reader (source, log, *, options) a function (path, *, options, cache, ...) that opens a dataset.

    The source is read once for these files and options, into a folder of `cache`; without a cache, into a
    temporary one. A path that is a prepared log is opened as it is. The reader itself stays at hand as `.read`.
    """

    def opener(read: Read) -> Callable[..., Dataset]:
        options = list(inspect.signature(read).parameters.values())[2:]
        splits = [] if comes_split else list(inspect.signature(Log.dataset).parameters.values())[2:]
        shared = list(inspect.signature(_shared).parameters.values())
        keywords = [p.replace(kind=p.KEYWORD_ONLY) for p in (*options, *splits, *shared[1:])]

        @functools.wraps(read)
        def open_log(path: str | Path, **given: Any) -> Dataset:
            cut = {p.name: given.pop(p.name) for p in splits if p.name in given}
            name, cache, progress = (given.pop(key, None) for key in ("name", "cache", "progress"))
            source = Path(path).expanduser()
            if is_log(source):
                return Log.open(source).dataset(name, **cut)
            chosen = {p.name: given.get(p.name, p.default) for p in options}
            if cache is None:
                with tempfile.TemporaryDirectory() as folder:  # mapped files stay readable when it is gone
                    log = prepare(read, format, source, Path(folder) / "log", progress=progress, **given)
                    return log.dataset(name, **cut)
            folder = Path(cache).expanduser() / fingerprint(
                _files(source, chosen), {"format": format, "read_as": READ_AS, **chosen}
            )
            if not is_log(folder):
                prepare(read, format, source, folder, progress=progress, **given)
            return Log.open(folder).dataset(name, **cut)

        open_log.__signature__ = inspect.Signature([shared[0], *keywords], return_annotation=Dataset)
        open_log.__annotations__ = {p.name: p.annotation for p in (shared[0], *keywords)}
        open_log.read, open_log.format = read, format
        return open_log

    return opener


def _shared(
    path: str | Path,
    name: str | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> None:
    """The arguments that all formats have in common."""


def _meta(file: Path) -> dict[str, Any]:
    try:
        meta = json.loads(file.read_text())
        return {key: meta[key] for key in ("name", "format", "parts", "notes")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: cannot be read ({error}). Prepare the log anew.") from error


def _files(source: Path, options: Mapping[str, Any]) -> list[Path]:
    """The files of a source, and those that its options name."""
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    named = [Path(value).expanduser() for value in options.values() if isinstance(value, str)]
    return [file for file in (*files, *named) if file.is_file()]


def _seen(train: Sessions, part: Sessions, at_least: int) -> Sessions:
    kept = keep_queries_seen(train, part, at_least)
    if not kept.count:
        raise DataError(
            f"no session of validation or test has a query with {at_least} training sessions. "
            "Lower min_train_sessions_per_query."
        )
    return kept

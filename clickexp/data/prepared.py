"""Prepared logs: what a reader makes of a source, once, and how a dataset is cut from it."""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.checksums import (
    REMEDY,
    DamagedError,
    Progress,
    Stored,
    checksum,
    sealed,
    stamp,
    unsealed,
    verify,
    verify_once,
)
from clickexp.data.dataset import Dataset, Split, keep_queries_seen, split
from clickexp.data.features import Features
from clickexp.data.folders import NewFolder, remove, remove_stale, temporary
from clickexp.data.pack import UNREADABLE, GrowingArray, PackWriter, fingerprint, stored_files
from clickexp.data.schema import Column
from clickexp.data.sessions import Sessions
from clickexp.errors import DataError
from clickexp.utils.bounds import NonNegativeInt
from clickexp.utils.exits import no_room, reason

messages = logging.getLogger(__name__)

LOG, FEATURES, NAMES = "log.json", "features.npy", "names.parquet"
SPLIT = ("train", "val", "test")
PARTS = ("sessions", *SPLIT, "ranking")
READ_AS = 2
"""Changes with what readers make of a source, so that caches are made anew."""


@dataclass(frozen=True)
class Log:
    """A prepared log.

    format  name of the reader
    parts   "sessions", or "train", "val" and "test" where the source comes split; "ranking" for labelled lists
    notes   counts that the reader has to tell, such as what was dropped and why
    names   bytes of the file that names the ids, mapped, where a reader numbered them; see clickexp.data.ingest.names
    """

    name: str
    format: str
    parts: Mapping[str, Sessions]
    notes: Mapping[str, int | str] = field(default_factory=dict)
    names: np.ndarray | None = None

    @classmethod
    def open(
        cls, folder: str | Path, *, cache: str | Path | None = None, progress: Progress | None = None
    ) -> "Log":
        """Maps a prepared folder, in milliseconds once this machine has verified its checksums.

        Args:
            folder: What `clickexp-data prepare` or LogWriter wrote.
            cache: Folder that keeps the note of a verification where `folder` cannot be written.
            progress: Called during a verification with the bytes read so far and in all.

        Raises:
            DataError: The folder is not a prepared log, or damaged; it names the files.
        """
        folder = Path(folder).expanduser()
        files = _stored_files(folder)
        verify_once(folder, files, None if cache is None else Path(cache).expanduser(), progress)
        meta = _meta(folder)
        parts = {name: Sessions.open(folder / name, verified=True) for name in meta["parts"]}
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
        min_train_sessions_per_query: NonNegativeInt = 0,
    ) -> Dataset:
        """The log as a dataset. Splits hold where the source did not come split.

        min_train_...: keeps the validation and test sessions whose query has that many training sessions.
        """
        if "sessions" in self.parts:
            cut = split(self.parts["sessions"], train_sessions, val_sessions, test_sessions)
        else:
            cut = (self.parts[part] for part in SPLIT)
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
                pack.append(chunk, location)
            log.note("cut lists", 3)

    `progress` is for the reader to call, and `names` to name the ids that it numbers. Errors about missing sessions
    name `source`, by default the folder. A folder for a moment need not be `durable`, safe from power failures.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        format: str,
        progress: Progress | None = None,
        *,
        source: str | Path | None = None,
        durable: bool = True,
    ):
        # Here, because it needs Arrow, which a run that opens a prepared log does without.
        from clickexp.data.ingest.names import NamesWriter

        self.folder, self.name, self.format = Path(folder), name, format
        self.progress = progress or (lambda done, total: None)
        self.source, self.durable = source or folder, durable
        self.notes: dict[str, int | str] = {}
        self._parts: list[str] = []
        self._features: GrowingArray | None = None
        self._new = NewFolder(self.folder)
        self.names = NamesWriter(self._new.part / NAMES)

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
            self._new.discard()

    def part(
        self, name: str, ranks: int, columns: Iterable[str | Column], max_id: int | None = None
    ) -> PackWriter:
        """A pack to append sessions to, with these columns, where names suffice for those of COLUMNS.

        Ids above `max_id` are an error.
        """
        self._parts.append(name)
        source = self.source if name == "sessions" else f"{self.source}, {name}"
        return PackWriter(self._new.part / name, ranks, columns, max_id=max_id, source=source, nested=True)

    def note(self, name: str, count: int = 1) -> None:
        """Adds to a count that the reader has to tell."""
        self.notes[name] = self.notes.get(name, 0) + int(count)

    def add_features(self, values: np.ndarray, dtype: DTypeLike = np.float16) -> None:
        """The feature vectors [ids, features] of the next ids, from 1; row 0, for padding, is added here."""
        if self._features is None:
            self._features = GrowingArray(self._new.part / FEATURES, dtype, values.shape[1:])
            self._features.append(np.zeros((1, *values.shape[1:])))
        self._features.append(values)

    def features(self) -> np.ndarray:
        """The feature vectors [ids, features] added so far, mapped."""
        return self._features.view()

    def _finish(self) -> None:
        keys = dict(name=self.name, format=self.format, parts=self._parts, notes=self.notes)
        part, features, names = self._new.part, self._features, self._new.part / NAMES
        sums = {} if features is None else {FEATURES: [features.bytes, features.crc]}
        sums |= {NAMES: [names.stat().st_size, checksum(names)]} if names.exists() else {}
        (part / LOG).write_text(sealed({**keys, "crc32": sums}))
        if self.durable:
            self._new.flush()
        stamp(part, _stored_files(part))
        self._new.complete(is_log)


Read = Callable[..., None]
"""Reads a source into a log: (source, log, **options)."""


def is_log(folder: Path) -> bool:
    """Whether a completed log lies there."""
    return (folder / LOG).is_file()


def verify_log(folder: Path, progress: Progress | None = None) -> list[Stored]:
    """Reads a prepared log against its checksums and returns its files; DamagedError names those that differ."""
    return verify(folder, _stored_files(folder), progress=progress)


def prepare(read: Read, format: str, source: str | Path, folder: str | Path, **options: Any) -> Log:
    """Reads a source into a new folder; `options` are those of the reader, and `progress`, `name`."""
    source, folder = Path(source).expanduser(), Path(folder).expanduser()
    if folder.exists():
        raise DataError(f"{folder}: exists already. Delete it or choose another folder.")
    if not source.exists():
        raise DataError(f"{source}: no such file or folder. Check the path.")
    return _prepared(read, format, source, folder, **options)


def open_prepared(
    path: str | Path,
    *,
    name: str | None = None,
    train_sessions: Split = 0.8,
    val_sessions: Split = 0.1,
    test_sessions: Split = 0.1,
    min_train_sessions_per_query: NonNegativeInt = 0,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """The dataset in a prepared folder, whatever format it came from.

    Args:
        path: What `clickexp-data prepare` wrote.
        name: Shown in results, default that of the source.
        train_sessions, val_sessions, test_sessions, min_train_sessions_per_query: See Log.dataset.
        cache, progress: See Log.open.

    Raises:
        DataError: The folder is not a prepared log or damaged, or the splits do not fit it.
    """
    splits = train_sessions, val_sessions, test_sessions
    log = Log.open(path, cache=cache, progress=progress)
    return log.dataset(name, *splits, min_train_sessions_per_query)


def log_format(
    format: str, *, comes_split: bool = False, has_features: bool = False
) -> Callable[[Read], Callable[..., Dataset]]:
    """Makes of a reader (source, log, *, options) a function (path, *, options, cache, ...) that opens a dataset.

    The source is read once for these files and options, into a folder of `cache`, and again where that is damaged;
    without a cache, into a temporary folder. A path that is a prepared log is opened as it is. The reader itself
    stays at hand as `.read`.
    has_features: whether logs of the format come with feature vectors of documents.
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
                return Log.open(source, cache=cache, progress=progress).dataset(name, **cut)
            if not source.exists():
                raise DataError(f"{source}: no such file or folder. Check the path.")
            chosen = {p.name: given.get(p.name, p.default) for p in options}
            new = functools.partial(_prepared, read, format, source, progress=progress, **given)
            if cache is None:
                with temporary() as folder:  # mapped files stay readable when it is gone
                    return new(folder=folder / "log", durable=False).dataset(name, **cut)
            folder = Path(cache).expanduser() / fingerprint(
                _files(source, chosen), {"format": format, "read_as": READ_AS, **chosen}
            )
            log = _kept(folder, source, progress) or new(folder=folder)
            return log.dataset(name, **cut)

        open_log.__signature__ = inspect.Signature([shared[0], *keywords], return_annotation=Dataset)
        open_log.__annotations__ = {p.name: p.annotation for p in (shared[0], *keywords)}
        open_log.read, open_log.format, open_log.has_features = read, format, has_features
        return open_log

    return opener


def _shared(
    path: str | Path,
    name: str | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> None:
    """The arguments that all formats have in common."""


def _prepared(
    read: Read,
    format: str,
    source: Path,
    folder: Path,
    *,
    name: str | None = None,
    progress: Progress | None = None,
    durable: bool = True,
    **options: Any,
) -> Log:
    try:
        with LogWriter(folder, name or source.stem, format, progress, source=source, durable=durable) as log:
            read(source, log, **options)
    except MemoryError as error:
        remedy = "Lower the positions or features to keep, or use a machine with more memory"
        raise DataError(f"{source}: there is too little memory ({error}). {remedy}.") from error
    except OSError as error:
        if not no_room(error):
            raise
        where = f"{folder.parent}: there is no room to write what was read of {source}"
        raise DataError(f"{where}. Make room, or choose a folder on another disk.") from error
    return Log.open(folder)


def _kept(folder: Path, source: Path, progress: Progress | None) -> Log | None:
    """What a cache keeps of a source; None where that is nothing, or damaged and therefore removed."""
    if folder.parent.is_dir():
        remove_stale(folder.parent)
    if not folder.exists():
        return None
    try:
        return Log.open(folder, progress=progress)
    except DamagedError as error:
        messages.warning("%s. Reading %s again.", error.what, source)
        remove(folder)
        return None


def _meta(folder: Path) -> dict[str, Any]:
    """log.json, its keys and types checked."""
    file = folder / LOG
    if not is_log(folder):
        raise DamagedError(f"{folder}: not a prepared log, {LOG} is missing", "Run clickexp-data prepare.")
    try:
        meta = unsealed(file.read_text())
        for key, kind in dict(name=str, format=str, parts=list, notes=dict).items():
            if not isinstance(meta[key], kind):
                raise ValueError(f"{key} is {meta[key]!r}")
        parts = set(meta["parts"])
        if not (parts <= set(PARTS) and (parts >= {"sessions"} or parts >= set(SPLIT))):
            raise ValueError(f"parts is {meta['parts']}")
        if not all(isinstance(note, int | str) for note in meta["notes"].values()):
            raise ValueError(f"notes is {meta['notes']}")
        meta["crc32"] = {name: (int(size), int(crc)) for name, (size, crc) in meta.get("crc32", {}).items()}
        return meta
    except UNREADABLE as error:
        raise DamagedError(f"{file}: cannot be read ({reason(error, context=False)})", REMEDY) from error


def _stored_files(folder: Path) -> list[Stored]:
    """The files of a prepared log, with their checksums; features and names of earlier versions have none."""
    meta = _meta(folder)
    sums = meta["crc32"]
    own = [name for name in (FEATURES, NAMES) if name in sums or (folder / name).exists()]
    files = [Stored(folder / LOG), *(Stored(folder / name, *sums.get(name, ())) for name in own)]
    return files + [file for part in meta["parts"] for file in stored_files(folder / part)]


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

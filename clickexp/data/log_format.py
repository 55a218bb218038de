"""Formats of logs: a reader becomes a function that opens a dataset, reading its source once."""

import contextlib
import functools
import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from clickexp.data.checksums import DamagedError
from clickexp.data.dataset import Dataset
from clickexp.data.description import Numbering, is_log
from clickexp.data.folders import remove, remove_stale, temporary
from clickexp.data.log_files import Piece, log_files
from clickexp.data.log_writer import LogWriter
from clickexp.data.prepared import Log, open_prepared
from clickexp.data.public_logs import how_to_get
from clickexp.errors import DataError, no_room
from clickexp.utils.content import (
    content_of,
    content_of_all,
    content_of_code,
    inodes_of_large,
)
from clickexp.utils.files import check_source
from clickexp.utils.progress import Progress, no_report
from clickexp.utils.signatures import with_flat_options
from clickexp.utils.sources import is_remote, source_path

if TYPE_CHECKING:
    import polars as pl

_messages = logging.getLogger("clickexp.data.prepared")

_READ_AS = 6
"""Changes with what readers make of a source and how it is stored, so that caches are read again."""

_REMEDY = "Check the path; a configuration has it as dataset.path."


class WaitingLists(Protocol):
    """Lists that wait until all has been read, as `clickexp.data.ingest.packing.ReadLog` has them."""

    def pack(self, log: LogWriter) -> None:
        """Packs the lists into the parts of a log."""
        ...


_Read = Callable[..., WaitingLists | None]
"""Reads a source, or the share of it that a log has, into lists; or writes a log: (source, log, **options)."""
_Pieces = Callable[..., Sequence[Piece]]
"""Divides a source into pieces: (source, number of shares, **options)."""
_TrueUser = Callable[[Dataset, Mapping[str, Any]], Any]
"""The click model that clicked, of a dataset and the options of its reader; None where it is not known."""


def _no_pieces(source: Path, shares: int, **options: Any) -> list[Piece]:
    return []


class LogFormat:
    """Opens the logs of a format: (path, *, options of the reader, splits, name, cache, progress) -> Dataset.

    The source is read once for these files and options, into a folder of `cache`, and again where that is damaged;
    without a cache, into a temporary folder. A path that is a prepared log is opened as it is.

    Args:
        read: The reader. Arguments that are named tuples hold options that readers share.
        format: Its name.
        comes_split: Whether the source has parts for training, validation and test.
        has_features: Whether logs of the format may come with feature vectors of documents.
        pieces: Divides a source into pieces in the order of the log, for about so many shares, by the options of the
            reader, which reads the share that a log has. Without pieces one process reads all.
        true_user: Finds the click model that clicked, where clicks are simulated.
    """

    def __init__(
        self,
        read: _Read,
        format: str,
        *,
        comes_split: bool = False,
        has_features: bool = False,
        pieces: _Pieces = _no_pieces,
        true_user: _TrueUser | None = None,
    ):
        functools.update_wrapper(self, read)
        self.read, self.format = with_flat_options(read), format
        self.has_features, self.true_user = has_features, true_user
        self.pieces = pieces
        self._options = list(inspect.signature(self.read).parameters.values())[2:]
        path, *shared = inspect.signature(open_prepared).parameters.values()
        splits = [
            p
            for p in shared
            if p.name not in ("ids", "learned") and not (comes_split and "sessions" in p.name)
        ]
        reading = inspect.signature(LogFormat.__call__).parameters
        # Hydra's configurations and the command's options are checked against these
        parameters = [path, *self._options, *splits, reading["cache"], reading["progress"]]
        self.__signature__ = inspect.Signature(parameters, return_annotation=Dataset)
        self.__annotations__ = {p.name: p.annotation for p in parameters}

    def __call__(
        self,
        path: str | Path,
        *,
        cache: str | Path | None = None,
        progress: Progress = no_report,
        ids: Numbering | None = None,
        learned: Numbering | None = None,
        **arguments: Any,
    ) -> Dataset:
        """Opens the dataset in a source of the format, or in a prepared log.

        Args:
            path: Source or prepared log.
            cache: Folder that keeps what was read.
            progress: Called with what is done and the total.
            ids: Those of another log; see `Log.open`. No option of a configuration.
            learned: What a run has learned to encode columns; see `Log.dataset`. The same.
            arguments: Options of the reader, and arguments of `Log.dataset`.

        Raises:
            DataError: The source cannot be read; it names file, row and remedy.
        """
        self.__signature__.bind(path, **arguments)
        source, defaults = source_path(path), {p.name: p.default for p in self._options}
        options = {name: arguments.pop(name) for name in defaults if name in arguments}
        if is_log(source):
            return open_prepared(source, ids=ids, learned=learned, **arguments)
        check_source(source, _REMEDY + how_to_get(arguments.get("name")))
        # a cache may keep it under the name that an equal file had
        arguments["name"] = arguments.get("name") or source.stem
        read = functools.partial(_read, self.read, self.format, source, progress=progress, ids=ids)
        chosen = {**defaults, **options}
        if cache is None:
            with temporary() as folder:  # mapped files stay readable when it is gone
                log = _of_source(read(folder / "log", durable=False, **options), source)
                return self._with_truth(log.dataset(**arguments, learned=learned), chosen)
        folder = Path(cache).expanduser() / self._cache_name(source, chosen)
        log = _reused(folder, source, ids) or read(folder, **options)
        return self._with_truth(log.dataset(**arguments, learned=learned), chosen)

    def _cache_name(self, source: Path, options: Mapping[str, Any]) -> str:
        """Returns a name that changes with the names and contents of the files, the options and the reader."""
        reader = {"format": self.format, "reader": _reader_source(self.read)}
        named = [_READ_AS, _contents(source, options), reader, options]
        text = json.dumps(named, sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def _with_truth(self, dataset: Dataset, options: Mapping[str, Any]) -> Dataset:
        if self.true_user is None:
            return dataset
        return replace(dataset, truth=self.true_user(dataset, options))


def _of_source(log: Log, source: Path) -> Log:
    """Returns a log whose errors name its source, since its folder is temporary."""
    parts = {
        name: replace(part, folder=source if name == "sessions" else Path(f"{source}, {name}"))
        for name, part in log.parts.items()
    }
    return replace(log, parts=parts)


def log_format(format: str, **settings: Any) -> Callable[[_Read], LogFormat]:
    """Returns a decorator that makes a format of a reader (source, log, *, options).

    Args:
        format: Name of the format.
        settings: Keywords of LogFormat.
    """
    return lambda read: LogFormat(read, format, **settings)


def prepare(
    read: _Read,
    format: str,
    source: str | Path,
    folder: str | Path,
    *,
    earlier: "pl.DataFrame | None" = None,
    **options: Any,
) -> Log:
    """Reads a source into a new folder.

    Args:
        read: The reader.
        format: Its name.
        source: What it reads.
        folder: The new folder.
        earlier: Names of the ids of another log, from `read_names`: they keep their ids, and others come behind.
        options: Those of the reader, and `progress`, `name`.

    Raises:
        DataError: The folder exists, or the source cannot be read.
    """
    source, folder = source_path(source), Path(folder).expanduser()
    if folder.exists():
        raise DataError(f"{folder}: exists already. Delete it or choose another folder.")
    check_source(source, _REMEDY)
    return _read(read, format, source, folder, earlier=earlier, **options)


def _reader_source(read: _Read) -> str | None:
    """The content of a reader outside the package, and of the modules beside it that it imports; else None."""
    read = inspect.unwrap(read)
    source = inspect.getsourcefile(read)
    if source is None or not Path(source).is_file():
        return None
    return content_of_code(read.__module__, Path(source))


def _read(
    read: _Read,
    format: str,
    source: Path,
    folder: Path,
    *,
    name: str | None = None,
    progress: Progress = no_report,
    durable: bool = True,
    ids: Numbering | None = None,
    earlier: "pl.DataFrame | None" = None,
    **options: Any,
) -> Log:
    writing = {"source": source, "durable": durable, "earlier": earlier}
    written(
        read, source, LogWriter(folder, name or source.stem, format, progress, **writing), **options
    )
    return Log.open(folder, ids=ids)


def written(read: _Read, source: Path, log: LogWriter, **options: Any) -> WaitingLists | None:
    """Writes a log and closes it; of a share nothing is packed.

    Args:
        read: The reader.
        source: What it reads.
        log: A new writer.
        options: Those of the reader.

    Returns:
        What the reader returns.

    Raises:
        DataError: The source cannot be read or changes meanwhile, or there is too little room for the log.
    """
    files = options.get("files")
    before = None if is_remote(source) else _content(source, _files(source, files))
    try:
        with log:
            lists = read(source, log, **options)
            if lists is not None and log.share.is_whole:
                lists.pack(log)
            if before is not None and _content(source, _files(source, files)) != before:
                raise DataError(
                    f"{source}: it has changed while it was read. Wait until nothing writes to it, or read a copy."
                )
    except MemoryError as error:
        remedy = "Lower the positions or features to keep, or use a machine with more memory"
        raise DataError(f"{source}: there is too little memory ({error}). {remedy}.") from error
    except OSError as error:
        if not no_room(error):
            raise
        where = f"{log.folder.parent}: there is no room to write what was read of {source}"
        raise DataError(f"{where}. Make room, or choose a folder on another disk.") from error
    return lists


def _reused(folder: Path, source: Path, ids: Numbering | None) -> Log | None:
    """Opens the log that a cache keeps of a source; None without one, or where it is damaged and therefore removed."""
    if folder.parent.is_dir():
        remove_stale(folder.parent)
    if not folder.exists():
        return None
    try:
        return Log.open(folder, ids=ids)
    except DamagedError as error:
        _messages.warning("%s. Reading %s again.", error.what, source)
        remove(folder)
        return None


def _contents(source: Path, options: Mapping[str, Any]) -> list[Any]:
    """What tells a source, files that its options name, and what runs that they name have learned, from others."""
    named = [Path(value).expanduser() for value in options.values() if isinstance(value, str)]
    learned = [file for path in named if path.is_dir() for file in sorted(path.glob("*/*.npz"))]
    others = [file for file in (*named, *learned) if file.is_file()]
    files = _files(source, options.get("files"))
    return [_content(source, files), content_of_all(others), inodes_of_large([*files, *others])]


def _content(source: Path, files: Sequence[Path]) -> str:
    """The hash of a file, or of these files of a folder."""
    return content_of_all(files, source) if source.is_dir() else content_of(source)


def _files(source: Path, pattern: Any) -> list[Path]:
    """The file, or those in a folder and those inside that a pattern names."""
    if not source.is_dir():
        return [source]
    files = set() if isinstance(pattern, str) else {*filter(Path.is_file, source.iterdir())}
    with contextlib.suppress(DataError):  # which the reader raises
        files.update(log_files(source, pattern if isinstance(pattern, str) else None))
    return sorted(files, key=str)

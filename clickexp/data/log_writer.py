"""Writes prepared logs, whole or not at all."""

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.arrays import GrowingArray, array_bytes
from clickexp.data.checksums import checksum
from clickexp.data.description import FEATURES, NAMES, Description, PartDescription, is_log
from clickexp.data.encoding import FeatureSettings, Names
from clickexp.data.folders import NewFolder
from clickexp.data.log_files import WHOLE, Share
from clickexp.data.records import RECORDS, records_of, width_of
from clickexp.data.schema import (
    COLUMNS,
    REQUIRED,
    Column,
    Columns,
    SourceLocation,
    bounds,
    checked,
    declared,
)
from clickexp.errors import DataError
from clickexp.utils.progress import Progress, no_report

if TYPE_CHECKING:
    import polars as pl

_SCRATCH = "scratch"


class PartWriter:
    """Writes the sessions of a part of a log chunk by chunk.

    Args:
        folder: The new folder of the part.
        ranks: Documents that a list has room for.
        columns: Declarations; names suffice for those of COLUMNS.
        source: What an error about missing sessions names.
        max_id: Ids above are an error.
        named: Ids that have names already, which the log has room for whether it shows them or not.
        first: Number of the first session, in files that another writer has, which counts all by `extend`; None for a
            new folder.

    Attributes:
        query_doc_pairs: The largest id so far.
        positions: The largest position so far.
        written: Sessions so far.
        expected: What to do where there are no sessions.
    """

    expected = "Check the path, and what the options leave out"

    def __init__(
        self,
        folder: Path,
        ranks: int,
        columns: Iterable[str | Column],
        source: str | Path,
        max_id: int | None = None,
        named: int = 0,
        first: int | None = None,
    ):
        if ranks < 1:
            raise DataError(f"positions is {ranks}: no rank is left. Set it to at least 1.")
        self.folder, self.ranks, self.source, self.max_id = folder, ranks, source, max_id
        self.query_doc_pairs, self.positions, self.written = named, 0, 0
        self.schema = declared(columns)
        if first is None:
            folder.mkdir()
        stored: dict[str, Any] = {RECORDS: (np.int32, (width_of(ranks),))}
        for name, column in self.schema.items():
            if name not in REQUIRED:
                stored[name] = column.dtype, column.shape_of(0, ranks)[1:]
        self._arrays = {
            name: GrowingArray(folder / f"{name}.npy", dtype, shape, first)
            for name, (dtype, shape) in stored.items()
        }

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        for array in self._arrays.values():
            array.close()
        if kind is None and not self.written:
            raise DataError(f"{self.source}: there are no sessions to pack. {self.expected}.")

    def append(self, columns: Columns, location: SourceLocation) -> None:
        """Adds the next rows, checked and converted; DataError names the location of the first bad one."""
        chunk = checked(columns, location, self.max_id, COLUMNS | self.schema)
        for name, array in self._arrays.items():
            array.append(records_of(chunk) if name == RECORDS else chunk[name])
        self._count(len(chunk["lengths"]), *bounds(chunk))

    def extend(self, others: PartDescription) -> None:
        """Counts the next sessions, which another writer has written."""
        for name, array in self._arrays.items():
            array.extend(others.count, others.crc32[name])
        self._count(others.count, others.query_doc_pairs, others.positions)

    def others(self) -> Callable[[int], "PartWriter"]:
        """Returns writers to the same files, from the number of their first session on; processes take them along."""
        place = self.folder, self.ranks, [*self.schema.values()], str(self.source), self.max_id, 0
        return partial(PartWriter, *place)

    def _count(self, sessions: int, pairs: int, positions: int) -> None:
        self.query_doc_pairs = max(self.query_doc_pairs, pairs)
        self.positions = max(self.positions, positions)
        self.written += sessions

    def description(self) -> PartDescription:
        """Returns what was written."""
        return PartDescription(
            count=self.written,
            ranks=self.ranks,
            query_doc_pairs=self.query_doc_pairs,
            positions=self.positions,
            declared=[column for name, column in self.schema.items() if name not in COLUMNS],
            crc32={name: self._arrays[name].crc for name in sorted(self._arrays)},
        )


class LogWriter:
    """Writes a prepared log into a new folder, whole or not at all.

        with LogWriter(folder, "my log", "lists") as log:
            with log.part("sessions", ranks, ["query_doc_ids", "clicks", "lengths"]) as pack:
                pack.append(chunk, location)
            log.note("cut lists", 3)

    The files grow in a hidden folder beside `folder`, which becomes `folder` when the block ends without an error; a
    log that another process has completed there meanwhile stays. `progress` is for the reader to call, and `names` to
    name the ids that it numbers; `categories` has the names of categories, and `features_of` what feature vectors are
    made of. Errors about missing sessions name `source`, by default the folder. A folder for a
    moment need not be `durable`, safe from power failures. Documents that `earlier` names, the names of the ids of
    another log, keep their ids; others come behind. The log of a `share` is not completed: `clickexp.data.shares`
    joins it with others. Files of a log to predict `may_lack` what others must have: clicks, which
    are then none, ranks, which are then those of the rows, and ids of documents, which are then called by their
    places.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str,
        format: str,
        progress: Progress = no_report,
        *,
        source: str | Path | None = None,
        durable: bool = True,
        earlier: "pl.DataFrame | None" = None,
        share: Share = WHOLE,
        may_lack: Iterable[str] = (),
    ):
        # Here, because it needs Arrow, which a run that opens a prepared log does without.
        from clickexp.data.names import NamesWriter

        self.folder, self.name, self.format = Path(folder), name, format
        self.progress = progress
        self.source, self.durable = source or folder, durable
        self.notes: dict[str, int | str] = {}
        self.categories: dict[str, Names] = {}
        self.features_of: FeatureSettings | None = None
        self.share, self.may_lack = share, frozenset(may_lack)
        self._parts: dict[str, PartWriter] = {}
        self._features: GrowingArray | None = None
        self._new = NewFolder(self.folder)
        self.names = NamesWriter(self._new.part / NAMES, earlier)

    def __enter__(self) -> "LogWriter":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if self._features is not None:
                self._features.close()
            self.names.close()
            if kind is None and self.share.is_whole:
                self._finish()
        finally:
            if self.share.is_whole:
                self._new.discard()

    def part(
        self, name: str, ranks: int, columns: Iterable[str | Column], max_id: int | None = None
    ) -> PartWriter:
        """A part to append sessions to, with these columns, where names suffice for those of COLUMNS.

        Ids above `max_id` are an error.
        """
        source = self.source if name == "sessions" else f"{self.source}, {name}"
        named = 0 if self.names.earlier is None else len(self.names.earlier)
        self._parts[name] = PartWriter(self._new.part / name, ranks, columns, source, max_id, named)
        return self._parts[name]

    @property
    def scratch(self) -> Path:
        """A folder for what a reader writes meanwhile; it is removed at the end."""
        folder = self._new.part / _SCRATCH
        folder.mkdir(exist_ok=True)
        return folder

    def restart(self) -> None:
        """Forgets counts, names and `scratch`, for a reader that begins again before it has added a part."""
        # Here, because it needs Arrow, which a run that opens a prepared log does without.
        from clickexp.data.names import NamesWriter

        self.names.close()
        self.names.file.unlink(missing_ok=True)
        self.names = NamesWriter(self.names.file, self.names.earlier)
        self.notes.clear()
        shutil.rmtree(self.scratch)

    def note(self, name: str, count: int = 1) -> None:
        """Adds to a count that the reader reports."""
        self.notes[name] = int(self.notes.get(name, 0)) + int(count)

    def add_features(self, values: np.ndarray, dtype: DTypeLike = np.float16) -> None:
        """The feature vectors [ids, features] of the next ids, from 1; row 0, for padding, is added here."""
        if self._features is None:
            self._features = GrowingArray(self._new.part / FEATURES, dtype, values.shape[1:])
            self._features.append(np.zeros((1, *values.shape[1:])))
        if values.shape[1:] != self._features.shape:
            widths = f"{self._features.shape[0]} numbers, and others of {values.shape[1]}"
            raise DataError(f"{self.source}: there are vectors of {widths}. Write all alike.")
        self._features.append(values)

    def features(self) -> np.ndarray:
        """The feature vectors [ids, features] added so far, mapped."""
        if self._features is None:
            raise ValueError("no features were added")
        return self._features.view()

    def _finish(self) -> None:
        folder, features, files = self._new.part, self._features, {}
        if self.names.earlier is not None and not self.names.count:
            raise DataError(
                f"{self.source}: its reader keeps the ids of the log, which have no names. Leave out ids=, or number "
                "names by pair_key=query_document or pair_key=document, where the format has it."
            )
        shutil.rmtree(self.scratch)
        if features is not None:
            size = array_bytes(features.dtype, (features.rows, *features.shape))
            files[FEATURES] = size, features.crc
        if (names := folder / NAMES).exists():
            files[NAMES] = names.stat().st_size, checksum(names)
        Description.model_validate(
            {
                "name": self.name,
                "format": self.format,
                "notes": dict(sorted(self.notes.items())),
                "parts": {name: part.description() for name, part in self._parts.items()},
                "files": files,
                "categories": self.categories,
                "features": self.features_of,
            }
        ).write(folder)
        if self.durable:
            self._new.flush()
        self._new.complete(is_log)

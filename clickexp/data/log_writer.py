"""Writes prepared logs, whole or not at all."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.checksums import Progress, checksum, sealed, stamp
from clickexp.data.folders import NewFolder
from clickexp.data.pack import GrowingArray, PackWriter
from clickexp.data.prepared import FEATURES, LOG, NAMES, is_log, log_files
from clickexp.data.schema import Column


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
        from clickexp.data.names import NamesWriter

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

    def __exit__(self, kind: type | None, *_: object) -> None:
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
        return PackWriter(
            self._new.part / name, ranks, columns, max_id=max_id, source=source, nested=True
        )

    def note(self, name: str, count: int = 1) -> None:
        """Adds to a count that the reader reports."""
        self.notes[name] = int(self.notes.get(name, 0)) + int(count)

    def add_features(self, values: np.ndarray, dtype: DTypeLike = np.float16) -> None:
        """The feature vectors [ids, features] of the next ids, from 1; row 0, for padding, is added here."""
        if self._features is None:
            self._features = GrowingArray(self._new.part / FEATURES, dtype, values.shape[1:])
            self._features.append(np.zeros((1, *values.shape[1:])))
        self._features.append(values)

    def features(self) -> np.ndarray:
        """The feature vectors [ids, features] added so far, mapped."""
        if self._features is None:
            raise ValueError("no features were added")
        return self._features.view()

    def _finish(self) -> None:
        keys = {"name": self.name, "format": self.format, "parts": self._parts, "notes": self.notes}
        part, features, names = self._new.part, self._features, self._new.part / NAMES
        sums = {} if features is None else {FEATURES: [features.bytes, features.crc]}
        sums |= {NAMES: [names.stat().st_size, checksum(names)]} if names.exists() else {}
        (part / LOG).write_text(sealed({**keys, "crc32": sums}))
        if self.durable:
            self._new.flush()
        stamp(part, log_files(part))
        self._new.complete(is_log)

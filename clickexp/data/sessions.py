"""Search sessions in fixed-shape columns, in memory or mapped from a packed folder, and views of them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property

import numpy as np

from clickexp.data.checksums import REMEDY, DamagedError
from clickexp.data.context import context_columns
from clickexp.data.derived import DerivedColumn
from clickexp.data.features import Features
from clickexp.data.history import history_columns
from clickexp.data.schema import (
    COLUMNS,
    REQUIRED,
    Column,
    SourceLocation,
    bounds,
    check_ids,
    checked,
    declared,
)
from clickexp.data.search_sessions import SessionOrder
from clickexp.data.time_ranges import TimeRange, as_microseconds
from clickexp.data.view import ColumnsView
from clickexp.errors import DataError

_ARRAYS, _SESSIONS = SourceLocation("arrays"), SourceLocation("sessions")
_SAMPLE = 50_000
"""Sessions that are read at either end of a log for a hash."""


@dataclass(frozen=True, eq=False)
class Sessions(ColumnsView):
    """Sessions of up to `ranks` documents, padded with 0. Made by from_arrays or Log.open, never changed.

        query_doc_ids  [count, ranks] int32    0 to query_doc_pairs
        clicks         [count, ranks] bool
        lengths        [count] int32           documents shown, 1 to ranks
        query_ids      [count] int64           optional
        session_ids    [count] int64           optional, of the search session that a list is part of
        times          [count] float64         optional, orders the lists of a search session
        positions      [count, ranks] int32    optional, from 1; without it the rank is the position
        labels         [count, ranks] float32  optional, graded relevance; NaN for documents that nobody judged
        late_clicks    [count, ranks] bool     optional, clicks after a later list was shown, which no context has

    and any other column that was declared, [count, ranks] or [count].

    Attributes:
        schema: The declarations of all columns by name.
        batch_names: Columns in batches besides the required ones; None for the default of `batch_columns`.
    """

    _: KW_ONLY
    schema: Mapping[str, Column] = field(default_factory=lambda: COLUMNS)
    batch_names: frozenset[str] | None = None

    @classmethod
    def from_arrays(
        cls,
        *,
        query_doc_ids: np.ndarray,
        clicks: np.ndarray,
        lengths: np.ndarray | None = None,
        query_ids: np.ndarray | None = None,
        session_ids: np.ndarray | None = None,
        times: np.ndarray | None = None,
        positions: np.ndarray | None = None,
        labels: np.ndarray | None = None,
        query_doc_pairs: int | None = None,
        location: SourceLocation = _ARRAYS,
        extra: Mapping[Column, np.ndarray] | None = None,
    ) -> "Sessions":
        """Checks and converts the columns.

        Args:
            query_doc_ids: See the class, as for the others.
            clicks: Clicks.
            lengths: Documents shown; by default every list is full.
            query_ids: Queries.
            session_ids: Search sessions.
            times: What orders the lists of a search session; by default they are in the order in which the user saw
                them.
            positions: Positions.
            labels: Relevance labels.
            query_doc_pairs: Largest id allowed, by default the largest found.
            location: Source of the arrays, for errors.
            extra: Further columns and their values.

        Raises:
            DataError: A column breaks a rule; it names the first bad row.
        """
        if lengths is None:
            lengths = np.full(np.shape(query_doc_ids)[:1], np.shape(query_doc_ids)[-1], np.int32)
        arrays = {"query_doc_ids": query_doc_ids, "clicks": clicks, "lengths": lengths}
        arrays |= {"query_ids": query_ids, "session_ids": session_ids, "times": times}
        arrays |= {"positions": positions, "labels": labels}
        arrays = {name: values for name, values in arrays.items() if values is not None}
        schema = declared([*arrays, *(extra or {})])
        arrays |= {column.name: values for column, values in (extra or {}).items()}
        columns = checked(arrays, location, schema=schema)
        sessions = cls(columns, *bounds(columns), schema=schema).with_context()
        return (
            sessions if query_doc_pairs is None else sessions.with_pairs(query_doc_pairs, location)
        )

    @property
    def batch_columns(self) -> dict[str, Column]:
        """Columns in batches: the required ones and those of `with_batch_columns`.

        By default all that are packed, of at most 32 bits, and feature vectors.
        """
        if self.batch_names is None:
            vectors = {name for name, column in self.derived.items() if column.column.shape}
            packed = {
                name for name in self.columns if np.dtype(self.schema[name].dtype).itemsize < 8
            }
            chosen = packed | vectors
        else:
            chosen = self.batch_names & {*self.columns, *self.derived}
        return {
            name: self.schema[name] for name in self.schema if name in chosen or name in REQUIRED
        }

    def with_batch_columns(self, names: Iterable[str]) -> "Sessions":
        """The same sessions, of which batches carry no optional columns but these, and no positions that are the ranks.

        Raises:
            DataError: A whole number of 64 bits is another one in the 32 bits of a batch; it names the first one.
        """
        needless = {"positions"} if self.positions_are_ranks else set()
        sessions = replace(self, batch_names=frozenset(names) - needless)
        for name, column in sessions.batch_columns.items():
            if column.dtype == column.batch_type:
                continue
            location = SourceLocation(str(self.folder or "sessions"))
            for chunk in self.chunks():
                column.check_batch(chunk[name], location)
                location = replace(location, first=location.first + len(chunk[name]))
        return sessions

    def bounds(self, name: str) -> tuple[int, int]:
        """No value of a key of batches lies outside; (0, 0) of one that these sessions do not have."""
        stated = {"query_doc_ids": (0, self.query_doc_pairs), "positions": (1, self.positions)}
        if name in self.derived:
            return self.derived[name].bounds()
        if name in stated or name not in self.columns:
            return stated.get(name, (0, 0))
        chunks = [chunk[name] for chunk in self.chunks()]
        return min(int(chunk.min()) for chunk in chunks), max(int(chunk.max()) for chunk in chunks)

    @cached_property
    def span(self) -> TimeRange | None:
        """The first and the last time; None where there are none, or they are numbers that are no dates."""
        if "times" not in self.columns or not self.count:
            return None
        try:
            times = as_microseconds(self.column("times"))
        except DataError:
            return None
        return TimeRange(float(times.min()), float(times.max()))

    @cached_property
    def has_labels(self) -> bool:
        """Whether any document has a relevance label."""
        return "labels" in self.columns and any(
            not np.isnan(chunk["labels"][chunk.shown]).all() for chunk in self.chunks()
        )

    @property
    def feature_lengths(self) -> dict[str, int]:
        """Length of each kind of feature vector, by its key in a batch; 1 of a declared column of numbers."""
        not_vectors = self.derived.keys() | COLUMNS.keys()
        vectors = {
            name: column.numbers
            for name, column in self.schema.items()
            if len(column.shape) == 1 or (name not in not_vectors and not column.is_category)
        }
        shared = (
            {} if self.features is None else {"query_doc_features": self.features.values.shape[1]}
        )
        return {**shared, **vectors}

    @property
    def standardized(self) -> frozenset[str]:
        """Keys of feature vectors that are standardised."""
        names = {name for name, column in self.derived.items() if column.is_standardized}
        if self.features is not None and self.features.is_standardized:
            names.add("query_doc_features")
        return frozenset(names)

    def with_features(self, features: Features | None) -> "Sessions":
        """The same sessions with a feature vector for each id; DataError where there are fewer vectors than ids."""
        if features is not None:
            features.check_rows(self.query_doc_pairs + 1)
        return replace(self, features=features)

    def deriving(self, *derived: DerivedColumn) -> "Sessions":
        """The same sessions with further columns, but for those that they have already."""
        present = self.columns.keys() | self.derived.keys()
        new = (column for column in derived if column.column.name not in present)
        return self.replacing(*new)

    def replacing(self, *derived: DerivedColumn) -> "Sessions":
        """The same sessions with derived columns, in place of any that have their names."""
        by_name = {column.column.name: column for column in derived}
        schema = {**self.schema, **{name: column.column for name, column in by_name.items()}}
        return replace(self, derived={**self.derived, **by_name}, schema=schema)

    def with_context(self) -> "Sessions":
        """The same sessions with what came before in their search sessions, where they have `session_ids`.

        The columns are those of `clickexp.data.context` and `clickexp.data.history`. These sessions must be all that
        their users saw.
        """
        if "session_ids" not in self.columns:
            return self
        if self.index is not None or self.first:
            raise DataError(
                "context is derived of whole logs: call with_context before taking a part of the sessions"
            )
        order = SessionOrder(self)
        return self.deriving(*context_columns(order), *history_columns(order))

    def digest(self) -> str:
        """A hash of the count, and of lengths, clicks and labels of the first and last sessions.

        It does not depend on how documents are numbered and lists padded.
        """
        digest = hashlib.sha256(str(self.count).encode())
        for start in sorted({0, max(self.count - _SAMPLE, 0)}):
            columns = self.chunk(start, start + _SAMPLE)
            digest.update(columns["lengths"].astype("<i4").tobytes())
            digest.update(columns["clicks"].astype(bool)[columns.shown].tobytes())
            if "labels" in columns:
                digest.update(columns["labels"].astype("<f4")[columns.shown].tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the sessions with their ids and features: only equal ones train a model equally.

        Of a packed folder it takes the checksums of the pack and reads the first and last sessions, of arrays in memory
        all of them.
        """
        sums = None if self.checksums is None else dict(self.checksums)
        sizes = self.count, self.query_doc_pairs, self.positions
        digest = hashlib.sha256(repr((*sizes, sums)).encode())
        last = max(self.count - _SAMPLE, 0)
        starts = range(0, self.count, _SAMPLE) if sums is None else sorted({0, last})
        for start in starts:
            for name, values in sorted(self.rows(slice(start, start + _SAMPLE)).items()):
                content = np.ascontiguousarray(values).tobytes()
                digest.update(f"{name}{values.dtype}{values.shape}".encode() + content)
        if self.features is not None:
            digest.update(self.features.fingerprint)
        return digest.hexdigest()[:16]

    def slice(self, start: int, stop: int) -> "Sessions":
        """The sessions start <= i < stop, without a copy."""
        if self.index is not None:
            return replace(self, index=self.index[start:stop])
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        records = None if self.records is None else self.records[start:stop]
        first = self.first + range(self.count)[start:stop].start
        return replace(self, columns=columns, first=first, records=records)

    def select(self, indices: np.ndarray) -> "Sessions":
        """The sessions with these numbers, in this order; only the numbers are copied."""
        indices = np.asarray(indices, np.intp)
        if indices.size and not 0 <= indices.min() <= indices.max() < self.count:
            raise IndexError(f"session numbers lie in 0 to {self.count - 1}")
        return replace(self, index=indices if self.index is None else self.index[indices])

    def renumbered(self, ids: np.ndarray, query_doc_pairs: int) -> "Sessions":
        """The same sessions with other ids of their documents.

        Args:
            ids: The new id of each one from 0.
            query_doc_pairs: The largest new id.
        """
        columns = {
            **self.columns,
            "query_doc_ids": ids.astype(np.int32)[self.columns["query_doc_ids"]],
        }
        pairs = query_doc_pairs
        return replace(self, columns=columns, query_doc_pairs=pairs, checksums=None, records=None)

    def check_stored_ids(self) -> None:
        """Raises a DamagedError where a stored document has an id that the log does not have, or a list no length."""
        limits = {"lengths": (1, self.ranks), "query_doc_ids": (0, self.query_doc_pairs)}
        for chunk in self.chunks():
            for name, (least, most) in limits.items():
                values = chunk[name]
                if values.size and not least <= values.min() <= values.max() <= most:
                    wrong = values[(values < least) | (values > most)][0]
                    raise DamagedError(
                        f"{self.folder or 'sessions'}: {name} holds {wrong}, where {least} to {most} are possible. "
                        "The files have changed since the log was prepared",
                        REMEDY,
                    )

    def with_pairs(self, query_doc_pairs: int, location: SourceLocation = _SESSIONS) -> "Sessions":
        """The same sessions for a table whose largest id is query_doc_pairs; DataError at an id above."""
        if self.query_doc_pairs > query_doc_pairs:
            check_ids(self.column("query_doc_ids"), query_doc_pairs, location)
        return replace(self, query_doc_pairs=query_doc_pairs)

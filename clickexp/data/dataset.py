"""A dataset: train, validation and test sessions, and labelled lists for ranking metrics."""

import hashlib
import math
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import accumulate, combinations, pairwise, starmap
from numbers import Integral
from typing import Annotated, Any, cast

import numpy as np
from pydantic import PlainValidator

from clickexp.data.encoding import FEATURES, Encoding, Names
from clickexp.data.features import Features
from clickexp.data.search_sessions import has_interleaved_sessions
from clickexp.data.seen import Impressions
from clickexp.data.sessions import Sessions
from clickexp.data.time_ranges import Span, TimeRange, as_microseconds, shown, time_range
from clickexp.errors import DataError
from clickexp.utils.changes import changes, latest

_PARTS = ("train_sessions", "val_sessions", "test_sessions")
_COUNTED = {"query_doc_ids", "clicks", "lengths", "positions"}
"""Columns whose largest values a dataset has, or nobody asks for."""
_CHUNK = 1 << 14
"""Sessions whose feature vectors are in memory at a time."""


def _parsed(part: Any) -> float | Span:
    """The fraction of the sessions, or the range of them or of times, that a part is; ValueError says what to give."""
    if isinstance(part, (int, float, np.number)) and not isinstance(part, bool):
        if 0 < float(part) <= 1:
            return float(part)
        raise ValueError("a fraction above 0 and at most 1, or a range [start, stop]")
    if _is_range(part):
        start, stop = cast(Sequence[int | None], part)
        return Span(start or 0, math.inf if stop is None else stop)
    times = time_range(part)
    if times is None:
        raise ValueError(
            "a fraction, such as 0.8, a range [start, stop] of sessions, which count from 0, or of times, as in "
            "[2025-01-01, 2025-02-01]"
        )
    if not times:
        raise ValueError("a range of times [start, stop] whose start is before its stop")
    return times


def _check_part(value: Any) -> Any:
    """Returns a part as it was given; ValueError for what is none."""
    _parsed(value)
    return value


Split = Annotated[
    float | str | date | Sequence[int | str | date | None], PlainValidator(_check_part)
]
"""A fraction of the sessions, or [start, stop] with start <= i < stop; stop None is the end. With dates or times, i is
the time of a session; a day or month alone is all of it."""


@dataclass(frozen=True)
class Dataset:
    """The data of an experiment.

    Attributes:
        name: Name in results.
        train: Training sessions.
        val: Validation sessions.
        test: Test sessions.
        query_doc_pairs: Largest id of a query-document pair; ids lie in 0 to query_doc_pairs.
        positions: Largest position shown, from 1.
        ranking: Lists with relevance labels, if there are any.
        truth: The click model that clicked, where clicks are simulated and it is known.
        notes: Counts that the reader reports, for `describe`.
        names: Bytes of the file that names the ids from 1, mapped; see `clickexp.data.names`.
        encoding: What was learned of the training sessions to encode columns; nothing where there are none to encode.
        largest: Values of columns of whole numbers that a model has room for, whatever the sessions have.
    """

    name: str
    train: Sessions
    val: Sessions
    test: Sessions
    query_doc_pairs: int
    positions: int
    ranking: Sessions | None = None
    truth: Any = None
    notes: Mapping[str, int | str] = field(default_factory=dict)
    names: np.ndarray | None = None
    encoding: Encoding = field(default_factory=Encoding)
    largest: Mapping[str, int] = field(default_factory=dict)

    @property
    def click_rate(self) -> float:
        """Clicks per document shown in the training sessions."""
        return self.train.clicks_total / self.train.documents

    @property
    def until(self) -> int | None:
        """Time of the last training session, in microseconds since 1970; None where the log has no dates."""
        span = self.train.span
        return None if span is None else int(span.stop)

    @property
    def since(self) -> int | None:
        """Time of the first training session; see `until`."""
        span = self.train.span
        return None if span is None else int(span.start)

    @cached_property
    def columns(self) -> "Largest":
        """Largest value of each further column of whole numbers, or derived one, found when it is asked for."""
        packed, derived = self.train.columns, self.train.derived
        whole = {name for name in packed if np.dtype(packed[name].dtype).kind in "biu"}
        names = [name for name in self.train.schema if name in derived or name in whole - _COUNTED]
        return Largest(dict.fromkeys(names, tuple(self.parts.values())), self.largest)

    @property
    def categories(self) -> Mapping[str, Names]:
        """Names of the categories that training shows, by column."""
        return self.encoding.categories

    @property
    def parts(self) -> dict[str, Sessions]:
        """The sessions of each part by name; ranking only if there is one."""
        parts = {"train": self.train, "val": self.val, "test": self.test, "ranking": self.ranking}
        return {name: sessions for name, sessions in parts.items() if sessions is not None}

    @property
    def distinct_parts(self) -> dict[str, Sessions]:
        """The parts, without the labelled lists where they are the test sessions themselves."""
        parts = self.parts
        if self.ranking is self.test:
            del parts["ranking"]
        return parts

    @cached_property
    def features(self) -> Features | None:
        """Feature vectors by id: those of the log or, where lists have their own, those that they show last."""
        if self.train.features is not None or FEATURES not in self.train.feature_lengths:
            return self.train.features
        width = self.train.feature_lengths[FEATURES]
        values = np.zeros((self.query_doc_pairs + 1, width), np.float32)
        for part in reversed(self.parts.values()):
            for start in range(0, part.count, _CHUNK):
                chunk = part.chunk(start, start + _CHUNK)
                values[chunk.of_documents("query_doc_ids")] = chunk.of_documents(FEATURES)
        values[0] = 0
        return Features(values)

    @cached_property
    def impressions(self) -> Impressions:
        """How often training shows the documents of other sessions, counted once for all."""
        return Impressions(self.train)

    def test_set(self) -> str:
        """A hash of the test set: the same for runs whose test metrics can be compared."""
        return "-".join(part.digest() for part in (self.test, self.ranking) if part is not None)

    def fingerprint(self) -> str:
        """A hash of all parts: equal only where each holds the same sessions, ids and features."""
        parts = "".join(f"{name} {part.fingerprint}\n" for name, part in self.parts.items())
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def check_unchanged(self) -> None:
        """DataError where a prepared log is another one than when its fingerprint was taken: its files are mapped."""
        for part in self.distinct_parts.values():
            if part.checksums is not None and replace(part).fingerprint != part.fingerprint:
                raise DataError(
                    f"{part.folder}: the prepared log was overwritten while it was read, so that results would be of "
                    "two logs. Run again, and write other logs to other folders."
                )

    def sizes(self) -> dict[str, Any]:
        """Sessions of each part, query-document pairs and positions, and the largest values that a model asked for."""
        sessions = {name: part.count for name, part in self.parts.items()}
        return {
            "sessions": sessions,
            "query_doc_pairs": self.query_doc_pairs,
            "positions": self.positions,
            "columns": {**self.largest, **self.columns.known},
        }

    def first(self, sessions: int | None) -> "Dataset":
        """The dataset with at most so many sessions in each part; None keeps all."""
        if sessions is None:
            return self
        return replace(
            self,
            **{name: part.slice(0, min(sessions, part.count)) for name, part in self.parts.items()},
        )

    def covering(
        self, query_doc_pairs: int, positions: int, largest: Mapping[str, int]
    ) -> "Dataset":
        """The dataset for a model of at least so many ids, positions and values of columns, as earlier logs have."""
        pairs = max(self.query_doc_pairs, query_doc_pairs)
        parts = {name: part.with_pairs(pairs) for name, part in self.parts.items()}
        positions = max(self.positions, positions)
        sizes: dict[str, Any] = {"query_doc_pairs": pairs, "positions": positions}
        return replace(self, **parts, **sizes, largest=dict(largest))

    def describe(self) -> str:
        """One line of counts for the reader."""
        counts = {name: f"{part.count:,} {name}" for name, part in self.parts.items()}
        ranking = f", {counts.pop('ranking')} lists" if self.ranking is not None else ""
        notes = "".join(
            f", {name.replace('_', ' ')} {value}"
            for name, value in self.notes.items()
            if value != 0
        )
        return (
            f"{self.name}: {', '.join(counts.values())} sessions{ranking}, "
            f"query-document ids up to {self.query_doc_pairs:,}, "
            f"{self.positions} positions, click rate {self.click_rate:.4f}{notes}"
        )


class Largest(UserDict[str, Any]):
    """Largest values by column, found when they are asked for.

    Attributes:
        known: Those that were asked for.

    Args:
        parts: Of a dataset, by column.
        least: What values are at least.
    """

    def __init__(self, parts: Mapping[str, Any], least: Mapping[str, int]):
        super().__init__(parts)
        self.known: dict[str, int] = {}
        self._least = least

    def __getitem__(self, name: str) -> int:
        if name not in self.known:
            largest = max(part.bounds(name)[1] for part in self.data[name])
            self.known[name] = max(largest, self._least.get(name, 0))
        return self.known[name]


def split(
    sessions: Sessions, train: Split, val: Split, test: Split
) -> tuple[Sessions, Sessions, Sessions]:
    """Views of the three parts: ranges, fractions taken one after another in file order, or ranges of times.

    A search session goes whole to the part that its first list is in. Where lists of sessions are apart, fractions are
    of the log with whole sessions one after another, by the time of their first list where lists have `times`, and in
    the order of their first rows.

    Raises:
        DataError: A part is empty, a range goes beyond the sessions, parts overlap, or `check_split` refuses them.
    """
    parts = check_split(train, val, test)
    fractions = [part for part in parts.values() if isinstance(part, float)]
    ranges = {name: part for name, part in parts.items() if isinstance(part, Span)}
    if any(isinstance(part, TimeRange) for part in ranges.values()):
        begun = _times_begun(sessions)
    else:
        if fractions:
            ends = pairwise([0, *_ends(fractions, sessions.count)])
            ranges = dict(zip(parts, starmap(Span, ends), strict=True))
        ranges = _row_ranges(ranges, sessions.count)
        begun = _rows_begun(sessions, in_turn=bool(fractions))
    _check_apart(ranges)
    first, second, third = (_begun_in(sessions, name, ranges[name], begun) for name in _PARTS)
    return first, second, third


def _check_apart(ranges: Mapping[str, Span]) -> None:
    for (one, a), (other, b) in combinations(ranges.items(), 2):
        if Span(max(a.start, b.start), min(a.stop, b.stop)):
            raise DataError(f"{one} {a} and {other} {b} overlap. Part them.")


def _row_ranges(ranges: Mapping[str, Span], count: int) -> dict[str, Span]:
    """Rows of each part of so many sessions, to the last one where a range has no end."""
    named = {}
    for name, (start, stop) in ranges.items():
        part = Span(start, count if stop == math.inf else stop)
        if part.start < 0 or part.stop > count:
            raise DataError(f"{name} {part} goes beyond the {count} sessions. Change it.")
        if not part:
            remedy = "Change the split; a log has three sessions at least, one per part"
            raise DataError(f"{name} {part} of {count} sessions is empty. {remedy}.")
        named[name] = part
    return named


def _ends(fractions: Sequence[float], count: int) -> list[int]:
    """Where the parts of so many sessions end; each has one at least, if there are as many sessions as parts."""
    ends = []
    for number, end in enumerate(accumulate(fractions), 1):
        start = ends[-1] if ends else 0
        most = max(count - len(fractions) + number, 0)
        ends.append(min(max(round(end * count), start + 1), most))
    return ends


def _times_begun(sessions: Sessions) -> np.ndarray:
    """The time of the first list of the search session of each list, or of the list itself without these."""
    if "times" not in sessions.columns:
        raise DataError(
            "the log has no times to split by. Name the column that has them by columns.time=NAME, or give fractions "
            "or ranges of sessions."
        )
    times = as_microseconds(sessions.column("times"))
    if "session_ids" not in sessions.columns:
        return times
    _, number = np.unique(sessions.column("session_ids"), return_inverse=True)
    return _earliest(times, number)[number]


def _earliest(times: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The first time of each search session, by the number of that of each list."""
    earliest = np.full(number.max(initial=-1) + 1, np.inf)
    np.minimum.at(earliest, number, times)
    return earliest


def _rows_begun(sessions: Sessions, *, in_turn: bool) -> np.ndarray | None:
    """The row where the search session of each list begins; None where a log has none.

    Args:
        sessions: The log.
        in_turn: Rows are counted as if sessions that are apart stood one after another.
    """
    if "session_ids" not in sessions.columns:
        return None
    ids = sessions.column("session_ids")
    new = changes(ids)
    if not has_interleaved_sessions(ids, new):
        return latest(new)
    _, first, number, lists = np.unique(
        ids, return_index=True, return_inverse=True, return_counts=True
    )
    if in_turn:
        timed = "times" in sessions.columns
        order = np.lexsort((first, _earliest(sessions.column("times"), number) if timed else first))
        first[order] = np.cumsum(lists[order]) - lists[order]
    return first[number]


def _begun_in(sessions: Sessions, name: str, part: Span, begun: np.ndarray | None) -> Sessions:
    """The sessions of a part; `begun` says for each list of the log where its search session begins."""
    if begun is None:
        return sessions.slice(int(part.start), int(part.stop))
    rows = np.flatnonzero((begun >= part.start) & (begun < part.stop))
    if not len(rows) and isinstance(part, TimeRange):
        span = f"{shown(begun.min())} to {shown(begun.max())}"
        raise DataError(
            f"{name} {part} has no session of the log, which goes from {span}. Change it."
        )
    if not len(rows):
        raise DataError(
            f"{name} {part} is within one search session. Change the split, or leave search sessions out: "
            "columns.search_session=null.",
            {"columns.search_session": "null"},
        )
    if rows[-1] - rows[0] + 1 == len(rows):
        return sessions.slice(int(rows[0]), int(rows[-1]) + 1)
    return sessions.select(rows)


def check_split(train: Split, val: Split, test: Split) -> dict[str, float | Span]:
    """Returns what the parts are by name; DataError for parts that no log can be split into."""
    parts = dict(zip(_PARTS, (train, val, test), strict=True))
    parsed: dict[str, float | Span] = {}
    for name, part in parts.items():
        try:
            parsed[name] = _parsed(part)
        except ValueError as error:
            raise DataError(f"{name}={part!r}: give {error}") from error
    stated = ", ".join(f"{name}={part}" for name, part in parts.items())
    if len({type(part) for part in parsed.values()}) > 1:
        raise DataError(
            f"{stated} mix fractions and ranges, of sessions or of times. Give three of one kind."
        )
    total = sum(part for part in parsed.values() if isinstance(part, float))
    if total > 1 + 1e-9:
        raise DataError(f"{stated}: the fractions sum to {total:g}. They must sum to at most 1.")
    return parsed


def keep_queries_seen(train: Sessions, other: Sessions, at_least: int) -> Sessions:
    """The sessions of `other` whose query has at least that many sessions in `train`."""
    if at_least <= 0:
        return other
    queries, query = np.unique(other.column("query_ids"), return_inverse=True)
    counts = np.zeros(len(queries), np.int64)
    for chunk in train.chunks():
        common = chunk["query_ids"][np.isin(chunk["query_ids"], queries)]
        counts += np.bincount(np.searchsorted(queries, common), minlength=len(queries))
    return other.select(np.flatnonzero(counts[query] >= at_least))


def _is_range(value: Any) -> bool:
    """Whether a value is [start, stop] of whole numbers, of which the latter may be None."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return False
    start, stop = value
    return _is_whole(start) and (stop is None or _is_whole(stop))


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)

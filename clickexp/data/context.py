"""What came before a list in its search session: columns that are derived of the order of lists and their clicks."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from threading import Lock
from typing import Any, Protocol

import numpy as np

from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.schema import Column
from clickexp.utils.batches import from_lengths

LIST_COLUMNS = (
    Column("session_index", np.uint16, "session"),
    Column("previous_clicks", np.uint8, "session"),
    Column("session_clicks", np.uint16, "session"),
    Column("query_repeated", np.bool_, "session"),
    Column("list_repeated", np.bool_, "session"),
)
"""Of each list: how many lists of its search session came before it; clicks in the last of them, and in all of them;
whether one of them was of the same query; whether the last one was the same list. All are 0 in a session's first list.
"""
SEEN = Column("document_seen", np.uint8)
"""Of each document: 0 where it is new in its search session, 1 where it was shown before, 2 where it was clicked."""

_LISTS = 1 << 16
"""Lists that are read at a time, at least."""
_LARGE = 100_000
"""Lists of an id above which it is hardly that of one search session."""
_messages = logging.getLogger(__name__)


class SearchLog(Protocol):
    """What is needed of sessions."""

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """Packed columns."""
        ...

    @property
    def count(self) -> int:
        """Lists."""
        ...

    @property
    def ranks(self) -> int:
        """Documents that a list has room for."""
        ...

    def rows(self, rows: Rows, names: Any = None) -> dict[str, np.ndarray]:
        """Returns columns of some lists."""
        ...

    def column(self, name: str) -> np.ndarray:
        """Returns a whole column."""
        ...

    def bounds(self, name: str) -> tuple[int, int]:
        """Returns numbers that no value of a column lies outside of."""
        ...


def context_columns(order: "SessionOrder", document: str, query: str | None) -> list[DerivedColumn]:
    """Returns the columns of `LIST_COLUMNS` and `SEEN`, computed together when one is first read.

    Lists of a session may be apart from each other; they are in the order of their `times`, or else of the log.
    Memory: 7 bytes per list and one per document that it has room for. Ten million lists of ten documents take 15 to
    20 s on one core.

    Args:
        order: Of all lists; their log has clicks and lengths.
        document: Column that distinguishes documents.
        query: Column that distinguishes queries; without one there is no `query_repeated`.
    """
    context = _Context(order, document, query)
    columns = [
        column for column in (*LIST_COLUMNS, SEEN) if query or column.name != "query_repeated"
    ]
    return [_ContextColumn(column, context) for column in columns]


class _ContextColumn(DerivedColumn):
    def __init__(self, column: Column, context: "_Context"):
        self.column, self._context = column, context

    def of(self, packed: Mapping[str, np.ndarray], rows: Rows) -> np.ndarray:
        return self._context.values[self.column.name][rows]

    def bounds(self) -> tuple[int, int]:
        values = self._context.values[self.column.name]
        return int(values.min(initial=0)), int(values.max(initial=0))


class _Context:
    """The columns of a whole log, once one of them is read."""

    def __init__(self, order: "SessionOrder", document: str, query: str | None):
        self.order, self.document, self.query = order, document, query
        self._lock = Lock()  # a separate thread fills batches

    @property
    def values(self) -> dict[str, np.ndarray]:
        with self._lock:
            return self._values

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        log, names = self.order.log, [self.document, *([self.query] if self.query else [])]
        columns = (*LIST_COLUMNS, SEEN)
        found = {
            each.name: np.zeros(each.shape_of(log.count, log.ranks), each.dtype) for each in columns
        }
        largest = log.bounds(self.document)[1]
        for rows, first in self.order:
            read = lists_at(log, rows, names)
            shown = from_lengths(read["lengths"], log.ranks)
            documents = np.where(shown, read[self.document], 0)
            clicks = read["clicks"] & shown
            number = np.cumsum(first) - 1
            of_lists = _of_lists(first, documents, read["lengths"], clicks.sum(axis=1))
            if self.query:
                of_lists["query_repeated"] = _repeated(number, read[self.query])
            of_lists[SEEN.name] = _seen(number, documents, clicks, shown, largest)
            for name, values in of_lists.items():
                most = np.iinfo(found[name].dtype).max if found[name].dtype != bool else 1
                found[name][rows] = np.minimum(values, most)
        return found


def new_sessions(ids: np.ndarray) -> np.ndarray:
    """Returns which lists are of another search session than the one before, for the ids of their sessions."""
    return np.append(True, ids[1:] != ids[:-1])[: len(ids)]


def are_apart(ids: np.ndarray, new: np.ndarray) -> bool:
    """Returns whether a search session goes on after another one has begun.

    Args:
        ids: Of the search session of each list.
        new: What `new_sessions` returns.
    """
    return len(np.unique(ids[new])) < int(np.count_nonzero(new))


class SessionOrder:
    """The lists of a log session by session, by `times` if there are any, else in the order of the log.

    The order is found once, when it is first needed: 1 byte per list, 9 where lists of a session are apart.

    Args:
        log: All lists, with `session_ids`.
    """

    def __init__(self, log: SearchLog):
        self.log = log

    def __iter__(self) -> Iterator[tuple[Rows, np.ndarray]]:
        """Yields the rows of lists of whole sessions, some at a time, and which of them are the first of theirs."""
        order, new = self._found
        starts = np.append(np.flatnonzero(new), len(new))
        wanted = np.arange(0, len(new) + _LISTS, _LISTS)
        cuts = np.unique(starts[np.searchsorted(starts, wanted).clip(max=len(starts) - 1)])
        for start, stop in pairwise(cuts):
            yield slice(start, stop) if order is None else order[start:stop], new[start:stop]

    @cached_property
    def _found(self) -> tuple[np.ndarray | None, np.ndarray]:
        """The rows in order, None where that is the log's; and which of them begin a session."""
        log = self.log
        ids = log.column("session_ids")
        new, order = new_sessions(ids), None
        times = log.column("times") if "times" in log.columns else np.zeros(len(ids))
        if are_apart(ids, new) or (~new[1:] & (np.diff(times) < 0)).any():
            order = np.lexsort((times, ids))
            new = new_sessions(ids[order])
        starts = np.append(np.flatnonzero(new), len(ids))
        lists = np.diff(starts)
        if lists.max(initial=0) > _LARGE:
            at = starts[lists.argmax()]
            _warn_of(int(ids[at if order is None else order[at]]), int(lists.max()))
        return order, new


@cache
def _warn_of(session: int, lists: int) -> None:
    """Warns once of a search session that is none."""
    _messages.warning(
        "search session %d has %s lists, as if one user saw them all, and takes much memory: drop these rows if it is "
        "an id of unknown users, or leave context out",
        session,
        f"{lists:,}",
    )


def lists_at(log: SearchLog, rows: Rows, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns some columns of lists, their lengths, and those of their clicks that came before any later list.

    Others are left out for good: a list that was shown before such a click must not know it.
    """
    late = ["late_clicks"] if "late_clicks" in log.columns else []
    read = log.rows(rows, ["clicks", "lengths", *names, *late])
    for name in late:
        read["clicks"] = read["clicks"] & ~read[name]
    return read


def _of_lists(
    first: np.ndarray, documents: np.ndarray, lengths: np.ndarray, clicks: np.ndarray
) -> dict[str, np.ndarray]:
    """What follows from the lists before, by name. Lists are in order; `first` are those that begin a session."""
    places = np.arange(len(first))
    begun = np.maximum.accumulate(np.where(first, places, 0))
    before = np.cumsum(clicks) - clicks
    above = np.maximum(places - 1, 0)
    same = (documents == documents[above]).all(axis=1) & (lengths == lengths[above])
    return {
        "session_index": places - begun,
        "previous_clicks": np.where(first, 0, clicks[above]),
        "session_clicks": before - before[begun],
        "list_repeated": same & ~first,
    }


def _repeated(session: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Whether a list before in the same session was of the same query."""
    order = np.lexsort((query, session))  # stable, and so by place
    same = (np.diff(session[order]) == 0) & (np.diff(query[order]) == 0)
    repeated = np.zeros(len(query), bool)
    repeated[order[1:]] = same
    return repeated


def _seen(
    session: np.ndarray, documents: np.ndarray, clicks: np.ndarray, shown: np.ndarray, largest: int
) -> np.ndarray:
    """Of each document 0, 1 where a list before in its session showed it, 2 where it was clicked there."""
    seen = np.zeros(documents.shape, np.uint8)
    places = np.flatnonzero(shown)
    lists = places // documents.shape[1]
    order = _order(session[lists], documents.reshape(-1)[places], largest)
    places, lists = places[order], lists[order]
    group = np.append(
        True, (np.diff(session[lists]) != 0) | (np.diff(documents.reshape(-1)[places]) != 0)
    )
    group = group[: len(places)]
    run = (
        group | np.append(True, np.diff(lists) != 0)[: len(places)]
    )  # a list may show a document twice
    here = np.arange(len(places))
    group_start, run_start = (
        np.maximum.accumulate(np.where(each, here, 0)) for each in (group, run)
    )
    clicked = clicks.reshape(-1)[places].astype(np.int64)
    before = np.cumsum(clicked) - clicked
    shown_before = lists > lists[group_start]
    clicked_before = before[run_start] > before[group_start]
    seen.reshape(-1)[places] = np.where(clicked_before, 2, shown_before)
    return seen


def _order(session: np.ndarray, document: np.ndarray, largest: int) -> np.ndarray:
    """Stable order by session, then document.

    Numbers with the place in their lowest bits are sorted: 10 million documents of 250,000 sessions, with ids up to a
    million, take 0.55 s of one core where `lexsort` takes 3.7 s.
    """
    place_bits, document_bits = max(len(document) - 1, 1).bit_length(), max(largest, 1).bit_length()
    if place_bits + document_bits + int(session[-1] if len(session) else 0).bit_length() > 64:
        return np.lexsort((document, session))
    keys = (session.astype(np.uint64) << np.uint64(document_bits)) | document.astype(np.uint64)
    keys = (keys << np.uint64(place_bits)) | np.arange(len(document), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64((1 << place_bits) - 1)).astype(np.int64)

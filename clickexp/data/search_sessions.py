"""The lists of search sessions in the order in which their users saw them."""

import logging
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Integer

from clickexp.data.derived import Rows
from clickexp.data.view import Chunk, ColumnsView
from clickexp.utils.changes import changes, latest

_LISTS = 1 << 16
"""Lists that are read at a time, at least."""
_LARGE = 100_000
"""Lists of an id above which it is hardly that of one search session."""
_messages = logging.getLogger(__name__)


def has_interleaved_sessions(ids: np.ndarray, new: np.ndarray) -> bool:
    """Returns whether a search session goes on after another one has begun.

    Args:
        ids: Of the search session of each list.
        new: Which lists are of another one than the list before.
    """
    return len(np.unique(ids[new])) < int(np.count_nonzero(new))


class SessionLists(Chunk):
    """Lists of whole search sessions, one session after another, each in the order in which its user saw it.

    Columns are read when they are asked for by name.

    Args:
        log: All lists.
        rows: Numbers of these lists in it.
        first: Which of them are the first of their session.
    """

    def __init__(self, log: ColumnsView, rows: Rows, first: np.ndarray):
        super().__init__(log, rows)
        self.rows, self.first = rows, first

    @cached_property
    def clicks(self) -> Bool[np.ndarray, "list rank"]:
        """Clicks that came before any later list.

        Others are left out for good: a list that was shown before such a click must not know it.
        """
        clicks = self["clicks"] & self.shown
        return clicks & ~self["late_clicks"] if "late_clicks" in self else clicks

    @cached_property
    def documents(self) -> Integer[np.ndarray, "list rank"]:
        """Ids of the documents shown, whatever their query where the log knows that; 0 beyond the length of a list."""
        name = "document_ids" if "document_ids" in self else "query_doc_ids"
        return np.where(self.shown, self[name], 0)

    @cached_property
    def session(self) -> Integer[np.ndarray, " list"]:
        """Number of the search session of each list, from 0."""
        return np.cumsum(self.first) - 1

    @cached_property
    def begun(self) -> Integer[np.ndarray, " list"]:
        """Place of the first list of the search session of each list."""
        return latest(self.first)


class SessionOrder:
    """The lists of a log session by session, by `times` if there are any, else in the order of the log.

    The order is found once, when it is first needed: 1 byte per list, 9 where lists of a session are apart.

    Args:
        log: All lists, with `session_ids`.
    """

    def __init__(self, log: ColumnsView):
        self.log = log

    def __iter__(self) -> Iterator[SessionLists]:
        """Yields lists of whole sessions, some at a time."""
        order, new = self._order
        starts = np.append(np.flatnonzero(new), len(new))
        wanted = np.arange(0, len(new) + _LISTS, _LISTS)
        cuts = np.unique(starts[np.searchsorted(starts, wanted).clip(max=len(starts) - 1)])
        for start, stop in pairwise(cuts):
            rows = slice(start, stop) if order is None else order[start:stop]
            yield SessionLists(self.log, rows, new[start:stop])

    @cached_property
    def _order(self) -> tuple[np.ndarray | None, np.ndarray]:
        """The rows in order, None where that is the log's; and which of them begin a session."""
        log = self.log
        ids = log.column("session_ids")
        new, order = changes(ids), None
        times = log.column("times") if "times" in log.columns else np.zeros(len(ids))
        if has_interleaved_sessions(ids, new) or (~new[1:] & (np.diff(times) < 0)).any():
            order = np.lexsort((times, ids))
            new = changes(ids[order])
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

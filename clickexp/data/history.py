"""Earlier queries and clicks of the search session of a list: columns that are derived of the order of lists."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock

import numpy as np

from clickexp.data.context import SearchLog, whole_sessions
from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.schema import Column

EARLIER = 10
"""Numbers that a column of a list has room for."""
CLICKED = "clicked_"
"""Begins the names of what documents had that were clicked earlier in the session: their ids, their positions."""
QUERIES = "earlier_query_numbers"
"""Queries of the lists before this one in its session."""


def history_columns(log: SearchLog, ids: Sequence[str], query: str | None) -> list[DerivedColumn]:
    """Returns the latest clicks and queries before each list in its search session, the last one last, 0 for none.

    The columns are `clicked_ID` for each kind of id and `clicked_positions`, of `EARLIER` clicks, and
    `earlier_query_numbers`, of as many lists. Lists of a session may stand apart; they are in the order of the log.
    Memory of each column that is read: 16 bytes per list, and 4 per click or query.

    Args:
        log: All lists, with `session_ids`, clicks and lengths.
        ids: Columns that tell documents.
        query: Column of documents that tells their query, if there is one.
    """
    of_clicks: list[DerivedColumn] = [_Earlier(log, name, clicks=True) for name in (*ids, "positions")]
    return of_clicks if query is None else [*of_clicks, _Earlier(log, query, clicks=False)]


class _Earlier(DerivedColumn):
    """The latest values of a column before each list, of clicks or of lists.

    Values lie one after the other, session by session; each list knows where those of its session begin, and where
    its own do.
    """

    def __init__(self, log: SearchLog, of: str, *, clicks: bool):
        name = CLICKED + of if clicks else QUERIES
        self.column = Column(name, np.int32, "session", shape=(EARLIER,))
        self._log, self._of, self._clicks = log, of, clicks
        self._lock = Lock()  # batches are filled in a thread of their own

    def of(self, packed: Mapping[str, np.ndarray], rows: Rows) -> np.ndarray:
        with self._lock:
            values, begun, stop = self._values
        if not len(values):
            return np.zeros((len(stop[rows]), EARLIER), np.int32)
        places = stop[rows][:, None] + np.arange(-EARLIER, 0)
        return np.where(places >= begun[rows][:, None], values[np.maximum(places, 0)], 0)

    def bounds(self) -> tuple[int, int]:
        with self._lock:
            values = self._values[0]
        return 0, int(values.max(initial=0))

    @cached_property
    def _values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All values, and for each list the number of those before its session, and before itself."""
        log, pieces, done = self._log, [], 0
        begun, stop = np.zeros((2, log.count), np.int64)
        packed = "positions" in log.columns or self._of != "positions"
        for rows, first in whole_sessions(log):
            read = log.rows(rows, ["clicks", "lengths", *([self._of] if packed else [])])
            values = read.get(self._of, np.broadcast_to(np.arange(1, log.ranks + 1), read["clicks"].shape))
            chosen = read["clicks"] & (np.arange(log.ranks) < read["lengths"][:, None])
            if not self._clicks:
                chosen = np.broadcast_to(np.arange(log.ranks) == 0, chosen.shape)
            pieces.append(values[chosen].astype(np.int32))
            counts = chosen.sum(axis=1)
            before = done + np.cumsum(counts) - counts
            stop[rows] = before
            begun[rows] = before[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))]
            done += int(counts.sum())
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int32), begun, stop

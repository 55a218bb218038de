"""Earlier queries and clicks of the search session of a list: columns that are derived of the order of lists."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock

import numpy as np

from clickexp.data.context import SessionOrder, lists_at
from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.schema import Column
from clickexp.utils.batches import from_lengths

EARLIER = 10
"""Numbers that a column of a list has room for."""
CLICKED = "clicked_"
"""Begins the names of what documents had that were clicked earlier in the session: their ids, their positions."""
POSITIONS = f"{CLICKED}positions"
QUERIES = "earlier_query_numbers"
"""Queries of the lists before this one in its session."""


DOCUMENTS = ("document_ids", "query_doc_ids")
"""Columns that identify the documents of earlier clicks."""


def history_columns(
    order: SessionOrder, ids: Sequence[str], query: str | None
) -> list[DerivedColumn]:
    """Returns the latest clicks and queries before each list in its search session, the last one last, 0 for none.

    The columns are `clicked_ID` for each kind of id and `clicked_positions`, of `EARLIER` clicks, and
    `earlier_query_numbers`, of as many lists. Lists of a session may be apart from each other; they are in the order
    of their `times`, or else of the log. Memory, of the columns of clicks together and of the queries: 16 bytes per
    list, and 4 per click and column.

    Args:
        order: Of all lists; their log has clicks and lengths.
        ids: Columns that identify documents.
        query: Column that identifies the query, of a list or of its documents, if there is one.
    """
    clicks = _Sequences(order, (*ids, "positions"), clicks=True)
    columns: list[DerivedColumn] = [_Earlier(CLICKED + name, name, clicks) for name in clicks.names]
    if query is not None:
        columns.append(_Earlier(QUERIES, query, _Sequences(order, (query,), clicks=False)))
    return columns


class _Sequences:
    """What clicks, or lists, have one after the other, session by session, once it is read.

    Each list knows where its session begins in them, and where its own values begin.
    """

    def __init__(self, order: SessionOrder, names: Sequence[str], *, clicks: bool):
        self.names, self._order, self._clicks = names, order, clicks
        self._lock = Lock()  # a separate thread fills batches

    def read(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Returns the values by name, and for each list the number of those before its session, and before itself."""
        with self._lock:
            return self._read

    @cached_property
    def _read(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        log, done = self._order.log, 0
        pieces: dict[str, list[np.ndarray]] = {name: [np.zeros(0, np.int32)] for name in self.names}
        begun, stop = np.zeros((2, log.count), np.int64)
        ranks = np.arange(log.ranks)
        known = [name for name in self.names if name != "positions" or name in log.columns]
        for rows, first in self._order:
            columns = lists_at(log, rows, known)
            shown = from_lengths(columns["lengths"], log.ranks)
            chosen = columns["clicks"] & shown
            if not self._clicks:  # a list has its query where a document that the log knows has it
                query = np.broadcast_to(
                    columns[self.names[0]].reshape(len(chosen), -1), chosen.shape
                )
                place = np.argmax(shown & (query > 0), axis=1)
                chosen = ranks == place[:, None]
            for name, found in pieces.items():
                values = columns.get(name, ranks + 1)
                values = values[:, None] if name in columns and values.ndim == 1 else values
                found.append(np.broadcast_to(values, chosen.shape)[chosen].astype(np.int32))
            counts = chosen.sum(axis=1)
            before = done + np.cumsum(counts) - counts
            stop[rows] = before
            begun[rows] = before[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))]
            done += int(counts.sum())
        return {name: np.concatenate(found) for name, found in pieces.items()}, begun, stop


class _Earlier(DerivedColumn):
    """The latest values of a column before each list."""

    def __init__(self, name: str, of: str, sequences: _Sequences):
        self.column = Column(name, np.int32, "session", shape=(EARLIER,))
        self._of, self._sequences = of, sequences

    def of(self, packed: Mapping[str, np.ndarray], rows: Rows) -> np.ndarray:
        values, begun, stop = self._sequences.read()
        places = stop[rows][:, None] + np.arange(-EARLIER, 0)
        if not len(values[self._of]):
            return np.zeros(places.shape, np.int32)
        return np.where(places >= begun[rows][:, None], values[self._of][np.maximum(places, 0)], 0)

    def bounds(self) -> tuple[int, int]:
        return 0, int(self._sequences.read()[0][self._of].max(initial=0))

"""Earlier queries and clicks of the search session of a list: columns that are derived of the order of lists."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.schema import Column, Columns
from clickexp.data.search_sessions import SessionLists, SessionOrder

EARLIER = 10
"""Numbers that a column of a list has room for."""
CLICKED = "clicked_"
"""Begins the names of what documents had that were clicked earlier in the session: their ids, their positions."""
DOCUMENTS = ("document_ids", "query_doc_ids")
"""Columns that identify the documents of earlier clicks."""
POSITIONS = f"{CLICKED}positions"
QUERIES = "earlier_query_numbers"
"""Queries of the lists before this one in its session."""
HISTORY = (*(CLICKED + name for name in DOCUMENTS), POSITIONS, QUERIES)
"""All columns."""
_QUERY = "query_numbers"


def history_columns(order: SessionOrder) -> list[DerivedColumn]:
    """Returns the latest clicks and queries before each list in its search session, the last one last, 0 for none.

    The columns are `clicked_ID` for each kind of id and `clicked_positions`, of `EARLIER` clicks, and
    `earlier_query_numbers`, of as many lists. Lists of a session may be apart from each other; they are in the order
    of their `times`, or else of the log. Memory, of the columns of clicks together and of the queries: 16 bytes per
    list, and 4 per click and column.

    Args:
        order: Of all lists; their log has clicks and lengths.
    """
    present = order.log.columns.keys() | order.log.derived.keys()
    clicks = _Clicks(order, [*(name for name in DOCUMENTS if name in present), "positions"])
    columns: list[DerivedColumn] = [_Earlier(CLICKED + name, name, clicks) for name in clicks.names]
    if _QUERY in present:
        columns.append(_Earlier(QUERIES, _QUERY, _Queries(order, [_QUERY])))
    return columns


class _Clicks:
    """Values of clicks one after the other, session by session.

    Args:
        order: Of all lists.
        names: Columns of the clicked documents; of lists, for each of their documents.
    """

    def __init__(self, order: SessionOrder, names: Sequence[str]):
        self.names, self._order = names, order

    def chosen(self, lists: SessionLists) -> np.ndarray:
        """Returns the documents `[lists, ranks]` whose values are kept."""
        return lists.clicks

    @cached_property
    def sequences(self) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """The values by name, and for each list the number of those before its session, and before itself."""
        count, done = self._order.log.count, 0
        pieces: dict[str, list[np.ndarray]] = {name: [np.zeros(0, np.int32)] for name in self.names}
        before_session, before_list = np.zeros((2, count), np.int64)
        for lists in self._order:
            chosen = self.chosen(lists)
            for name, values in pieces.items():
                values.append(_of_ranks(lists, name)[chosen].astype(np.int32))
            counts = chosen.sum(axis=1)
            before = done + np.cumsum(counts) - counts
            before_list[lists.rows] = before
            before_session[lists.rows] = before[lists.begun]
            done += int(counts.sum())
        sequences = {name: np.concatenate(values) for name, values in pieces.items()}
        return sequences, before_session, before_list


class _Queries(_Clicks):
    """Values of lists: the query of the first document of which the log knows it."""

    def chosen(self, lists: SessionLists) -> np.ndarray:
        is_candidate = lists.shown & (_of_ranks(lists, self.names[0]) > 0)
        return np.arange(is_candidate.shape[1]) == is_candidate.argmax(axis=1)[:, None]


def _of_ranks(lists: SessionLists, name: str) -> np.ndarray:
    """Returns a column as `[lists, ranks]`."""
    values = lists.positions if name == "positions" else lists[name]
    return values if values.ndim == 2 else np.broadcast_to(values[:, None], lists.shown.shape)


class _Earlier(DerivedColumn):
    """The latest values of a column before each list."""

    def __init__(self, name: str, source: str, events: _Clicks):
        self.column = Column(name, np.int32, "session", shape=(EARLIER,))
        self._source, self._events = source, events

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        sequences, before_session, before_list = self._events.sequences
        values = sequences[self._source]
        places = before_list[rows][:, None] + np.arange(-EARLIER, 0)
        if not len(values):
            return np.zeros(places.shape, np.int32)
        in_session = places >= before_session[rows][:, None]
        return np.where(in_session, values[np.maximum(places, 0)], 0)

    def bounds(self) -> tuple[int, int]:
        return 0, int(self._events.sequences[0][self._source].max(initial=0))

"""Context of lists in search sessions: columns that are derived of the order of lists and their clicks.

Each column is registered once: how it is computed of lists of search sessions, and which numbers a tower makes of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.schema import Column, Columns
from clickexp.data.search_sessions import SessionLists, SessionOrder
from clickexp.utils.changes import changes, latest

Compute = Callable[[SessionLists], np.ndarray]
"""Values of lists of whole search sessions, `[lists]`, or `[lists, ranks]` of a column per document."""
Numbers = Callable[[Any], list[Any]]
"""Numbers that a tower makes of the values of a column."""


@dataclass(frozen=True)
class ContextColumn:
    """A column of the context of search sessions.

    Attributes:
        column: Its declaration. Counts stop at the largest that its type holds.
        compute: Computes it. It is 0 in the first list of a session, and for a document that is new there.
        numbers: What a tower makes of it, 0 of 0.
        needs: Packed columns without which there is none.
    """

    column: Column
    compute: Compute
    numbers: Numbers
    needs: tuple[str, ...] = ()


CONTEXT: dict[str, ContextColumn] = {}
"""The columns by name."""


def as_it_is(values: Any) -> list[Any]:
    """Returns the values, such as those of what is true or false."""
    return [values]


def above_zero(values: Any) -> list[Any]:
    """Returns whether a count is above 0."""
    return [values > 0]


def above_zero_and_log(values: Any) -> list[Any]:
    """Returns whether a count is above 0, and log(1 + count)."""
    import jax.numpy as jnp  # here: logs are prepared and verified without it

    return [values > 0, jnp.log1p(values)]


def context_column(
    name: str,
    dtype: DTypeLike,
    per: Literal["document", "session"] = "session",
    *,
    numbers: Numbers = as_it_is,
    needs: tuple[str, ...] = (),
) -> Callable[[Compute], Compute]:
    """Returns a decorator that registers a column and the function that computes it.

        @context_column("session_index", np.uint16, numbers=above_zero_and_log)
        def session_index(lists): ...

    Args:
        name: Name of the column.
        dtype: Its type.
        per: Whether there is a value per list ("session") or per document.
        numbers: What a tower makes of the values.
        needs: Packed columns without which there is none, such as "times".
    """

    def register(compute: Compute) -> Compute:
        CONTEXT[name] = ContextColumn(Column(name, dtype, per), compute, numbers, needs)
        return compute

    return register


def context_columns(order: SessionOrder) -> list[DerivedColumn]:
    """Returns all columns that the log has what they need of, each computed when it is first read.

    Lists of a session may be apart from each other; they are in the order of their `times`, or else of the log.
    Of those of the package, memory is 7 bytes per list and one per document that it has room for. Ten million lists of
    ten documents take 15 to 20 s on one core.

    Args:
        order: Of all lists; their log has clicks and lengths.
    """
    packed = order.log.columns
    present = [context for context in CONTEXT.values() if {*context.needs} <= packed.keys()]
    return [_Derived(context, order) for context in present]


class _Derived(DerivedColumn):
    """A column of a whole log, once it is read."""

    def __init__(self, context: ContextColumn, order: SessionOrder):
        self.column, self._of_lists, self._order = context.column, context.compute, order

    @cached_property
    def _values(self) -> np.ndarray:
        log, dtype = self._order.log, np.dtype(self.column.dtype)
        values = np.zeros(self.column.shape_of(log.count, log.ranks), dtype)
        for lists in self._order:
            computed = self._of_lists(lists)
            if dtype.kind in "iu":
                computed = np.minimum(computed, np.iinfo(dtype.name).max)
            values[lists.rows] = computed
        return values

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        return self._values[rows]

    def bounds(self) -> tuple[int, int]:
        values = self._values
        return int(np.floor(values.min(initial=0))), int(np.ceil(values.max(initial=0)))


@context_column("session_index", np.uint16, numbers=above_zero_and_log)
def session_index(lists: SessionLists) -> np.ndarray:
    """Returns the number of lists before each in its session."""
    return np.arange(len(lists.first)) - lists.begun


@context_column("previous_clicks", np.uint8, numbers=above_zero)
def previous_clicks(lists: SessionLists) -> np.ndarray:
    """Returns the clicks in the list before."""
    clicks = lists.clicks.sum(axis=1)
    return np.where(lists.first, 0, clicks[_above(lists)])


@context_column("session_clicks", np.uint16, numbers=above_zero_and_log)
def session_clicks(lists: SessionLists) -> np.ndarray:
    """Returns the clicks in all lists before."""
    clicks = lists.clicks.sum(axis=1)
    before = np.cumsum(clicks) - clicks
    return before - before[lists.begun]


@context_column("query_repeated", np.bool_, needs=("query_ids",))
def query_repeated(lists: SessionLists) -> np.ndarray:
    """Returns whether a list before was of the same query."""
    session, query = lists.session, lists["query_ids"]
    order = np.lexsort((query, session))  # stable, and so by place
    repeated = np.zeros(len(query), bool)
    repeated[order[1:]] = (np.diff(session[order]) == 0) & (np.diff(query[order]) == 0)
    return repeated


@context_column("list_repeated", np.bool_)
def list_repeated(lists: SessionLists) -> np.ndarray:
    """Returns whether the list before showed the same documents in the same order."""
    above, documents, lengths = _above(lists), lists.documents, lists["lengths"]
    same = (documents == documents[above]).all(axis=1) & (lengths == lengths[above])
    return same & ~lists.first


@context_column("document_seen", np.uint8, "document", numbers=lambda seen: [seen > 0, seen > 1])
def document_seen(lists: SessionLists) -> np.ndarray:
    """Returns for each document 0, 1 where a list before in its session showed it, 2 where it was clicked there."""
    seen = np.zeros(lists.shown.shape, np.uint8)
    places = np.flatnonzero(lists.shown)
    number = places // lists.shown.shape[1]
    order = _order(lists.session[number], lists.documents.reshape(-1)[places])
    places, number = places[order], number[order]
    session, document = lists.session[number], lists.documents.reshape(-1)[places]
    of_document = changes(session) | changes(document)
    of_list = of_document | changes(number)  # a list may show a document twice
    first_of_document, first_of_list = latest(of_document), latest(of_list)
    clicked = lists.clicks.reshape(-1)[places].astype(np.int64)
    before = np.cumsum(clicked) - clicked
    shown_before = number > number[first_of_document]
    clicked_before = before[first_of_list] > before[first_of_document]
    seen.reshape(-1)[places] = np.where(clicked_before, 2, shown_before)
    return seen


def _above(lists: SessionLists) -> np.ndarray:
    """Returns the place of the list before each."""
    return np.maximum(np.arange(len(lists.first)) - 1, 0)


def _order(session: np.ndarray, document: np.ndarray) -> np.ndarray:
    """Returns the stable order by session, then document.

    Numbers with the place in their lowest bits are sorted: 10 million documents of 250,000 sessions, with ids up to a
    million, take 0.55 s of one core where `lexsort` takes 3.7 s.
    """
    place_bits = max(len(document) - 1, 1).bit_length()
    document_bits = int(document.max(initial=1)).bit_length()
    session_bits = int(session.max(initial=0)).bit_length()
    if place_bits + document_bits + session_bits > 64:
        return np.lexsort((document, session))
    keys = (session.astype(np.uint64) << np.uint64(document_bits)) | document.astype(np.uint64)
    keys = (keys << np.uint64(place_bits)) | np.arange(len(document), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64((1 << place_bits) - 1)).astype(np.int64)

"""What came before each list of a file in its search session."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clickexp.data import Sessions
from clickexp.data.history import HISTORY, history_columns
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.numbering import PairIds
from clickexp.data.pairs import DOCUMENTS
from clickexp.data.search_sessions import SessionOrder


def with_context(lists: Sequence[Lists], sessions: Sequence[Sessions]) -> Iterator[Sessions]:
    """Yields the pieces of a file with what came before each list in its search session, in whichever piece that is.

    Args:
        lists: Those of each piece as the file has them. Documents are distinguished by `document_ids` where they have
            them, as in the log, else by the file's own ids, known to the log or not.
        sessions: The pieces by the ids of the log, which earlier clicks and queries are known by; documents that it
            lacks have id 0.
    """
    if not lists:
        return
    ids = PairIds("document")
    shown: dict[str, Any] = _joined(
        [ids.number(_shown(each)).padded(sessions[0].ranks) for each in lists]
    )
    context = [
        column
        for name, column in Sessions.from_arrays(**shown).derived.items()
        if name not in HISTORY
    ]
    columns = {**_joined([each.columns for each in sessions]), "session_ids": shown["session_ids"]}
    log = dataclasses.replace(sessions[0], columns=columns, records=None)
    history = history_columns(SessionOrder(log))
    first = 0
    for each in sessions:
        yield dataclasses.replace(each.deriving(*context, *history), first=first)
        first += each.count


def _shown(lists: Lists) -> Lists:
    """What the context of lists follows from."""
    shown = lists.documents.get(DOCUMENTS.name, lists.documents["query_doc_ids"])
    documents = {"query_doc_ids": shown, "clicks": lists.documents["clicks"]}
    names = [name for name in ("query_ids", "session_ids", "times") if name in lists.sessions]
    return Lists(lists.lengths, documents, {name: lists.sessions[name] for name in names})


def _joined(pieces: Sequence[Any]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

"""How much context a log has: what came before its lists in their search sessions."""

from dataclasses import dataclass

import numpy as np

from clickexp.data.dataset import Dataset
from clickexp.data.schema import Columns
from clickexp.data.sessions import Sessions


@dataclass(frozen=True, eq=False)
class ContextSummary:
    """Counts over the lists of one part.

    Attributes:
        lists: Lists.
        sessions: Search sessions.
        lengths: Search sessions by their number of lists, from 0.
        later: Lists that are not the first of their session.
        query_repeated: Lists whose query their session has asked before; None where lists name no query.
        list_repeated: Lists that are the same as the one before.
        documents: Documents shown.
        seen: Documents that their session has shown before.
        clicked: Documents that were clicked there.
    """

    lists: int
    sessions: int
    lengths: np.ndarray
    later: int
    query_repeated: int | None
    list_repeated: int
    documents: int
    seen: int
    clicked: int


def context_summaries(dataset: Dataset) -> dict[str, ContextSummary]:
    """Returns a summary of each part whose lists have search sessions.

    Takes the memory of `clickexp.data.context.context_columns`.
    """
    parts = {name: part for name, part in dataset.parts.items() if "session_index" in part.derived}
    return {name: _summary(part) for name, part in parts.items() if name != "ranking"}


def _summary(part: Sessions) -> ContextSummary:
    sums: dict[str, int] = dict.fromkeys(
        ("later", "query_repeated", "list_repeated", "seen", "clicked"), 0
    )
    depths = np.zeros(1, int)
    for chunk in part.chunks():
        counted: Columns = {
            "later": chunk["session_index"] > 0,
            "list_repeated": chunk["list_repeated"],
            "query_repeated": chunk["query_repeated"] if "query_repeated" in chunk else np.zeros(0),
            "seen": chunk.shown & (chunk["document_seen"] > 0),
            "clicked": chunk.shown & (chunk["document_seen"] > 1),
        }
        sums = {name: total + int(np.count_nonzero(counted[name])) for name, total in sums.items()}
        counts = np.bincount(chunk["session_index"])
        longest = max(len(counts), len(depths))
        depths = np.pad(depths, (0, longest - len(depths))) + np.pad(
            counts, (0, longest - len(counts))
        )
    # as many sessions have at least n lists as there are lists with the index n - 1
    lengths = np.append(0, depths - np.append(depths[1:], 0))
    found_queries = sums.pop("query_repeated")
    repeated = found_queries if "query_repeated" in part.derived else None
    return ContextSummary(
        part.count,
        int(depths[0]),
        lengths,
        query_repeated=repeated,
        documents=part.documents,
        **sums,
    )

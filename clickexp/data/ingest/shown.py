"""The part of lists that users saw: documents that were seen, and positions from 1."""

import numpy as np

from clickexp.data.ingest.columns import Field
from clickexp.data.ingest.lists import Lists
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import SourceLocation

SEEN = Field(
    "biuf",
    "documents were seen or not: true or false, 1 or 0; columns.seen=null leaves the column out",
)
CONTRADICTION = "a document that was clicked was seen: set seen where there is a click"
NOT_SEEN = "documents_not_seen"
"""The note that counts them."""


def rank_rule(what: str, first_rank: int) -> str:
    """Returns the rule of ranks or positions that count from a first one."""
    other = "; where the first is 0, set first_rank=0" if first_rank == 1 else ""
    return f"{what} are integers from {first_rank}{other}"


def from_one(lists: Lists, first_rank: int, location: SourceLocation) -> Lists:
    """Returns lists whose positions count from 1.

    Args:
        lists: Lists whose first position is `first_rank`; without positions they stay as they are.
        first_rank: 1 or 0.
        location: Where they are.

    Raises:
        DataError: A position is smaller.
    """
    if "positions" not in lists.documents:
        return lists
    positions = np.asarray(lists.documents["positions"])
    rule = rank_rule("positions", first_rank)
    location.reject(positions < first_rank, positions, "positions", rule, lists.lengths)
    if first_rank == 1:
        return lists
    return lists.with_documents(positions=positions + 1 - first_rank)


def check_seen(lists: Lists, location: SourceLocation) -> None:
    """Raises a DataError where values are no truth values, or a document was clicked and not seen."""
    if "seen" not in lists.documents:
        return
    seen, clicks = np.asarray(lists.documents["seen"]), np.asarray(lists.documents["clicks"])
    location.reject((seen != 0) & (seen != 1), seen, "seen", SEEN.rule, lists.lengths)
    location.reject((seen == 0) & (clicks != 0), seen, "seen", CONTRADICTION, lists.lengths)


def seen_alone(lists: Lists, log: LogWriter) -> Lists:
    """Returns the documents that were seen, and the lists of which any were; the log counts the others.

    Documents keep their positions, which without a column are their places in the list.
    """
    if "seen" not in lists.documents:
        return lists
    documents = dict(lists.documents)
    seen = np.asarray(documents.pop("seen"))
    documents.setdefault("positions", lists.places)
    left = Lists(lists.lengths, documents, lists.sessions).where(seen != 0)
    log.note(NOT_SEEN, len(seen) - left.lengths.sum())
    log.note("lists_of_which_nothing_was_seen", ((left.lengths == 0) & (lists.lengths > 0)).sum())
    return left.without_empty(lists.lengths > 0)

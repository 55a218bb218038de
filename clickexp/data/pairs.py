"""The document and the query of each query-document pair, as columns that are derived of the pairs' ids."""

from functools import cache, partial

import numpy as np

from clickexp.data.derived import LookedUp
from clickexp.data.schema import Column
from clickexp.errors import DataError

DOCUMENTS = Column("document_ids", np.int32)
"""The document of each pair, from 1; 0 where none is shown."""
QUERIES = Column("query_numbers", np.int32)
"""The query of each pair, from 1."""


def named_pairs(names: np.ndarray, pairs: int) -> tuple[LookedUp, LookedUp]:
    """Returns the columns `document_ids` and `query_numbers` of a log whose reader numbered its pairs.

    Args:
        names: Bytes of the file that names the ids; see `clickexp.data.names`.
        pairs: How many there are.
    """
    numbered = cache(partial(_numbers_of, names, pairs))
    return LookedUp(DOCUMENTS, partial(numbered, "document")), LookedUp(
        QUERIES, partial(numbered, "query")
    )


def consecutive_pairs(starts: np.ndarray) -> tuple[LookedUp, LookedUp]:
    """Returns the same columns where each pair is a separate document, and the ids of a query follow one another.

    Args:
        starts: `[queries + 1]`, the first id of each query, from 1, and behind the last one.
    """
    ids = np.arange(starts[-1])
    return (
        LookedUp(DOCUMENTS, lambda: ids),
        LookedUp(QUERIES, lambda: np.searchsorted(starts, ids, side="right")),
    )


def _numbers_of(names: np.ndarray, pairs: int, of: str) -> np.ndarray:
    """Numbers, in the order in which they appear, of what pairs have in common; row 0 is that of no pair.

    Raises:
        DataError: The log does not say.
    """
    # Here, because it needs Arrow, which a run that opens a prepared log does without.
    from clickexp.data.id_table import IdTable
    from clickexp.data.names import keys_of, read_names

    named = read_names(names, pairs)
    if of not in named.columns:
        raise DataError(
            f"documents are numbered without their {of} in this log. Read it with pair_key=query_document."
        )
    return np.append(np.int32(0), IdTable().ids(keys_of(named[of])).astype(np.int32))

"""Impressions and clicks by document, and the ranks of impressions."""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float, Int, Integer

from clickexp.data.kept import Counts, kept
from clickexp.data.sessions import Sessions
from clickexp.utils.sums import add_at, add_runs_at


class ByDocument(NamedTuple):
    """Sums over the documents that sessions show.

    Attributes:
        shown: Impressions by id, or of each of `ids`.
        clicks: Those clicked.
        log_ranks: Sums of the logarithms of ranks, counted from 1 within the list.
        ranks: Sums of the ranks.
        squares: Sum over all impressions of the squares of these logarithms.
        ids: Those shown, in ascending order, where the largest id is above the number of impressions.
    """

    shown: Int[np.ndarray, " ids"]
    clicks: Int[np.ndarray, " ids"]
    log_ranks: Float[np.ndarray, " ids"]
    ranks: Float[np.ndarray, " ids"]
    squares: Float[np.ndarray, ""]
    ids: Integer[np.ndarray, " ids"] | None = None

    @classmethod
    def of(cls, sessions: Sessions) -> Self:
        """Returns those of sessions; of a prepared log they are counted once, see `clickexp.data.kept`."""
        rows = sessions.query_doc_pairs + 1
        return cls(**kept(sessions, "documents", rows, lambda: _counted(sessions)))

    def dense(self, rows: int) -> Self:
        """Returns them by id.

        Args:
            rows: One more than the largest id, or above.
        """
        if self.ids is None and len(self.shown) == rows:
            return self
        place = slice(len(self.shown)) if self.ids is None else self.ids

        def by_id(values: np.ndarray) -> np.ndarray:
            dense = np.zeros(rows, values.dtype)
            dense[place] = values
            return dense

        names = "shown", "clicks", "log_ranks", "ranks"
        return self._replace(**{name: by_id(getattr(self, name)) for name in names}, ids=None)


def _counted(sessions: Sessions) -> Counts:
    ids = _ids_of_rows(sessions)
    rows = sessions.query_doc_pairs + 1 if ids is None else len(ids)
    clicks, sums = np.zeros(rows, np.int32), np.zeros((rows, 3))
    ranks = np.arange(1, sessions.ranks + 1)
    of_rank = np.log(ranks)
    vectors = np.stack([np.ones(len(ranks)), of_rank, ranks], axis=1)
    for chunk in sessions.chunks():
        at = chunk["query_doc_ids"]
        places = at if ids is None else np.searchsorted(ids, at)
        is_shown = chunk.shown
        by_rank = places.T.ravel() if is_shown.all() else places.T[is_shown.T]
        ends = np.append(0, np.cumsum(np.count_nonzero(is_shown, axis=0)))
        add_runs_at(sums, by_rank, ends, vectors)
        add_at(clicks, places.ravel()[np.flatnonzero(chunk["clicks"])], 1)
    counts = {"shown": sums[:, 0].astype(np.int32), "clicks": clicks}
    counts |= {"log_ranks": sums[:, 1].astype(np.float32), "ranks": sums[:, 2].astype(np.float32)}
    counts["squares"] = np.array(sessions.by_length[1:] @ np.cumsum(of_rank**2))
    return counts if ids is None else counts | {"ids": ids}


def _ids_of_rows(sessions: Sessions) -> Integer[np.ndarray, " ids"] | None:
    """Returns the ids shown where there are many others; None elsewhere."""
    if sessions.query_doc_pairs <= sessions.documents:
        return None
    return distinct_ids(sessions)


def distinct_ids(sessions: Sessions) -> Integer[np.ndarray, " ids"]:
    """Returns the ids of the documents that sessions show, in ascending order."""
    return np.unique(np.concatenate([*ids_shown(sessions), np.zeros(0, np.int32)]))


def ids_shown(sessions: Sessions) -> Iterator[Integer[np.ndarray, " documents"]]:
    """Yields the ids of the documents shown, some sessions at a time."""
    for chunk in sessions.chunks():
        yield chunk.of_documents("query_doc_ids")

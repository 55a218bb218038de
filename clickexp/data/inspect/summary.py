"""Counts of sessions, chunk by chunk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from clickexp.data.dataset import Dataset
from clickexp.data.id_table import IdTable, dense_rows
from clickexp.data.sessions import Sessions
from clickexp.data.view import Chunk


@dataclass(frozen=True, eq=False)
class Summary:
    """Counts over the sessions of one part.

    Attributes:
        sessions: Sessions.
        pairs: Distinct query-document pairs.
        queries: Distinct queries, None if the sessions do not name them.
        unseen_pairs: Pairs that no training session shows, None for the training sessions.
        unseen_shown: Documents shown of such pairs.
        shown: `[positions]`, documents shown at each position from 1.
        clicks: `[positions]`, documents clicked.
        lengths: `[most + 1]`, sessions by their number of documents.
        clicked: `[most + 1]`, sessions by their number of clicks.
        repeated: Sessions that show a document twice.
        labels: Documents shown of each grade, None without labels.
        unjudged: Sessions with labels of other sessions only, none without labels.
        unlabelled: Documents without a label in all others, None without labels.
    """

    sessions: int
    pairs: int
    queries: int | None
    unseen_pairs: int | None
    unseen_shown: int | None
    shown: np.ndarray
    clicks: np.ndarray
    lengths: np.ndarray
    clicked: np.ndarray
    repeated: int
    labels: Mapping[float, int] | None
    unjudged: int | None
    unlabelled: int | None


def summaries(dataset: Dataset) -> dict[str, Summary]:
    """A summary of each part; labelled lists that are the test sessions themselves are counted once.

    Takes two bytes for each document, and 12 to 35 more where ids are larger than the number of documents shown.
    """
    parts = {
        name: part
        for name, part in dataset.parts.items()
        if name != "ranking" or part is not dataset.test
    }
    documents = sum(part.documents for part in parts.values())
    number, rows = dense_rows(dataset.query_doc_pairs, documents)
    seen, by_part = np.zeros(rows, bool), {}
    for name, part in parts.items():
        by_part[name] = _summary(part, number, seen, is_train=name == "train")
    return by_part


def shows_twice(chunk: Chunk) -> np.ndarray:
    """Returns which lists show a document twice."""
    ids = chunk["query_doc_ids"]
    apart = np.where(chunk.shown, ids, -1 - np.arange(ids.shape[1]))
    return (np.diff(np.sort(apart, axis=1)) == 0).any(axis=1)


def _summary(
    sessions: Sessions, number: Callable[[np.ndarray], np.ndarray], seen: np.ndarray, is_train: bool
) -> Summary:
    """Marks the training documents in `seen`, or compares with what is marked there."""
    ranks, positions = sessions.ranks, max(sessions.positions, sessions.ranks)
    marked = seen if is_train else np.zeros_like(seen)
    shown, clicks = np.zeros((2, positions + 1), np.int64)
    lengths, clicked = np.zeros((2, ranks + 1), np.int64)
    queries, labels, unseen_shown, repeated = IdTable(), {}, 0, 0
    unjudged = unlabelled = 0
    for chunk in sessions.chunks():
        rows = number(chunk.of_documents("query_doc_ids"))
        marked[rows] = True
        unseen_shown += int(np.count_nonzero(~seen[rows]))
        at = chunk.of_documents("positions")
        shown += np.bincount(at, minlength=len(shown))
        clicks += np.bincount(at[chunk.of_documents("clicks")], minlength=len(clicks))
        lengths += np.bincount(chunk["lengths"], minlength=ranks + 1)
        clicked += np.bincount(np.count_nonzero(chunk["clicks"], axis=1), minlength=ranks + 1)
        repeated += int(np.count_nonzero(shows_twice(chunk)))
        if "query_ids" in chunk:
            queries.ids(chunk["query_ids"].view(np.uint64))
        if "labels" in chunk:
            missing = chunk.shown & np.isnan(chunk["labels"])
            is_unjudged = missing.sum(axis=1) == chunk["lengths"]
            unjudged += int(np.count_nonzero(is_unjudged))
            unlabelled += int(np.count_nonzero(missing[~is_unjudged]))
            stated = chunk["labels"][chunk.shown & ~missing]
            grades, counts = np.unique(stated, return_counts=True)
            for grade, count in zip(grades.tolist(), counts.tolist(), strict=True):
                labels[grade] = labels.get(grade, 0) + count
    return Summary(
        sessions.count,
        int(np.count_nonzero(marked)),
        len(queries) if "query_ids" in sessions.columns else None,
        None if is_train else int(np.count_nonzero(marked & ~seen)),
        None if is_train else unseen_shown,
        shown[1:],
        clicks[1:],
        lengths,
        clicked,
        repeated,
        dict(sorted(labels.items())) if sessions.has_labels else None,
        unjudged if sessions.has_labels else None,
        unlabelled if sessions.has_labels else None,
    )

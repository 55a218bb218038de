"""Counts of sessions, chunk by chunk."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from clickexp.data.dataset import Dataset
from clickexp.data.id_table import IdTable, dense_rows
from clickexp.data.sessions import Sessions
from clickexp.data.view import Chunk


@dataclass(frozen=True, eq=False)
class Summary:
    """Counts over the sessions of one part, under the names that `--json` prints.

    Attributes:
        sessions: Sessions.
        queries: Distinct queries, None if the sessions do not name them.
        documents_shown: Documents shown.
        pairs: Distinct query-document pairs.
        pairs_unseen_in_training: Pairs that no training session shows, None for the training sessions.
        documents_shown_of_such_pairs: Documents shown of these.
        lists_that_show_a_document_twice: Sessions that show a document twice.
        clicks: Documents clicked.
        shown_by_rank: Documents shown at each position from 1 to the last that shows one.
        clicks_by_rank: Documents clicked there.
        sessions_by_documents: Sessions by their number of documents, from 0 to the largest.
        sessions_by_clicks: Sessions by their number of clicks, from 0 to the largest number of documents.
        documents_by_label: Documents shown of each grade, None without labels.
        lists_without_labels: Sessions with labels of other sessions only, None without labels.
        documents_without_label_in_others: Documents without a label in all others, None without labels.
    """

    sessions: int
    queries: int | None
    documents_shown: int
    pairs: int
    pairs_unseen_in_training: int | None
    documents_shown_of_such_pairs: int | None
    lists_that_show_a_document_twice: int
    clicks: int
    shown_by_rank: np.ndarray
    clicks_by_rank: np.ndarray
    sessions_by_documents: np.ndarray
    sessions_by_clicks: np.ndarray
    documents_by_label: Mapping[float, int] | None = None
    lists_without_labels: int | None = None
    documents_without_label_in_others: int | None = None


def summaries(dataset: Dataset) -> dict[str, Summary]:
    """A summary of each part; labelled lists that are the test sessions themselves are counted once.

    Takes two bytes for each document, and 12 to 35 more where ids are larger than the number of documents shown.
    """
    parts = dataset.distinct_parts
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
    ranks, (shown, clicks) = sessions.ranks, sessions.by_position
    marked = seen if is_train else np.zeros_like(seen)
    lengths, clicked = sessions.by_length, np.zeros(ranks + 1, np.int64)
    queries, unseen_shown, repeated = IdTable(), 0, 0
    for chunk in sessions.chunks():
        rows = number(chunk.of_documents("query_doc_ids"))
        marked[rows] = True
        unseen_shown += int(np.count_nonzero(~seen[rows]))
        clicked += np.bincount(np.count_nonzero(chunk["clicks"], axis=1), minlength=ranks + 1)
        repeated += int(np.count_nonzero(shows_twice(chunk)))
        if "query_ids" in chunk:
            queries.ids(chunk["query_ids"].view(np.uint64))
    last = int(np.flatnonzero(shown).max(initial=0))
    longest = int(np.flatnonzero(lengths).max(initial=0))
    summary = Summary(
        sessions.count,
        len(queries) if "query_ids" in sessions.columns else None,
        int(shown.sum()),
        int(np.count_nonzero(marked)),
        None if is_train else int(np.count_nonzero(marked & ~seen)),
        None if is_train else unseen_shown,
        repeated,
        int(clicks.sum()),
        shown[1 : last + 1],
        clicks[1 : last + 1],
        lengths[: longest + 1],
        clicked[: longest + 1],
    )
    return _with_labels(summary, sessions) if sessions.has_labels else summary


def _with_labels(summary: Summary, sessions: Sessions) -> Summary:
    """The summary with the counts of labels."""
    by_label: Counter[float] = Counter()
    unjudged = unlabelled = 0
    for chunk in sessions.chunks():
        missing = chunk.shown & np.isnan(chunk["labels"])
        is_unjudged = missing.sum(axis=1) == chunk["lengths"]
        unjudged += int(np.count_nonzero(is_unjudged))
        unlabelled += int(np.count_nonzero(missing[~is_unjudged]))
        labels, counts = np.unique(chunk["labels"][chunk.shown & ~missing], return_counts=True)
        by_label.update(dict(zip(labels.tolist(), counts.tolist(), strict=True)))
    return replace(
        summary,
        documents_by_label=dict(sorted(by_label.items())),
        lists_without_labels=unjudged,
        documents_without_label_in_others=unlabelled,
    )

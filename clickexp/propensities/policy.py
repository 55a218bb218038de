"""Columns of what the logging policy does with each document, counted in the log."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from clickexp.data import Column, Dataset, Sessions
from clickexp.data.view import Chunk
from clickexp.propensities.base import Propensities, documents

_LEAST = 1e-6
_OfDocuments = Callable[[Chunk], np.ndarray]
"""Numbers of the documents that some sessions show."""


def with_policy_propensity(dataset: Dataset, propensities: Propensities, name: str) -> Dataset:
    """Adds the mean propensity of each document over the training sessions of its query.

    p_d = sum_k n_dk p_k / n_q, with n_dk sessions that showed d at position k, of n_q sessions of the query. Without
    query ids, over the sessions that showed it. Of documents that training did not show, the same of the other parts.

    Args:
        dataset: The dataset.
        propensities: By position; unknown ones are 0.
        name: Of the column.
    """
    logs = _logs(dataset)
    largest = max(_positions(propensities.view(part)) for part in logs.values())
    by_position, view = np.nan_to_num(propensities.by_position(largest)), propensities.view
    means, shown = _means(dataset, ["train"], by_position, view)
    others, _ = _means(dataset, ["val", "test"], by_position, view)
    means = np.where(shown > 0, means, others).astype(np.float32)
    return _with_column(dataset, name, lambda chunk: means[chunk.of_documents("query_doc_ids")])


def with_policy_share(dataset: Dataset, name: str) -> Dataset:
    """Adds the share of the times that a document was shown at which it was at its position: P(k | d) of the policy.

    In training; of documents that training did not show, in the other parts.

    Args:
        dataset: The dataset.
        name: Of the column.
    """
    from clickexp.propensities.exposure import policy_share  # polars, which other runs do not need

    share = policy_share([dataset.train], [dataset.val, dataset.test])
    return _with_column(dataset, name, share)


def _means(
    dataset: Dataset,
    parts: Sequence[str],
    by_position: np.ndarray,
    view: Callable[[Sessions], Sessions],
) -> tuple[np.ndarray, np.ndarray]:
    """The mean propensity of each document over the sessions of its query, and how often it was shown."""
    sums = np.zeros(dataset.query_doc_pairs + 1)
    shown = np.zeros(dataset.query_doc_pairs + 1, np.int64)
    logs = [_logs(dataset)[part] for part in parts]
    for log in logs:
        for positions, _, more in documents(view(log), "query_doc_ids"):
            sums += np.bincount(more["query_doc_ids"], by_position[positions], minlength=len(sums))
            shown += np.bincount(more["query_doc_ids"], minlength=len(sums))
    return sums / np.maximum(_sessions(logs, shown), 1), shown


def _sessions(logs: Sequence[Sessions], shown: np.ndarray) -> np.ndarray:
    """Sessions of the query of each document; at least the number that showed it."""
    if any("query_ids" not in log.columns for log in logs):
        return shown
    chunks = [chunk["query_ids"] for log in logs for chunk in log.chunks()]
    queries, counts = np.unique(
        np.concatenate([np.zeros(0, np.int64), *chunks]), return_counts=True
    )
    sessions = np.zeros(len(shown), np.int64)
    for log in logs:
        for _, _, more in documents(log, "query_doc_ids", "query_ids"):
            sessions[more["query_doc_ids"]] = counts[np.searchsorted(queries, more["query_ids"])]
    return np.maximum(sessions, shown)


def _with_column(dataset: Dataset, name: str, numbers: _OfDocuments) -> Dataset:
    parts = {part: _add(sessions, name, numbers) for part, sessions in _logs(dataset).items()}
    return dataclasses.replace(dataset, **parts)


def _add(sessions: Sessions, name: str, numbers: _OfDocuments) -> Sessions:
    """The sessions with a column per document; other views of the same columns do not have it."""
    chunk = sessions.chunk()
    values = np.zeros(chunk.shown.shape, np.float32)
    values[chunk.shown] = np.maximum(numbers(chunk), _LEAST)
    if sessions.index is not None:
        whole = np.zeros((len(next(iter(sessions.columns.values()))), sessions.ranks), np.float32)
        whole[sessions.index] = values
        values = whole
    column = Column(name, np.float32)
    return dataclasses.replace(
        sessions,
        columns={**sessions.columns, name: values},
        schema={**sessions.schema, name: column},
    )


def _logs(dataset: Dataset) -> Mapping[str, Sessions]:
    return {"train": dataset.train, "val": dataset.val, "test": dataset.test}


def _positions(sessions: Sessions) -> int:
    return max(sessions.positions, sessions.ranks)

"""What the logging policy does with each document, counted in the log, as columns of the sessions."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from clickexp.data import Column, Dataset, Sessions
from clickexp.propensities.base import Propensities, documents

_LEAST = 1e-6


def with_policy_propensity(dataset: Dataset, propensities: Propensities, name: str) -> Dataset:
    """Adds the mean propensity of each document over the sessions of its query, 0 where it was not shown.

    p_d = sum_k n_dk p_k / n_q, with n_dk sessions that showed d at position k, of n_q sessions of the query. Without
    query ids, over the sessions that showed it.

    Args:
        dataset: All parts of sessions count, since no label is read.
        propensities: By position; unknown ones are 0.
        name: Of the column.
    """
    by_position = np.nan_to_num(
        propensities.by_position(max(_positions(part) for part in _logs(dataset).values()))
    )
    sums = np.zeros(dataset.query_doc_pairs + 1)
    shown = np.zeros(dataset.query_doc_pairs + 1, np.int64)
    for part in _logs(dataset).values():
        for positions, _, more in documents(part, "query_doc_ids"):
            sums += np.bincount(more["query_doc_ids"], by_position[positions], minlength=len(sums))
            shown += np.bincount(more["query_doc_ids"], minlength=len(sums))
    means = (sums / np.maximum(_sessions(dataset, shown), 1)).astype(np.float32)
    return _with_column(dataset, name, lambda ids, positions: means[ids])


def with_policy_share(dataset: Dataset, name: str) -> Dataset:
    """Adds the share of the times that a document was shown at which it was at its position: P(k | d) of the policy.

    Args:
        dataset: All parts of sessions count.
        name: Of the column.
    """
    width = max(_positions(part) for part in _logs(dataset).values()) + 1
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    shown = np.zeros(dataset.query_doc_pairs + 1, np.int64)
    for part in _logs(dataset).values():
        for positions, _, more in documents(part, "query_doc_ids"):
            key = more["query_doc_ids"].astype(np.int64) * width + positions
            distinct, place = np.unique(np.concatenate([keys, key]), return_inverse=True)
            counts = np.bincount(place, np.append(counts, np.ones(len(key))), minlength=len(distinct))
            keys = distinct
            shown += np.bincount(more["query_doc_ids"], minlength=len(shown))

    def share(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(keys, ids.astype(np.int64) * width + positions), len(keys) - 1)
        return counts[at] / np.maximum(shown[ids], 1)

    return _with_column(dataset, name, share)


def _sessions(dataset: Dataset, shown: np.ndarray) -> np.ndarray:
    """Sessions of the query of each document; at least the number that showed it."""
    if any("query_ids" not in part.columns for part in _logs(dataset).values()):
        return shown
    chunks = [chunk["query_ids"] for part in _logs(dataset).values() for chunk in part.chunks(["query_ids"])]
    queries, counts = np.unique(np.concatenate(chunks), return_counts=True)
    found = np.zeros(len(shown), np.int64)
    for part in _logs(dataset).values():
        for _, _, more in documents(part, "query_doc_ids", "query_ids"):
            found[more["query_doc_ids"]] = counts[np.searchsorted(queries, more["query_ids"])]
    return np.maximum(found, shown)


def _with_column(dataset: Dataset, name: str, values_of) -> Dataset:
    made = {part: _add(sessions, name, values_of) for part, sessions in _logs(dataset).items()}
    return dataclasses.replace(dataset, **made)


def _add(sessions: Sessions, name: str, values_of) -> Sessions:
    """The sessions with a column per document; other views of the same columns do not have it."""
    ids = sessions.column("query_doc_ids")
    ranks = np.arange(ids.shape[1])
    positions = (
        sessions.column("positions")
        if "positions" in sessions.columns
        else np.broadcast_to(ranks + 1, ids.shape)
    )
    there = ranks < sessions.column("lengths")[:, None]
    values = np.where(there, np.maximum(values_of(ids, positions), _LEAST), 0).astype(np.float32)
    if sessions.index is not None:
        whole = np.zeros((len(next(iter(sessions.columns.values()))), ids.shape[1]), np.float32)
        whole[sessions.index] = values
        values = whole
    column = Column(name, np.float32)
    return dataclasses.replace(
        sessions, columns={**sessions.columns, name: values}, schema={**sessions.schema, name: column}
    )


def _logs(dataset: Dataset) -> Mapping[str, Sessions]:
    return {"train": dataset.train, "val": dataset.val, "test": dataset.test}


def _positions(sessions: Sessions) -> int:
    return max(sessions.positions, sessions.ranks)

"""What the logging policy does with each document, counted in the log, as columns of the sessions."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from clickexp.data import Column, Dataset, Sessions
from clickexp.propensities.base import Propensities, documents

_LEAST = 1e-6
_ByDocument = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Numbers of documents, by their ids and positions."""


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
    return _with_column(dataset, name, lambda ids, positions: means[ids])


def with_policy_share(dataset: Dataset, name: str) -> Dataset:
    """Adds the share of the times that a document was shown at which it was at its position: P(k | d) of the policy.

    In training; of documents that training did not show, in the other parts.

    Args:
        dataset: The dataset.
        name: Of the column.
    """
    (own, shown), (others, _) = _shares(dataset, ["train"]), _shares(dataset, ["val", "test"])
    return _with_column(
        dataset,
        name,
        lambda ids, positions: np.where(
            shown[ids] > 0, own(ids, positions), others(ids, positions)
        ),
    )


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


def _shares(dataset: Dataset, parts: Sequence[str]) -> tuple[_ByDocument, np.ndarray]:
    """The share of each document at a position, and how often it was shown."""
    width = max(_positions(part) for part in _logs(dataset).values()) + 1
    keys, counts = np.zeros(1, np.int64), np.zeros(1)  # of no document
    shown = np.zeros(dataset.query_doc_pairs + 1, np.int64)
    for part in parts:
        for positions, _, more in documents(_logs(dataset)[part], "query_doc_ids"):
            key = more["query_doc_ids"].astype(np.int64) * width + positions
            distinct, place = np.unique(np.concatenate([keys, key]), return_inverse=True)
            counts = np.bincount(
                place, np.append(counts, np.ones(len(key))), minlength=len(distinct)
            )
            keys = distinct
            shown += np.bincount(more["query_doc_ids"], minlength=len(shown))

    def share(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        key = ids.astype(np.int64) * width + positions
        at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        return np.where(keys[at] == key, counts[at], 0) / np.maximum(shown[ids], 1)

    return share, shown


def _sessions(logs: Sequence[Sessions], shown: np.ndarray) -> np.ndarray:
    """Sessions of the query of each document; at least the number that showed it."""
    if any("query_ids" not in log.columns for log in logs):
        return shown
    chunks = [chunk["query_ids"] for log in logs for chunk in log.chunks()]
    queries, counts = np.unique(
        np.concatenate([np.zeros(0, np.int64), *chunks]), return_counts=True
    )
    found = np.zeros(len(shown), np.int64)
    for log in logs:
        for _, _, more in documents(log, "query_doc_ids", "query_ids"):
            found[more["query_doc_ids"]] = counts[np.searchsorted(queries, more["query_ids"])]
    return np.maximum(found, shown)


def _with_column(dataset: Dataset, name: str, values_of) -> Dataset:
    made = {part: _add(sessions, name, values_of) for part, sessions in _logs(dataset).items()}
    return dataclasses.replace(dataset, **made)


def _add(sessions: Sessions, name: str, values_of) -> Sessions:
    """The sessions with a column per document; other views of the same columns do not have it."""
    chunk = sessions.chunk()
    ids = chunk["query_doc_ids"]
    known = np.maximum(values_of(ids, chunk.positions), _LEAST)
    values = np.where(chunk.shown, known, 0).astype(np.float32)
    if sessions.index is not None:
        whole = np.zeros((len(next(iter(sessions.columns.values()))), ids.shape[1]), np.float32)
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

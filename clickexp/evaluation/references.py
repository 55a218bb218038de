"""What a result is held against: click rates by rank, which know no document, and the true user of a simulation."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from clickexp.data import Dataset, Sessions
from clickexp.data.seen import IMPRESSIONS, Impressions
from clickexp.evaluation.model_evaluator import ModelEvaluator, click_metrics
from clickexp.metrics import ColdStart, Examination, Metric
from clickexp.metrics.base import or_nan
from clickexp.models import ClickModel, Model

RANK_CTR = "rank-CTR"
"""Name of the reference that predicts the click rate of each position of the training log."""
TRUTH = "true user"
"""Name of the reference that predicts with the user that the clicks were drawn from: no model can do better."""

References = dict[str, dict[str, Any]]
"""By name `test`, values of ll, ppl and cond_ppl, `per_rank`, their vectors, and `curves`."""


def references(model: Model, dataset: Dataset, evaluator: ModelEvaluator) -> References:
    """Evaluates the references of a click model on the test sessions.

    Args:
        model: The model that they are for; one that predicts no clicks has none.
        dataset: Its click rates are of the training part.
        evaluator: How many sessions at a time.

    Returns:
        Rank-CTR, and the true user where the clicks are simulated.
    """
    if not isinstance(model, ClickModel):
        return {}
    test = dataset.test.deriving(Impressions(dataset.train))
    found = {RANK_CTR: _rank_ctr(dataset, test)}
    if dataset.truth is not None:
        metrics: dict[str, Metric] = {**click_metrics(), "examination": Examination(), "cold": ColdStart()}
        evaluated = evaluator.clicks(dataset.truth, test, metrics)
        values, vectors = evaluated.compute(), evaluated.compute_per_rank()
        known = {name: value for name, value in values.items() if name in ("ll", "ppl", "cond_ppl")}
        found[TRUTH] = {
            "test": known,
            "per_rank": {name: list(map(float, v)) for name, v in vectors.items()},
            "curves": evaluated.compute_curves(),
        }
    return found


def _rank_ctr(dataset: Dataset, test: Sessions) -> dict[str, Any]:
    """Counts clicks by position, from 1 click and 1 skip each, as RCTR does with trainer=counting.

    Predictions do not depend on the clicks above, so that both perplexities are the same.
    """
    counts = np.ones((2, max(part.positions for part in (dataset.train, dataset.test)) + 1))
    for positions, clicks, shown in _chunks(dataset.train):
        for event, there in enumerate((shown & ~clicks, shown & clicks)):
            counts[event] += np.bincount(positions[there], minlength=counts.shape[1])
    log_probs = np.log(counts / counts.sum(axis=0))
    sums, documents = np.zeros(test.ranks), np.zeros(test.ranks, np.int64)
    edges = [*ColdStart().edges]
    by_range = np.zeros((2, len(edges) + 1))
    for (positions, clicks, shown), seen in zip(_chunks(test), test.chunks([IMPRESSIONS.name]), strict=True):
        observed = np.where(shown, log_probs[clicks.astype(np.int8), positions], 0)
        sums += observed.sum(axis=0)
        documents += shown.sum(axis=0)
        place = np.searchsorted(edges, seen[IMPRESSIONS.name][shown], side="right")
        by_range += [np.bincount(place, each, len(edges) + 1) for each in (observed[shown], shown[shown])]
    seen = documents > 0
    per_rank = sums[seen] / documents[seen]
    perplexity, both = np.exp(-per_rank), ("ppl", "cond_ppl")
    return {
        "test": {"ll": float(sums.sum() / documents.sum()), **dict.fromkeys(both, float(perplexity.mean()))},
        "per_rank": {"ll": per_rank.tolist(), **dict.fromkeys(both, perplexity.tolist())},
        "curves": {"cold": {"from": [0, *edges], "ppl": np.exp(-by_range[0] / or_nan(by_range[1]))}},
    }


def _chunks(sessions: Sessions) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Positions, clicks and whether there is a document, each [sessions, rank], some sessions at a time."""
    ranks = np.arange(sessions.ranks)
    given = ["positions"] if "positions" in sessions.columns else []
    for chunk in sessions.chunks(["clicks", "lengths", *given]):
        shown = ranks < chunk["lengths"][:, None]
        positions = chunk.get("positions", np.broadcast_to(ranks + 1, shown.shape))
        yield positions, chunk["clicks"], shown

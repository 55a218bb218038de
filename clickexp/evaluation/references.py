"""References of a result: click rates by rank, which know no document; the true user; random order."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from clickexp.data import Dataset, Sessions
from clickexp.data.seen import IMPRESSIONS
from clickexp.evaluation.evaluator import Evaluator, Groups
from clickexp.evaluation.groups import click_metrics, metric_groups
from clickexp.metrics import ColdStart, Examination, Metric
from clickexp.metrics.base import or_nan
from clickexp.models import ClickModel, Model
from clickexp.types import Batch, Logits

RANK_CTR = "rank-CTR"
"""Name of the reference that predicts the click rate of each position of the training log."""
TRUTH = "true user"
"""Name of the reference that predicts with the user that the clicks were drawn from: no model can do better."""

RANDOM = "random order"
"""Name of the reference that a ranker is held against: the mean over all orders of each list."""

Reference = dict[str, Any]
"""`test`, values by metric, `per_rank`, vectors, and `curves`."""
References = dict[str, Reference]
"""By name."""


class _Unordered(Model):
    """Scores all documents alike: ranking metrics are means over the orders of ties."""

    def relevance(self, batch: Batch) -> Logits:
        return jnp.zeros(batch["mask"].shape)


def references(
    model: Model,
    dataset: Dataset,
    evaluator: Evaluator,
    groups: Groups | None = None,
    rates: Reference | None = None,
) -> References:
    """Evaluates the references of a model on the test sessions.

    Args:
        model: The model that they are for.
        dataset: Its click rates are of the training part.
        evaluator: How many sessions at a time.
        groups: Metrics by group, of which `ranking` is read.
        rates: From `rank_ctr`, where it was called before.

    Returns:
        Of a click model rank-CTR, and the true user where the clicks are simulated; of a ranker, which predicts no
        clicks, random order, where there are labelled lists.
    """
    if not isinstance(model, ClickModel):
        return _random_order(dataset, evaluator, groups or {})
    rows = {RANK_CTR: rank_ctr(dataset) if rates is None else rates}
    if dataset.truth is not None:
        test = dataset.test.deriving(dataset.impressions)
        rows[TRUTH] = _true_user(dataset.truth, test, evaluator)
    return rows


def _random_order(dataset: Dataset, evaluator: Evaluator, groups: Groups) -> References:
    ranking = metric_groups(groups).get("ranking")
    if dataset.ranking is None or ranking is None or not ranking.metrics:
        return {}
    values = evaluator.ranking(_Unordered(), dataset.ranking, ranking.metrics).compute()
    scores = {name: value for name, value in values.items() if not isinstance(value, int)}
    return {RANDOM: {"test": scores, "per_rank": {}, "curves": {}}}


def _true_user(truth: ClickModel, test: Sessions, evaluator: Evaluator) -> Reference:
    metrics: dict[str, Metric] = {
        **click_metrics(),
        "examination": Examination(),
        "cold": ColdStart(),
    }
    evaluated = evaluator.clicks(truth, test, metrics)
    values, vectors = evaluated.compute(), evaluated.compute_per_rank()
    return {
        "test": {name: values[name] for name in click_metrics()},
        "per_rank": {name: list(map(float, vector)) for name, vector in vectors.items()},
        "curves": evaluated.compute_curves(),
    }


def rank_ctr(dataset: Dataset) -> Reference:
    """Counts clicks by position, from 1 click and 1 skip each, as RCTR does with trainer=counting.

    Predictions do not depend on the clicks above, so that both perplexities are the same.
    """
    test = dataset.test.deriving(dataset.impressions)
    shown, clicked = dataset.train.by_position
    counts = np.ones((2, max(len(shown), dataset.test.positions + 1)))
    counts[:, : len(shown)] += shown - clicked, clicked
    log_probs = np.log(counts / counts.sum(axis=0))
    edges = [*ColdStart().edges]
    # test documents by range of impressions, click and position
    observed = np.zeros((len(edges) + 1, *log_probs.shape))
    for chunk in test.chunks():
        place = np.searchsorted(edges, chunk.of_documents(IMPRESSIONS.name), side="right")
        place = 2 * place + chunk.of_documents("clicks")
        place = log_probs.shape[1] * place + chunk.of_documents("positions")
        observed += np.bincount(place, minlength=observed.size).reshape(observed.shape)
    sums = (observed * log_probs).sum(axis=(0, 1))
    documents = observed.sum(axis=(0, 1))
    of_ranges = (observed * log_probs).sum(axis=(1, 2)) / or_nan(observed.sum(axis=(1, 2)))
    per_rank = (sums / or_nan(documents))[1 : 1 + int(np.flatnonzero(documents).max())]
    perplexity, both = np.exp(-per_rank), ("ppl", "cond_ppl")
    return {
        "test": {
            "ll": float(sums.sum() / documents.sum()),
            **dict.fromkeys(both, float(np.nanmean(perplexity))),
        },
        "per_rank": {"ll": per_rank.tolist(), **dict.fromkeys(both, perplexity.tolist())},
        "curves": {"cold": {"from": [0, *edges], "ppl": np.exp(-of_ranges)}},
    }

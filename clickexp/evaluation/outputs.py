"""What a model predicts for a batch, by the names that metrics read; compilers drop what no metric does."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from clickexp.metrics import Metric
from clickexp.models.base import ClickModel, IndependentModel, Model
from clickexp.numerics import LogPair
from clickexp.types import Array, Batch, ByRank, as_shown, swap_list_and_rank

Outputs = Callable[..., dict[str, Any]]
"""From one or several models and a batch to the arguments of `MultiMetric.statistics`."""


def click_outputs(model: ClickModel, batch: Batch) -> dict[str, Array | LogPair]:
    """Predictions that click metrics read, as pairs of complements `[batch, rank]`."""

    def by_list(log_probs: Array | LogPair) -> Any:
        return jax.tree.map(
            lambda each: jnp.broadcast_to(swap_list_and_rank(each), batch["mask"].shape), log_probs
        )

    by_rank = ByRank(as_shown(batch))
    pair = model.marginal(by_rank)
    marginal = by_list(pair)
    independent = isinstance(model, IndependentModel)
    return {
        "conditional_log_probs": marginal if independent else by_list(model.conditional(by_rank)),
        "log_probs": marginal,
        # given the marginal: the compiler would run the loop of a recursion a second time
        "examination_log_probs": by_list(model.log_examination(by_rank, pair)),
        "clicks": batch["clicks"],
        "where": batch["mask"],
    }


def ranking_outputs(model: Model, batch: Batch) -> dict[str, Array]:
    """Scores and labels `[batch, rank]`, which ranking metrics read."""
    return {
        "scores": model.predict_relevance(batch),
        "labels": batch["labels"],
        "where": batch["mask"],
    }


def counterfactual_outputs(model: Model, batch: Batch) -> dict[str, Array]:
    """Scores, clicks and positions `[batch, rank]`, which estimates of rankings from clicks read."""
    shape = batch["mask"].shape
    positions = jnp.broadcast_to(batch["positions"], shape)
    scores = model.predict_relevance(batch)
    return {
        "scores": scores,
        "clicks": batch["clicks"],
        "positions": positions,
        "where": batch["mask"],
    }


def truth_outputs(model: ClickModel, truth: ClickModel, batch: Batch) -> dict[str, Array]:
    """Log-probabilities `[batch, rank]` of hidden events, of the fitted model and of the true user."""
    return {
        "examination_log_probs": model.predict_examination(batch),
        "attraction_log_probs": model.predict_attraction(batch),
        "true_examination_log_probs": truth.predict_examination(batch),
        "true_attraction_log_probs": truth.predict_attraction(batch),
        "where": batch["mask"],
    }


def loss_outputs(model: Model, batch: Batch) -> dict[str, Array]:
    """The model's own loss, summed over each list or per document."""
    return {"losses": model.compute_loss(batch, aggregate=False), "where": batch["mask"]}


class MeanLoss(Metric):
    """Sum of a model's own loss per document shown."""

    higher_is_better = False

    def statistics(self, *, losses: Array, where: Array, **_: Any) -> dict[str, Array]:
        """The summed loss of one batch, and its documents."""
        return {"loss": jnp.sum(losses), "documents": jnp.sum(where, dtype=jnp.int32)}

    def compute(self) -> float:
        """Mean so far; nan before the first document."""
        documents = self.total("documents").sum()
        return float(self.total("loss").sum() / documents) if documents else float("nan")

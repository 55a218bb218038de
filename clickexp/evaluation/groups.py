"""Groups of metrics: what the metrics of one group read of a model, on which data, and where results list them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp

from clickexp.data import Dataset
from clickexp.data.feed import Data
from clickexp.errors import ConfigError
from clickexp.metrics import (
    ConditionalPerplexity,
    LogLikelihood,
    Metric,
    MultiMetric,
    Perplexity,
)
from clickexp.models.base import ClickModel, IndependentModel, Model
from clickexp.parameters.context import new_session
from clickexp.propensities import PropensitySource, Weighting
from clickexp.types import Array, ByRank, as_shown, swap_list_and_rank

Metrics = Mapping[str, Metric]


@dataclass(frozen=True)
class HeldOut:
    """Data that a model is evaluated on.

    Attributes:
        sessions: What users saw and clicked.
        lists: Lists with relevance labels, if there are any.
        truth: The click model that clicked, where it is known.
    """

    sessions: Data
    lists: Data | None = None
    truth: ClickModel | None = None

    @classmethod
    def test(cls, dataset: Dataset) -> "HeldOut":
        """The test part of a dataset."""
        sessions = dataset.test.deriving(dataset.impressions)
        return cls(sessions, dataset.ranking, dataset.truth)

    @classmethod
    def validation(cls, dataset: Dataset) -> "HeldOut":
        """The validation part; its lists are the sessions where these have labels."""
        sessions = dataset.val.deriving(dataset.impressions)
        return cls(sessions, dataset.val if dataset.val.has_labels else None, dataset.truth)


class MetricGroup(MultiMetric):
    """Metrics that read the same outputs of a model on the same data.

    A subclass states the attributes and defines `outputs`. In a configuration, a key below `metric` holds the group:
    its `_target_` is the subclass, which the groups of `GROUPS` do without, and its other keys are the metrics.

    Attributes:
        heading: Where results list the values of metrics that state no heading themselves.
        required: Keys that batches need besides a mask or lengths.
        on_lists: Whether the data are the labelled lists rather than the sessions.
        of_clicks: Whether only click models have such outputs.
        needs_truth: Whether outputs are compared with the true user.
        by_rank: Whether metrics have values by rank, so that they receive `positions` where these are not the places in
            the list; see `clickexp.metrics.by_position`.
        weightings: What weights of metrics leave of the clicks of the test sessions, by metric, once they are prepared.
    """

    heading: ClassVar[str] = ""
    required: ClassVar[tuple[str, ...]] = ()
    on_lists: ClassVar[bool] = False
    of_clicks: ClassVar[bool] = False
    needs_truth: ClassVar[bool] = False
    by_rank: ClassVar[bool] = False
    weightings: Mapping[str, Weighting] = {}

    def prepare(self, dataset: Dataset) -> "MetricGroup":
        """Returns the metrics with propensities of a dataset in place of their sources.

        Raises:
            UserError: A source has none.
        """
        metrics: dict[str, Any] = dict(self.metrics)
        weightings = {}
        for name, metric in [*metrics.items()]:
            source = getattr(metric, "propensity", None)
            if isinstance(source, PropensitySource):
                propensities = source(dataset).of_relevant()
                changes: dict[str, Any] = {
                    "propensity": [value or 0.0 for value in propensities.values]
                }
                if propensities.cells is not None:
                    changes["places"] = propensities.places
                metrics[name] = replace(metric, **changes)
                weightings[name] = Weighting.of(propensities, metric.clip, dataset.test)
        prepared = type(self)(metrics)
        prepared.weightings = weightings
        return prepared

    def outputs(self, model: Any, batch: ByRank, truth: Any = None) -> dict[str, Any]:
        """Arguments of the metrics, with ranks first; compilers drop what no metric reads.

        Args:
            model: The model.
            batch: Sessions or lists; `batch.lists` is what the public predictions of a model take.
            truth: The true user, for a group that needs it.

        Returns:
            Arguments of `Metric.statistics`, [rank, batch].
        """
        raise NotImplementedError

    def data_of(self, model: Model, held_out: HeldOut) -> Data | None:
        """The data that the metrics are computed on; None where the model or the data have nothing for them."""
        if not self.metrics or (self.of_clicks and not isinstance(model, ClickModel)):
            return None
        if self.needs_truth and held_out.truth is None:
            return None
        return held_out.lists if self.on_lists else held_out.sessions


class ClickMetrics(MetricGroup):
    """Metrics of click predictions, which are pairs of complements."""

    heading = "clicks"
    required = ("clicks",)
    of_clicks = True
    by_rank = True

    def outputs(self, model: ClickModel, batch: ByRank, truth: Any = None) -> dict[str, Any]:
        """Log-probabilities of clicks and of examination, the clicks, and where documents are shown."""
        by_rank = ByRank(as_shown(batch.lists))
        pair = model.marginal(by_rank)
        marginal = conditional = batch.broadcast(pair)
        if not isinstance(model, IndependentModel):
            conditional = batch.broadcast(model.conditional(by_rank))
        return {
            "conditional_log_probs": conditional,
            "log_probs": marginal,
            # given the marginal: the compiler would run the loop of a recursion a second time
            "examination_log_probs": batch.broadcast(model.log_examination(by_rank, pair)),
            "clicks": batch["clicks"],
            "where": batch["mask"],
        }


class RankingMetrics(MetricGroup):
    """Metrics of rankings by relevance labels."""

    heading = "ranking"
    required = ("labels",)
    on_lists = True

    def outputs(self, model: Model, batch: ByRank, truth: Any = None) -> dict[str, Any]:
        """Scores, labels, and where documents are shown."""
        return {**_scores(model, batch), "labels": batch["labels"]}


class CounterfactualMetrics(MetricGroup):
    """Metrics of rankings by clicks of the log."""

    heading = "ranking by clicks"
    required = ("clicks",)

    def outputs(self, model: Model, batch: ByRank, truth: Any = None) -> dict[str, Any]:
        """Scores, clicks, positions, and where documents are shown."""
        others = {"clicks": batch["clicks"], "positions": batch.positions}
        return {**_scores(model, batch), **others}


class TruthMetrics(MetricGroup):
    """Metrics of hidden events, which compare a fitted model with the true user."""

    heading = "hidden events"
    of_clicks = True
    needs_truth = True

    def outputs(self, model: ClickModel, batch: ByRank, truth: Any = None) -> dict[str, Any]:
        """Log-probabilities of attraction and examination of both, and where documents are shown."""
        documents = ByRank(new_session(batch.lists))
        predictions = {
            "examination_log_probs": model.log_examination(batch),
            "attraction_log_probs": model.log_attraction(documents),
            "true_examination_log_probs": truth.log_examination(batch),
            "true_attraction_log_probs": truth.log_attraction(documents),
        }
        return {**batch.broadcast(predictions), "where": batch["mask"]}


class LossMetrics(MetricGroup):
    """The model's own loss, where it is not that of the click metrics."""

    heading = "loss"

    def outputs(self, model: Model, batch: ByRank, truth: Any = None) -> dict[str, Any]:
        """The loss, summed over each list or per document, and where documents are shown."""
        losses = model.compute_loss(batch.lists, aggregate=False)
        return {"losses": losses, "where": batch["mask"]}

    def data_of(self, model: Model, held_out: HeldOut) -> Data | None:
        """The sessions, but for a click model whose loss is -ll."""
        if type(model).compute_loss is ClickModel.compute_loss:
            return None
        return super().data_of(model, held_out)


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


GROUPS: Mapping[str, type[MetricGroup]] = {
    "click": ClickMetrics,
    "test": ClickMetrics,
    "loss": LossMetrics,
    "ranking": RankingMetrics,
    "counterfactual": CounterfactualMetrics,
    "truth": TruthMetrics,
}
"""Groups by their keys in configurations; `test` are metrics of clicks that validations leave out, and every evaluation
adds `loss`."""

HEADINGS = (
    "clicks",
    "loss",
    "calibration",
    "impressions in training",
    "ranking",
    "ranking by clicks",
    "hidden events",
)
"""Headings of the package in the order of results; those of other groups follow."""


def metric_groups(groups: Mapping[str, Metrics | MetricGroup]) -> dict[str, MetricGroup]:
    """Groups by key from mappings of metrics by name, those of the package first.

    Raises:
        ConfigError: Metrics stand under a key that is no group.
    """
    built = {}
    for key in sorted(groups, key=lambda key: [*GROUPS, key].index(key)):
        group = groups[key]
        if isinstance(group, MetricGroup):
            built[key] = group
        elif key in GROUPS:
            built[key] = GROUPS[key](group)
        else:
            raise ConfigError(
                f"metric.{key} is no group of metrics: choose from {', '.join(GROUPS)}, or give "
                f"metric.{key}._target_, a subclass of clickexp.evaluation.groups.MetricGroup"
            )
    return built


def click_metrics() -> dict[str, Metric]:
    """Log-likelihood, perplexity and conditional perplexity under their usual names."""
    return {"ll": LogLikelihood(), "ppl": Perplexity(), "cond_ppl": ConditionalPerplexity()}


def _scores(model: Model, batch: ByRank) -> dict[str, Array]:
    scores = swap_list_and_rank(model.predict_relevance(batch.lists))
    return {"scores": scores, "where": batch["mask"]}

"""A group of metrics: how far a click model ranks documents as the policy of the log has ordered them."""

import jax.numpy as jnp

from clickexp.evaluation.groups import MetricGroup
from clickexp.metrics import Metric
from clickexp.types import swap_list_and_rank


class OrderMetrics(MetricGroup):
    """Metrics of the order of sessions: they read positions and scores, and need no labels."""

    heading = "order of the log"

    def outputs(self, model, batch, truth=None):
        scores = swap_list_and_rank(model.predict_relevance(batch.lists))
        return {"scores": scores, "where": batch["mask"]}


class SameOrder(Metric):
    """Share of neighbours in the log's lists of which the model scores the upper one higher."""

    higher_is_better = True

    def statistics(self, *, scores, where, **_):
        pairs = where[1:] & where[:-1]  # with ranks first
        same = pairs & (scores[:-1] > scores[1:])
        return {name: jnp.sum(x, dtype=jnp.int32) for name, x in (("same", same), ("pairs", pairs))}

    def compute(self):
        return (self.total("same") / self.total("pairs")).item()

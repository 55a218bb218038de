"""A ranking metric: how often the top of a list holds one of its best documents."""

import jax.numpy as jnp

from clickexp.metrics import RankingMetric


class BestFirst(RankingMetric):
    """Share of lists with a document of the highest label above the cutoff."""

    higher_is_better = True

    def per_list(self, ranked):
        best = ranked.where & (ranked.labels == ranked.ideal[:, :1])
        return jnp.minimum(self.top(best.astype(jnp.float32)), 1.0)

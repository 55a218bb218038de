"""Tables with random posteriors, and what their priors know of ranks, for tests."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.parameters import EmbeddingParameterConfig, Rows, Table
from clickexp.parameters.table import Prior

NORMAL = EmbeddingParameterConfig(posterior="normal_by_rank", baseline=-1.0)
PRECISION, MEAN, SLOPES = 0.8, 0.2, (0.4, -0.1)


def prior_mean(x):
    """That of rows of x."""
    return MEAN + SLOPES[0] * x + SLOPES[1] * (x**2 - 1)


MOST_LISTS = 100
"""That the mean log rank of all rows counts for at most."""


def standardised(ids, log_ranks):
    """x of each id that occurs, in order: its mean log rank, drawn to that of all ids and standardised, in float64.

    Analysis of variance of a random one-way layout (Searle, Casella and McCulloch 1992, "Variance components"): a mean
    of n log ranks with variance w around that of their id, which has variance b over ids, is drawn by n / (n + w / b).
    """
    _, index, counts = np.unique(ids, return_inverse=True, return_counts=True)
    means = np.bincount(index, log_ranks) / counts
    rows, documents = len(counts), len(ids)
    within = np.sum((log_ranks - means[index]) ** 2) / (documents - rows)
    between = np.sum(counts * (means - log_ranks.mean()) ** 2) / (rows - 1)
    lists = (documents - np.sum(counts**2) / documents) / (rows - 1)
    few = min(within / max((between - within) / lists, 1e-6), MOST_LISTS)
    drawn = (means - means.mean()) * counts / (counts + few)
    return (drawn - drawn.mean()) / drawn.std()


def filled(model, seed=0):
    """Random posteriors in every table."""
    rng = np.random.default_rng(seed)
    for _, table in nnx.iter_graph(model):
        if isinstance(table, Table):
            rows = table.get_value()
            values = rng.normal(size=rows.values.shape) * 0.5
            values[:, rows.dim : 2 * rows.dim] -= 0.5  # spreads below the prior's
            slopes = jnp.tile(jnp.array(SLOPES)[:, None], rows.dim) if rows.by_rank else None
            prior = Prior(jnp.log(jnp.float32(PRECISION)), jnp.full(rows.dim, MEAN), slopes)
            table.set_value(Rows(jnp.asarray(values, jnp.float32), rows.dim, prior, rows.log_ranks))
    return model

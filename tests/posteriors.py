"""Tables with random posteriors, for tests."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.parameters import EmbeddingParameterConfig, Rows, Table
from clickexp.parameters.table import Prior

NORMAL = EmbeddingParameterConfig(posterior="normal_by_rank", baseline=-1.0)
PRECISION, MEAN, SLOPE = 0.8, 0.2, 0.4


def filled(model, seed=0):
    """Random posteriors in every table."""
    rng = np.random.default_rng(seed)
    for _, table in nnx.iter_graph(model):
        if isinstance(table, Table):
            rows = table.get_value()
            values = rng.normal(size=rows.values.shape) * 0.5
            values[:, rows.dim : 2 * rows.dim] -= 0.5  # spreads below the prior's
            slope = jnp.full(rows.dim, SLOPE) if rows.by_rank else None
            prior = Prior(jnp.log(jnp.float32(PRECISION)), jnp.full(rows.dim, MEAN), slope)
            table.set_value(Rows(jnp.asarray(values, jnp.float32), rows.dim, prior, rows.log_ranks))
    return model

"""A tower with a loop over ranks: a document attracts less below documents that attract."""

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.parameters import Parameter, ParameterConfig, new_table


class ContextTower(Parameter):
    """z_r = b + row_r - w h_r, where h_r sums the rows of the documents above, each rank further up at half weight."""

    def __init__(self, ids):
        self.table = new_table(ids + 1, 1, prior_precision=1.0)
        self.contrast, self.baseline = nnx.Param(jnp.array(0.1)), nnx.Param(jnp.array(0.0))

    def logit(self, batch):
        rows = self.table.take(batch["query_doc_ids"])[..., 0]

        def step(above, rank):
            row, shown = rank
            return jnp.where(shown, above / 2 + row, above), row - self.contrast[...] * above

        start = jnp.zeros(len(rows))
        _, logits = jax.lax.scan(step, start, (rows.T, batch["mask"].T))
        return self.baseline[...] + logits.T


class ContextConfig(ParameterConfig):
    def build(self, sizes, *, rngs):
        return ContextTower(sizes.query_doc_pairs)

"""A tower that looks rows up inside a scan: a document attracts less below documents that attract."""

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.parameters import Parameter, ParameterConfig, new_table


class ContextTower(Parameter):
    """z_r = b + row_r - w h_r, where h_r sums the rows of the documents above, each rank further up at half weight."""

    def __init__(self, ids):
        self.table, self.contrast = (
            new_table(ids + 1, 1, prior_precision=1.0),
            nnx.Param(jnp.array(0.1)),
        )
        self.baseline = nnx.Param(jnp.array(0.0))

    def logit(self, batch):
        def step(above, rank):
            row = self.table.take(rank["ids"])[:, 0]
            return jnp.where(rank["shown"], above / 2 + row, above), row - self.contrast[
                ...
            ] * above

        ranks = {"ids": batch["query_doc_ids"].T, "shown": batch["mask"].T}
        return self.baseline[...] + jax.lax.scan(step, jnp.zeros(len(batch["mask"])), ranks)[1].T


class ContextConfig(ParameterConfig):
    def build(self, sizes, *, rngs):
        return ContextTower(sizes.query_doc_pairs)

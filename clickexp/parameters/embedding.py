"""One free parameter a query-document pair: the tower of the classic click models."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.parameters.base import Parameter, ParameterConfig, Sizes
from clickexp.parameters.table import new_table
from clickexp.types import Array, Batch


@dataclasses.dataclass(frozen=True)
class EmbeddingParameterConfig(ParameterConfig):
    """Settings of an EmbeddingParameter.

    use_feature: key of the batch that holds the row ids [batch, rank].
    parameters: largest id; None takes the number of query-document pairs of the data.
    embedding_features: numbers a row; above 1 they meet a learned projection.
    add_baseline: share one learned logit among all rows, so that a row is an offset from it.
    baseline: where that logit starts; None takes the log-odds of the training click rate.
    has_padding: one row more than `parameters`, so that ids may start from 0 or from 1.
    prior_precision: precision of the Gaussian prior of an offset (1 / variance, in logits).
    """

    use_feature: str = "query_doc_ids"
    parameters: int | None = None
    embedding_features: int = 1
    add_baseline: bool = True
    baseline: float | None = None
    has_padding: bool = True
    prior_precision: float = 1.0

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "EmbeddingParameter":
        parameters = self.parameters
        if parameters is None:
            parameters = sizes.require("query_doc_pairs", "embedding")
        baseline = sizes.starting_logit(self.baseline)
        config = dataclasses.replace(self, parameters=parameters, baseline=baseline)
        return EmbeddingParameter(config, rngs=rngs)


class EmbeddingParameter(Parameter):
    """z = baseline + row[id], or baseline + projection . row[id] for rows of several numbers."""

    def __init__(self, config: EmbeddingParameterConfig, *, rngs: nnx.Rngs):
        if config.parameters is None:
            raise ValueError("EmbeddingParameterConfig needs parameters=..., the largest id in the data")
        self.config = config
        dim = config.embedding_features
        self.table = new_table(config.parameters + config.has_padding, dim, config.prior_precision)
        self.baseline = (
            nnx.Param(jnp.asarray(config.baseline or 0.0, jnp.float32)) if config.add_baseline else None
        )
        self.projection = nnx.Param(jax.random.normal(rngs.params(), (dim,)) / dim**0.5) if dim > 1 else None

    def logit(self, batch: Batch) -> Array:
        rows = self.table.take(batch[self.config.use_feature])
        logit = rows[..., 0] if self.projection is None else rows @ self.projection[...]
        return logit if self.baseline is None else logit + self.baseline[...]

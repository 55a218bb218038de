"""One embedding per query-document pair, by default a free number: the tower of the classic click models."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.errors import ConfigError
from clickexp.parameters.base import ParameterConfig, PosteriorParameter, Sizes, row_ids
from clickexp.parameters.table import Posterior, new_table
from clickexp.types import LOG_RANKS, Batch, Logits
from clickexp.utils.bounds import Ids, NonNegativeFloat, PositiveInt, Ratio

FullEmbedding = new_table
"""The uncompressed store, by the name that it has beside the compressed ones."""


@dataclasses.dataclass(frozen=True)
class EmbeddingParameterConfig(ParameterConfig):
    """Settings of an EmbeddingParameter.

    Attributes:
        use_feature: Key of the batch that holds the row ids `[batch, rank]`.
        parameters: Largest id; None takes that of the data.
        embedding_features: Numbers per row; above 1 they meet a learned projection.
        add_baseline: Whether all rows share one learned logit, so that a row is an offset from it.
        baseline: Where that logit starts; None takes the log-odds of the training click rate.
        has_padding: Whether there is one row more than `parameters`, so that ids may start from 0 or from 1.
        posterior: "normal" keeps a mean and a spread of every number of a row and learns their prior; "normal_by_rank"
            has a prior whose mean follows the ranks at which training shows documents; "none" keeps the most probable
            number under a prior that is given.
        prior_precision: Precision of the Gaussian prior of every number of a row (1 / variance, in logits); where it is
            learned, its start.
        embedding_fn: Constructor of the store of the embeddings, such as HashEmbedding or a partial of it. It takes
            the number of ids, the numbers per row, the prior's precision and, as `posterior`, the kind of posterior
            unless that is none; it returns an object with `take(ids)` and, where ids are limited, `largest_id`. Where
            there are posteriors, it has `take(ids, log_ranks)`, as `Rows` has, and `variance(ids)`.
        compression_ratio: Numbers of the full table over numbers stored; None leaves it to embedding_fn.
    """

    use_feature: str = "query_doc_ids"
    parameters: Ids | None = None
    embedding_features: PositiveInt = 1
    add_baseline: bool = True
    baseline: float | None = None
    has_padding: bool = True
    posterior: Posterior = "normal_by_rank"
    prior_precision: NonNegativeFloat = 1.0
    embedding_fn: Callable = FullEmbedding
    compression_ratio: Ratio | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compression_ratio is not None and self.embedding_fn is FullEmbedding:
            raise ConfigError(
                f"compression_ratio={self.compression_ratio} of a full table: "
                "choose embedding_fn=HashEmbedding, QREmbedding or RobeDEmbedding, or set it to null"
            )

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "EmbeddingParameter":
        """Builds the tower; ConfigError where it has fewer rows than the data has ids."""
        parameters, largest = self.parameters, sizes.query_doc_pairs or 0
        if parameters is None:
            parameters = sizes.largest(self.use_feature, "query_doc_pairs", "embedding")
        if self.use_feature == "query_doc_ids" and parameters < largest:
            raise ConfigError(
                f"parameters={parameters} of an embedding is below the largest query-document id, {largest}: "
                "raise it, or set it to null"
            )
        baseline = sizes.starting_logit(self.baseline)
        config = dataclasses.replace(self, parameters=parameters, baseline=baseline)
        return EmbeddingParameter(config, rngs=rngs)


class EmbeddingParameter(PosteriorParameter):
    """z = baseline + row(id), or baseline + projection . row(id) for rows of several numbers.

    The row is that of a full table, or made of the fewer numbers of a compressed one.
    """

    def __init__(self, config: EmbeddingParameterConfig, *, rngs: nnx.Rngs):
        if config.parameters is None:
            raise ValueError(
                "EmbeddingParameterConfig needs parameters=..., the largest id in the data"
            )
        self.config = config
        dim = config.embedding_features
        ratio = config.compression_ratio
        settings: dict[str, Any] = {} if ratio is None else {"compression_ratio": ratio}
        settings |= {} if config.posterior == "none" else {"posterior": config.posterior}
        rows = config.parameters + config.has_padding
        self.table = config.embedding_fn(rows, dim, config.prior_precision, **settings)
        self.baseline = (
            nnx.Param(jnp.asarray(config.baseline or 0.0, jnp.float32))
            if config.add_baseline
            else None
        )
        self.projection = (
            nnx.Param(jax.random.normal(rngs.params(), (dim,)) / dim**0.5) if dim > 1 else None
        )

    @property
    def level(self) -> float:
        """What is added to the logits of all rows: the baseline, or 0 where there is none."""
        return 0.0 if self.baseline is None else float(self.baseline[...])

    def posterior(self, batch: Batch) -> tuple[Logits, Logits | None]:
        """Returns mean and variance of the logit of each id; None for the variance where rows are numbers."""
        ids = row_ids(batch, self.config.use_feature)
        if self.config.posterior == "none":
            mean, variance = self.table.take(ids), None
        else:
            log_ranks = batch.get(LOG_RANKS)
            has_ranks = log_ranks is not None and log_ranks.shape == ids.shape
            mean, variance = (
                self.table.take(ids, log_ranks if has_ranks else None),
                self.table.variance(ids),
            )
        weights = jnp.ones(1) if self.projection is None else self.projection[...]
        variance = None if variance is None else variance @ weights**2
        mean = mean[..., 0] if self.projection is None else mean @ weights
        return mean if self.baseline is None else mean + self.baseline[...], variance

    def limits(self) -> dict[str, int]:
        """Returns the largest id, where the store has one."""
        largest = getattr(self.table, "largest_id", None)
        return {} if largest is None else {self.config.use_feature: largest}

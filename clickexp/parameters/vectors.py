"""Vectors of documents and queries, which neural click models read: rows of a table, or projections of features."""

import abc
import dataclasses

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from clickexp.parameters.base import Sizes, feature_vectors, row_ids
from clickexp.parameters.formula import identity
from clickexp.parameters.table import Posterior, new_table
from clickexp.types import Array, Batch
from clickexp.utils.bounds import Ids, NonNegativeFloat, PositiveInt

_VectorPerDocument = Float[Array, "batch #rank dim"]


class Vectors(nnx.Module):
    """A vector for each document of a batch of lists.

    Attributes:
        dim: Length of the vectors.
    """

    dim: int

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> _VectorPerDocument:
        """Returns the vectors."""

    def limits(self) -> dict[str, int]:
        """Returns the largest value that there is a row for, by the key of the batch that is looked up."""
        return {}


class VectorsConfig(abc.ABC):
    """Settings of vectors, which are built once the sizes of the data are known."""

    @abc.abstractmethod
    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> Vectors:
        """Builds the vectors.

        Args:
            sizes: Sizes of the data.
            rngs: Streams of random numbers for initial values.
        """


@dataclasses.dataclass(frozen=True)
class TableVectorsConfig(VectorsConfig):
    """Settings of TableVectors.

    Attributes:
        use_feature: Key of the batch that holds the row ids.
        parameters: Largest id; None takes that of the data.
        dim: Numbers per row.
        prior_precision: Precision of the Gaussian prior of every number. It is not learned: the networks that read
            vectors learn their scale.
        posterior: "normal" keeps the mean and the spread of every number: training draws them, and predictions are
            those of the means.
    """

    use_feature: str = "document_ids"
    parameters: Ids | None = None
    dim: PositiveInt = 64
    prior_precision: NonNegativeFloat = 1.0
    posterior: Posterior = "none"

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "TableVectors":
        """Builds the table, whose rows start from zeros: the networks that read them differ already."""
        parameters = self.parameters
        if parameters is None:
            parameters = sizes.largest(self.use_feature, "query_doc_pairs", "table of vectors")
        return TableVectors(dataclasses.replace(self, parameters=parameters))


class TableVectors(Vectors):
    """A row of a table, looked up by a key of the batch; a training step updates the rows of its batch alone."""

    def __init__(self, config: TableVectorsConfig):
        if config.parameters is None:
            raise ValueError("TableVectorsConfig needs parameters=..., the largest id in the data")
        self.config, self.dim = config, config.dim
        prior = config.prior_precision, config.posterior
        self.table = new_table(config.parameters + 1, config.dim, *prior, learns_prior=False)

    def __call__(self, batch: Batch) -> _VectorPerDocument:
        """Returns the row of each id."""
        return self.table.take(row_ids(batch, self.config.use_feature))

    def limits(self) -> dict[str, int]:
        """Returns the largest id."""
        return {self.config.use_feature: self.table.largest_id}


@dataclasses.dataclass(frozen=True)
class FeatureVectorsConfig(VectorsConfig):
    """Settings of FeatureVectors.

    Attributes:
        use_feature: Key of the batch that holds the features.
        features: Their number; None takes that of the data.
        dim: Numbers per vector.
        input_norm: Whether a LayerNorm comes first; it leaves out vectors that the data has standardised, and single
            numbers.
    """

    use_feature: str = "query_doc_features"
    features: PositiveInt | None = None
    dim: PositiveInt = 64
    input_norm: bool = True

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "FeatureVectors":
        """Builds the projection; ConfigError if the number of features is not known."""
        features = sizes.width(self.use_feature, self.features)
        norm = self.input_norm and not sizes.is_scaled(self.use_feature, features)
        config = dataclasses.replace(self, features=features, input_norm=norm)
        return FeatureVectors(config, rngs=rngs)


class FeatureVectors(Vectors):
    """W norm(x) + b for the features x of a document."""

    def __init__(self, config: FeatureVectorsConfig, *, rngs: nnx.Rngs):
        self.config, self.dim = config, config.dim
        width = config.features or 0
        self.norm = nnx.LayerNorm(width, rngs=rngs) if config.input_norm else identity
        self.linear = nnx.Linear(config.features or 0, config.dim, rngs=rngs)

    def __call__(self, batch: Batch) -> _VectorPerDocument:
        """Returns the projections."""
        vectors = feature_vectors(batch, self.config.use_feature, self.config.features or 0)
        return self.linear(jnp.asarray(self.norm(vectors)))

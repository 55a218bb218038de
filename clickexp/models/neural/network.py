"""Common parts of click models that read vectors of documents and queries."""

import abc
from collections.abc import Mapping
from typing import Any, cast

import jax.numpy as jnp
from flax import nnx

from clickexp.models.sequential import SequentialClickModel
from clickexp.parameters import TableVectorsConfig
from clickexp.parameters.base import Parameter, Sizes
from clickexp.parameters.context import ContextParameterConfig
from clickexp.parameters.vectors import Vectors, VectorsConfig
from clickexp.types import Array, ByRank, Observed
from clickexp.utils.batches import Limit
from clickexp.utils.bounds import Decay, Pairs, PositiveInt

_Source = VectorsConfig | Vectors


def query_place(mask: Observed, numbers: Array | None) -> Array:
    """Returns where to read the query of each list, `[batch, 1]`: at the first document shown that has one.

    Args:
        mask: Which documents are shown.
        numbers: Those of queries per document, 0 at documents that the log does not have; None where there are none.
    """
    has_query = mask if numbers is None else mask & (numbers > 0)
    return jnp.argmax(mask.astype(int) + has_query.astype(int), axis=1)[:, None]


class NetworkClickModel(SequentialClickModel):
    """A network over vectors of documents and queries.

    A subclass defines `build_network` and the methods of `SequentialClickModel`.

    Attributes:
        documents: Vectors of documents, by default 64 numbers for each.
        queries: Vectors of queries, likewise.
        dropout: Share of the numbers of vectors that a training step leaves out.
        context: Offset to logits for what came before in the search session, if there is one.
    """

    positions: PositiveInt | None = None
    query_doc_pairs: Pairs | None = None
    documents: _Source = TableVectorsConfig()
    queries: _Source = TableVectorsConfig(use_feature="query_numbers")
    dropout: Decay = 0.0
    context: ContextParameterConfig | Parameter | None = None

    def build_parts(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        """Builds the vectors, and the network that reads them."""
        for name in ("documents", "queries", "context"):
            source = getattr(self, name)
            if isinstance(source, VectorsConfig | ContextParameterConfig):
                source = source.build(sizes, rngs=rngs)
            setattr(self, name, nnx.data(source))
        self.drop = nnx.data(nnx.Dropout(self.dropout, rngs=rngs))
        self.build_network(sizes, rngs)

    @classmethod
    def with_context(
        cls, settings: Mapping[str, Any], context: ContextParameterConfig
    ) -> dict[str, Any]:
        """Returns arguments with context in its own place, which is that of no role."""
        if context.role is None:
            return {**settings, "context": context}
        return super().with_context(settings, context)

    @abc.abstractmethod
    def build_network(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        """Builds the rest, which knows the sizes of vectors.

        Args:
            sizes: Sizes of the data.
            rngs: Streams of random numbers for initial values.
        """

    def setup(self, rngs: nnx.Rngs) -> None:
        """Builds nothing: the sizes of the data are needed."""

    def offsets(self, batch: ByRank) -> Array:
        """Returns the offsets to logits, `[rank, batch]`; 0 without context."""
        if not isinstance(self.context, Parameter):
            return jnp.zeros(batch.shape)
        return batch.broadcast(self.context(batch))

    def limits(self) -> list[Limit]:
        """Returns the largest ids that vectors have rows for."""
        by_name = {name: cast(Vectors, getattr(self, name)) for name in ("documents", "queries")}
        widths = [
            Limit(key, most, name)
            for name, vectors in by_name.items()
            for key, most in vectors.limits().items()
        ]
        return [*super().limits(), *widths]

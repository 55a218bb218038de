"""The neural click model of Borisov, Markov, de Rijke and Serdyukov."""

from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from clickexp.models.neural.recurrent import Kind, Recurrent
from clickexp.models.sequential import SequentialClickModel, State
from clickexp.numerics import LogPair, log_sigmoid_pair
from clickexp.parameters import TableVectorsConfig
from clickexp.parameters.base import Columns, Features, Sizes
from clickexp.parameters.vectors import Vectors, VectorsConfig
from clickexp.types import Array, ByRank, LogitsByRank
from clickexp.utils.bounds import Decay, Pairs, PositiveInt, Probability
from clickexp.utils.checks import Limit

Source = VectorsConfig | Vectors


class NeuralClickModel(SequentialClickModel):
    """P(c_r = 1 | c_<r) = s(w . h_r + b) with h_r = f(h_{r-1}, [0, c_{r-1}, d_r]) and h_0 = f(0, [q, 0, 0]).

    f is a recurrent network, q a vector of the query and d_r one of each document. Positions are not read: the network
    counts. Relevance is P(click) of a document at the first rank.

    Borisov, Markov, de Rijke and Serdyukov 2016, "A neural click model for web search".

    Attributes:
        documents: Vectors of documents, by default 64 numbers for each.
        queries: Vectors of queries, likewise.
        cell: The recurrent network, "gru" or "lstm".
        hidden: Units of its state.
        dropout: Share of the numbers of vectors that a training step leaves out.
    """

    name = "NCM"

    positions: PositiveInt | None = None
    query_doc_pairs: Pairs | None = None
    documents: Source = TableVectorsConfig()
    queries: Source = TableVectorsConfig(use_feature="query_numbers")
    cell: Kind = "gru"
    hidden: PositiveInt = 64
    dropout: Decay = 0.0

    def __post_init__(
        self, click_rate: Probability | None, features: Features, columns: Columns, rngs: nnx.Rngs | None
    ) -> None:
        super().__post_init__(click_rate, features, columns, rngs)
        rngs = cast(nnx.Rngs, rngs)  # without which nothing was built
        sizes = Sizes(self.query_doc_pairs, self.positions, click_rate, features, columns)
        for name in ("documents", "queries"):
            source = getattr(self, name)
            built = source.build(sizes, rngs=rngs) if isinstance(source, VectorsConfig) else source
            setattr(self, name, nnx.data(built))
        width = cast(Vectors, self.queries).dim + 1 + cast(Vectors, self.documents).dim
        self.recurrent = nnx.data(Recurrent(self.cell, width, self.hidden, rngs=rngs))
        start = nnx.initializers.constant(sizes.starting_logit(None))
        self.output = nnx.data(nnx.Linear(self.hidden, 1, bias_init=start, rngs=rngs))
        self.drop = nnx.data(nnx.Dropout(self.dropout, rngs=rngs))

    def setup(self, rngs: nnx.Rngs) -> None:
        """Builds nothing: the sizes of the data are needed."""

    def inputs(self, batch: ByRank) -> Float[Array, "rank batch gates"]:
        """Returns what the network reads of documents, projected."""
        vectors = self.drop(cast(Vectors, self.documents)(batch.lists))
        return jnp.moveaxis(self.recurrent.project(vectors, cast(Vectors, self.queries).dim + 1), 1, 0)

    def start(self, batch: ByRank) -> State:
        """Returns the state after the query."""
        shown = batch.lists["mask"].astype(bool)
        # a document that is shown tells the query of its list, wherever it stands
        first = jnp.argmax(shown, axis=1)[:, None]
        lists = {
            name: jnp.take_along_axis(values, first.reshape(-1, *[1] * (values.ndim - 1)), axis=1)
            if values.ndim > 1 and values.shape[:2] == shown.shape
            else values
            for name, values in batch.lists.items()
        }
        query = self.drop(cast(Vectors, self.queries)(lists))[:, 0]
        return self.recurrent.step(self.recurrent.start(len(shown)), self.recurrent.project(query))[0]

    def step(self, state: State, inputs: Array, previous: Bool[Array, " batch"]) -> tuple[State, LogPair]:
        """Returns the next state, and the probability of a click."""
        of_click = self.recurrent.read.kernel[...][cast(Vectors, self.queries).dim]
        state, units = self.recurrent.step(state, inputs + jnp.where(previous[:, None], of_click, 0.0))
        return state, log_sigmoid_pair(self.output(units)[:, 0])

    def relevance(self, batch: ByRank) -> LogitsByRank:
        """Returns log P(click) of each document, as if it were at the first rank."""
        start, nothing = self.start(batch), jnp.zeros(batch.shape[1], bool)
        return jax.lax.map(lambda vectors: self.step(start, vectors, nothing)[1].log, self.inputs(batch))

    def limits(self) -> list[Limit]:
        """Returns the largest ids that vectors have rows for."""
        vectors = {name: cast(Vectors, getattr(self, name)) for name in ("documents", "queries")}
        own = [Limit(key, most, name) for name, each in vectors.items() for key, most in each.limits().items()]
        return [*super().limits(), *own]

"""The neural click model of Borisov, Markov, de Rijke and Serdyukov."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from clickexp.models.neural.network import NetworkClickModel, query_place
from clickexp.models.neural.recurrent import Kind, Recurrent
from clickexp.models.sequential import State
from clickexp.numerics import LogPair, log_sigmoid_pair, mean_log_sigmoid_pair
from clickexp.parameters import EmbeddingParameterConfig, Parameter
from clickexp.parameters.base import Sizes, Source, build_parameter
from clickexp.parameters.vectors import Vectors
from clickexp.types import Array, ByRank, LogitsByRank, swap_list_and_rank
from clickexp.utils.bounds import PositiveInt


class _Document(NamedTuple):
    """Inputs of a step: the vector of the document, projected, and the offset to the logit of a click.

    The variance is that of the offset, where a table knows it.
    """

    read: Float[Array, "*lists gates"]
    offset: Float[Array, "*lists"]
    variance: Float[Array, "*lists"] | None = None


class NeuralClickModel(NetworkClickModel):
    """P(c_r = 1 | c_<r) = s(w . h_r + b + o) with h_r = f(h_{r-1}, [0, c_{r-1}, d_r]) and h_0 = f(0, [q, 0, 0]).

    f is a recurrent network, q a vector of the query and d_r one of each document. Positions are not read: the network
    counts. o is the sum of the logits of the towers `offset`, of the document, and `context`; in the published model it
    is 0. A table learns one number of a document from far fewer clicks than the network learns a vector. Relevance is
    P(click) of a document at the first rank of a new session, and examination, of which the model has no event,
    P(click) over that.

    Borisov, Markov, de Rijke and Serdyukov 2016, "A neural click model for web search".

    Attributes:
        cell: The recurrent network, "gru" or "lstm".
        hidden: Units of its state.
        offset: Tower of the document whose logit is added to that of the network; None for the published model.
    """

    name = "NCM"

    cell: Kind = "gru"
    hidden: PositiveInt = 64
    offset: Source | None = EmbeddingParameterConfig()

    def build_network(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        """Builds the recurrent network, and the tower of the document."""
        width = cast(Vectors, self.queries).dim + 1 + cast(Vectors, self.documents).dim
        self.recurrent = nnx.data(Recurrent(self.cell, width, self.hidden, rngs=rngs))
        if self.offset is not None:  # which then starts at the click rate, and the network at 0
            tower = build_parameter(
                "offset", self.offset, EmbeddingParameterConfig(), sizes, rngs=rngs
            )
            self.offset = nnx.data(tower)
        start = nnx.initializers.constant(
            sizes.starting_logit(None) if self.offset is None else 0.0
        )
        self.output = nnx.data(nnx.Linear(self.hidden, 1, bias_init=start, rngs=rngs))

    def inputs(self, batch: ByRank) -> _Document:
        """Returns the inputs of the network by document, projected, and offsets."""
        vectors = self.drop(cast(Vectors, self.documents)(batch.lists))
        read = swap_list_and_rank(
            self.recurrent.project(vectors, cast(Vectors, self.queries).dim + 1)
        )
        if not isinstance(self.offset, Parameter):
            return _Document(read, self.offsets(batch))
        moments = self.offset.posterior(batch.lists)
        mean, variance = batch.broadcast(jax.tree.map(swap_list_and_rank, moments))
        return _Document(read, self.offsets(batch) + mean, variance)

    def start(self, batch: ByRank) -> State:
        """Returns the state after the query."""
        mask = batch.lists["mask"].astype(bool)
        numbers = batch.lists.get("query_numbers")
        first = query_place(
            mask, None if numbers is None or numbers.shape != mask.shape else numbers
        )
        lists = {
            name: jnp.take_along_axis(values, first.reshape(-1, *[1] * (values.ndim - 1)), axis=1)
            if values.ndim > 1 and values.shape[:2] == mask.shape
            else values
            for name, values in batch.lists.items()
        }
        query = self.drop(cast(Vectors, self.queries)(lists))[:, 0]
        return self.recurrent.step(self.recurrent.start(len(mask)), self.recurrent.project(query))[
            0
        ]

    def step(
        self, state: State, inputs: _Document, previous: Bool[Array, " batch"]
    ) -> tuple[State, LogPair]:
        """Returns the next state, and the probability of a click."""
        of_click = self.recurrent.read.kernel[...][cast(Vectors, self.queries).dim]
        state, units = self.recurrent.step(
            state, inputs.read + jnp.where(previous[:, None], of_click, 0.0)
        )
        logit = self.output(units)[:, 0] + inputs.offset
        if inputs.variance is None:
            return state, log_sigmoid_pair(logit)
        return state, mean_log_sigmoid_pair(logit, inputs.variance)

    def relevance(self, batch: ByRank) -> LogitsByRank:
        """Returns log P(click) of each document, as if it were at the first rank."""
        start, nothing = self.start(batch), jnp.zeros(batch.shape[1], bool)
        return jax.lax.map(
            lambda document: self.step(start, document, nothing)[1].log, self.inputs(batch)
        )

"""The context-aware click model of Chen, Mao, Liu, Zhang and Ma."""

from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from clickexp.data.history import CLICKED, DOCUMENTS, EARLIER, POSITIONS, QUERIES
from clickexp.errors import ConfigError, DataError
from clickexp.models.neural.combination import ClickCombination, Kind
from clickexp.models.neural.network import NetworkClickModel, query_place
from clickexp.models.neural.recurrent import Recurrent
from clickexp.models.sequential import State, chosen
from clickexp.numerics import LOG_ZERO, LogPair, log_sigmoid_pair
from clickexp.parameters.base import Sizes
from clickexp.parameters.vectors import TableVectors
from clickexp.types import Array, Batch, ByRank, LogitsByRank, swap_list_and_rank
from clickexp.utils.batches import Limit
from clickexp.utils.bounds import PositiveInt


class _Document(NamedTuple):
    """Inputs of a step: log P(relevant), and what examination reads of the position and the session, projected."""

    relevance: LogPair
    read: Array


class ContextAwareClickModel(NetworkClickModel):
    """P(c_r = 1 | c_<r, session) = combination(R_d, E_r) of the relevance R_d of a document and examination E_r.

        u_j = GRU(u_{j-1}, query j of the session)        v_i = GRU(v_{i-1}, [document, position] of its click i)
        x = [sum_j a_j u_j, sum_i b_i v_i], a = softmax(q . A u_j), b = softmax(q . B v_i) for the query q of the list
        R_d = s(MLP([x, q, d]) + o)
        E_r = s(w . h_r + b), h_r = GRU(h_{r-1}, [position r, x, c_{r-1}])

    The queries of the session end with that of the list; its clicks are those on earlier lists. o is the offset of
    `context`. Relevance that documents are ranked by is R_d in a new session, whose only query is that of the list.

    Chen, Mao, Liu, Zhang and Ma 2020, "A context-aware click model for web search". What differs there: it also reads
    skipped documents, the types of results and vectors from a graph of the log; relevance reads the rank of its
    document and the clicks above; examination does not read the session; attention has no matrix; a term of the loss
    fits relevance to clicks above the last one; `linear` has free weights and `nonlinear` fewer units.

    Attraction is R_d, whatever the combination.

    Attributes:
        combination: How relevance and examination make a click; see `clickexp.models.neural.combination`.
        hidden: Units of each recurrent state and of the hidden layer of relevance.
        embedding: Numbers per position, and per click.
    """

    name = "CACM"

    combination: Kind = "mul"
    hidden: PositiveInt = 64
    embedding: PositiveInt = 4

    def build_network(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        """Builds the networks of the session, of relevance and of examination."""
        if self.positions is None:
            raise ValueError("ContextAwareClickModel needs positions=..., the largest position")
        documents, queries = self._vectors
        if documents.config.use_feature not in DOCUMENTS:
            raise ConfigError(
                f"model.documents.use_feature={documents.config.use_feature}: model=cacm knows the earlier clicks of a "
                f"session by {' or '.join(DOCUMENTS)}"
            )
        self._clicked = f"{CLICKED}{documents.config.use_feature}"
        if sizes.columns is not None and not {self._clicked, QUERIES} <= sizes.columns.keys():
            raise ConfigError(
                f"model=cacm reads {self._clicked} and {QUERIES}, which follow from search sessions, and this data "
                "has none: choose a dataset whose lists have session ids, as clickexp-data inspect shows, or "
                "model=cacm_minus"
            )
        if queries.config.use_feature != "query_numbers":
            raise ConfigError(
                f"model.queries.use_feature={queries.config.use_feature}: model=cacm knows the earlier queries of a "
                "session by query_numbers; leave it out"
            )
        hidden, of_position, linear = self.hidden, self.embedding, partial(nnx.Linear, rngs=rngs)
        self.of_position = nnx.data(nnx.Embed(self.positions + 1, of_position, rngs=rngs))
        self.of_click = nnx.data(nnx.Embed(2, of_position, rngs=rngs))
        self.of_queries = nnx.data(Recurrent("gru", queries.dim, hidden, rngs=rngs))
        self.of_clicks = nnx.data(Recurrent("gru", documents.dim + of_position, hidden, rngs=rngs))
        self.attends_queries = nnx.data(linear(hidden, queries.dim, use_bias=False))
        self.attends_clicks = nnx.data(linear(hidden, queries.dim, use_bias=False))
        self.relevant = nnx.data(linear(2 * hidden + queries.dim + documents.dim, hidden))
        start = nnx.initializers.constant(sizes.starting_logit(None))
        self.relevant_output = nnx.data(linear(hidden, 1, bias_init=start))
        self.recurrent = nnx.data(Recurrent("gru", 2 * (of_position + hidden), hidden, rngs=rngs))
        self.output = nnx.data(linear(hidden, 1, bias_init=nnx.initializers.constant(1.0)))
        self.combined = nnx.data(ClickCombination(self.combination, rngs=rngs))

    @property
    def _vectors(self) -> tuple[TableVectors, TableVectors]:
        vectors = self.documents, self.queries
        if not all(isinstance(tower, TableVectors) for tower in vectors):
            raise ConfigError(
                "model=cacm looks up clicked documents by their ids: choose tables for documents and queries"
            )
        return cast(tuple[TableVectors, TableVectors], vectors)

    def inputs(self, batch: ByRank) -> _Document:
        """Returns relevance, and what examination reads."""
        session, query, documents = self._session(batch.lists)
        of_list = jnp.concatenate([session, query], axis=-1)
        width = of_list.shape[-1]
        kernel = self.relevant.kernel[...]
        # what documents of a list share is projected once
        shared = (of_list @ kernel[:width])[:, None] + cast(nnx.Param, self.relevant.bias)[...]
        logits = self.relevant_output(jnp.tanh(shared + documents @ kernel[width:]))[..., 0]
        position = self.of_position(jnp.asarray(batch.positions))
        read = jnp.concatenate(
            [position, jnp.broadcast_to(session, (batch.shape[0], *session.shape))], axis=-1
        )
        return _Document(
            log_sigmoid_pair(swap_list_and_rank(logits) + self.offsets(batch)),
            self.recurrent.project(read),
        )

    def start(self, batch: ByRank) -> State:
        """Returns zeros."""
        return self.recurrent.start(batch.shape[1])

    def step(
        self, state: State, inputs: _Document, previous: Bool[Array, " batch"]
    ) -> tuple[State, LogPair]:
        """Returns the next state, and the probability of a click."""
        return self._of_examination(state, inputs, previous)[:2]

    def relevance(self, batch: ByRank) -> LogitsByRank:
        """Returns log R_d."""
        return self.inputs(batch).relevance.log

    def log_examination(self, batch: ByRank, marginal: LogPair | None = None) -> LogitsByRank:
        """Returns log E_r, whatever the clicks above; exact as far as marginals are."""
        if self.combination == "mul":  # where a click is R_d E_r
            return super().log_examination(batch, marginal)
        return self.mean_above(batch, self._of_examination).log

    def _of_examination(
        self, state: State, inputs: _Document, previous: Array
    ) -> tuple[State, LogPair, LogPair]:
        """Returns the next state, and the probabilities of a click and of examination."""
        of_click = (
            self.of_click(jnp.asarray(previous, jnp.int32))
            @ self.recurrent.read.kernel[...][-self.embedding :]
        )
        state, units = self.recurrent.step(state, inputs.read + of_click)
        examination = log_sigmoid_pair(self.output(units)[..., 0])
        return state, self.combined(inputs.relevance, examination), examination

    def _session(self, lists: Batch) -> tuple[Float[Array, "batch two_hidden"], Array, Array]:
        """The context of the session, and vectors of the query and of the documents."""
        documents, queries = self._vectors
        missing = [key for key in (self._clicked, QUERIES, POSITIONS) if key not in lists]
        if 0 < len(missing) < 3:
            raise DataError(
                f"the batch has no {missing[0]}, but others of the session. Give all of them or none."
            )
        clicked, earlier, positions = (
            self._earlier(lists, key) for key in (self._clicked, QUERIES, POSITIONS)
        )
        shown = jnp.asarray(lists[documents.config.use_feature])
        vectors = self.drop(
            documents({documents.config.use_feature: jnp.concatenate([clicked, shown], axis=1)})
        )
        of_clicks, of_documents = vectors[:, :EARLIER], vectors[:, EARLIER:]
        of_lists = jnp.broadcast_to(lists[queries.config.use_feature], shown.shape)
        own = jnp.take_along_axis(
            of_lists, query_place(lists["mask"].astype(bool), of_lists), axis=1
        )
        numbers = jnp.concatenate([earlier, own], axis=1)
        # an axis more, since training takes ids of the shape of lists for those of documents
        of_queries = self.drop(queries.table.take(numbers[:, None])[:, 0])
        query = of_queries[:, -1]
        read = jnp.concatenate([of_clicks, self.of_position(jnp.asarray(positions))], axis=-1)
        mask = positions > 0, jnp.concatenate([earlier > 0, jnp.ones_like(own, bool)], axis=1)
        session = [
            _attended(self.of_queries, of_queries, mask[1], self.attends_queries, query),
            _attended(self.of_clicks, read, mask[0], self.attends_clicks, query),
        ]
        return jnp.concatenate(session, axis=-1), query, of_documents

    def _earlier(self, lists: Batch, key: str) -> Array:
        """Ids of earlier clicks or queries, `[batch, EARLIER]`; 0 where a batch has none, as in a new session."""
        if key not in lists:
            return jnp.zeros((lists["mask"].shape[0], EARLIER), jnp.int32)
        return jnp.broadcast_to(lists[key][:, 0], (lists["mask"].shape[0], EARLIER))

    def limits(self) -> list[Limit]:
        """Returns the largest ids that vectors have rows for."""
        before = [
            Limit(key, most, name)
            for key, vectors, name in zip(
                (self._clicked, QUERIES), self._vectors, ("documents", "queries"), strict=True
            )
            for most in vectors.limits().values()
        ]
        of_positions = [
            Limit(key, cast(int, self.positions), "examination") for key in ("positions", POSITIONS)
        ]
        return [*super().limits(), *before, *of_positions]


def _attended(
    network: Recurrent, read: Array, mask: Array, attends: nnx.Linear, query: Array
) -> Array:
    """The states of a network along what a session has, by their weights for a query; zeros where it has nothing."""

    def step(state: State, by_step: tuple[Array, Array]) -> tuple[State, State]:
        projected, mask = by_step
        state = chosen(mask, network.step(state, jnp.asarray(projected))[0], state)
        return state, state

    mask = swap_list_and_rank(mask)
    along = swap_list_and_rank(network.project(read)), mask
    _, states = jax.lax.scan(step, network.start(len(read)), along, unroll=EARLIER + 1)
    scores = jnp.einsum("bq,jbq->jb", query, attends(jnp.asarray(states)))
    scores = jnp.where(mask, scores, LOG_ZERO)
    odds = jnp.where(mask, jnp.exp(scores - scores.max(axis=0)), 0.0)
    # one of the odds is 1 where there is anything
    weights = odds / jnp.maximum(odds.sum(axis=0), 1.0)
    return jnp.einsum("jb,jbh->bh", weights, states)

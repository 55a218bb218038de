"""The context-aware click model without session context: recurrent examination times attraction."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool

from clickexp.models import derived
from clickexp.models.base import Sample
from clickexp.models.events import uniform
from clickexp.models.neural.recurrent import Recurrent
from clickexp.models.roles import Role
from clickexp.models.sequential import SequentialClickModel, State, chosen
from clickexp.numerics import LOG_ZERO, LogPair, log_and, log_sigmoid_pair
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.types import Array, ByRank
from clickexp.utils.batches import Limit
from clickexp.utils.bounds import PositiveInt


class _Document(NamedTuple):
    """Inputs of a step: attraction, and the position."""

    attraction: LogPair
    position: Array


class CACMMinusModel(SequentialClickModel):
    """P(c_r = 1 | c_<r) = a_r s(w . h_r + b) with h_r = GRU(h_{r-1}, [position r, click on the document above]).

    Positions and clicks are embedded. Examination reads no documents, so that relevance is attraction, and the click
    vectors above a rank are followed once for all lists that show documents at the same positions.

    Chen, Mao, Liu, Zhang and Ma 2020, "A context-aware click model for web search"; without the context of sessions, as
    Deffayet, Renders and de Rijke 2023, "Evaluating the robustness of click models to policy distributional shift".

    Attributes:
        attraction: Tower of P(attracted).
        hidden: Units of the recurrent state.
        embedding: Numbers per position, and per click.
    """

    name = "CACM-minus"
    separates_examination = True
    follows_click_vectors = False

    positions: PositiveInt | None = None
    query_doc_pairs: PositiveInt | None = None
    attraction: Role = Role(EmbeddingParameterConfig())
    hidden: PositiveInt = 64
    embedding: PositiveInt = 4

    def setup(self, rngs: nnx.Rngs) -> None:
        """Builds the recurrent network."""
        if self.positions is None:
            raise ValueError("CACMMinusModel needs positions=..., the largest position")
        self.of_position = nnx.Embed(self.positions + 1, self.embedding, rngs=rngs)
        self.of_click = nnx.Embed(2, self.embedding, rngs=rngs)
        self.recurrent = Recurrent("gru", 2 * self.embedding, self.hidden, rngs=rngs)
        self.output = nnx.Linear(
            self.hidden, 1, bias_init=nnx.initializers.constant(1.0), rngs=rngs
        )

    def inputs(self, batch: ByRank) -> _Document:
        """Returns attraction and positions."""
        attraction = batch.broadcast(self.attraction.log_pair(batch))
        return _Document(attraction, batch.positions.astype(jnp.int32))

    def start(self, batch: ByRank) -> State:
        """Returns zeros."""
        return jnp.zeros((batch.shape[1], self.hidden))

    def step(
        self, state: State, inputs: _Document, previous: Bool[Array, " batch"]
    ) -> tuple[State, LogPair]:
        """Returns the next state, and the probability that the document is examined and attracts."""
        state, examination = self._examination(state, inputs.position, previous)
        return state, log_and(examination, inputs.attraction)

    def draw(self, batch: ByRank, key: Array) -> Sample:
        """Walks down the list: examined, given the clicks above? attracted?"""
        examination_key, attraction_key = jax.random.split(key)
        documents = self.inputs(batch)
        attracted = uniform(attraction_key, batch) < jnp.exp(documents.attraction.log)

        def step(
            carry: tuple[State, Array], rank: tuple
        ) -> tuple[tuple[State, Array], tuple[Array, Array]]:
            (state, previous), (position, drawn, attracts, mask) = carry, rank
            following, examination = self._examination(state, position, previous)
            examined = drawn < jnp.exp(examination.log)
            click = examined & attracts
            return (chosen(mask, following, state), jnp.where(mask, click, previous)), (
                click,
                examined,
            )

        by_rank = (
            documents.position,
            uniform(examination_key, batch),
            attracted,
            batch["mask"].astype(bool),
        )
        start = self.start(batch), jnp.zeros(batch.shape[1], bool)
        clicks, examined = jax.lax.scan(step, start, by_rank)[1]
        return Sample(clicks, examined, attracted)

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns P(click) along the batch's own clicks.

        A batch of more documents than there are click vectors above one computes examination once for each of these.
        """
        ranks, lists = batch.shape
        if not self._alike(batch) or 1 << ranks > ranks * lists:
            return super().conditional(batch)
        examination = jnp.concatenate(self._of_click_vectors(self._first_positions(batch)))
        digits = (1 - batch.clicks.astype(jnp.int32)) << jnp.arange(ranks)[:, None]
        above = jnp.cumsum(digits, axis=0) - digits  # the click vectors above, as numbers
        first = (1 << jnp.arange(ranks)) - 1
        return log_and(
            log_sigmoid_pair(examination[first[:, None] + above]), self.inputs(batch).attraction
        )

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns the mean of P(click) over the clicks above, exact up to `derived.EXACT_RANKS`."""
        if not self._alike(batch):
            return super().marginal(batch)
        attractions, pairs = self.inputs(batch).attraction, []
        weights = jnp.zeros((1, batch.shape[1]))  # log P(clicks above), [click vectors, batch]
        for rank, logits in enumerate(self._of_click_vectors(self._first_positions(batch))):
            attraction = jax.tree.map(lambda x: x[rank], attractions)  # noqa: B023  # called here
            click = log_and(
                jax.tree.map(lambda x: x[:, None], log_sigmoid_pair(logits)), attraction
            )
            pairs.append(jax.tree.map(lambda x: jax.nn.logsumexp(weights + x, axis=0), click))  # noqa: B023  # called here
            weights = jnp.concatenate([jnp.maximum(weights + x, LOG_ZERO) for x in click])
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *pairs)

    def limits(self) -> list[Limit]:
        """Returns the largest id, and the largest position."""
        return [*super().limits(), Limit("positions", cast(int, self.positions), "examination")]

    def _alike(self, batch: ByRank) -> bool:
        """Whether all lists show documents at the same positions, few enough to follow every click vector."""
        alike = batch["positions"].shape[1] == 1 and batch.mask is None
        return alike and batch.shape[0] <= derived.EXACT_RANKS

    def _first_positions(self, batch: ByRank) -> Array:
        return batch.positions[:, 0].astype(jnp.int32)

    def _of_click_vectors(self, positions: Array) -> list[Array]:
        """Logits of examination at each rank for all clicks above; rank r adds 2^r to the numbers of those without."""
        states, previous, logits = jnp.zeros((1, self.hidden)), jnp.zeros(1, bool), []
        for position in positions:
            states, logit = self._next(states, jnp.broadcast_to(position, previous.shape), previous)
            logits.append(logit)
            previous = jnp.repeat(jnp.array([True, False]), len(previous))
            states = jnp.concatenate([states, states])
        return logits

    def _examination(self, state: State, position: Array, previous: Array) -> tuple[State, LogPair]:
        state, logits = self._next(state, position, previous)
        return state, log_sigmoid_pair(logits)

    def _next(self, state: State, position: Array, previous: Array) -> tuple[State, Array]:
        """The next state, and the logits of examination."""
        of_click = self.of_click(jnp.asarray(previous, jnp.int32))
        read = jnp.concatenate([self.of_position(jnp.asarray(position)), of_click], axis=-1)
        state, units = self.recurrent.step(state, self.recurrent.project(read))
        return state, self.output(units)[..., 0]

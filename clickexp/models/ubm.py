"""User browsing model."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Integer

from clickexp.models.base import ClickModel, Sample, clicks_by_rank, past_hidden, shown_by_rank
from clickexp.numerics import NEVER, LogPair, log_and
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig, Sizes, build_parameter
from clickexp.parameters.base import Features, Source
from clickexp.types import Array, Batch, Logits
from clickexp.utils.bounds import Pairs, PositiveInt, Probability
from clickexp.utils.checks import Limit


class UserBrowsingModel(ClickModel):
    """UBM: examination depends on the position r and on the position r' of the last click above (0 for none).

    P(c_r = 1 | clicks above) = e_{r r'} a_r; the marginal sums over where the last click may have been.
    An examination tower finds in the batch `positions`, `last_click_positions` and, for a table,
    `examination_idx` = r (positions + 1) + r'.

    Dupret and Piwowarski 2008, "A user browsing model to predict search engine click data from past observations".
    """

    name = "UBM"
    separates_examination = True

    def __init__(
        self,
        positions: PositiveInt,
        query_doc_pairs: Pairs | None = None,
        examination: Source = None,
        attraction: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        self.positions = positions
        sizes = Sizes(query_doc_pairs, positions, click_rate, features=features)
        default = PositionParameterConfig(use_feature="examination_idx")
        self.examination = build_parameter("examination", examination, default, sizes, rngs=rngs)
        self.attraction = build_parameter(
            "attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs
        )

    def conditional(self, batch: Batch) -> LogPair:
        # the rank as leading digit makes the maximum that of the last click, in whatever order positions come
        clicks, positions, base = (
            clicks_by_rank(batch),
            batch["positions"].T.astype(jnp.int32),
            self.positions + 1,
        )
        ranks = jnp.arange(1, len(clicks) + 1, dtype=jnp.int32)[:, None]
        clicked = jax.lax.cummax(jnp.where(clicks, ranks * base + positions, 0), axis=0)
        last = jnp.pad(clicked[:-1] % base, ((1, 0), (0, 0)))
        return log_and(self._examination(batch, last.T), self.attraction.ranked(batch))

    def marginal(self, batch: Batch) -> LogPair:
        def step(last: Array, rank: tuple) -> tuple[Array, LogPair]:
            examination, attraction, shown, index = rank
            click = log_and(examination, attraction)
            pair = LogPair(
                jax.nn.logsumexp(last + click.log, axis=0), jax.nn.logsumexp(last + click.complement, axis=0)
            )
            return past_hidden(shown, (last + click.complement).at[index + 1].set(pair.log), last), pair

        sessions, ranks = batch["mask"].shape
        attraction = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (ranks, sessions)), self.attraction.ranked(batch)
        )
        examination = self._examination_by_last_click(batch)
        start = jnp.full((ranks + 1, sessions), NEVER.log, jnp.float32).at[0].set(0.0)
        each = examination, attraction, shown_by_rank(batch), jnp.arange(ranks)
        return jax.lax.scan(step, start, each)[1]

    def relevance(self, batch: Batch) -> Logits:
        return self.attraction.log_prob(batch)

    def draw(self, batch: Batch, key: Array) -> Sample:
        shape = batch["mask"].shape
        examination_key, attraction_key = jax.random.split(key)
        attracted = jax.random.uniform(attraction_key, shape) < jnp.exp(self.attraction.log_prob(batch))
        would_examine = jnp.exp(self._examination_by_last_click(batch).log)
        draws = jax.random.uniform(examination_key, shape)

        def step(last: Array, rank: tuple[Array | None, ...]) -> tuple[Array, tuple[Array, Array]]:
            would_examine, draw, attracted, shown, index = rank
            probability = jnp.broadcast_to(would_examine, (would_examine.shape[0], shape[0]))
            examined = draw < jnp.take_along_axis(probability, last[None], axis=0)[0]
            click = examined & attracted
            return past_hidden(shown, jnp.where(click, index + 1, last), last), (click, examined)

        ranks = (would_examine, draws.T, attracted.T, shown_by_rank(batch), jnp.arange(shape[1]))
        clicks, examined = jax.lax.scan(step, jnp.zeros(shape[0], jnp.int32), ranks)[1]
        return Sample(clicks.T, examined.T, attracted)

    def limits(self) -> list[Limit]:
        """Positions are also those of the last click: position p needs up to p (positions + 1) + positions."""
        limits = [Limit("positions", self.positions, "examination")]
        for key, largest, role in super().limits():
            if key == "examination_idx":
                limits.append(Limit("positions", (largest - self.positions) // (self.positions + 1), role))
            else:
                limits.append(Limit("positions" if key == "last_click_positions" else key, largest, role))
        return limits

    def _examination(self, batch: Batch, last: Integer[Array, "#batch rank"]) -> LogPair:
        index = batch["positions"].astype(jnp.int32) * (self.positions + 1) + last.astype(jnp.int32)
        return self.examination.ranked({**batch, "last_click_positions": last, "examination_idx": index})

    def _examination_by_last_click(self, batch: Batch) -> LogPair:
        """Examination for each rank that the last click may have had, none first: [rank, 1 + rank, batch or 1].

        A last click at or below the rank itself cannot be; a tower is asked for no click instead.
        """
        positions = batch["positions"].astype(jnp.int32)
        ranks = jnp.arange(positions.shape[1])
        last = jnp.concatenate([jnp.zeros((1, positions.shape[0]), positions.dtype), positions.T])

        def examination(last: Array, rank: Array) -> LogPair:
            return self._examination(batch, jnp.where(rank <= ranks, last[:, None], 0))

        pair = jax.vmap(examination, out_axes=1)(last, jnp.arange(len(last)))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ranks), *x.shape[1:])), pair)

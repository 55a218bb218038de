"""User browsing model."""

from dataclasses import field

import jax
import jax.numpy as jnp
from jaxtyping import Integer

from clickexp.models.base import ClickModel, Sample
from clickexp.models.events import skip_hidden_ranks, uniform
from clickexp.models.roles import Index, Role
from clickexp.numerics import NEVER, LogPair, log_and
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig
from clickexp.types import Array, ByRank
from clickexp.utils.bounds import Pairs, PositiveInt

_IndexByRank = Integer[Array, "rank #batch"]


class UserBrowsingModel(ClickModel):
    """UBM: examination depends on the position r and on the position r' of the last click above (0 for none).

    P(c_r = 1 | clicks above) = e_{r r'} a_r; the marginal sums over where the last click may have been.
    An examination tower finds in the batch `positions`, `last_click_positions` and, for a table,
    `examination_idx` = r (positions + 1) + r'.

    Dupret and Piwowarski 2008, "A user browsing model to predict search engine click data from past observations".
    """

    name = "UBM"
    separates_examination = True
    independent_given_clicks = True

    positions: PositiveInt = field()  # pyright: ignore[reportIncompatibleVariableOverride]  # required here
    query_doc_pairs: Pairs | None = None
    examination: Role = Role(PositionParameterConfig(use_feature="examination_idx"))
    attraction: Role = Role(EmbeddingParameterConfig())

    def indices(self) -> dict[str, Index]:
        """Returns `examination_idx` and `last_click_positions`."""
        last = Index("positions", self.positions, 1)
        return {
            "examination_idx": last._replace(radix=self.positions + 1),
            "last_click_positions": last,
        }

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns e_{r r'} a_r for the last click r' of the batch above each rank."""
        # the rank as leading digit makes the maximum that of the last click, in whatever order positions come
        clicks, positions, base = (
            batch.clicks,
            batch["positions"].astype(jnp.int32),
            self.positions + 1,
        )
        ranks = jnp.arange(1, len(clicks) + 1, dtype=jnp.int32)[:, None]
        clicked = jax.lax.cummax(jnp.where(clicks, ranks * base + positions, 0), axis=0)
        last = jnp.pad(clicked[:-1] % base, ((1, 0), (0, 0)))
        return log_and(self._examination(batch, last), self.attraction.log_pair(batch))

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns P(click at r) by a forward pass over the position of the last click."""

        def step(last: Array, rank: tuple) -> tuple[Array, LogPair]:
            examination, attraction, mask, index = rank
            click = log_and(examination, attraction)
            pair = jax.tree.map(lambda x: jax.nn.logsumexp(last + x, axis=0), click)
            return skip_hidden_ranks(
                mask, (last + click.complement).at[index + 1].set(pair.log), last
            ), pair

        ranks, sessions = batch.shape
        attraction = batch.broadcast(self.attraction.log_pair(batch))
        start = jnp.full((ranks + 1, sessions), NEVER.log, jnp.float32).at[0].set(0.0)
        by_rank = self._examination_by_last_click(batch), attraction, batch.mask, jnp.arange(ranks)
        return jax.lax.scan(step, start, by_rank)[1]

    def draw(self, batch: ByRank, key: Array) -> Sample:
        """Walks down the list: examined, after the last click? attracted?"""
        ranks, sessions = batch.shape
        examination_key, attraction_key = jax.random.split(key)
        attracted = uniform(attraction_key, batch) < jnp.exp(self.attraction.log_prob(batch))
        would_examine = jnp.exp(self._examination_by_last_click(batch).log)

        def step(last: Array, rank: tuple) -> tuple[Array, tuple[Array, Array]]:
            would_examine, draw, attracted, mask, index = rank
            probability = jnp.broadcast_to(would_examine, (would_examine.shape[0], sessions))
            examined = draw < jnp.take_along_axis(probability, last[None], axis=0)[0]
            click = examined & attracted
            return skip_hidden_ranks(mask, jnp.where(click, index + 1, last), last), (
                click,
                examined,
            )

        draws = uniform(examination_key, batch)
        by_rank = would_examine, draws, attracted, batch.mask, jnp.arange(ranks)
        clicks, examined = jax.lax.scan(step, jnp.zeros(sessions, jnp.int32), by_rank)[1]
        return Sample(clicks, examined, attracted)

    def _examination(self, batch: ByRank, last: _IndexByRank) -> LogPair:
        index = batch["positions"].astype(jnp.int32) * (self.positions + 1) + last.astype(jnp.int32)
        return self.examination.log_pair(
            batch.replace(last_click_positions=last, examination_idx=index)
        )

    def _examination_by_last_click(self, batch: ByRank) -> LogPair:
        """Examination for each rank that the last click may have had, none first: [rank, 1 + rank, batch or 1].

        A last click at or below the rank itself cannot be; a tower is asked for no click instead.
        """
        positions = batch["positions"].astype(jnp.int32)
        ranks = jnp.arange(len(positions))
        last = jnp.concatenate([jnp.zeros((1, positions.shape[1]), positions.dtype), positions])

        def examination(last: Array, rank: Array) -> LogPair:
            return self._examination(batch, jnp.where(rank <= ranks[:, None], last, 0))

        pair = jax.vmap(examination, out_axes=1)(last, jnp.arange(len(last)))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ranks), *x.shape[1:])), pair)

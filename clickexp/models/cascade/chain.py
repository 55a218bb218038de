"""The cascade family: users who scan from the top and, after each document, go on or leave.

One hidden state per rank, examining or gone, and two numbers that move it: P(continue | click) and
P(continue | examined, no click). CM, DCM, CCM, DBN and SDBN are choices of these numbers
(Chuklin, Markov and de Rijke 2015, "Click models for web search", chapter 3).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from clickexp.models.base import ClickModel, Sample
from clickexp.models.events import skip_hidden_ranks
from clickexp.numerics import ALWAYS, NEVER, LogPair, log_add, log_mix, log_sigmoid_pair
from clickexp.types import Array, ByRank

_State = Float[Array, " batch"]
_Event = Bool[Array, "#batch"]


class CascadeProbs(NamedTuple):
    """The log-probabilities behind one scan, each one number, or broadcastable to `[rank, batch]`.

    Attributes:
        attraction: P(click | examined).
        satisfaction: P(satisfied | click).
        satisfied: P(continue | click, satisfied).
        unsatisfied: P(continue | click, not satisfied).
        skipped: P(continue | examined, no click).
    """

    attraction: LogPair
    satisfaction: LogPair
    satisfied: LogPair = NEVER
    unsatisfied: LogPair = ALWAYS
    skipped: LogPair = ALWAYS

    @property
    def clicked(self) -> LogPair:
        """P(continue | click)."""
        return log_mix(self.satisfaction, self.satisfied, self.unsatisfied)


class CascadeFamily(ClickModel):
    """A click model that is fully described by its `probs`."""

    def probs(self, batch: ByRank) -> CascadeProbs:
        """Returns the probabilities of each event at each document."""
        raise NotImplementedError

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns P(click at r | clicks above r).

        With e = P(examining | clicks above), one number carries the state: g = log((1 - e) / e).
        A click proves examination, so g' = log((1 - c1) / c1); a skip gives
        g' = log((exp(g) + (1 - a)(1 - c0)) / ((1 - a) c0)); where no document is shown, g' = g.
        """
        probs = self.probs(batch)
        reads_on = probs.skipped is ALWAYS

        def step(gone: _State, rank: tuple) -> tuple[_State, LogPair]:
            attraction, after_click, after_skip, click, mask = rank
            left, examining = log_sigmoid_pair(gone)
            skip = attraction.complement
            pair = LogPair(examining + attraction.log, log_add(left, examining + skip))
            still_gone = gone if reads_on else log_add(gone, skip + after_skip.complement)
            gone_after_skip = still_gone - skip - after_skip.log
            after = jnp.where(click, after_click.complement - after_click.log, gone_after_skip)
            return skip_hidden_ranks(mask, after, gone), pair

        start = jnp.full(batch.shape[1], NEVER.log, jnp.float32)
        by_rank = probs.attraction, probs.clicked, probs.skipped, batch["clicks"], batch.mask
        return jax.lax.scan(step, start, _every_rank(by_rank, batch.shape[0]))[1]

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns P(click at r): e' = e (a c1 + (1 - a) c0), carried together with 1 - e.

        Where no document is shown, e' = e.
        """

        def step(state: LogPair, rank: tuple) -> tuple[LogPair, LogPair]:
            attraction, stay, mask = rank
            skip = attraction.complement
            pair = LogPair(state.log + attraction.log, log_add(state.complement, state.log + skip))
            after = LogPair(
                state.log + stay.log, log_add(state.complement, state.log + stay.complement)
            )
            return skip_hidden_ranks(mask, after, state), pair

        ranks, sessions = batch.shape
        probs = self.probs(batch)
        stay = log_mix(probs.attraction, probs.clicked, probs.skipped)
        start = LogPair(jnp.zeros(sessions), jnp.full(sessions, NEVER.log, jnp.float32))
        return jax.lax.scan(step, start, _every_rank((probs.attraction, stay, batch.mask), ranks))[
            1
        ]

    def draw(self, batch: ByRank, key: Array) -> Sample:
        """Walks down the list of the documents that are shown: attracted? satisfied? go on?"""
        attracted, satisfied, *goes_on = (
            jax.random.uniform(key, batch.shape) < jnp.exp(jnp.broadcast_to(pair.log, batch.shape))
            for key, pair in zip(jax.random.split(key, 5), self.probs(batch), strict=True)
        )

        def step(examined: _Event, rank: tuple) -> tuple[_Event, tuple[_Event, _Event, _Event]]:
            attracted, satisfied, if_satisfied, if_unsatisfied, if_skipped, mask = rank
            click = examined & attracted
            satisfied = click & satisfied
            onward = jnp.where(
                click, jnp.where(satisfied, if_satisfied, if_unsatisfied), if_skipped
            )
            return skip_hidden_ranks(mask, examined & onward, examined), (
                click,
                examined,
                satisfied,
            )

        start, by_rank = (
            jnp.ones(batch.shape[1], bool),
            (attracted, satisfied, *goes_on, batch.mask),
        )
        clicks, examined, satisfied = jax.lax.scan(step, start, by_rank)[1]
        return Sample(clicks, examined, attracted, satisfied)


def _every_rank(tree: tuple, ranks: int) -> tuple:
    """Repeats numbers and [1, batch] for every rank, for a scan over ranks."""

    def repeat(x: Array | float) -> Array:
        x = jnp.asarray(x)
        return jnp.broadcast_to(x, (ranks, *x.shape[1:]))

    return jax.tree.map(repeat, tree)

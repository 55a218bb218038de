"""The cascade family: users who scan from the top and, after each document, go on or leave.

One hidden state a rank, examining or gone, and two numbers that move it: P(continue | click) and
P(continue | examined, no click). CM, DCM, CCM, DBN and SDBN are choices of these numbers
(Chuklin, Markov and de Rijke 2015, "Click models for web search", chapter 3).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from clickexp.models.base import ClickModel, RankFirst, Sample, past_hidden, shown_by_rank
from clickexp.numerics import ALWAYS, NEVER, LogPair, log_add, log_mix, log_sigmoid_pair
from clickexp.types import Array, Batch, Logits

State = Float[Array, " batch"]
Event = Bool[Array, "#batch"]


class Browsing(NamedTuple):
    """The log-probabilities behind one scan, each a number or broadcastable to [rank, batch].

    attraction: P(click | examined)
    satisfaction: P(satisfied | click)
    satisfied, unsatisfied, skipped: P(continue | click, satisfied), P(continue | click, not satisfied),
        P(continue | examined, no click)
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


def conditional(
    browsing: Browsing, clicks: Shaped[Array, "rank batch"], shown: RankFirst | None = None
) -> LogPair:
    """P(click at r | clicks above r), of shape [rank, batch].

    With e = P(examining | clicks above), one number carries the state: g = log((1 - e) / e).
    A click proves examination, so g' = log((1 - c1) / c1); a skip gives
    g' = log((exp(g) + (1 - a)(1 - c0)) / ((1 - a) c0)); where no document is shown, g' = g.
    """

    def step(gone: State, rank: tuple) -> tuple[State, LogPair]:
        attraction, after_click, after_skip, click, shown = rank
        left, examining = log_sigmoid_pair(gone)
        skip = attraction.complement
        pair = LogPair(examining + attraction.log, log_add(left, examining + skip))
        still_gone = gone if reads_on else log_add(gone, skip + after_skip.complement)
        gone_after_skip = still_gone - skip - after_skip.log
        after = jnp.where(click, after_click.complement - after_click.log, gone_after_skip)
        return past_hidden(shown, after, gone), pair

    reads_on = browsing.skipped is ALWAYS
    start = jnp.full(clicks.shape[1], NEVER.log, jnp.float32)
    pairs = browsing.attraction, browsing.clicked, browsing.skipped
    ranks = _every_rank((*pairs, clicks, shown), clicks.shape[0])
    return jax.lax.scan(step, start, ranks)[1]


def marginal(browsing: Browsing, shape: tuple[int, int], shown: RankFirst | None = None) -> LogPair:
    """P(click at r), of shape [rank, batch]: e' = e (a c1 + (1 - a) c0), carried together with 1 - e.

    Where no document is shown, e' = e.
    """

    def step(state: LogPair, rank: tuple) -> tuple[LogPair, LogPair]:
        attraction, stay, shown = rank
        skip = attraction.complement
        pair = LogPair(state.log + attraction.log, log_add(state.complement, state.log + skip))
        after = LogPair(state.log + stay.log, log_add(state.complement, state.log + stay.complement))
        return past_hidden(shown, after, state), pair

    start = LogPair(jnp.zeros(shape[1]), jnp.full(shape[1], NEVER.log, jnp.float32))
    stay = log_mix(browsing.attraction, browsing.clicked, browsing.skipped)
    return jax.lax.scan(step, start, _every_rank((browsing.attraction, stay, shown), shape[0]))[1]


def draw(browsing: Browsing, shape: tuple[int, int], key: Array, shown: RankFirst | None = None) -> Sample:
    """Walk down the list of the documents that are shown: attracted? satisfied? go on?"""
    attracted, satisfied, *goes_on = (
        jax.random.uniform(k, shape) < jnp.exp(jnp.broadcast_to(pair.log, shape))
        for k, pair in zip(jax.random.split(key, 5), browsing, strict=True)
    )

    def step(examined: Event, rank: tuple[Event | None, ...]) -> tuple[Event, tuple[Event, Event, Event]]:
        attracted, satisfied, if_satisfied, if_unsatisfied, if_skipped, shown = rank
        click = examined & attracted
        satisfied = click & satisfied
        onward = jnp.where(click, jnp.where(satisfied, if_satisfied, if_unsatisfied), if_skipped)
        return past_hidden(shown, examined & onward, examined), (click, examined, satisfied)

    start = jnp.ones(shape[1], bool)
    clicks, examined, satisfied = jax.lax.scan(step, start, (attracted, satisfied, *goes_on, shown))[1]
    return jax.tree.map(jnp.transpose, Sample(clicks, examined, attracted, satisfied))


class CascadeFamily(ClickModel):
    """A click model that is fully told by its `browsing`."""

    def browsing(self, batch: Batch) -> Browsing:
        raise NotImplementedError

    def conditional(self, batch: Batch) -> LogPair:
        return conditional(self.browsing(batch), batch["clicks"].T, shown_by_rank(batch))

    def marginal(self, batch: Batch) -> LogPair:
        return marginal(self.browsing(batch), batch["mask"].T.shape, shown_by_rank(batch))

    def relevance(self, batch: Batch) -> Logits:
        return self.attraction.log_prob(batch)

    def draw(self, batch: Batch, key: Array) -> Sample:
        return draw(self.browsing(batch), batch["mask"].T.shape, key, shown_by_rank(batch))


def _every_rank(tree: tuple, ranks: int) -> tuple:
    """Numbers and [1, batch] repeated for every rank, for a scan over ranks."""

    def repeat(x: Array | float) -> Array:
        x = jnp.asarray(x)
        return jnp.broadcast_to(x, (ranks, *x.shape[1:]))

    return jax.tree.map(repeat, tree)

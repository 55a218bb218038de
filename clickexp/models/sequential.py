"""Models that are a recurrence over ranks: a state, and a step from one shown document to the next."""

import abc
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from clickexp.models import derived
from clickexp.models.base import ClickModel, Sample
from clickexp.models.events import uniform
from clickexp.numerics import LOG_ZERO, LogPair
from clickexp.types import Array, ByRank, swap_list_and_rank

State = Any
"""A pytree of arrays `[batch, ...]`."""
_EventStep = Callable[[State, Any, Array], tuple[State, LogPair, LogPair]]
"""A step that returns P(click) and the probability of an event."""

_CHUNK = 256
"""Lists whose prefix trees are in memory at a time."""
_UNROLLED = 10
"""Ranks that a loop computes in one turn, which takes a quarter off a training step of 64 recurrent units."""


class SequentialClickModel(ClickModel):
    """P(c_r | c_1 .. c_{r-1}) = step(state_{r-1}, inputs_r, c_{r-1}), for any state.

    A subclass defines `inputs`, `start` and `step`. The conditional and draws are scans over ranks. The marginal
    follows the tree of all click vectors for lists of up to ten ranks, and is a mean over draws beyond.
    An undisplayed document changes nothing: the next one shown follows the one before.
    """

    follows_click_vectors = True

    @abc.abstractmethod
    def inputs(self, batch: ByRank) -> Any:
        """Returns the inputs of `step` at each rank: a pytree of arrays `[rank, batch, ...]`."""

    @abc.abstractmethod
    def start(self, batch: ByRank) -> State:
        """Returns the state before the first document."""

    @abc.abstractmethod
    def step(
        self, state: State, inputs: Any, previous: Bool[Array, " batch"]
    ) -> tuple[State, LogPair]:
        """Returns the state at a rank, and P(click) there, `[batch]`.

        Args:
            state: That of the document shown before.
            inputs: `inputs(batch)` at this rank.
            previous: Whether the document shown before was clicked.
        """

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns P(click) along the batch's own clicks."""
        clicks = batch["clicks"].astype(bool)
        return self._scan(
            batch, clicks, lambda click, pair: click, self.inputs(batch), self._of_click
        )[1]

    def draw(self, batch: ByRank, key: Array) -> Sample:
        """Draws clicks from the top down."""
        return Sample(self._drawn(batch, key, self.inputs(batch), self._of_click)[0])

    def marginal_method(self, ranks: int) -> str:
        """Returns "exact", or what marginals of lists of so many documents are a mean over."""
        return derived.marginal_method(ranks)

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns the mean of P(click) over the clicks above, exact up to `derived.EXACT_RANKS`."""
        return self.mean_above(batch, self._of_click)

    def mean_above(self, batch: ByRank, step: _EventStep) -> LogPair:
        """Returns the mean of the probability of an event over the clicks above, exact up to `derived.EXACT_RANKS`.

        Args:
            batch: The lists.
            step: As `self.step`; it returns the probability of the event behind that of a click.
        """
        inputs = self.inputs(batch)
        if batch.shape[0] > derived.EXACT_RANKS:
            return derived.mean_of_draws(
                lambda key: self._drawn(batch, key, inputs, step)[1], batch
            )
        lists = (
            self.start(batch),
            jax.tree.map(swap_list_and_rank, inputs),
            batch.lists["mask"].astype(bool),
        )
        pair = jax.lax.map(
            lambda lists_of_one: _prefix_tree(step, *lists_of_one), lists, batch_size=_CHUNK
        )
        return jax.tree.map(swap_list_and_rank, pair)

    def _of_click(
        self, state: State, inputs: Any, previous: Array
    ) -> tuple[State, LogPair, LogPair]:
        state, pair = self.step(state, inputs, previous)
        return state, pair, pair

    def _drawn(
        self, batch: ByRank, key: Array, inputs: Any, step: _EventStep
    ) -> tuple[Array, LogPair]:
        return self._scan(
            batch,
            uniform(key, batch),
            lambda number, pair: number < jnp.exp(pair.log),
            inputs,
            step,
        )

    def _scan(
        self, batch: ByRank, ranks: Array, choose: Callable, inputs: Any, step: _EventStep
    ) -> tuple[Array, LogPair]:
        """Clicks and the pairs of an event, `[rank, batch]`; `choose` makes the click of what the rank holds."""

        def along(carry: tuple[State, Array], rank: tuple[Array, Any, Array]) -> tuple[Any, Any]:
            (state, previous), (of_rank, inputs, mask) = carry, rank
            following, pair, event = step(state, inputs, previous)
            click = choose(of_rank, pair)
            return (chosen(mask, following, state), jnp.where(mask, click, previous)), (
                click,
                event,
            )

        start = self.start(batch), jnp.zeros(batch.shape[1], bool)
        by_rank = ranks, inputs, batch["mask"].astype(bool)
        return jax.lax.scan(along, start, by_rank, unroll=_UNROLLED)[1]


def _prefix_tree(
    step: _EventStep, start: State, inputs: Any, mask: Bool[Array, " rank"]
) -> LogPair:
    """P(event) at each rank of one list; the prefixes of a rank take the place of the batch.

    Two that differ in the last click alone share the state before it, of which XLA computes once what both need.
    """
    states = jax.tree.map(lambda x: x[None], start)
    lasts, weights, events = [jnp.zeros(1, bool)], jnp.zeros(1), []
    for rank, shown in enumerate(mask):
        here = _repeated(jax.tree.map(operator.itemgetter(rank), inputs), len(lasts[0]))
        steps = [step(states, here, last) for last in lasts]
        parts = [(chosen(shown, following, states), *pairs) for following, *pairs in steps]
        states, pair, event = jax.tree.map(lambda *branches: jnp.concatenate(branches), *parts)
        events.append(jax.tree.map(lambda x: jax.nn.logsumexp(weights + x), event))  # noqa: B023  # called here
        clicked = jnp.where(shown, weights + pair.log, LOG_ZERO)
        weights = jnp.concatenate([clicked, weights + jnp.where(shown, pair.complement, 0.0)])
        before = jnp.concatenate(lasts)
        lasts = [jnp.where(shown, click, before) for click in (True, False)]
    return jax.tree.map(lambda *ranks: jnp.stack(ranks), *events)


def chosen(mask: Array, new: State, old: State) -> State:
    """Returns the new state where a document was shown, and the old one elsewhere."""

    def select(new: Array, old: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)

    return jax.tree.map(select, new, old)


def _repeated(tree: Any, count: int) -> Any:
    """Returns each array as so many equal rows."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)

"""The E-step of DBN and CCM as PyClick takes it, which is not that of their likelihood.

Published tables of PyClick rest on these approximations (`trainer.e_step=pyclick`); the exact step fits better:

- Attraction of a document below the last click is weighed by the marginal P(examined), clicks above not regarded.
- Users who click nothing read the whole list; their skips lower attraction in full.
- P(no click below | reading on) is that of as many documents from the top of the list.
- A click of CCM that is not the last does not satisfy, and the last satisfies with a / (1 - P(reading on) P(click)).

Chuklin, Markov and de Rijke 2015, section 4.2 and the software that goes with it, github.com/markovi/PyClick.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from clickexp.training.em.bernoulli import Counts, Event, PerRank
from clickexp.types import Array

_Values = dict[str, PerRank]


class _Cascade(NamedTuple):
    """Probabilities, or `Counts`, of attraction, of satisfaction at a click, and of continuing after each event."""

    attraction: Any
    satisfaction: Any
    skipped: Any
    unsatisfied: Any
    satisfied: Any

    @property
    def clicked(self) -> PerRank:
        """P(continue | click)."""
        return (1 - self.satisfaction) * self.unsatisfied + self.satisfaction * self.satisfied


def dbn(p: _Values, click: Event, mask: Event) -> dict[str, Counts]:
    """Counts of the dynamic Bayesian network."""
    goes_on = p["continuation"]
    scan = _Cascade(p["attraction"], p["satisfaction"], goes_on, goes_on, jnp.zeros_like(goes_on))
    counted = _counted(scan, click, mask)
    both = jax.tree.map(jnp.add, counted.skipped, counted.unsatisfied)
    return {
        "attraction": counted.attraction,
        "satisfaction": counted.satisfaction,
        "continuation": both,
    }


def ccm(p: _Values, click: Event, mask: Event) -> dict[str, Counts]:
    """Counts of the click chain model; attraction is also satisfaction."""
    events = ("exam_no_click", "click_not_satisfied", "click_satisfied")
    roles = [f"continuation_{event}" for event in events]
    counted = _counted(
        _Cascade(p["attraction"], p["attraction"], *(p[role] for role in roles)), click, mask
    )
    attraction = jax.tree.map(jnp.add, counted.attraction, counted.satisfaction)
    return {"attraction": attraction, **dict(zip(roles, counted[2:], strict=True))}


def _counted(scan: _Cascade, click: Event, mask: Event) -> _Cascade:
    # a document that was not shown never attracts and is always read past
    scan = scan._replace(
        attraction=jnp.where(mask, scan.attraction, 0.0),
        skipped=jnp.where(mask, scan.skipped, 1.0),
    )
    a, s = scan.attraction, scan.satisfaction
    clicks = jnp.cumsum(click, axis=0)
    may_leave = (clicks == clicks[-1]) & (clicks[-1] > 0)  # from the last click on

    marginal = _above(jnp.cumprod((1 - a) * scan.skipped + a * scan.clicked, axis=0), 1.0)
    click_from_here = _click_from_here(a, scan.skipped)
    click_below = jnp.concatenate([click_from_here[1:], jnp.zeros_like(a[:1])])
    unseen = (1 - marginal) * a / jnp.maximum(1 - marginal * click_from_here, 1e-9)
    attracted = jnp.where(click, 1.0, jnp.where(may_leave, unseen, 0.0))
    satisfied = jnp.where(click & may_leave, s / (1 - scan.clicked * click_below), 0.0)

    reading = _reading(scan, click)
    quiet = _none_from_the_top(a, scan.skipped, mask)
    # before the last click the user went on for certain, so that P(clicks below) cancels
    on, off = jnp.where(may_leave, quiet, 1.0), jnp.where(may_leave, 1.0, 0.0)

    def split(weight: PerRank, goes_on: PerRank, total: PerRank) -> Counts:
        return Counts(weight * goes_on * on / total, weight * (1 - goes_on) * off / total)

    def either(goes_on: PerRank) -> PerRank:
        return goes_on * on + (1 - goes_on) * off

    skip_total = reading * either(scan.skipped) + (1 - reading) * off
    click_total = (1 - s) * either(scan.unsatisfied) + s * either(scan.satisfied)
    at_skip, at_click = (
        [jnp.where(click == clicked, weight, 0.0) for weight in weights]
        for clicked, weights in ((False, [reading]), (True, [1 - s, s]))
    )
    return _Cascade(
        attraction=Counts(attracted, 1 - attracted),
        satisfaction=Counts(satisfied, jnp.where(click, 1 - satisfied, 0.0)),
        skipped=split(at_skip[0], scan.skipped, skip_total),
        unsatisfied=split(at_click[0], scan.unsatisfied, click_total),
        satisfied=split(at_click[1], scan.satisfied, click_total),
    )


def _reading(scan: _Cascade, click: Event) -> PerRank:
    """P(examined | clicks above)."""

    def step(reading: Float[Array, " batch"], rank: tuple) -> tuple[Array, Array]:
        a, skipped, clicked, click = rank
        after_skip = reading * skipped * (1 - a) / (1 - a * reading)
        return jnp.where(click, clicked, after_skip), reading

    ranks = (scan.attraction, scan.skipped, scan.clicked, click)
    return jax.lax.scan(step, jnp.ones(click.shape[1]), ranks)[1]


def _click_from_here(a: PerRank, skipped: PerRank) -> PerRank:
    """P(a click at or below the rank | examined)."""

    def step(below: Float[Array, " batch"], rank: tuple) -> tuple[Array, Array]:
        a, skipped = rank
        here = a + (1 - a) * skipped * below
        return here, here

    return jax.lax.scan(step, jnp.zeros(a.shape[1]), (a, skipped), reverse=True)[1]


def _none_from_the_top(a: PerRank, skipped: PerRank, mask: Event) -> PerRank:
    """P(no click | examined) of the first n documents shown, n being how many are shown below the rank."""
    reached = _above(jnp.cumprod((1 - a) * skipped, axis=0), 1.0)
    none = _above(1 - jnp.cumsum(a * reached, axis=0), 1.0)
    number = mask.astype(jnp.int32)
    seen = jnp.cumsum(number, axis=0)
    below = seen[-1] - seen

    # a sort takes twenty times as long
    def step(chosen: PerRank, rank: tuple) -> tuple[PerRank, None]:
        none, above, mask = rank
        return jnp.where(mask & (above == below), none, chosen), None

    return jax.lax.scan(step, jnp.ones_like(none), (none, seen - number, mask))[0]


def _above(values: PerRank, first: float) -> PerRank:
    """Each rank's value at the rank below it."""
    return jnp.concatenate([jnp.full_like(values[:1], first), values[:-1]])

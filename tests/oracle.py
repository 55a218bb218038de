"""Brute-force oracle for click models: generative stories in float64, every outcome enumerated.

Shares no code with the package. A story describes how one user walks down one list of K documents. It is
written as one would write a sampler: `flip(p)` is a coin that shows True with probability p. The
enumeration replays the story once for every sequence of coin outcomes and adds up the probabilities,
so no recursion, no factorisation and no logarithm of the package is assumed.

    joint, vectors = enumerate_clicks(dynamic_bayesian_network, attraction=a, satisfaction=s, continuation=0.9)
    conditional(joint, vectors)    # [2^K, K]: P(c_r = 1 | c_1, ..., c_{r-1}) along every click vector
    marginal(joint, vectors)       # [K]: P(c_r = 1)

Parameters are probabilities in [0, 1], arrays [K] unless a story states otherwise. The number of coin
sequences is at most 3^K times a small factor: keep K below 9.

All stories: Chuklin, Markov & de Rijke (2015), "Click Models for Web Search", chapter 3.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Rank(NamedTuple):
    """What happened at one rank."""

    examined: bool
    click: bool
    satisfied: bool = False


Flip = Callable[[float], bool]
Story = Callable[..., list[Rank]]


def independent_clicks(flip: Flip, click_rate) -> list[Rank]:
    """Click-through rates: every document is seen and clicked at its own rate, whatever else happens.

    The global, rank, document and document-rank baselines differ in where `click_rate` [K] comes from.
    (Richardson et al. 2007 for rates by rank; Craswell et al. 2008 for the baseline.)
    """
    return [Rank(True, flip(rate)) for rate in click_rate]


def position_based_model(flip: Flip, examination, attraction) -> list[Rank]:
    """A rank is examined with its own probability; an examined document is clicked if it attracts.

    (Richardson et al. 2007; Craswell et al. 2008.)
    """
    ranks = []
    for e, a in zip(examination, attraction, strict=True):
        examined = flip(e)
        ranks.append(Rank(examined, examined and flip(a)))
    return ranks


def trust_bias_model(flip: Flip, attraction, true_positive, false_positive) -> list[Rank]:
    """A document that attracts is clicked with the true-positive rate of its rank, any other with the
    false-positive rate. (Agarwal et al. 2019; Vardasbi et al. 2020.)
    """
    rates = zip(attraction, true_positive, false_positive, strict=True)
    return [Rank(True, flip(t) if flip(a) else flip(f)) for a, t, f in rates]


def user_browsing_model(flip: Flip, examination, attraction) -> list[Rank]:
    """Examination depends on the rank and on the rank of the last click above it.

    examination [K, K + 1]: row r - 1 for rank r, column for the rank of the last click, 0 if there is
    none. Entries in columns r and beyond are never read. (Dupret & Piwowarski 2008.)
    """
    ranks, last_click = [], 0
    for r, a in enumerate(attraction, start=1):
        examined = flip(examination[r - 1][last_click])
        click = examined and flip(a)
        last_click = r if click else last_click
        ranks.append(Rank(examined, click))
    return ranks


def _cascade(flip: Flip, attraction, satisfied_by_click, continues) -> list[Rank]:
    """The user examines from the top, clicks what attracts, and after each document goes on or leaves.

    satisfied_by_click(r) decides on satisfaction after a click at index r; continues(r, click, satisfied)
    decides whether the next document is examined.
    """
    ranks, examined = [], True
    for r, a in enumerate(attraction):
        click = examined and flip(a)
        satisfied = click and satisfied_by_click(r)
        ranks.append(Rank(examined, click, satisfied))
        examined = examined and continues(r, click, satisfied)
    return ranks


def cascade_model(flip: Flip, attraction) -> list[Rank]:
    """The first click satisfies and ends the session; without a click the user always goes on.

    (Craswell et al. 2008.)
    """
    return _cascade(flip, attraction, lambda r: True, lambda r, click, satisfied: not satisfied)


def dependent_click_model(flip: Flip, attraction, continuation) -> list[Rank]:
    """After a click at rank r the user goes on with probability continuation_r, else is satisfied.

    Without a click the user always goes on. continuation: scalar or [K]. (Guo et al. 2009a, "Efficient
    multiple-click models in web search".)
    """
    go_on = np.broadcast_to(continuation, len(attraction))
    return _cascade(
        flip, attraction, lambda r: not flip(go_on[r]), lambda r, click, satisfied: not satisfied
    )


def click_chain_model(flip: Flip, attraction, tau1, tau2, tau3) -> list[Rank]:
    """The user goes on with probability tau1 after an examined document without a click, tau2 after a
    click that does not satisfy, tau3 after a click that satisfies.

    A clicked document satisfies with the probability with which it attracts, so that
    P(continue | click) = (1 - a) tau2 + a tau3. The taus are scalars. (Guo et al. 2009b, "Click chain
    model in web search".)
    """

    def continues(r: int, click: bool, satisfied: bool) -> bool:
        return flip(tau3 if satisfied else tau2 if click else tau1)

    return _cascade(flip, attraction, lambda r: flip(attraction[r]), continues)


def dynamic_bayesian_network(flip: Flip, attraction, satisfaction, continuation=1.0) -> list[Rank]:
    """A clicked document satisfies with its own probability, and a satisfied user leaves; any other
    user goes on with probability `continuation`, clicked or not.

    continuation: scalar or [K]; 1 is the simplified DBN. (Chapelle & Zhang 2009.)
    """
    go_on = np.broadcast_to(continuation, len(attraction))

    def continues(r: int, click: bool, satisfied: bool) -> bool:
        return not satisfied and flip(go_on[r])

    return _cascade(flip, attraction, lambda r: flip(satisfaction[r]), continues)


def mixture(flip: Flip, prior, stories: Sequence[Story], parameters: Sequence[dict]) -> list[Rank]:
    """The user is of one kind, k with probability prior[k], and lives through that kind's story."""
    kind = 0
    while kind < len(prior) - 1 and not flip(prior[kind] / sum(prior[kind:])):
        kind += 1
    return stories[kind](flip, **parameters[kind])


def outcomes(story: Story, **parameters) -> Iterator[tuple[float, list[Rank]]]:
    """Every way in which the story can go, with its probability; the probabilities sum to 1."""
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        path = list(pending.pop())
        known, probability = len(path), 1.0
        flips = 0

        def flip(p: float) -> bool:
            nonlocal flips, probability
            if flips >= known:  # a coin not met before: take True now, come back for False
                pending.append((*path, False))
                path.append(True)
            shown = path[flips]
            flips += 1
            probability *= p if shown else 1 - p
            return shown

        ranks = story(flip, **parameters)
        yield probability, ranks


def enumerate_clicks(story: Story, **parameters) -> tuple[np.ndarray, np.ndarray]:
    """(P(click vector) [2^K], the click vectors [2^K, K] bool, counting up in binary, rank 1 first)."""
    by_vector: dict[tuple[bool, ...], float] = {}
    for probability, ranks in outcomes(story, **parameters):
        clicks = tuple(rank.click for rank in ranks)
        by_vector[clicks] = by_vector.get(clicks, 0.0) + probability
    vectors = list(itertools.product([False, True], repeat=len(clicks)))
    return np.array([by_vector.get(v, 0.0) for v in vectors]), np.array(vectors)


def marginal(joint: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """P(c_r = 1), [K]."""
    return joint @ vectors


def conditional(joint: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """P(c_r = 1 | c_1, ..., c_{r-1} as in the vector), [2^K, K]; nan after clicks that cannot happen."""
    result = np.full(vectors.shape, np.nan)
    for (i, r), _ in np.ndenumerate(result):
        same_above = (vectors[:, :r] == vectors[i, :r]).all(axis=1)
        above = joint[same_above].sum()
        if above > 0:
            result[i, r] = joint[same_above & vectors[:, r]].sum() / above
    return result


def hidden(story: Story, **parameters) -> dict[str, np.ndarray]:
    """P(examined), P(click) and P(satisfied) at each rank, [K] each; K may be 0."""
    totals = sum(
        probability * np.array(ranks, float).reshape(-1, len(Rank._fields))
        for probability, ranks in outcomes(story, **parameters)
    )
    return dict(zip(Rank._fields, totals.T, strict=True))

"""Curves over positions, such as examination, that are as smooth as a log shows them to be.

Clicks tell of each position apart: the logarithms y of its rates are N(theta, C). From position to position theta
mostly goes on as before. How far it leaves the line through the two positions before, D theta, has the prior
N(0, tau^2), a random walk of second order (Rue and Held 2005, "Gaussian Markov random fields"). Then D y is
N(0, D C D' + tau^2), which is the likelihood of tau, and given tau the posterior is normal,

    mean        y - C D' (D C D' + tau^2)^-1 D y
    covariance  C - C D' (D C D' + tau^2)^-1 D C.

Lines are those in the position and those in its logarithm: examination that falls by one factor from each position to
the next, and by a power of the position. What is returned are the moments over both and over all tau, which has a flat
prior (Gelman 2006, "Prior distributions for variance parameters in hierarchical models"). Where curves have jumps, tau
is large, and they stay as clicks tell of them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

_TAU = np.geomspace(0.01, 3.0, 14)
_LEAST_CLICKS = 10.0
"""Of a point, below which what clicks tell of its logarithm is far from normal."""

Numbers = Float[np.ndarray, " points"]


class Points(NamedTuple):
    """Points of curves.

    Attributes:
        positions: From 1.
        curves: Labels, alike for points of one curve.
    """

    positions: Integer[np.ndarray, " points"]
    curves: Integer[np.ndarray, " points"]

    def neighbours(self, chosen: np.ndarray) -> Iterator[Integer[np.ndarray, "3"]]:
        """Yields the places of three points in turn, of the chosen ones of each curve."""
        for curve in np.unique(self.curves[chosen]):
            places = np.flatnonzero(chosen & (self.curves == curve))
            places = places[np.argsort(self.positions[places])]
            yield from (places[start : start + 3] for start in range(len(places) - 2))


class Moments(NamedTuple):
    """Of the logarithms of points.

    Attributes:
        mean: Of each.
        covariance: Of all.
    """

    mean: Numbers
    covariance: Float[np.ndarray, "points points"]


def smoothed(points: Points, of_clicks: Moments, clicks: Numbers) -> Moments:
    """Returns the posterior of curves.

    Args:
        points: Of the curves.
        of_clicks: What clicks tell of the points.
        clicks: Of the points. Those with less than ten take no part, and move as far as others that are known with
            them.
    """
    neighbours = list(points.neighbours(clicks >= _LEAST_CLICKS))
    if not neighbours:
        return of_clicks
    evidence, found = [], []
    for units in (points.positions.astype(np.float64), np.log(points.positions)):
        bends = _bends(units, neighbours)
        for tau in _TAU:
            log_likelihood, moments = _given(of_clicks, bends, tau)
            evidence.append(log_likelihood + np.log(tau))  # flat in tau, not in its logarithm
            found.append(moments)
    weights = np.exp(np.array(evidence) - max(evidence))
    return _mixed(weights / weights.sum(), found)


def _bends(
    units: Numbers, neighbours: list[Integer[np.ndarray, "3"]]
) -> Float[np.ndarray, "bends points"]:
    """Returns how far points are from the lines through the two before, as sums of points, which is D."""
    bends = np.zeros((len(neighbours), len(units)))
    for bend, (first, second, third) in zip(bends, neighbours, strict=True):
        farther = (units[third] - units[second]) / (units[second] - units[first])
        bend[[first, second, third]] = farther, -1 - farther, 1
    return bends


def _given(
    of_clicks: Moments, bends: Float[np.ndarray, "bends points"], tau: float
) -> tuple[float, Moments]:
    """Returns the logarithm of the likelihood of tau, up to a constant, and the posterior given it."""
    across, seen = of_clicks.covariance @ bends.T, bends @ of_clicks.mean
    of_seen = bends @ across + tau**2 * np.eye(len(bends))
    solved = np.linalg.solve(of_seen, np.column_stack([across.T, seen]))
    gain, standardised = solved[:, :-1].T, solved[:, -1]
    log_likelihood = -(np.linalg.slogdet(of_seen).logabsdet + seen @ standardised) / 2
    mean = of_clicks.mean - across @ standardised
    return float(log_likelihood), Moments(mean, of_clicks.covariance - gain @ across.T)


def _mixed(weights: Float[np.ndarray, " mixed"], found: list[Moments]) -> Moments:
    """Returns the moments of a mixture."""
    means, covariances = (np.array(each) for each in zip(*found, strict=True))
    mean = weights @ means
    away = means - mean
    within = np.tensordot(weights, covariances, 1)
    return Moments(mean, within + (away.T * weights) @ away)

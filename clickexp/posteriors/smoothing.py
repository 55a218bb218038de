"""Curves over positions, such as examination, that are as smooth as a log shows them to be.

Clicks tell of each position apart: the logarithms y of its rates are N(theta, C). From position to position theta
mostly goes on as before, and sometimes leaps. How far it leaves the line through the two positions before, D theta, has
Cauchy distributions with the scale tau: normal ones with the variances tau^2 l, where 1 / l is Gamma(1/2, 1/2) (Andrews
and Mallows 1974, "Scale mixtures of normal distributions"). Given these, a random walk of second order (Rue and Held
2005, "Gaussian Markov random fields"), D y is N(0, D C D' + tau^2 l), and the posterior is normal,

    mean        y - C D' (D C D' + tau^2 l)^-1 D y
    covariance  C - C D' (D C D' + tau^2 l)^-1 D C.

Lines are those in the position and those in its logarithm: examination that falls by one factor from each position to
the next, and by a power of the position. The prior of tau is flat from .01 to 3 (Gelman 2006, "Prior distributions for
variance parameters in hierarchical models"). Gibbs sampling draws the line and tau given l, then D theta, and l. What
is returned are means of moments given the draws (Gelfand and Smith 1990, "Sampling-based approaches to calculating
marginal densities").

Position 1 is on no line: users look at the first result in their own way, and all others are relative to it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

_TAU = np.geomspace(0.01, 3.0, 14)
"""Values of tau, which weigh tau times as much as a prior that is flat in its logarithm."""
_BURN_IN, _DRAWS = 50, 400
_MOST_BENDS = 200
"""With which a draw takes some hundredths of a second; more are left as clicks tell of them."""
_MOST_VARIANCE = 1.0
"""Of a bend, as clicks tell of it; of more, its prior would tell what clicks leave open."""

Numbers = Float[np.ndarray, " points"]
OfBends = Float[np.ndarray, " bends"]


class Points(NamedTuple):
    """Points of curves.

    Attributes:
        positions: From 1, or distances; points at others are in no curve.
        curves: Labels, alike for points of one curve.
    """

    positions: Integer[np.ndarray, " points"]
    curves: Integer[np.ndarray, " points"]

    def triples(self) -> Iterator[Integer[np.ndarray, "3"]]:
        """Yields the places of three points in turn of each curve, from position 2 on."""
        for curve in np.unique(self.curves):
            places = np.flatnonzero((self.curves == curve) & (self.positions > 1))
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


def smoothed(points: Points, of_clicks: Moments) -> Moments:
    """Returns the posterior of curves.

    Args:
        points: Of the curves.
        of_clicks: What clicks tell of the points.
    """
    triples = list(points.triples())
    positions = np.maximum(points.positions, 1)
    bends = [_bends(units, triples) for units in (positions.astype(np.float64), np.log(positions))]
    is_known = np.all([_variances(each, of_clicks) < _MOST_VARIANCE for each in bends], axis=0)
    if not 0 < is_known.sum() <= _MOST_BENDS:
        return of_clicks
    lines = [_Line.of(each[is_known], of_clicks) for each in bends]
    rng = np.random.default_rng(0)
    spreads = np.ones(is_known.sum())
    means, covariances = [], np.zeros_like(of_clicks.covariance)
    for draw in range(-_BURN_IN, _DRAWS):
        line, tau = _drawn(lines, spreads, rng)
        variances = tau**2 * spreads
        if draw >= 0:
            moments = line.posterior(of_clicks, variances)
            means.append(moments.mean)
            covariances += moments.covariance / _DRAWS
        squares = line.drawn_bends(variances, rng) ** 2 / tau**2
        spreads = (1 + squares) / 2 / rng.standard_gamma(1.0, len(spreads))
    return Moments(np.mean(means, axis=0), covariances + np.cov(means, rowvar=False, bias=True))


def _bends(
    units: Numbers, triples: list[Integer[np.ndarray, "3"]]
) -> Float[np.ndarray, "bends points"]:
    """Returns D: how far points are from the lines through the two before, as sums of points."""
    bends = np.zeros((len(triples), len(units)))
    for bend, (first, second, third) in zip(bends, triples, strict=True):
        farther = (units[third] - units[second]) / (units[second] - units[first])
        bend[[first, second, third]] = farther, -1 - farther, 1
    return bends


def _variances(bends: Float[np.ndarray, "bends points"], of_clicks: Moments) -> OfBends:
    return np.sum(bends @ of_clicks.covariance * bends, axis=1)


class _Line(NamedTuple):
    """What clicks tell of the bends of lines.

    Attributes:
        across: C D'.
        covariance: D C D'.
        root: Its symmetric root.
        seen: D y.
    """

    across: Float[np.ndarray, "points bends"]
    covariance: Float[np.ndarray, "bends bends"]
    root: Float[np.ndarray, "bends bends"]
    seen: OfBends

    @classmethod
    def of(cls, bends: Float[np.ndarray, "bends points"], of_clicks: Moments) -> "_Line":
        """Returns that of some bends."""
        across = of_clicks.covariance @ bends.T
        covariance = bends @ across
        values, vectors = np.linalg.eigh(covariance)
        # the symmetric root, since rounding changes signs of vectors, and would change what is drawn
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        return cls(across, covariance, root, bends @ of_clicks.mean)

    def evidence(self, spreads: OfBends) -> Float[np.ndarray, " tau"]:
        """Returns the logarithms of the likelihood times the prior of each tau, up to a constant of all lines."""
        roots = np.sqrt(spreads)
        values, vectors = np.linalg.eigh(self.covariance / np.outer(roots, roots))
        squares = (vectors.T @ (self.seen / roots)) ** 2
        variances = np.add.outer(_TAU**2, np.maximum(values, 0.0))
        return np.log(_TAU) - np.sum(np.log(variances) + squares / variances, axis=1) / 2

    def posterior(self, of_clicks: Moments, variances: OfBends) -> Moments:
        """Returns the moments of points, given the variances of bends."""
        of_seen = self.covariance + np.diag(variances)
        solved = np.linalg.solve(of_seen, np.column_stack([self.across.T, self.seen]))
        mean = of_clicks.mean - self.across @ solved[:, -1]
        return Moments(mean, of_clicks.covariance - self.across @ solved[:, :-1])

    def drawn_bends(self, variances: OfBends, rng: np.random.Generator) -> OfBends:
        """Draws bends given their variances (Hoffman and Ribak 1991, "Constrained realizations of Gaussian fields")."""
        drawn = np.sqrt(variances) * rng.standard_normal(len(variances))
        noise = self.root @ rng.standard_normal(len(variances))
        of_seen = self.covariance + np.diag(variances)
        return drawn + variances * np.linalg.solve(of_seen, self.seen - drawn - noise)


def _drawn(lines: list[_Line], spreads: OfBends, rng: np.random.Generator) -> tuple[_Line, float]:
    """Draws a line and tau, given how far each bend spreads beside tau."""
    evidence = np.array([line.evidence(spreads) for line in lines])
    weights = np.exp(evidence - evidence.max()).cumsum()
    number = int(np.searchsorted(weights, rng.random() * weights[-1], side="right"))
    line, tau = divmod(number, len(_TAU))
    return lines[line], float(_TAU[tau])

"""Smooth curves over positions: against quadrature, and simulated curves."""

import numpy as np
import pytest
from scipy.stats import cauchy, multivariate_normal

from clickexp.posteriors.smoothing import Moments, Points, smoothed

TAU = np.geomspace(0.01, 3.0, 14)
RATIOS = {size: np.eye(size)[1:] - np.eye(size)[0] for size in (5, 8, 20)}


def one_curve(size: int) -> Points:
    return Points(np.arange(1, size + 1), np.zeros(size, int))


def drawn(truth: np.ndarray, deviation: float, seed: int = 0) -> Moments:
    """Errors go together, as those of examination do where clicks leave its scale nearly open."""
    covariance = deviation**2 * (np.eye(len(truth)) + 4.0)
    return Moments(np.random.default_rng(seed).multivariate_normal(truth, covariance), covariance)


def bends_of(units: np.ndarray) -> np.ndarray:
    """How far points are from the line through the two before, from the second point on."""
    bends = np.zeros((len(units) - 3, len(units)))
    for place in range(3, len(units)):
        farther = (units[place] - units[place - 1]) / (units[place - 1] - units[place - 2])
        bends[place - 3, place - 2 : place + 1] = farther, -1 - farther, 1
    return bends


@pytest.mark.parametrize("bump", [0.0, 0.15, 0.8])
def test_posterior_is_that_of_quadrature(bump: float) -> None:
    """Five positions have two bends, whose posterior is on a grid."""
    positions = np.arange(1, 6)
    of_clicks = drawn(-0.3 * positions + bump * (positions == 4), 0.1)
    grid = np.linspace(-3.0, 3.0, 1201)
    pairs = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    total, mean, second = 0.0, np.zeros(5), np.zeros((5, 5))
    for units in (positions, np.log(positions)):
        bends = bends_of(units)
        across = of_clicks.covariance @ bends.T
        of_seen, seen = bends @ across, bends @ of_clicks.mean
        prior = sum(tau * np.multiply.outer(*[cauchy(0, tau).pdf(grid)] * 2) for tau in TAU)
        weights = prior * multivariate_normal(seen, of_seen).pdf(pairs)
        evidence = weights.sum()
        weights = weights / evidence
        expected = np.einsum("ij,ijk->k", weights, pairs)
        squares = np.einsum("ij,ijk,ijl->kl", weights, pairs, pairs)
        gain = np.linalg.solve(of_seen, across.T).T
        of_line = of_clicks.mean - gain @ (seen - expected)
        within = of_clicks.covariance - gain @ across.T
        within += gain @ (squares - np.outer(expected, expected)) @ gain.T
        total += evidence
        mean += evidence * of_line
        second += evidence * (within + np.outer(of_line, of_line))
    mean, second = mean / total, second / total
    covariance = second - np.outer(mean, mean)

    found = smoothed(one_curve(5), of_clicks)

    ratios = RATIOS[5]
    deviations = np.sqrt(np.diag(ratios @ covariance @ ratios.T))
    assert (np.abs(ratios @ (found.mean - mean)) < 0.1 * deviations).all()
    of_found = np.sqrt(np.diag(ratios @ found.covariance @ ratios.T))
    assert of_found == pytest.approx(deviations, rel=0.1)


def test_curves_are_smooth_each_by_itself_in_any_order() -> None:
    line = -0.3 * np.arange(1, 9)
    first, second = drawn(line, 0.1, 0), drawn(line, 0.1, 1)
    zeros = np.zeros((8, 8))
    mean = np.concatenate([first.mean, second.mean])
    both = Moments(mean, np.block([[first.covariance, zeros], [zeros, second.covariance]]))
    points = Points(np.tile(np.arange(1, 9), 2), np.repeat([0, 1], 8))
    # curves keep their order, and points have any
    order = np.concatenate([np.random.default_rng(1).permutation(8), 8 + np.arange(8)])
    mixed = Moments(mean[order], both.covariance[np.ix_(order, order)])

    found = smoothed(points, both)
    other = smoothed(Points(*(each[order] for each in points)), mixed)

    assert other.mean == pytest.approx(found.mean[order], abs=1e-6)
    alone = smoothed(one_curve(8), first)
    deviations = np.sqrt(np.diag(first.covariance))
    assert (np.abs(found.mean[:8] - alone.mean) < 0.3 * deviations).all()  # but for a common tau


def test_lines_by_position_and_by_its_logarithm_stay_but_for_missing_positions() -> None:
    positions = np.array([1, 2, 4, 5, 9, 12])
    points = Points(positions, np.zeros(6, int))
    for line in (-0.4 * positions, -0.8 * np.log(positions)):
        found = smoothed(points, Moments(line, 1e-6 * np.eye(6)))

        assert found.mean == pytest.approx(line, abs=2e-3)


def test_what_clicks_leave_open_stays_open() -> None:
    """Of two parts of a page that no document links, lines would tell the ratio."""
    line = -0.3 * np.arange(1, 9)
    second = np.repeat([0.0, 1.0], 4)
    covariance = 0.01 * np.eye(8) + 25.0 * np.outer(second, second)

    found = smoothed(one_curve(8), Moments(line + 2.0 * second, covariance))

    assert found.covariance[7, 7] > 24.0
    assert np.diff(found.mean)[3] == pytest.approx(2.0 - 0.3, abs=0.3)


@pytest.mark.parametrize(
    "positions", [[1, 2, 3], [-2, -1, 0, 1, 2, 3], [1, 1, 2, 2, 3, 3], [0, 0, 1, 1]]
)
def test_few_positions_and_those_above_the_last_click_stay_as_they_are(
    positions: list[int],
) -> None:
    size = len(positions)
    of_clicks = Moments(np.linspace(0, -1, size), 0.01 * np.eye(size))
    curves = np.arange(size) % (2 if positions.count(positions[0]) > 1 else 1)

    assert smoothed(Points(np.array(positions), curves), of_clicks) is of_clicks


def test_more_bends_than_can_be_drawn_stay_as_they_are() -> None:
    of_clicks = Moments(np.zeros(250), 0.01 * np.eye(250))

    assert smoothed(one_curve(250), of_clicks) is of_clicks


@pytest.mark.parametrize(
    ("curve", "most", "least"),
    [
        pytest.param(lambda r: -0.7 * np.log(r), 0.9, 0.85, id="power"),
        pytest.param(lambda r: -0.15 * r, 0.9, 0.85, id="one factor"),
        pytest.param(lambda r: np.log(0.6 * 0.5**r + 0.4 * r**-0.3), 0.9, 0.85, id="neither"),
        pytest.param(lambda r: 0.8 * (r == 1) - 0.4 * np.log(r), 0.9, 0.85, id="first result"),
        pytest.param(lambda r: -1.1 * (r > len(r) // 2) - 0.05 * r, 1.0, 0.7, id="jump"),
    ],
)
@pytest.mark.parametrize(("size", "deviation"), [(8, 0.05), (20, 0.15)])
def test_curves_are_nearer_and_intervals_hold_at_each_position(
    curve, most: float, least: float, size: int, deviation: float
) -> None:
    """Beside a jump that clicks hardly show, intervals hold less: normal bends, without leaps, leave .53."""
    truth, ratios = curve(np.arange(1.0, size + 1)), RATIOS[size]
    before, after, holds = [], [], []
    for seed in range(40):
        of_clicks = drawn(truth, deviation, seed)
        found = smoothed(one_curve(size), of_clicks)
        away = ratios @ (found.mean - truth)
        before.append(np.square(ratios @ (of_clicks.mean - truth)))
        after.append(np.square(away))
        deviations = np.sqrt(np.diag(ratios @ found.covariance @ ratios.T))
        holds.append(np.abs(away) < 1.96 * deviations)

    assert np.sqrt(np.mean(after) / np.mean(before)) < most
    assert np.mean(holds) > 0.92
    assert np.mean(holds, axis=0).min() > least

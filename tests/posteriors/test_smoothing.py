"""Smooth curves over positions: against Bayes' rule in another form, and simulated curves."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from clickexp.posteriors.smoothing import Moments, Points, smoothed

POSITIONS = np.arange(1, 9)
ONE_CURVE = Points(POSITIONS, np.zeros(8, int))
ENOUGH = np.full(8, 100.0)


def covariance_of(size: int, deviation: float) -> np.ndarray:
    """Errors that go together, as those of examination do where clicks leave its scale nearly open."""
    return deviation**2 * (np.eye(size) + np.full((size, size), 4.0))


def drawn(truth: np.ndarray, deviation: float, seed: int = 0) -> Moments:
    covariance = covariance_of(len(truth), deviation)
    return Moments(np.random.default_rng(seed).multivariate_normal(truth, covariance), covariance)


def random_walk(units: np.ndarray) -> np.ndarray:
    """How far points are from the line through the two before."""
    bends = np.zeros((len(units) - 2, len(units)))
    for place in range(2, len(units)):
        farther = (units[place] - units[place - 1]) / (units[place - 1] - units[place - 2])
        bends[place - 2, place - 2 : place + 1] = farther, -1 - farther, 1
    return bends


@pytest.mark.parametrize("slope", [-0.3, 0.0])
def test_posterior_is_that_of_precisions_averaged_over_lines_and_tau(slope: float) -> None:
    """Tau is on a geometric grid: weights are the distances of its values, for a flat prior."""
    of_clicks = drawn(slope * POSITIONS, 0.1)
    by_clicks = np.linalg.inv(of_clicks.covariance)
    evidence, means, seconds = [], [], []
    for units in (POSITIONS, np.log(POSITIONS)):
        bends = random_walk(units)
        for tau in np.geomspace(0.01, 3.0, 14):
            after = np.linalg.inv(by_clicks + bends.T @ bends / tau**2)
            means.append(after @ by_clicks @ of_clicks.mean)
            seconds.append(after + np.outer(means[-1], means[-1]))
            of_seen = bends @ of_clicks.covariance @ bends.T + tau**2 * np.eye(6)
            seen = bends @ of_clicks.mean
            evidence.append(tau * multivariate_normal(np.zeros(6), of_seen).pdf(seen))
    weights = np.array(evidence) / np.sum(evidence)
    mean = weights @ np.array(means)

    found = smoothed(ONE_CURVE, of_clicks, ENOUGH)

    assert found.mean == pytest.approx(mean, abs=1e-9)
    expected = np.tensordot(weights, seconds, 1) - np.outer(mean, mean)
    assert found.covariance == pytest.approx(expected, abs=1e-9)


def test_curves_are_smooth_each_by_itself_in_any_order() -> None:
    """Curves whose errors are independent are smooth each by itself, given one tau."""
    first, second = drawn(-0.3 * POSITIONS, 0.1), drawn(-0.3 * POSITIONS, 0.1)
    zeros = np.zeros((8, 8))
    both = Moments(
        np.concatenate([first.mean, second.mean]),
        np.block([[first.covariance, zeros], [zeros, second.covariance]]),
    )
    order = np.random.default_rng(1).permutation(16)
    points = Points(np.tile(POSITIONS, 2), np.repeat([0, 1], 8))
    mixed = Moments(both.mean[order], both.covariance[np.ix_(order, order)])

    found = smoothed(points, both, np.tile(ENOUGH, 2))
    other = smoothed(Points(*(each[order] for each in points)), mixed, np.tile(ENOUGH, 2))

    assert other.mean == pytest.approx(found.mean[order], abs=1e-9)
    assert found.mean[:8] == pytest.approx(found.mean[8:], abs=1e-9)  # alike, as what clicks tell


def test_lines_by_position_and_by_its_logarithm_stay() -> None:
    positions = np.array([1, 2, 4, 5, 9])
    points = Points(positions, np.zeros(5, int))
    for line in (-0.4 * positions, -0.8 * np.log(positions)):
        of_clicks = Moments(line, 1e-6 * np.eye(5))

        found = smoothed(points, of_clicks, np.full(5, 100.0))

        assert found.mean == pytest.approx(line, abs=2e-3)


def test_points_with_few_clicks_are_no_neighbours() -> None:
    line = -0.3 * POSITIONS
    logs = line.copy()
    logs[3] = -9.0  # next to no clicks

    found = smoothed(
        ONE_CURVE, Moments(logs, np.diag(np.full(8, 1e-4))), np.where(POSITIONS == 4, 2.0, 100.0)
    )

    assert found.mean[3] == -9.0
    assert np.delete(found.mean, 3) == pytest.approx(np.delete(line, 3), abs=0.01)


def test_two_positions_stay_as_they_are() -> None:
    curve = Moments(np.array([0.0, -1.0]), np.eye(2))

    found = smoothed(Points(np.arange(1, 3), np.zeros(2, int)), curve, np.full(2, 100.0))

    assert found is curve


@pytest.mark.parametrize(
    ("truth", "most"),
    [
        pytest.param(-0.7 * np.log(POSITIONS), 0.75, id="power"),
        pytest.param(-0.25 * POSITIONS, 0.75, id="one factor"),
        pytest.param(np.log(0.6 * 0.5**POSITIONS + 0.4 * POSITIONS**-0.3), 0.8, id="neither"),
        pytest.param(np.where(POSITIONS < 5, -0.1, -1.2) - 0.05 * POSITIONS, 1.05, id="jump"),
    ],
)
def test_curves_are_nearer_and_intervals_hold(truth: np.ndarray, most: float) -> None:
    ratios = np.eye(8)[1:] - np.eye(8)[0]
    before, after, holds = [], [], []
    for seed in range(200):
        of_clicks = drawn(truth, 0.05, seed)
        found = smoothed(ONE_CURVE, of_clicks, ENOUGH)
        away = ratios @ (found.mean - truth)
        before.append(np.square(ratios @ (of_clicks.mean - truth)))
        after.append(np.square(away))
        deviations = np.sqrt(np.diag(ratios @ found.covariance @ ratios.T))
        holds.append(np.abs(away) < 1.96 * deviations)

    assert np.sqrt(np.mean(after) / np.mean(before)) < most
    assert np.mean(holds) > 0.93

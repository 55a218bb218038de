"""Intervals and tests of a mean or a difference: at one look, and at any number of looks."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator
from scipy import special, stats

_Open = Annotated[float, BeforeValidator(lambda value: np.nan if value is None else value)]
"""Infinite where units are all alike; JSON has null for that."""


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty.

    Attributes:
        value: The estimate.
        low: Lower bound of the interval that holds at one look, decided in advance.
        high: Upper bound of it.
        anytime_low: Lower bound of the interval that holds at all looks together.
        anytime_high: Upper bound of it.
        p_value: Two-sided, of the hypothesis that it is 0, at one look.
        standard_error: Of the estimate.
        minimum_detectable_effect: The smallest true value that the test finds with the power asked for.
        significant: Whether the p-value is below the error rate.
        units_needed: Units with which a true value as large as this estimate is found with that power; None where the
            estimate is 0, or its error is not known.
    """

    value: float
    low: _Open
    high: _Open
    anytime_low: _Open
    anytime_high: _Open
    p_value: float
    standard_error: _Open
    minimum_detectable_effect: _Open
    significant: bool
    units_needed: int | None


def estimate(
    value: float,
    error: float,
    units: int,
    *,
    freedom: float = np.inf,
    planned: int | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
    p_value: float | None = None,
) -> Estimate:
    """Returns an estimate with its intervals.

    Args:
        value: The estimate.
        error: Its standard error; 0 is taken as not known where the value differs from 0.
        units: Independent units behind it.
        freedom: Degrees of freedom of the error.
        planned: Units for which the anytime-valid interval is tightest; by default as many as there are.
        alpha: Error rate of intervals and test.
        power: Probability of finding the minimum detectable effect.
        p_value: Of another test than Student's.
    """
    if error == 0 and value:  # units that are all alike say nothing of the spread of others
        error, p_value = np.inf, 1.0
    if p_value is None:
        p_value = (
            float(2 * stats.t.sf(abs(value) / error, freedom)) if error > 0 else float(value == 0)
        )
    half = float(stats.t.ppf(1 - alpha / 2, freedom)) * error
    anytime = anytime_radius(error, units, planned or units, alpha)
    effect = minimum_detectable_effect(error, alpha, power)
    needed = int(np.ceil(units * (effect / value) ** 2)) if value and np.isfinite(effect) else None
    bounds = value - half, value + half, value - anytime, value + anytime
    return Estimate(value, *bounds, p_value, error, effect, p_value < alpha, needed)


def anytime_radius(error: float, units: int, planned: int, alpha: float = 0.05) -> float:
    """Returns half of an interval that holds, with probability 1 - alpha, at all looks together.

        error sqrt((y + 1) / y log((y + 1) / alpha^2)),  y = units rho^2

    It is the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform
    central limit theory and asymptotic confidence sequences", theorem 2.2, with error = standard deviation /
    sqrt(units); a normal mixture as in Robbins 1970 and Howard, Ramdas, McAuliffe and Sekhon 2021, "Time-uniform,
    nonparametric, nonasymptotic confidence sequences". rho makes it tightest at the planned number of units, where
    y + 1 = -W(-alpha^2 / e) with the lower branch of Lambert's W.

    Args:
        error: Standard error of the estimate now.
        units: Independent units behind it now.
        planned: Units at which it is tightest.
        alpha: Probability that any look leaves the truth out.
    """
    y = float(-special.lambertw(-(alpha**2) / np.e, -1).real - 1) * units / planned
    return error * float(np.sqrt((y + 1) / y * np.log((y + 1) / alpha**2)))


def minimum_detectable_effect(error: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Returns (z_{1 - alpha / 2} + z_power) error: the true difference that a two-sided test finds with this power."""
    return float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)) * error

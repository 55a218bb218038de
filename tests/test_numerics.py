"""Pairs of log-probabilities against float64, far beyond what float32 probabilities can hold."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refuses

from clickexp import numerics
from clickexp.numerics import ALWAYS, LOG_ZERO, NEVER, LogPair, mean_log_sigmoid_pair, mean_slope

pytestmark = pytest.mark.as_users

POSITIVE = np.array([1e-3, 1, 17, 50, 88, 104, 1e4, 1e30], np.float32)
LOGITS = np.concatenate([-POSITIVE[::-1], np.zeros(1, np.float32), POSITIVE])
MODERATE = LOGITS[np.abs(LOGITS) <= 104]


def exact_pair(logit):
    """(log s(z), log s(-z)) in float64."""
    z = np.asarray(logit, np.float64)
    return LogPair(-np.logaddexp(0, -z), -np.logaddexp(0, z))


def close(actual, expected, rtol=2e-6, atol=2e-7):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol, atol)


def pairs(logits):
    return jax.jit(numerics.log_sigmoid_pair)(logits), exact_pair(logits)


def test_log_sigmoid_pair_over_the_whole_range():
    close(*pairs(LOGITS), rtol=1e-6, atol=1e-37)


def test_log_sigmoid_pair_has_the_slopes_of_the_logistic_function():
    logits = jnp.asarray(LOGITS)
    for event, sign in (0, 1.0), (1, -1.0):
        slopes = jax.jit(
            jax.vmap(jax.grad(lambda z, event=event: numerics.log_sigmoid_pair(z)[event]))
        )(logits)
        expected = sign * np.exp(exact_pair(sign * LOGITS.astype(np.float64)).complement)
        np.testing.assert_allclose(slopes, expected, rtol=1e-6, atol=1e-37)


def test_log_add():
    values = np.array([LOG_ZERO, -1e4, -50.0, -1.0, -1e-6, 0.0, 3.0])
    a, b = map(np.ravel, np.meshgrid(values, values))
    of_pairs = jax.jit(jax.vmap(jax.value_and_grad(numerics.log_add, argnums=(0, 1))))
    actual, shares = of_pairs(np.float32(a), np.float32(b))
    np.testing.assert_allclose(actual, np.logaddexp(a, b), rtol=1e-6, atol=1e-7)
    expected = np.exp([-np.logaddexp(0, b - a), -np.logaddexp(0, a - b)])
    np.testing.assert_allclose(shares, expected, rtol=1e-5)


def exact_and(a, b):
    return LogPair(a.log + b.log, np.logaddexp(a.complement, a.log + b.complement))


def exact_mix(weight, a, b):
    return LogPair(
        np.logaddexp(weight.log + a.log, weight.complement + b.log),
        np.logaddexp(weight.log + a.complement, weight.complement + b.complement),
    )


def test_log_and_keeps_both_sides():
    first, second = np.meshgrid(MODERATE, MODERATE)
    (a, exact_a), (b, exact_b) = pairs(first), pairs(second)
    close(jax.jit(numerics.log_and)(a, b), exact_and(exact_a, exact_b))


def test_log_mix_keeps_both_sides():
    weight, first, second = np.meshgrid(MODERATE, MODERATE, MODERATE)
    given = [pairs(x) for x in (weight, first, second)]
    close(
        jax.jit(numerics.log_mix)(*(pair for pair, _ in given)),
        exact_mix(*(exact for _, exact in given)),
    )


def test_a_sure_weight_picks_one_side():
    a, b = (pairs(MODERATE + shift)[0] for shift in (0, 1))
    for weight, expected in (ALWAYS, a), (NEVER, b):
        close(numerics.log_mix(weight, a, b), expected)


@pytest.mark.parametrize(
    ("a", "b"), [(NEVER, None), (None, ALWAYS), (NEVER, ALWAYS), (None, NEVER)]
)
def test_mixtures_of_sure_events(a, b):
    weight, exact_weight = pairs(MODERATE)
    other, exact_other = pairs(MODERATE[::-1])
    actual = jax.jit(lambda weight, other: numerics.log_mix(weight, a or other, b or other))(
        weight, other
    )
    exact = exact_mix(exact_weight, a or exact_other, b or exact_other)
    close([np.maximum(x, -1e20) for x in actual], [np.maximum(x, -1e20) for x in exact])


def test_log_complement_near_zero_and_far_below():
    probabilities = np.array([1e-30, 1e-9, 1e-4, 0.3, 0.5, 0.7, 0.9999], np.float64)
    log_probs = np.log(probabilities).astype(np.float32)
    exact = log_probs.tolist()
    expected = [math.log(-math.expm1(x)) if x > -0.5 else math.log1p(-math.exp(x)) for x in exact]
    np.testing.assert_allclose(jax.jit(numerics.log_complement)(log_probs), expected, rtol=1e-6)
    assert numerics.log_complement(jnp.float32(0)) == -jnp.inf
    slopes = jax.jit(jax.vmap(jax.grad(numerics.log_complement)))(jnp.asarray(log_probs))
    np.testing.assert_allclose(slopes, -1 / np.expm1(-log_probs.astype(np.float64)), rtol=1e-5)


def test_as_pair_takes_a_pair_as_it_is_and_completes_an_array():
    pair = LogPair(jnp.float32(-1), jnp.float32(-2))
    assert numerics.as_pair(pair) is pair
    close(numerics.as_pair(jnp.float32(math.log(0.25))), (math.log(0.25), math.log(0.75)))


def test_log_odds():
    assert numerics.log_odds(0.2) == pytest.approx(math.log(0.25), rel=1e-6)
    assert numerics.log_odds(1e-9) == pytest.approx(math.log(1e-9), rel=1e-6)
    for impossible in 0.0, 1.0, -0.1, math.nan:
        with refuses(ValueError, "between 0 and 1", str(impossible)):
            numerics.log_odds(impossible)


def test_means_of_the_sigmoid_and_of_its_slope_against_quadrature():
    """The mean of the sigmoid to a third of what the slope is off by."""
    x = np.linspace(-12, 12, 100_001)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    means, sds = np.array([-6.0, -1.5, 0.0, 0.7, 4.0]), np.array([0.0, 0.5, 1.0, 1.5, 2.0])
    normal = (each.astype(np.float32) for each in np.meshgrid(means, sds**2))
    slopes, pairs = jax.jit(lambda *normal: (mean_slope(*normal), mean_log_sigmoid_pair(*normal)))(
        *normal
    )
    for row, (sd, most) in enumerate(zip(sds, (1e-6, 1e-6, 2e-4, 1e-3, 8e-3), strict=True)):
        for column, mean in enumerate(means):
            z = mean + sd * x
            slope = np.trapezoid(density / (2 + np.exp(z) + np.exp(-z)), x)
            probability = np.trapezoid(density / (1 + np.exp(-z)), x)
            assert float(slopes[row, column]) == pytest.approx(slope, rel=most), (mean, sd)
            found = np.exp([np.float64(log[row, column]) for log in pairs])
            assert found == pytest.approx(
                [probability, 1 - probability], rel=max(most / 3, 1e-5)
            ), (mean, sd)

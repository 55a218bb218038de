"""Clicks and skips at nodes against loops in float64, and their slopes against differences."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import expit, logit, logsumexp

from clickexp.posteriors.click_rates import Mixtures, Products

TRUE, FALSE = np.array([0.9, 0.5, 0.3]), np.array([0.3, 0.1, 0.02])
RATES = {Products: logit(TRUE), Mixtures: logit(np.concatenate([TRUE, FALSE]))}


def counts_of(rng):
    clicks, skips = rng.poisson(1.0, (12, 3)), rng.poisson(3.0, (12, 3))
    return clicks.astype(float), skips.astype(float)


def log_likelihood(kind, clicks, skips, rates, logits):
    """Of one document at one logit after the other."""
    probabilities = expit(rates)
    found = np.zeros(logits.shape)
    for document, node in np.ndindex(logits.shape):
        attraction = expit(logits[document, node])
        click = probabilities[:3] * attraction
        if kind is Mixtures:
            click = click + probabilities[3:] * (1 - attraction)
        found[document, node] = clicks[document] @ np.log(click)
        found[document, node] += skips[document] @ np.log1p(-click)
    return found


@pytest.mark.parametrize("kind", [Products, Mixtures])
def test_log_likelihood_at_nodes(kind):
    rng = np.random.default_rng(0)
    clicks, skips = counts_of(rng)
    logits = rng.normal(-1, 2, (12, 5))
    found = kind(csr_array(clicks), csr_array(skips), logits).log_likelihood(RATES[kind])
    expected = log_likelihood(kind, clicks, skips, RATES[kind], logits)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [Products, Mixtures])
def test_mean_slopes_are_those_of_the_integral(kind):
    """The derivative of log sum_nodes exp(log-likelihood) by the logarithm of a rate."""
    rng = np.random.default_rng(1)
    clicks, skips = counts_of(rng)
    logits, logs = rng.normal(-1, 2, (12, 5)), np.log(expit(RATES[kind]))

    def at(logs):
        values = log_likelihood(kind, clicks, skips, logit(np.exp(logs)), logits)
        return logsumexp(values, axis=1)

    steps = 1e-6 * np.eye(len(logs))
    expected = np.stack([(at(logs + step) - at(logs - step)) / 2e-6 for step in steps], axis=1)
    values = log_likelihood(kind, clicks, skips, RATES[kind], logits)
    weights = np.exp(values - logsumexp(values, axis=1, keepdims=True))
    found = kind(csr_array(clicks), csr_array(skips), logits).slopes(RATES[kind], weights)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6, atol=1e-6)

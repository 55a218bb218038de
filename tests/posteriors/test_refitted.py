"""Posteriors of documents against integration on a grid, and their prior against that of simulated documents."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit, log_expit, logit, logsumexp

from clickexp.posteriors.click_rates import Mixtures, Products
from clickexp.posteriors.population import Documents
from clickexp.posteriors.refitted import PriorByRank, Shared, most_likely, with_posteriors

TRUE, FALSE = np.array([0.9, 0.6, 0.4]), np.array([0.3, 0.1, 0.02])
LINE, VARIANCE = np.array([-1.2, -0.8, 0.1]), 0.6
RATES = {Mixtures: logit(np.concatenate([TRUE, FALSE])), Products: logit(TRUE)}


def documents_of(kind, documents, shown, often=100):
    rng = np.random.default_rng(0)
    x = rng.normal(size=documents)
    regressors = np.stack([np.ones(documents), x, x**2 - 1], axis=1)
    logits = rng.normal(regressors @ LINE, VARIANCE**0.5)
    impressions = rng.poisson(shown, (documents, 3))
    impressions[:20] = 0
    impressions[20:30] = often
    clicks = rng.binomial(impressions, click_of(kind, logits))
    # as training may leave them: at the same place, and too sure
    start = np.full(documents, -1.0), np.full(documents, 0.5)
    counts = (csr_array(each.astype(float)) for each in (clicks, impressions - clicks))
    return logits, Documents(*counts, *start, regressors, *np.zeros((2, documents)))


def click_of(kind, logits, factor=1.0):
    false = FALSE if kind is Mixtures else 0.0
    return factor * (false + (TRUE - false) * expit(logits)[:, None])


def start_of(kind, factor=1.0):
    return Shared(PriorByRank(np.array([-1.0, 0.0, 0.0]), 1.0), logit(factor * expit(RATES[kind])))


@pytest.mark.parametrize("kind", [Mixtures, Products])
def test_the_prior_is_that_of_documents_and_intervals_hold(kind):
    logits, documents = documents_of(kind, 4000, 15.0)
    shared = most_likely(documents, kind, start_of(kind), learns_scale=False)
    np.testing.assert_allclose(shared.prior.line, LINE, atol=0.08)
    assert abs(shared.prior.variance - VARIANCE) < 0.08
    found = with_posteriors(documents, kind, shared)
    held = np.abs(logits - found.means) < 1.96 * found.deviations
    assert 0.935 < held.mean() < 0.965


@pytest.mark.parametrize("off", [-8.0, 0.0, 3.0])
@pytest.mark.parametrize("width", [0.01, 0.5, 20.0])
def test_posteriors_are_those_of_integration(off, width):
    """Also of documents without any list, whose posterior is the prior, and of some with very many; from far off."""
    _, documents = documents_of(Mixtures, 300, 2.0, often=300_000)
    documents.means[::3] += off
    documents.deviations[::2] = width
    shared = Shared(PriorByRank(LINE, VARIANCE), RATES[Mixtures])
    found = with_posteriors(documents, Mixtures, shared)
    grid = np.linspace(-12, 8, 40_001)
    click = click_of(Mixtures, grid).T
    logs = documents.clicks @ np.log(click) + documents.skips @ np.log1p(-click)
    logs -= (grid - (documents.known @ LINE)[:, None]) ** 2 / (2 * VARIANCE)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    means = weights @ grid
    deviations = np.sqrt(np.sum(weights * (grid - means[:, None]) ** 2, axis=1))
    np.testing.assert_allclose(found.means, means, atol=1e-3)
    np.testing.assert_allclose(found.deviations, deviations, rtol=1e-3)


@pytest.mark.parametrize("factor", [0.7, 1.05])
def test_prior_and_scale_have_the_largest_likelihood(factor):
    """Beside a search by function values alone, over sums on a fine grid, from wherever training ends.

    Nodes around a document with very many impressions lie close together, and would hold the scale where they begin.
    """
    _, documents = documents_of(Products, 1500, 10.0, often=20_000)
    grid = np.linspace(-9, 7, 4001)
    attraction = expit(grid)

    def loss(point):
        *line, log_variance, log_factor = point
        rates = np.minimum(TRUE * np.exp(log_factor), 1 - 1e-9)
        click = rates[:, None] * attraction
        logs = documents.clicks @ np.log(click) + documents.skips @ np.log1p(-click)
        away = grid - (documents.known @ line)[:, None]
        logs -= away**2 * np.exp(-log_variance) / 2
        # as weak a hold around training as the search has
        held = 0.05 * (logit(rates[0]) - logit(factor * 0.9)) ** 2
        return held - logsumexp(logs, axis=1).sum() + len(logs) * log_variance / 2

    found = most_likely(documents, Products, start_of(Products, factor), learns_scale=True)
    log_factor = log_expit(found.rates) - np.log(TRUE)
    np.testing.assert_allclose(log_factor, log_factor[0], atol=1e-9)
    point = np.array([*found.prior.line, np.log(found.prior.variance), log_factor[0]])
    best = minimize(loss, point, method="Powell", options={"xtol": 1e-3, "ftol": 1e-9})
    assert loss(point) < best.fun + 0.01
    np.testing.assert_allclose(point, best.x, atol=0.02)

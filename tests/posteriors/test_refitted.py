"""Posteriors of documents against integration on a grid, and their prior against that of simulated documents."""

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, logit

from clickexp.posteriors.click_rates import Mixtures
from clickexp.posteriors.refitted import ClicksOfDocuments, PriorByRank, Refitted, refitted

TRUE, FALSE = np.array([0.9, 0.6, 0.4]), np.array([0.3, 0.1, 0.02])
LINE, VARIANCE = np.array([-1.2, -0.8, 0.1]), 0.6


def found_of(documents, shown):
    rng = np.random.default_rng(0)
    x = rng.normal(size=documents)
    regressors = np.stack([np.ones(documents), x, x**2 - 1], axis=1)
    logits = rng.normal(regressors @ LINE, VARIANCE**0.5)
    impressions = rng.poisson(shown, (documents, 3))
    click = FALSE + (TRUE - FALSE) * expit(logits)[:, None]
    clicks = rng.binomial(impressions, click)
    log = ClicksOfDocuments(
        csr_array(clicks.astype(float)), csr_array((impressions - clicks).astype(float)), x
    )
    # as training may leave them: at the same place, and too sure
    start = Refitted(
        PriorByRank(np.array([-1.0, 0.0, 0.0]), 1.0),
        np.full(documents, -1.0),
        np.full(documents, 0.5),
    )
    return log, logits, refitted(log, Mixtures, logit(np.concatenate([TRUE, FALSE])), start)


def test_the_prior_is_that_of_documents_and_intervals_hold():
    _, logits, found = found_of(4000, 15.0)
    np.testing.assert_allclose(found.prior.line, LINE, atol=0.08)
    assert abs(found.prior.variance - VARIANCE) < 0.08
    held = np.abs(logits - found.means) < 1.96 * found.deviations
    assert 0.935 < held.mean() < 0.965


def test_posteriors_are_those_of_integration():
    """Also of documents without any list, whose posterior is the prior."""
    log, _, found = found_of(300, 2.0)
    grid = np.linspace(-12, 8, 4001)
    click = FALSE[:, None] + np.outer(TRUE - FALSE, expit(grid))
    logs = log.clicks @ np.log(click) + log.skips @ np.log1p(-click)
    centers = found.prior.means(log.x)[:, None]
    logs -= (grid - centers) ** 2 / (2 * found.prior.variance)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    means = weights @ grid
    deviations = np.sqrt(weights @ grid**2 - means**2)
    np.testing.assert_allclose(found.means, means, atol=0.02)
    np.testing.assert_allclose(found.deviations, deviations, rtol=0.02)

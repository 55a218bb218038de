"""Posteriors of documents and their normal prior by rank, given the rates of clicks of all cells.

The prior of a logit is N(b_0 + b_1 x + b_2 (x^2 - 1), V), as a table has it (`clickexp.parameters.table.Prior`).
Expectation-maximisation finds its numbers (Dempster, Laird and Rubin 1977, "Maximum likelihood from incomplete data via
the EM algorithm"), with posteriors by sums over nodes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_array

from clickexp.posteriors.click_rates import ClickRates, Nodes

_NODES = 0.75 * np.arange(-8, 9)
"""In deviations of posteriors from the mean, where these were before."""
_ROUNDS, _STEPS = 4, 10
"""How often nodes follow posteriors, and steps with the same nodes."""

Numbers = Float[np.ndarray, " documents"]


class PriorByRank(NamedTuple):
    """A normal prior of logits.

    Attributes:
        line: Of 1, x and x^2 - 1.
        variance: Around it.
    """

    line: Float[np.ndarray, "3"]
    variance: float

    def means(self, x: Numbers) -> Numbers:
        """Returns the means of documents."""
        return _regressors(x) @ self.line


class Refitted(NamedTuple):
    """A prior, and posteriors under it.

    Attributes:
        prior: Of all documents.
        means: Of logits.
        deviations: Of logits.
    """

    prior: PriorByRank
    means: Numbers
    deviations: Numbers


class ClicksOfDocuments(NamedTuple):
    """What a log tells of documents.

    Attributes:
        clicks: Of each document in each cell.
        skips: The same.
        x: Standardised mean log ranks.
    """

    clicks: csr_array
    skips: csr_array
    x: Numbers


def refitted(
    log: ClicksOfDocuments,
    kind: type[ClickRates],
    rates: Float[np.ndarray, " rates"],
    before: Refitted,
) -> Refitted:
    """Returns the most likely prior, and posteriors under it.

    Args:
        log: Clicks and skips.
        kind: What clicks are of rates.
        rates: Their logits.
        before: Near these.
    """
    regressors = _regressors(log.x)
    prior, means, deviations = before
    for _ in range(_ROUNDS):
        logits = means[:, None] + deviations[:, None] * _NODES
        of_clicks = kind(log.clicks, log.skips, logits).log_likelihood(rates)
        for _ in range(_STEPS):
            means, variances = _moments(logits, of_clicks, regressors @ prior.line, prior.variance)
            line = np.linalg.lstsq(regressors, means)[0]
            prior = PriorByRank(line, float(np.mean((means - regressors @ line) ** 2 + variances)))
        means, variances = _moments(logits, of_clicks, regressors @ prior.line, prior.variance)
        deviations = np.sqrt(variances)
    return Refitted(prior, means, deviations)


def _moments(
    logits: Nodes, of_clicks: Nodes, prior_means: Numbers, prior_variance: float
) -> tuple[Numbers, Numbers]:
    """Returns means and variances of posteriors, given the log-likelihood of clicks at nodes."""
    logs = of_clicks - (logits - prior_means[:, None]) ** 2 / (2 * prior_variance)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    means = np.sum(weights * logits, axis=1)
    return means, np.sum(weights * (logits - means[:, None]) ** 2, axis=1)


def _regressors(x: Numbers) -> Float[np.ndarray, "documents 3"]:
    return np.stack([np.ones(len(x)), x, x**2 - 1], axis=1)

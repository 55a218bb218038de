"""What documents out of a sample tell of numbers that all share, by regression on the documents in it.

The scores of documents are costly: each is an integral. Other numbers of a document, its features, explain nearly all
of them, and are cheap to sum over all documents. With scores s of n documents of N, their features f
and the least-squares fit s = a + b f, the mean over all documents is estimated as (Cochran 1977, "Sampling techniques",
chapter 7)

    mean(s) + b (mean of f over all - mean(f)),   with the variance   (S - (1 - n/N) b F b') / n,

where S and F are the covariance matrices of s and f.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

from clickexp.posteriors.click_rates import ClickRates
from clickexp.posteriors.population import Documents, Population

_LEAST_INFORMATION = 1e-3
"""Of directions that clicks leave open."""
_LEAST_SHARE = 1e-10
"""Of the variance of features, in directions that explain anything."""

Numbers = Float[np.ndarray, " numbers"]
Matrix = Float[np.ndarray, "numbers numbers"]
OfDocuments = Float[np.ndarray, " documents"]


class Features(NamedTuple):
    """Numbers of documents that explain their scores.

    These are clicks by cell, derivatives of the log-likelihood by rates where the logit of a document is its mean,
    functions of this logit, regressors, and these times the logit.

    Attributes:
        rates: What clicks are of rates.
        logits: Of the rates.
        basis: Functions of logits, the logit itself first.
    """

    rates: type[ClickRates]
    logits: Float[np.ndarray, " rates"]
    basis: Callable[[OfDocuments], Float[np.ndarray, "functions documents"]]

    def of(self, documents: Documents) -> Float[np.ndarray, "documents features"]:
        """Returns those of documents."""
        clicks, skips, means, *_ = documents
        rates = self.rates(clicks, skips, means[:, None])
        slopes = rates.slopes(self.logits, np.ones((len(means), 1)))
        basis, known = self.basis(means).T, documents.known
        return np.concatenate(
            [clicks.toarray(), slopes.toarray(), basis, known, known * basis[:, :1]], axis=1
        )

    def mean(self, population: Population) -> Float[np.ndarray, " features"]:
        """Returns the mean over all documents."""
        total = np.sum([self.of(some).sum(axis=0) for some in population.parts()], axis=0)
        return total / len(population.ids)


class Regression(NamedTuple):
    """Scores of documents as their features explain them.

    Attributes:
        missing: What n scores have more in the mean over all documents than in the sample.
        explained: Sum of the outer products of what features explain.
    """

    missing: Numbers
    explained: Matrix

    @classmethod
    def of(
        cls,
        sample: Iterable[
            tuple[Float[np.ndarray, "some numbers"], Float[np.ndarray, "some features"]]
        ],
        mean: Float[np.ndarray, " features"],
    ) -> "Regression":
        """Returns that of a sample.

        Args:
            sample: Scores and features of documents, some at a time.
            mean: Of features over all documents.
        """
        number, ends = 0, len(mean)
        total, products = np.zeros(1), np.zeros((1, 1))
        for scores, features in sample:
            both = np.concatenate([features - mean, scores], axis=1)
            number += len(both)
            total = total + both.sum(axis=0)
            products = products + both.T @ both
        products = products - np.outer(total, total) / number
        scale = np.sqrt(np.diag(products)[:ends])
        scale[scale == 0] = 1.0
        within = products[:ends, :ends] / np.outer(scale, scale)
        with_scores = products[:ends, ends:] / scale[:, None]
        slopes = np.linalg.pinv(within, _LEAST_SHARE, hermitian=True) @ with_scores
        return cls(-slopes.T @ (total[:ends] / scale), with_scores.T @ slopes)

    def of_all(self, score: Numbers, squares: Matrix, share: float) -> tuple[Numbers, Matrix]:
        """Returns the score of all documents and their information, as if these were the sample's.

        Args:
            score: Of the sample.
            squares: Sum of the outer products of its scores.
            share: Of all documents that are in the sample.
        """
        one = np.eye(len(squares))
        # some directions have little information: inverses would lose digits of all others
        root = np.linalg.cholesky(squares + _LEAST_INFORMATION * one)
        explained = solve_triangular(root, self.explained, lower=True)
        explained = solve_triangular(root, explained.T, lower=True)
        gained = root @ np.linalg.inv(one - (1 - share) * explained)
        return gained @ solve_triangular(root, score + self.missing, lower=True), gained @ root.T

"""Clicks of documents given their attraction, at nodes of quadrature: P(click) = e s(z), or t s(z) + f (1 - s(z)).

The rates e, t and f are numbers of cells, which all documents share. Here they are logits; derivatives are by their
logarithms.
"""

import abc
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from scipy.sparse import csr_array, hstack
from scipy.special import expit, log_expit

Rates = Float[np.ndarray, " rates"]
Nodes = Float[np.ndarray, "documents nodes"]


class Counts(NamedTuple):
    """Documents by cell, of clicks or of skips.

    Attributes:
        numbers: Of each document in each cell.
        document: That of each number above 0.
    """

    numbers: csr_array
    document: Integer[np.ndarray, " counts"]

    @classmethod
    def of(cls, numbers: csr_array) -> "Counts":
        """Returns those of a matrix."""
        of_documents = np.diff(numbers.indptr)
        return cls(numbers, np.repeat(np.arange(len(of_documents)), of_documents))

    def times(self, factors: Float[np.ndarray, " counts"]) -> csr_array:
        """Returns the numbers times factors."""
        numbers = self.numbers
        products = numbers.data * factors
        return csr_array((products, numbers.indices, numbers.indptr), numbers.shape)


class ClickRates(abc.ABC):
    """Clicks and skips of documents, as functions of the logits of rates.

    Args:
        clicks: Of documents in cells.
        skips: The same.
        logits: Of attraction at nodes.
    """

    def __init__(self, clicks: csr_array, skips: csr_array, logits: Nodes):
        self._clicks, self._skips = Counts.of(clicks), Counts.of(skips)
        # nodes are read one by one
        self._attraction = np.ascontiguousarray(expit(logits).T)

    @abc.abstractmethod
    def log_likelihood(self, rates: Rates) -> Nodes:
        """Returns the log-likelihood of the clicks and skips of documents at nodes, given the logits of rates."""

    @abc.abstractmethod
    def slopes(self, rates: Rates, weights: Nodes) -> csr_array:
        """Returns the means of the derivatives by the logarithms of rates, [documents, rates].

        Args:
            rates: Their logits.
            weights: Of nodes.
        """


class Products(ClickRates):
    """P(click) = e s(z), of PBM and UBM: only P(skip) differs between cells and nodes at once."""

    def __init__(self, clicks: csr_array, skips: csr_array, logits: Nodes):
        super().__init__(clicks, skips, logits)
        self._clicked = clicks.sum(axis=1)[:, None] * log_expit(logits)

    def log_likelihood(self, rates: Rates) -> Nodes:
        """Returns the log-likelihood at nodes."""
        numbers, document = self._skips
        found = self._clicked + (self._clicks.numbers @ log_expit(rates))[:, None]
        examined = expit(rates)[numbers.indices]
        for node, attraction in enumerate(self._attraction):
            skipped = numbers.data * np.log1p(-examined * attraction[document])
            found[:, node] += np.bincount(document, skipped, len(found))
        return found

    def slopes(self, rates: Rates, weights: Nodes) -> csr_array:
        """Returns mean derivatives by the logarithms of rates."""
        numbers, document = self._skips
        examined, odds = expit(rates)[numbers.indices], np.zeros(len(document))
        for attraction, weight in zip(self._attraction, _by_node(weights), strict=True):
            click = examined * attraction[document]
            odds += weight[document] * click / (1 - click)
        return self._clicks.numbers - self._skips.times(odds)


class Mixtures(ClickRates):
    """P(click) = t s(z) + f (1 - s(z)), of trust bias. Rates are t of all cells, and then f.

    P(skip) has the same form, with 1 - t and 1 - f, whose logits are those of t and f with the opposite sign.
    """

    def log_likelihood(self, rates: Rates) -> Nodes:
        """Returns the log-likelihood at nodes."""
        found = np.zeros(self._attraction.T.shape)
        for counts, logits in (self._clicks, rates), (self._skips, -rates):
            numbers, document = counts
            true, false = (each[numbers.indices] for each in np.split(expit(logits), 2))
            for node, attraction in enumerate(self._attraction):
                probability = false + (true - false) * attraction[document]
                logs = numbers.data * np.log(probability)
                found[:, node] += np.bincount(document, logs, len(found))
        return found

    def slopes(self, rates: Rates, weights: Nodes) -> csr_array:
        """Returns mean derivatives by the logarithms of rates."""
        clicked = self._shares(self._clicks, rates, weights)
        skipped = self._shares(self._skips, -rates, weights)
        # log (1 - t) falls by the odds of t where log t rises by 1
        return clicked - skipped * np.exp(rates)

    def _shares(self, counts: Counts, logits: Rates, weights: Nodes) -> csr_array:
        """Returns the means of the derivatives of logarithms of probabilities by those of their rates."""
        numbers, document = counts
        true, false = (each[numbers.indices] for each in np.split(expit(logits), 2))
        of_true = np.zeros(len(document))
        for attraction, weight in zip(self._attraction, _by_node(weights), strict=True):
            attracted = true * attraction[document]
            probability = attracted + false * (1 - attraction[document])
            of_true += weight[document] * attracted / probability
        parts = counts.times(of_true), counts.times(1 - of_true)
        return csr_array(hstack(parts))


def _by_node(weights: Nodes) -> Float[np.ndarray, "nodes documents"]:
    return np.ascontiguousarray(weights.T)

"""Predictions integrate over the posteriors of tables: DBN against quadrature over all its logits."""

import itertools

import numpy as np
import pytest
from flax import nnx
from posteriors import NORMAL, PRECISION, filled, prior_mean
from small_logs import sigmoid

from clickexp.models import DynamicBayesianNetwork

GAMMA = 0.7
"""Probability of reading on."""


def joint(clicks, attraction, satisfaction):
    """P(clicks) of two documents, for arrays of their probabilities."""
    (a1, a2), (s1, _) = attraction, satisfaction
    first = a1 if clicks[0] else 1 - a1
    onward = GAMMA * ((1 - s1) if clicks[0] else 1.0)
    second = onward * a2
    return first * (second if clicks[1] else 1 - second)


@pytest.fixture(scope="module")
def dbn():
    """A model, and E[P(clicks)] of each pair of clicks on documents 1 and 2."""
    model = filled(
        DynamicBayesianNetwork(
            positions=2, query_doc_pairs=2, attraction=NORMAL, satisfaction=NORMAL, rngs=nnx.Rngs(0)
        )
    )
    model.continuation.weight[...] = np.full(
        model.continuation.weight.shape, np.log(GAMMA / (1 - GAMMA)), np.float32
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(16)
    grids = np.meshgrid(*[nodes] * 4, indexing="ij")
    weight = np.prod(np.meshgrid(*[weights / weights.sum()] * 4, indexing="ij"), axis=0)
    probabilities = []
    for role, offset in (("attraction", 0), ("satisfaction", 2)):
        rows = np.asarray(getattr(model, role).table.get_value().values, np.float64)[1:]
        mean = rows[:, 0] + prior_mean(rows[:, 2]) - 1
        sd = np.exp(rows[:, 1]) / PRECISION**0.5
        probabilities.append([sigmoid(mean[d] + sd[d] * grids[offset + d]) for d in range(2)])
    vectors = itertools.product((0, 1), repeat=2)
    return model, {clicks: (weight * joint(clicks, *probabilities)).sum() for clicks in vectors}


def batch(clicks):
    return {
        "query_doc_ids": np.array([[1, 2]], np.int32),
        "positions": np.array([[1, 2]], np.int32),
        "mask": np.ones((1, 2), bool),
        "clicks": np.array([clicks], bool),
    }


@nnx.jit
def predicted(model, batch):
    return model.predict_clicks(batch), model.predict_conditional_clicks(batch)


@pytest.mark.parametrize("first", [0, 1])
def test_conditional_given_the_click_above(dbn, first):
    model, expected = dbn
    found = np.exp(np.asarray(predicted(model, batch((first, 0)))[1]))[0]
    assert found[0] == pytest.approx(expected[1, 0] + expected[1, 1], abs=1e-4)
    assert found[1] == pytest.approx(
        expected[first, 1] / (expected[first, 0] + expected[first, 1]), abs=1e-4
    )


def test_marginal(dbn):
    model, expected = dbn
    found = np.exp(np.asarray(predicted(model, batch((0, 0)))[0]))[0]
    assert found[1] == pytest.approx(expected[0, 1] + expected[1, 1], abs=1e-4)

"""A model of two documents against numerical integration, and the divergence from the prior."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy import optimize, stats
from small_logs import Last, sigmoid

from clickexp.data import Sessions
from clickexp.metrics import LogLikelihood
from clickexp.models import DocumentCTRModel, PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.parameters.table import new_table
from clickexp.training import LazySGD, NaturalGradient, Optimizer, Trainer
from clickexp.training.optimizers import with_rate
from clickexp.training.sparse.row_optimizers import SPREAD_RATE

SESSIONS, PRECISION, BASELINE = 400, 1.5, -0.5
IMPRESSIONS = SESSIONS // 2
LL = {"ll": LogLikelihood()}
Z = np.linspace(-7, 6, 2601)
LOG_CLICK, LOG_SKIP = np.log(sigmoid(Z)), np.log(sigmoid(-Z))
LOG_PRIOR = stats.norm.logpdf(Z, BASELINE, PRECISION**-0.5)


@pytest.fixture(scope="module")
def log():
    """Each document equally often on top; clicks per document and rank."""
    rng = np.random.default_rng(3)
    ids = np.array([[1, 2], [2, 1]], np.int32)[np.arange(SESSIONS) % 2]
    clicks = rng.random(ids.shape) < np.array([0.9, 0.4]) * np.array([0.0, 0.55, 0.25])[ids]
    counts = np.array(
        [[clicks[ids[:, rank] == id, rank].sum() for rank in range(2)] for id in (1, 2)]
    )
    return Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=2), counts


def log_joint(examination, counts):
    """log P(clicks, z) of each document, independent given examination: [documents, nodes]."""
    click = np.log(examination)[:, None] + LOG_CLICK
    skip = np.log1p(-examination[:, None] * sigmoid(Z))
    return counts @ click + (IMPRESSIONS - counts) @ skip + LOG_PRIOR


def log_integral(values):
    highest = values.max(axis=1, keepdims=True)
    return np.log(np.trapezoid(np.exp(values - highest), Z, axis=1)) + highest[:, 0]


@pytest.fixture(scope="module")
def trained(log):
    config = EmbeddingParameterConfig(
        posterior="normal", prior_precision=PRECISION, add_baseline=False
    )
    model = PositionBasedModel(2, 2, attraction=config, rngs=nnx.Rngs(0))
    model.attraction.table = new_table(3, 1, PRECISION, "normal", learns_prior=False)
    rows = model.attraction.table.get_value()
    fixed = dataclasses.replace(rows.prior, mean=jnp.full(1, BASELINE))
    model.attraction.table.set_value(dataclasses.replace(rows, prior=fixed))
    slow = Optimizer(with_rate(optax.adam, 0.003), NaturalGradient(0.1, posterior_rate=0.01))
    settings = dict(batch_size=50, eval_batch_size=50, decays=0, metrics=LL)
    Trainer(slow, 600, Last(), **settings).train(model, log[0], log[0].slice(0, 50))
    return model


@pytest.mark.nightly
def test_two_documents_are_those_of_numerical_integration(log, trained):
    """At the examination that training has found: moments, predictions and the bound."""
    counts = log[1]
    examination = sigmoid(trained.examination.weight[...])[1:]
    joint = log_joint(examination, counts)
    evidence = log_integral(joint)
    posterior = np.exp(joint - evidence[:, None])
    mean = np.trapezoid(posterior * Z, Z, axis=1)
    sd = np.sqrt(np.trapezoid(posterior * (Z - mean[:, None]) ** 2, Z, axis=1))
    found, variance = trained.attraction.posterior({"query_doc_ids": jnp.array([[1, 2]])})
    found, deviation = (
        np.asarray(found[0], np.float64),
        np.sqrt(np.asarray(variance[0], np.float64)),
    )
    assert np.abs((found - mean) / sd).max() < 0.15
    assert np.abs(np.log(deviation / sd)).max() < 0.1
    rates = np.trapezoid(posterior * sigmoid(Z), Z, axis=1)
    ids = np.array([[1, 2], [2, 1]])
    lists = {"query_doc_ids": ids, "positions": np.array([[1, 2]]), "mask": np.ones((2, 2), bool)}
    np.testing.assert_allclose(
        np.exp(trained.predict_clicks(lists)), examination * rates[ids - 1], rtol=0.02
    )
    density = stats.norm.pdf(Z, found[:, None], deviation[:, None])
    bound = np.trapezoid(density * joint, Z, axis=1) + stats.norm.entropy(found, deviation)
    assert (bound <= evidence + 1e-9).all() and (bound > evidence - 0.02).all()


@pytest.mark.nightly
def test_examination_is_that_of_the_highest_evidence(log, trained):
    best = optimize.minimize(
        lambda logits: -log_integral(log_joint(sigmoid(logits), log[1])).sum(), [1.0, 0.0], tol=1e-8
    )
    found = np.asarray(trained.examination.weight[...], np.float64)[1:]
    ratio, expected = sigmoid(found), sigmoid(best.x)
    assert abs(np.log(ratio[1] / ratio[0]) - np.log(expected[1] / expected[0])) < 0.03
    lost = best.fun + log_integral(log_joint(ratio, log[1])).sum()
    assert 0 <= -lost < 0.05


class Unread(nnx.Module):
    """A tower whose table says nothing of clicks, so that its rows see their prior alone."""

    def __init__(self, offsets, spreads):
        self.table = new_table(len(offsets), 1, PRECISION, "normal", learns_prior=False)
        values = jnp.stack([jnp.asarray(offsets), jnp.asarray(spreads)], axis=1)
        self.table.set_value(dataclasses.replace(self.table.get_value(), values=values))

    def __call__(self, batch):
        return 0.0 * self.table.take(batch["query_doc_ids"])[..., 0]


OFFSETS = np.array([0.0, 0.0, 0.7, -1.2, 0.0], np.float32)
SPREADS = np.array([0.0, 0.0, 0.0, 0.4, -0.6], np.float32)


def after(rule, epochs):
    """Rows after passes over a log of one batch, in which each of ids 1 to 4 has documents."""
    ids = np.array([[1, 2, 3, 4], [4, 3, 2, 1], [2, 2, 4, 4]], np.int32)
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=ids > 2, query_doc_pairs=4)
    tower = Unread(OFFSETS, SPREADS)
    model = DocumentCTRModel(4, ctr=tower, rngs=nnx.Rngs(0))
    optimizer = Optimizer(with_rate(optax.adam, 0.01), rule)
    settings = dict(batch_size=3, eval_batch_size=3, decays=0, metrics=LL)
    trainer = Trainer(optimizer, epochs, Last(), **settings)
    trainer.train(model, log, log)
    return np.asarray(tower.table.get_value().values, np.float64)


@pytest.mark.nightly
def test_a_step_follows_the_divergence_from_the_prior():
    """KL = (precision (s^2 + m^2) - 1 - log(precision s^2)) / 2, however many documents it has."""
    rate = 0.05
    found = after(LazySGD(rate), 1)
    np.testing.assert_allclose(found[:, 0], OFFSETS - rate * PRECISION * OFFSETS, atol=1e-6)
    of_spread = np.exp(2.0 * SPREADS) - 1  # precision s^2 is exp(2 spread)
    np.testing.assert_allclose(found[:, 1], SPREADS - rate * SPREAD_RATE * of_spread, atol=1e-6)


def test_a_natural_step_is_the_gradient_of_the_divergence_times_the_inverse_fisher_information():
    """The information is 1 / s^2 for the mean, and 2 for the logarithm of the deviation."""
    rate = 0.3
    found = after(NaturalGradient(0.5, posterior_rate=rate), 1)
    variances = np.exp(2.0 * SPREADS) / PRECISION
    np.testing.assert_allclose(
        found[:, 0], OFFSETS - rate * variances * PRECISION * OFFSETS, atol=1e-6
    )
    np.testing.assert_allclose(
        found[:, 1], SPREADS - rate / 2 * (variances * PRECISION - 1), atol=1e-6
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "rule", [LazySGD(0.2), NaturalGradient(0.5, posterior_rate=0.3)], ids=["SGD", "natural"]
)
def test_the_divergence_is_zero_at_the_prior_where_rows_without_evidence_go(rule):
    found = after(rule, 80)
    np.testing.assert_allclose(found[:2], 0.0, atol=1e-6)
    np.testing.assert_allclose(found[2:], 0.0, atol=1e-3)

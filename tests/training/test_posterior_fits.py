"""Fitted tables of posteriors against quadrature, enumeration and simulated truth."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.polynomial.hermite_e import hermegauss
from posteriors import standardised
from scipy import optimize, stats
from small_logs import sigmoid

from clickexp.data import Sessions
from clickexp.metrics import LogLikelihood
from clickexp.models import DocumentCTRModel, DynamicBayesianNetwork, PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.training import (
    Trainer,
    lazy_adagrad,
    lazy_adam,
    lazy_adamw,
    lazy_sgd,
    natural_gradient,
)

pytestmark = pytest.mark.nightly

LL = {"ll": LogLikelihood()}
POSTERIOR = EmbeddingParameterConfig(posterior="normal_by_rank")
EVEN = EmbeddingParameterConfig(posterior="normal_by_rank", baseline=0.0)


def trained(model, log, optimizer=natural_gradient, **settings):
    Trainer(optimizer(), seed=0, decays=3, metrics=LL, **settings).train(model, log, log)
    return model


def log_of(ids, clicks):
    return Sessions.from_arrays(
        query_doc_ids=np.asarray(ids, np.int32),
        clicks=np.asarray(clicks, bool),
        query_doc_pairs=int(np.max(ids)),
    )


def elbo_optimum(clicks, impressions, baseline, precision):
    """Mean and deviation of the best normal posterior of one logit, by quadrature in float64."""
    nodes, weights = hermegauss(60)
    weights = weights / weights.sum()

    def loss(theta):
        mean, sd = theta[0], np.exp(theta[1])
        z = baseline + mean + sd * nodes
        expected = weights @ (clicks * z - impressions * np.logaddexp(0, z))
        return -expected + 0.5 * (precision * (sd**2 + mean**2) - 1 - np.log(precision * sd**2))

    best = optimize.minimize(loss, [0.0, 0.0], tol=1e-12)
    return best.x[0], np.exp(best.x[1])


def fitted_click_rates(seed):
    """A DCTR model and clicks and impressions of its rows, in lists of four in random order."""
    rng = np.random.default_rng(0)
    pairs, sessions, ranks = 40, 4000, 4
    truth = rng.normal(-1.0, 1.0, pairs + 1)
    # some rows are shown far more often than others
    popularity = rng.gamma(0.7, size=pairs)
    ids = np.stack(
        [
            rng.choice(pairs, ranks, replace=False, p=popularity / popularity.sum()) + 1
            for _ in range(sessions)
        ]
    )
    clicks = rng.random(ids.shape) < sigmoid(truth[ids])
    model = DocumentCTRModel(
        pairs + 2, ctr=POSTERIOR, click_rate=float(clicks.mean()), rngs=nnx.Rngs(0)
    )
    log = log_of(ids, clicks)
    slow = natural_gradient(0.02)  # so that little noise of the last steps stays
    sizes = dict(batch_size=250, eval_batch_size=4000)
    trainer = Trainer(slow, seed=seed, epochs=250, early_stopping=None, metrics=LL, **sizes)
    trainer.train(model, log, log)
    impressions = np.bincount(ids.ravel(), minlength=pairs + 3)
    return model, np.bincount(ids.ravel(), clicks.ravel(), minlength=pairs + 3), impressions


@pytest.fixture(scope="module")
def click_rates():
    return fitted_click_rates(0)


def posterior_of(tower, ids):
    mean, variance = tower.posterior({"query_doc_ids": jnp.asarray(ids, jnp.int32)[None]})
    return np.asarray(mean[0], np.float64), np.sqrt(np.asarray(variance[0], np.float64))


def priors_of(model, ids):
    """Means of the priors of rows, and their standard deviation."""
    rows = model.ctr.table.get_value()
    x = np.asarray(rows.values[ids, 2], np.float64)
    curve = np.stack([x, x**2 - 1], axis=1) @ np.asarray(rows.prior.slopes[:, 0], np.float64)
    return curve + float(model.ctr.baseline[...] + rows.prior.mean[0]), float(
        np.exp(-rows.prior.log_precision / 2)
    )


def log_integral(log_values, z):
    return np.log(np.trapezoid(np.exp(log_values - log_values.max()), z)) + log_values.max()


def test_posteriors_of_click_rates_are_those_of_quadrature(click_rates):
    """At the learned prior, a row is at the optimum of its evidence lower bound."""
    model, clicks, impressions = click_rates
    ids = np.flatnonzero(impressions)
    prior_means, prior_sd = priors_of(model, ids)
    mean, sd = posterior_of(model.ctr, ids)
    for row, id in enumerate(ids):
        best, spread = elbo_optimum(clicks[id], impressions[id], prior_means[row], prior_sd**-2)
        assert abs(mean[row] - best - prior_means[row]) < 0.25 * spread
        assert abs(np.log(sd[row] / spread)) < 0.2


def test_the_bound_is_below_the_evidence(click_rates):
    """At the posteriors that training has found, and close to it."""
    model, clicks, impressions = click_rates
    ids = np.flatnonzero(impressions)
    prior_mean, prior_sd = priors_of(model, ids)
    for id, mean, sd, before in zip(ids, *posterior_of(model.ctr, ids), prior_mean, strict=True):
        z = np.linspace(-9, 7, 20_001)

        def log_joint(z, id=id, before=before):
            likelihood = clicks[id] * z - impressions[id] * np.logaddexp(0, z)
            return likelihood + stats.norm.logpdf(z, before, prior_sd)

        evidence = log_integral(log_joint(z), z)
        nodes, weights = hermegauss(60)
        entropy = stats.norm.entropy(mean, sd)
        bound = log_joint(mean + sd * nodes) @ weights / weights.sum() + entropy
        assert evidence - 0.06 < bound <= evidence + 1e-6


NODES, WEIGHTS = hermegauss(80)


def rates_of(mean, sd):
    """Means and standard deviations of click rates whose logits are normal."""
    rates, weights = sigmoid(mean[:, None] + sd * NODES), WEIGHTS / WEIGHTS.sum()
    return rates @ weights, np.sqrt(rates**2 @ weights - (rates @ weights) ** 2)


def exact_rates(model, clicks, impressions):
    """The same under the exact posteriors, on a grid."""
    ids = np.flatnonzero(impressions > 20)
    prior_mean, prior_sd = priors_of(model, ids)
    z = np.linspace(-9, 7, 20_001)
    log_joint = clicks[ids, None] * z - impressions[ids, None] * np.logaddexp(0, z)
    log_joint += stats.norm.logpdf(z, prior_mean[:, None], prior_sd)
    posterior = np.exp(log_joint - log_joint.max(axis=1, keepdims=True))
    posterior /= posterior.sum(axis=1, keepdims=True)
    exact = posterior @ sigmoid(z)
    return exact, np.sqrt(posterior @ sigmoid(z) ** 2 - exact**2)


def test_click_rates_are_those_of_integration_and_of_a_beta_prior(click_rates):
    """Exact posteriors; a Beta prior of the same mean and variance differs in its tails.

    Steps leave noise, .1 of the deviation of the most frequent row, so that the mean of three trainings is compared.
    """
    ids = np.flatnonzero(click_rates[2] > 20)
    off, wider = [], []
    for model, clicks, impressions in (click_rates, *map(fitted_click_rates, (1, 2))):
        mean, sd = posterior_of(model.ctr, ids)
        found, deviation = rates_of(mean, sd[:, None])
        exact, exact_sd = exact_rates(model, clicks, impressions)
        off.append((found - exact) / exact_sd)
        wider.append(np.log(deviation / exact_sd))
    assert np.abs(np.mean(off, axis=0)).max() < 0.1
    assert np.abs(np.mean(wider, axis=0)).max() < 0.15

    model, clicks, impressions = click_rates
    mean, sd = posterior_of(model.ctr, ids)
    found, deviation = rates_of(mean, sd[:, None])
    prior_mean, prior_sd = priors_of(model, ids)
    rate, spread = rates_of(prior_mean, prior_sd)
    total = rate * (1 - rate) / spread**2 - 1
    beta = stats.beta(
        total * rate + clicks[ids], total * (1 - rate) + impressions[ids] - clicks[ids]
    )
    alike = np.abs(clicks[ids] / impressions[ids] - 0.5) < 0.4
    assert alike.sum() > 25
    assert np.abs((found - beta.mean()) / beta.std())[alike].max() < 0.15
    assert np.abs(np.log(deviation / beta.std()))[alike].max() < 0.15


def test_rows_never_shown_are_the_prior(click_rates):
    model, _, impressions = click_rates
    mean, sd = posterior_of(model.ctr, [42])
    assert impressions[42] == 0
    prior = model.ctr.table.get_value().prior
    np.testing.assert_allclose(mean, model.ctr.baseline[...] + prior.mean[0], rtol=1e-6)
    np.testing.assert_allclose(sd, np.exp(-prior.log_precision / 2), rtol=1e-6)


def test_predictions_integrate_over_the_posterior(click_rates):
    model = click_rates[0]
    ids = np.arange(1, 9)
    mean, sd = posterior_of(model.ctr, ids)
    nodes, weights = hermegauss(80)
    expected = sigmoid(mean[:, None] + sd[:, None] * nodes) @ (weights / weights.sum())
    batch = {"query_doc_ids": jnp.asarray(ids, jnp.int32)[None], "mask": jnp.ones((1, 8), bool)}
    np.testing.assert_allclose(np.exp(model.predict_clicks(batch)[0]), expected, rtol=1e-4)


def test_the_prior_of_a_table_is_recovered():
    """DCTR with many rows: the spread of logits, and how it goes with ranks."""
    rng = np.random.default_rng(2)
    pairs, sessions = 3000, 20_000
    truth = rng.normal(-1.0, 0.8, pairs)
    ids = np.stack([rng.choice(pairs, 6, replace=False) for _ in range(sessions)])
    clicks = rng.random(ids.shape) < sigmoid(truth[ids])
    log = log_of(ids + 1, clicks)
    model = DocumentCTRModel(
        pairs, ctr=POSTERIOR, click_rate=float(clicks.mean()), rngs=nnx.Rngs(0)
    )
    trained(model, log)
    prior = model.ctr.table.get_value().prior
    assert abs(np.exp(-prior.log_precision / 2) / 0.8 - 1) < 0.06
    assert np.abs(prior.slopes).max() < 0.06
    assert abs(float(model.ctr.baseline[...] + prior.mean[0]) + 1.0) < 0.06


def test_the_mean_of_the_prior_follows_the_ranks_of_an_ordered_log():
    """A policy that knows part of the truth: prediction of logits from mean log ranks by a parabola."""
    rng = np.random.default_rng(3)
    queries, documents, sessions = 300, 8, 12_000
    truth = rng.normal(-1.0, 1.0, (queries, documents))
    query = rng.integers(queries, size=sessions)
    order = np.argsort(-(truth[query] + rng.normal(0, 1.0, (sessions, documents))), axis=1)
    ids = query[:, None] * documents + order
    clicks = rng.random(ids.shape) < sigmoid(truth.ravel()[ids])
    log = log_of(ids + 1, clicks)
    config = POSTERIOR
    model = DocumentCTRModel(
        truth.size, ctr=config, click_rate=float(clicks.mean()), rngs=nnx.Rngs(0)
    )
    trained(model, log)
    log_ranks = np.broadcast_to(np.log(np.arange(1, documents + 1)), ids.shape)
    x = standardised(ids.ravel(), log_ranks.ravel())
    bend, slope, _ = np.polyfit(x, truth.ravel(), 2)
    prior = model.ctr.table.get_value().prior
    assert slope < -0.5
    np.testing.assert_allclose(prior.slopes[:, 0], [slope, bend], atol=0.08)
    np.testing.assert_allclose(model.ctr.table.get_value().values[1:, 2], x, atol=1e-3)


def exact_examination(shown, clicked, x, of_mean):
    """Relative examination and the prior's log variance at the largest marginal likelihood, by quadrature in float64.

    shown, clicked: [documents, ranks].
    of_mean: Coefficients of the mean of attraction logits as a polynomial in x.
    """
    nodes, weights = hermegauss(31)
    powers, ranks = np.vander(x, of_mean, increasing=True), shown.shape[1]

    def loss(point):
        log_examined = -np.logaddexp(0, -point[:ranks])
        z = (powers @ point[ranks:-1])[:, None] + np.exp(point[-1] / 2) * nodes
        log_attractive = -np.logaddexp(0, -z)
        logs = clicked @ log_examined[:, None] + clicked.sum(axis=1)[:, None] * log_attractive
        for rank in range(ranks):
            skip = np.log1p(-np.exp(log_examined[rank] + log_attractive))
            logs += (shown - clicked)[:, rank, None] * skip
        return -np.logaddexp.reduce(logs + np.log(weights), axis=1).sum()

    start = np.concatenate([np.linspace(3, 0, ranks), np.zeros(of_mean + 1)])
    best = optimize.minimize(loss, start, options={"maxiter": 300}).x
    examined = sigmoid(best[:ranks])
    return examined[1:] / examined[0], best[-1]


def test_examination_under_a_strong_policy_is_that_of_the_exact_likelihood():
    """With attraction integrated out under a prior whose mean is a parabola; with a line it is another."""
    rng = np.random.default_rng(4)
    queries, documents, ranks, sessions, held_out = 150, 12, 6, 20_000, 5_000
    truth = rng.normal(-1.0, 1.2, (queries, documents))
    query = rng.integers(queries, size=sessions + held_out)
    scores = 2.5 * truth[query] + rng.normal(size=(len(query), documents))
    ids = query[:, None] * documents + np.argsort(-scores, axis=1)[:, :ranks]
    examined = np.arange(1, ranks + 1) ** -0.7
    clicks = rng.random(ids.shape) < examined * sigmoid(truth.ravel()[ids])
    model = PositionBasedModel(ranks, truth.size, click_rate=float(clicks.mean()), rngs=nnx.Rngs(0))
    train, val = (
        log_of(ids[part] + 1, clicks[part]) for part in (slice(held_out, None), slice(held_out))
    )
    Trainer(seed=0).train(model, train, val)
    ids, clicks = ids[held_out:], clicks[held_out:]
    places = np.broadcast_to(np.arange(ranks), ids.shape)
    shown, clicked = np.zeros((2, truth.size, ranks))
    np.add.at(shown, (ids, places), 1)
    np.add.at(clicked, (ids, places), clicks)
    seen = shown.sum(axis=1) > 0
    x = standardised(ids.ravel(), np.log(places.ravel() + 1.0))
    rows = model.attraction.table.get_value()
    np.testing.assert_allclose(rows.values[1:][seen, 2], x, atol=1e-3)
    line, parabola = (exact_examination(shown[seen], clicked[seen], x, each) for each in (2, 3))
    weights = sigmoid(model.examination.weight[...])[1:]
    found = weights[1:] / weights[0]

    def distance(exact):
        return np.abs(found / exact[0] - 1).mean()

    assert distance(parabola) < 0.01 < distance(line)
    assert float(-rows.prior.log_precision) == pytest.approx(parabola[1], abs=0.25)


OPTIMIZERS = {
    "natural": natural_gradient,
    "Adagrad": lazy_adagrad,
    "Adam": lazy_adam,
    "AdamW": lazy_adamw,
    "SGD": partial(lazy_sgd, 0.05),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_intervals_of_every_row_optimizer_hold_the_truth(optimizer):
    rng = np.random.default_rng(4)
    pairs, sessions = 1500, 6000
    truth = rng.normal(-0.5, 1.0, pairs)
    ids = np.stack([rng.choice(pairs, 5, replace=False) for _ in range(sessions)])
    clicks = rng.random(ids.shape) < sigmoid(truth[ids])
    log = log_of(ids + 1, clicks)
    model = DocumentCTRModel(
        pairs, ctr=POSTERIOR, click_rate=float(clicks.mean()), rngs=nnx.Rngs(0)
    )
    trained(model, log, OPTIMIZERS[optimizer])
    mean, sd = posterior_of(model.ctr, np.arange(1, pairs + 1))
    inside = (np.abs(mean - truth) < 1.96 * sd).mean()
    assert 0.9 < inside < 0.99


def random_order(seed, sessions, queries=100, documents=12, ranks=6):
    rng = np.random.default_rng(seed)
    query = rng.integers(queries, size=sessions)
    shown = np.argsort(rng.random((sessions, documents)), axis=1)[:, :ranks]
    return rng, query[:, None] * documents + shown, queries * documents


@pytest.fixture(scope="module")
def satisfied_users():
    rng, ids, pairs = random_order(5, 10_000)
    attraction, satisfaction = rng.normal(-1.0, 1.2, pairs), rng.normal(0.0, 1.0, pairs)
    examined, clicks = np.ones(len(ids), bool), np.zeros(ids.shape, bool)
    for rank in range(ids.shape[1]):
        clicks[:, rank] = examined & (rng.random(len(ids)) < sigmoid(attraction[ids[:, rank]]))
        satisfied = clicks[:, rank] & (rng.random(len(ids)) < sigmoid(satisfaction[ids[:, rank]]))
        examined &= ~satisfied & (rng.random(len(ids)) < 0.9)
    return ids, clicks, attraction, satisfaction


def test_parameters_of_a_sparse_log_are_those_of_its_users(satisfied_users):
    """DBN with 40 impressions per pair: continuation, prior means, and intervals of both tables."""
    ids, clicks, attraction, satisfaction = satisfied_users
    log, pairs = log_of(ids + 1, clicks), len(attraction)
    model = DynamicBayesianNetwork(
        positions=6,
        query_doc_pairs=pairs,
        attraction=POSTERIOR,
        satisfaction=EVEN,
        click_rate=float(clicks.mean()),
        rngs=nnx.Rngs(0),
    )
    trained(model, log)
    for tower, truth in ((model.attraction, attraction), (model.satisfaction, satisfaction)):
        mean, sd = posterior_of(tower, np.arange(1, pairs + 1))
        assert 0.92 < (np.abs(mean - truth) < 1.96 * sd).mean() < 0.975
        assert (
            abs(float(tower.baseline[...] + tower.table.get_value().prior.mean[0]) - truth.mean())
            < 0.12
        )
    assert abs(sigmoid(np.asarray(model.continuation.weight[...]).ravel()[-1]) - 0.9) < 0.01


def test_examination_of_a_sparse_log_is_nearer_to_the_truth_than_the_most_probable():
    rng, ids, pairs = random_order(6, 8_000)
    attraction, examination = rng.normal(-1.0, 1.2, pairs), np.arange(1, 7) ** -0.7
    clicks = rng.random(ids.shape) < examination * sigmoid(attraction[ids])
    log, errors = log_of(ids + 1, clicks), {}
    for posterior in ("normal", "none"):
        config = EmbeddingParameterConfig(posterior=posterior)
        model = PositionBasedModel(
            6, pairs, attraction=config, click_rate=float(clicks.mean()), rngs=nnx.Rngs(0)
        )
        trained(model, log)
        found = sigmoid(model.examination.weight[...])[1:]
        errors[posterior] = np.abs(found / found[0] / examination - 1)[1:].mean()
    assert errors["normal"] < 0.05 < errors["none"]


def test_dense_optimizers_train_point_estimates():
    rng, ids, pairs = random_order(7, 500)
    log = log_of(ids + 1, rng.random(ids.shape) < 0.3)
    model = DocumentCTRModel(pairs, ctr=POSTERIOR, rngs=nnx.Rngs(0))
    Trainer(optax.adamw(0.01, weight_decay=0.1), epochs=2).train(model, log, log)
    rows = model.ctr.table.get_value()
    assert (
        rows.prior is None
        and np.isfinite(rows.values).all()
        and rows.values.shape == (pairs + 1, 1)
    )


def test_weight_decay_leaves_priors_alone():
    """Without a baseline, the prior holds all that rows share."""
    rng = np.random.default_rng(10)
    ids = rng.integers(1, 31, (600, 3))
    log, config = (
        log_of(ids, rng.random(ids.shape) < 0.1),
        EmbeddingParameterConfig(add_baseline=False),
    )
    found = []
    for weight_decay in 0.0, 10.0:
        model = DocumentCTRModel(30, ctr=config, rngs=nnx.Rngs(0))
        trainer = Trainer(lazy_adamw(weight_decay=weight_decay), epochs=6, eval_batch_size=600)
        trainer.train(model, log, log)
        found.append(model.ctr.table.get_value())
    assert found[0].prior.log_precision != 0 and found[0].prior.mean[0] < -0.5
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(one, other)

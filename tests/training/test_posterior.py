"""Tables with a posterior: predictions, the noise of steps, and what trainers make of them."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.polynomial.hermite_e import hermegauss
from refusals import refuses
from scipy import stats
from small_logs import sigmoid

from clickexp.data import Sessions
from clickexp.models import DocumentCTRModel
from clickexp.numerics import mean_log_sigmoid_pair
from clickexp.parameters import (
    EmbeddingParameterConfig,
    HashEmbedding,
    QREmbedding,
    RobeDEmbedding,
    Table,
    new_table,
)
from clickexp.parameters.table import Rows
from clickexp.training import (
    Trainer,
    natural_gradient,
)
from clickexp.training.sparse import noise
from clickexp.training.step import learning_rates

POSTERIOR = EmbeddingParameterConfig(posterior="normal_by_rank")


def test_mean_pair_is_that_of_the_mean_probability():
    nodes, weights = hermegauss(150)
    means, sds = np.meshgrid([-6.0, -2.0, 0.0, 3.0], [0.0, 0.3, 1.0, 2.0])
    expected = sigmoid(means[..., None] + sds[..., None] * nodes) @ (weights / weights.sum())
    found = np.exp(mean_log_sigmoid_pair(jnp.float32(means), jnp.float32(sds**2)).log)
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-4)
    np.testing.assert_allclose(found[3], expected[3], rtol=1.2e-3)


def test_mean_pair_of_extremes_is_finite():
    means, variances = jnp.float32([-80.0, 80.0, 0.0, -1.0]), jnp.float32([1.0, 1.0, 25.0, 1e4])
    pair = mean_log_sigmoid_pair(means, variances)
    assert np.isfinite(np.stack(pair)).all()
    logits = pair.log - pair.complement
    assert logits[0] < -70 and logits[1] > 70 and -1 < logits[3] < 0


def test_noise_has_the_moments_of_a_standard_normal_variable():
    found = np.concatenate(
        [
            np.asarray(
                noise.normal(jnp.arange(100_000, dtype=jnp.uint32), 2, jnp.uint32([7, step]), 0)
            ).ravel()
            for step in range(5)
        ]
    ).astype(np.float64)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        spread = np.sqrt(stats.norm.moment(2 * power) - moment**2)
        assert abs((found**power).mean() - moment) < 4 * spread / np.sqrt(found.size)
    assert abs(stats.kstest(found, "norm").statistic) < 0.004


def test_changes_are_rounded_to_numbers_of_float32_with_the_right_mean():
    """A thousandth of the last digit, which the nearest number loses, is kept on average."""
    lookups = jnp.arange(200_000, dtype=jnp.uint32)
    numbers = np.full((len(lookups), 2), -3.9, np.float32)
    last_digit = float(np.spacing(np.float32(3.9)))
    uniform = np.asarray(noise.uniform_pairs(lookups, 1, jnp.uint32([7, 1]), -1))
    assert abs(stats.kstest(uniform.ravel(), "uniform", (-0.5, 1)).statistic) < 0.003
    assert abs(np.corrcoef(uniform.T)[0, 1]) < 0.01
    for digits in (0.001, 0.4, 2.25, -1000.75):
        changes = np.full_like(numbers, digits * last_digit)
        found = np.asarray(noise.rounded(numbers, changes, uniform), np.float64) / last_digit
        np.testing.assert_array_equal(found, np.round(found))
        assert abs(found.mean() - digits) < 4 * 0.5 / np.sqrt(numbers.size)
        assert np.abs(found - digits).max() <= 1


def test_noise_of_steps_and_tables_is_independent():
    one, step, table, seed = (
        np.asarray(
            noise.normal(jnp.arange(50_000, dtype=jnp.uint32), 1, jnp.uint32(key), table)
        ).ravel()
        for key, table in (((0, 0), 0), ((0, 1), 0), ((0, 0), 1), ((1, 0), 0))
    )
    for other in (step, table, seed):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.02


def log_of(ids, clicks):
    return Sessions.from_arrays(
        query_doc_ids=np.asarray(ids, np.int32),
        clicks=np.asarray(clicks, bool),
        query_doc_pairs=int(np.max(ids)),
    )


STORES = {
    "full": lambda rows, dim: new_table(rows, dim, 2.0, "normal"),
    "hash": partial(HashEmbedding, compression_ratio=3),
    "QR addition": partial(QREmbedding, compression_ratio=2, qr_combination="addition"),
    "QR multiplication": partial(QREmbedding, compression_ratio=2),
    "QR concatenation": partial(QREmbedding, compression_ratio=2, qr_combination="concatenation"),
    "ROBE": partial(RobeDEmbedding, compression_ratio=3),
}


class Tower(nnx.Module):
    def __init__(self, made):
        self.made = made


@pytest.mark.parametrize("store", STORES)
def test_variances_of_embeddings_are_those_of_draws(store):
    prior = () if store == "full" else (2.0, "normal")
    made, rng, ids = STORES[store](60, 2, *prior), np.random.default_rng(1), jnp.arange(1, 20)
    tower = Tower(made)
    tables = [node for _, node in nnx.iter_graph(tower) if isinstance(node, Table)]
    for table in tables:
        rows = table.get_value()
        values = jnp.asarray(rng.normal(0, 0.5, rows.values.shape), jnp.float32)
        table.set_value(dataclasses.replace(rows, values=values))
    expected_mean, expected = np.asarray(made.take(ids)), np.asarray(made.variance(ids))
    drawn = []
    for table in tables:
        rows = table.get_value()
        mean, sd = np.asarray(rows.means(rows.values)), np.asarray(rows.deviations(rows.values))
        draws = jnp.asarray(rng.normal(mean, sd, (3000, *mean.shape)), jnp.float32)
        drawn.append(draws)
        table.set_value(Rows(draws[0], rows.dim))
    graphdef, state = nnx.split(tower)
    structure = jax.tree.structure(state)

    def take(values):
        return nnx.merge(graphdef, structure.unflatten(values)).made.take(ids)

    found = np.asarray(jax.jit(jax.vmap(take))(drawn))
    allowed = 5 * np.sqrt(expected.max() / 3000)
    np.testing.assert_allclose(found.mean(axis=0), expected_mean, atol=allowed)
    np.testing.assert_allclose(found.var(axis=0), expected, rtol=0.2)


def points_of(optimizer):
    """The table that a training of a model with posteriors starts from."""
    model = DocumentCTRModel(30, ctr=POSTERIOR, rngs=nnx.Rngs(0))
    Trainer(optimizer).learner(model)
    return model.ctr.table.get_value()


def test_dense_optimizers_train_point_estimates():
    points = points_of(optax.adamw(0.01, weight_decay=0.1))
    assert points.prior is None and points.values.shape == (31, 1)
    posteriors = points_of(natural_gradient())
    assert posteriors.prior is not None and posteriors.values.shape == (31, 3)


def test_a_posterior_needs_a_prior():
    with refuses(ValueError, "posterior=normal", "prior_precision above 0", "posterior=none"):
        new_table(3, 1, 0.0, "normal")
    with refuses(ValueError, "posterior='cauchy'", "none, normal or normal_by_rank"):
        new_table(3, 1, 1.0, "cauchy")


def test_learning_rates_fall_together_as_often_as_they_may():
    """Those of Optax that are no data never do, which then do not prolong a training."""
    model = DocumentCTRModel(20, rngs=nnx.Rngs(0))
    learner = Trainer(natural_gradient(0.25, 0.5, 0.125), rate_decay=0.5, decays=2).learner(model)
    rates = [learning_rates(learner.state)]
    while learner.decay():
        rates.append(learning_rates(learner.state))
    assert rates == [[0.5, 0.25, 0.125], [0.25, 0.125, 0.0625], [0.125, 0.0625, 0.03125]]
    assert int(learner.state.decays) == 2
    assert Trainer(optax.adam(0.3)).learner(model).decay() is False


@pytest.mark.nightly
def test_learning_rates_that_cannot_be_lowered_do_not_prolong_a_training():
    rng = np.random.default_rng(9)
    ids = rng.integers(1, 21, (200, 3))
    log = log_of(ids, rng.random(ids.shape) < 0.5)
    epochs = []
    for decays in 0, 3:
        trainer = Trainer(optax.adam(0.3), decays=decays, epochs=40, eval_batch_size=200)
        model = DocumentCTRModel(20, rngs=nnx.Rngs(0))
        epochs.append(trainer.train(model, log, log).epochs)
    assert epochs[0] == epochs[1] < 40

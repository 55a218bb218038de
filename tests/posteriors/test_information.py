"""Observed information of shared parameters against the exact marginal log-likelihood."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.optimize import minimize
from small_logs import sigmoid

from clickexp.data import Sessions
from clickexp.models import DynamicBayesianNetwork, PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig, Rows
from clickexp.parameters.table import Prior
from clickexp.posteriors import information as module
from clickexp.posteriors import rows as rows_module
from clickexp.posteriors import shared as posterior_module
from clickexp.posteriors.information import information
from clickexp.posteriors.intervals import shared_intervals
from clickexp.posteriors.rows import with_shared_uncertainty
from clickexp.posteriors.shared import shared_posterior
from clickexp.training import Trainer

POSITIONS = 3
PRECISION, MEAN = 0.7, -1.0
NODES = np.linspace(-9, 7, 321)


def simulated(pairs, impressions, seed=0):
    """Sessions of a PBM user; lists are three of the pairs, in random order."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(MEAN, PRECISION**-0.5, pairs + 1)
    ids = (
        np.argsort(rng.random((pairs * impressions // POSITIONS, pairs)), axis=1)[:, :POSITIONS] + 1
    )
    clicks = rng.random(ids.shape) < np.array([0.9, 0.6, 0.4]) * sigmoid(logits[ids])
    return ids.astype(np.int32), clicks


def log_joint(theta, counts):
    """log P(clicks of a row, z) at the nodes, [pairs, nodes].

    theta: logits of examination, mean, log precision.
    """
    examination, mean, precision = sigmoid(theta[:POSITIONS]), theta[3], np.exp(theta[4])
    click = examination[:, None] * sigmoid(NODES)
    prior = 0.5 * (np.log(precision) - precision * (NODES - mean) ** 2)
    return counts[0] @ np.log(click) + counts[1] @ np.log1p(-click) + prior


def log_likelihood(theta, counts):
    return np.logaddexp.reduce(log_joint(theta, counts), axis=1).sum()


def hessian(function, point, step=1e-3):
    """Central differences."""

    def at(i, j):
        moved = [function(point + step * (a * np.eye(len(point))[i] + b * np.eye(len(point))[j]))
                 for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))]  # fmt: skip
        return (moved[0] - moved[1] - moved[2] + moved[3]) / (4 * step**2)

    return np.array([[at(i, j) for j in range(len(point))] for i in range(len(point))])


def counted(ids, clicks, pairs):
    """Clicks and skips of each pair at each position, [2, pairs, positions]."""
    counts = np.zeros((2, pairs, POSITIONS))
    for rank in range(POSITIONS):
        np.add.at(counts[0], (ids[clicks[:, rank], rank] - 1, rank), 1)
        np.add.at(counts[1], (ids[~clicks[:, rank], rank] - 1, rank), 1)
    return counts


def model_at(theta, counts):
    """A PBM with these shared parameters, and the means and deviations of exact posteriors."""
    pairs, (mean, log_precision) = counts.shape[1], theta[POSITIONS:]
    joint = log_joint(theta, counts)
    posterior = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    means = posterior @ NODES
    sd = np.sqrt(posterior @ NODES**2 - means**2)
    config = EmbeddingParameterConfig(posterior="normal", baseline=0.0)
    model = PositionBasedModel(POSITIONS, pairs, attraction=config, rngs=nnx.Rngs(0))
    model.attraction.baseline[...] = jnp.float32(mean)
    model.examination.weight[...] = jnp.asarray([0.0, *theta[:POSITIONS]])
    rows = np.zeros((pairs + 1, 2))
    rows[1:, 0], rows[1:, 1] = means - mean, np.log(sd) + log_precision / 2
    prior = Prior(jnp.float32(log_precision), jnp.zeros(1))
    model.attraction.table.set_value(Rows(jnp.asarray(rows, jnp.float32), 1, prior))
    return model


def sessions(ids, clicks, pairs):
    return Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=pairs)


def ratio_deviations(theta, matrix):
    """Standard deviations of log examination at positions 2 and 3 relative to 1."""
    slopes = sigmoid(-theta[:POSITIONS])
    to_first = np.zeros((2, len(theta)))
    to_first[:, 0], to_first[0, 1], to_first[1, 2] = -slopes[0], slopes[1], slopes[2]
    return np.sqrt(np.diag(to_first @ np.linalg.inv(matrix) @ to_first.T))


def most_likely(counts):
    """Shared parameters of the highest marginal likelihood."""
    options = {"gtol": 0.05}
    lost = minimize(
        lambda theta: -log_likelihood(theta, counts), THETA, method="BFGS", options=options
    )
    return lost.x


CONTINUATION = 0.87
ORDER = [1, 2, 3, 0, 4]
"""Baseline last but one in the formulas here, first in the model."""
THETA = np.array([2.0, 0.4, -0.4, MEAN, np.log(PRECISION)])


SPARSE = pytest.param(400, 9, id="sparse", marks=pytest.mark.nightly)


@pytest.mark.parametrize("pairs, impressions", [SPARSE, pytest.param(150, 60, id="dense")])
def test_information_is_that_of_exact_integration_over_rows(pairs, impressions):
    """Identified directions to 3 %; the scale of examination and the spread of rows less.

    Clicks hardly tell these.
    """
    log = simulated(pairs, impressions)
    counts = counted(*log, pairs)
    exact = -hessian(lambda theta: log_likelihood(theta, counts), THETA)
    found = information(model_at(THETA, counts), sessions(*log, pairs))
    assert found.used.tolist() == [0, 2, 3, 4]
    matrix = found.matrix[np.ix_(ORDER, ORDER)]
    np.testing.assert_allclose(np.diag(matrix)[:3], np.diag(exact)[:3], rtol=0.04)
    found_sd, exact_sd = (ratio_deviations(THETA, each) for each in (matrix, exact))
    np.testing.assert_allclose(found_sd, exact_sd, rtol=0.03)
    score = np.array([
        (log_likelihood(THETA - step, counts) - log_likelihood(THETA + step, counts)) / 2e-3
        for step in 1e-3 * np.eye(5)
    ])  # fmt: skip
    steps = (np.linalg.solve(exact, score), np.linalg.solve(found.first, found.score)[ORDER])
    slopes = sigmoid(-THETA[:POSITIONS])
    moved = [slopes[1:] * step[1:3] - slopes[0] * step[0] for step in steps]
    np.testing.assert_allclose(*moved, atol=0.3 * exact_sd.max())


def test_the_score_expects_rows_to_follow():
    """The likelihood of shared parameters does not depend on rows: one that is off its optimum returns to it."""
    log = simulated(150, 60)
    counts = counted(*log, 150)
    at_optimum = model_at(THETA, counts)
    above = nnx.clone(at_optimum)
    rows = above.attraction.table.get_value()
    values = rows.values.at[:, 0].add(0.1 * rows.deviations(rows.values)[:, 0])
    above.attraction.table.set_value(dataclasses.replace(rows, values=values))
    before, after = (information(model, sessions(*log, 150)) for model in (at_optimum, above))
    deviations = np.sqrt(np.diag(before.complete))
    np.testing.assert_allclose(after.score / deviations, before.score / deviations, atol=0.1)


def test_rows_that_represent_others_count_as_often(monkeypatch):
    """Documents come in pairs with the same clicks, of which a sample takes one."""
    ids, clicks = simulated(20, 30)
    twins = np.concatenate([ids, ids + 20]), np.concatenate([clicks, clicks])
    model, data = model_at(THETA, counted(*twins, 40)), sessions(*twins, 40)
    monkeypatch.setattr(module, "ROOM", 10 * 20)
    monkeypatch.setattr(
        module, "_sample", lambda counts, most: module._Kept(np.arange(1, 41), np.ones(40))
    )
    whole = information(model, data)
    asked = []

    def one_of_two(counts, most):
        np.testing.assert_array_equal(counts, np.bincount(twins[0].ravel(), minlength=41))
        asked.append(most)
        return module._Kept(np.arange(1, 21), np.full(20, 2.0))

    monkeypatch.setattr(module, "_sample", one_of_two)
    half = information(model, data)
    assert asked == [20]  # 2 numbers a row for each of 4 shared parameters and 2 more
    np.testing.assert_allclose(half.matrix, whole.matrix, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(half.first, whole.first, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(half.score, whole.score, rtol=1e-4, atol=1e-3)


@pytest.mark.nightly
def test_a_sample_of_rows_stands_for_all(monkeypatch):
    log = simulated(2000, 12)
    model = model_at(THETA, counted(*log, 2000))
    whole = information(model, sessions(*log, 2000)).matrix
    monkeypatch.setattr(module, "ROOM", 10 * 400)
    sampled = information(model, sessions(*log, 2000)).matrix
    assert not np.array_equal(whole, sampled)
    expected, found = (
        ratio_deviations(THETA, each[np.ix_(ORDER, ORDER)]) for each in (whole, sampled)
    )
    np.testing.assert_allclose(found, expected, rtol=0.03)


def moments(theta, counts):
    """Mean and variance of each row, [pairs, 2], given the shared parameters."""
    joint = log_joint(theta, counts)
    weights = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    means = weights @ NODES
    return np.stack([means, weights @ NODES**2 - means**2], axis=1)


FEW = pytest.param(60, 60, id="sparse", marks=pytest.mark.nightly)


@pytest.mark.parametrize("pairs, impressions", [pytest.param(6, 6_000, id="dense"), FEW])
def test_rows_have_the_errors_of_shared_parameters(pairs, impressions, monkeypatch):
    """The law of total variance, rows on a grid, given the first examination and the baseline."""
    log = simulated(pairs, impressions)
    counts = counted(*log, pairs)
    theta = most_likely(counts)
    model, data = model_at(theta, counts), sessions(*log, pairs)
    posterior = shared_posterior(model, data)

    def variances(changed):
        ids = np.arange(1, pairs + 1, dtype=np.int32)[None]
        return np.asarray(changed.attraction.posterior({"query_doc_ids": ids})[1][0], np.float64)

    found = variances(with_shared_uncertainty(model, [model.attraction.table], posterior, data))
    exact = -hessian(lambda theta: log_likelihood(theta, counts), theta)
    free = [1, 2, 4]
    # the error of the precision of the prior is left out
    covariance = np.linalg.inv(exact[np.ix_(free, free)])[:2, :2]
    moved = [
        (moments(theta + step, counts) - moments(theta - step, counts))[:, 0] / 2e-3
        for step in 1e-3 * np.eye(5)
    ]
    slopes = np.stack(moved, axis=1)[:, 1:3]
    own = moments(theta, counts)[:, 1]
    expected = own + np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    np.testing.assert_allclose(found, expected, rtol=0.03)
    more = (expected - own) / own
    assert (more > 0.06).all() if impressions > 100 else more.max() > 0.01
    np.testing.assert_allclose((found - own) / own, more, rtol=0.25, atol=0.02 * more.max())

    # a log in the order of its documents, of which every third session is read
    with monkeypatch.context() as patch:
        patch.setattr(rows_module, "WORK", len(log[0]) * 2 // 3 + 2)
        order = np.argsort(log[0][:, 0], kind="stable")
        data_in_order = sessions(*(each[order] for each in log), pairs)
        changed = with_shared_uncertainty(model, [model.attraction.table], posterior, data_in_order)
        part = variances(changed)
        np.testing.assert_allclose((part - own).mean(), (found - own).mean(), rtol=0.25)
        assert (part - own != found - own).all()

    monkeypatch.setattr(rows_module, "ROOM", 2 * 6)  # of two rows
    some = variances(with_shared_uncertainty(model, [model.attraction.table], posterior, data))
    surest = np.argsort(own)[:2]
    np.testing.assert_allclose(some[surest], found[surest], rtol=1e-5)
    np.testing.assert_allclose(np.delete(some, surest), np.delete(own, surest), rtol=1e-4)


def test_rows_are_sampled_by_their_documents():
    counts = np.array([0, 1, 2, 1000] * 50)
    for most in (1, 30, 99, 100, 500):
        kept = module._sample(counts, most)
        assert (counts[kept.rows] > 0).all() and (np.diff(kept.rows) > 0).all(), most
        if most >= 150:
            assert len(kept.rows) == 150 and (kept.weights == 1).all()
            continue
        assert abs(len(kept.rows) - most) <= 4 * most**0.5, most
        total = kept.weights @ counts[kept.rows]
        assert total == pytest.approx(counts.sum(), rel=4 * most**-0.5), most


def test_rows_of_one_number_are_taken_at_their_optimum():
    """H_tt - sum of H_tz H_zt / H_zz by differences of the log joint probability of each row."""
    log = simulated(60, 30)
    counts = counted(*log, 60)
    rows = np.random.default_rng(1).normal(size=60)
    config = EmbeddingParameterConfig(posterior="none", baseline=MEAN, prior_precision=PRECISION)
    model = PositionBasedModel(POSITIONS, 60, attraction=config, rngs=nnx.Rngs(0))
    model.examination.weight[...] = jnp.asarray([0.0, *THETA[:POSITIONS]])
    model.attraction.table.set_value(Rows(jnp.asarray([[0.0], *rows[:, None]], jnp.float32), 1))

    def loss(point, row):
        click = sigmoid(point[:POSITIONS]) * sigmoid(point[POSITIONS] + point[-1])
        clicked, skipped = counts[:, row]
        likelihood = clicked @ np.log(click) + skipped @ np.log1p(-click)
        return PRECISION / 2 * point[-1] ** 2 - likelihood

    expected = np.zeros((4, 4))
    for row, value in enumerate(rows):
        point = np.array([*THETA[:4], value])
        each = hessian(lambda point, row=row: loss(point, row), point)
        explained = np.outer(each[:4, 4], each[4, :4]) / max(each[4, 4], PRECISION / 4)
        expected += each[:4, :4] - explained
    found = information(model, sessions(*log, 60)).matrix
    in_order = found[np.ix_(ORDER[:4], ORDER[:4])]
    np.testing.assert_allclose(in_order, expected, rtol=1e-3, atol=2e-3)


def test_rows_that_say_nothing_of_their_spread_explain_no_more_than_there_is():
    """Skips of attractive documents have a loss of negative curvature; the posterior of each row is its prior."""
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((600, 30)), axis=1)[:, :POSITIONS] + 1
    clicks = np.zeros(ids.shape, bool)
    model = model_at(np.array([0.0, 0.0, 0.0, 3.0, np.log(PRECISION)]), counted(ids, clicks, 30))
    rows = np.zeros((31, 3))
    model.attraction.table.set_value(
        Rows(jnp.asarray(rows, jnp.float32), 1, model.attraction.table.get_value().prior)
    )
    found = information(model, sessions(ids.astype(np.int32), clicks, 30))
    # of the logarithm of the precision of the prior: half a unit per row, all of which it explains
    assert found.first[-1, -1] == pytest.approx(31 / 2)
    assert found.matrix[-1, -1] == pytest.approx(0.0, abs=1e-3)


def satisfied_users(seed):
    """Sessions of DBN users who go on with probability .87; 1,000 pairs with 8 impressions each."""
    rng = np.random.default_rng(seed)
    attraction = rng.beta(1, 3, 1001)
    satisfaction = sigmoid(rng.normal(size=1001))
    query = rng.integers(0, 50, (1000, 1))
    ids = 1 + query * 20 + np.argsort(rng.random((1000, 20)), axis=1)[:, :8]
    clicks = np.zeros(ids.shape, bool)
    reading = np.ones(len(ids), bool)
    for rank in range(8):
        shown = ids[:, rank]
        clicks[:, rank] = reading & (rng.random(len(ids)) < attraction[shown])
        satisfied = clicks[:, rank] & (rng.random(len(ids)) < satisfaction[shown])
        reading &= ~satisfied & (rng.random(len(ids)) < CONTINUATION)
    return ids.astype(np.int32), clicks


@pytest.mark.nightly
def test_intervals_of_continuation_are_as_wide_as_its_errors():
    """Of DBN, on ten logs where few clicks tell satisfaction, three of which say a third as much as the others."""
    errors, deviations = [], []
    for seed in range(10):
        data = sessions(*satisfied_users(seed), 1000)
        model = DynamicBayesianNetwork(query_doc_pairs=1000, positions=8, rngs=nnx.Rngs(0))
        Trainer(seed=seed).train(model, data, data)
        (found,) = shared_intervals(model, shared_posterior(model, data))
        errors.append(np.log(found.value / (1 - found.value) / (CONTINUATION / (1 - CONTINUATION))))
        deviations.append(found.sd)
    spread = np.sqrt(np.mean(np.square(errors)))
    # of ten errors, the spread is within half and one and a half of theirs with probability .98
    assert 0.5 * spread < np.median(deviations) < 1.5 * spread
    assert max(deviations) < 4 * np.median(deviations)


def test_batches_with_holes_say_what_their_documents_say():
    log = simulated(60, 30)
    model = model_at(THETA, counted(*log, 60))
    ids, clicks = (np.insert(each, 1, 1, axis=1) for each in log)
    mask = np.insert(np.ones(log[0].shape, bool), 1, False, axis=1)
    positions = np.broadcast_to(np.array([1, 3, 2, 3], np.int32), ids.shape)
    columns = dict(query_doc_ids=ids, clicks=clicks, mask=mask, positions=positions)
    batches = [
        {name: values[part] for name, values in columns.items()}
        for part in (slice(0, 300), slice(300, 600))
    ]
    expected, found = (information(model, data) for data in (sessions(*log, 60), batches))
    np.testing.assert_allclose(found.matrix, expected.matrix, rtol=1e-4, atol=1e-3)


@pytest.mark.nightly
def test_the_first_sessions_of_a_large_log_stand_for_all(monkeypatch):
    """With intervals that are at least as wide."""
    log = simulated(300, 60)
    counts = counted(*log, 300)
    model = model_at(most_likely(counts), counts)
    whole = shared_intervals(model, shared_posterior(model, sessions(*log, 300)))
    monkeypatch.setattr(posterior_module, "WORK", len(log[0]) // 2 * 5)
    half = shared_intervals(model, shared_posterior(model, sessions(*log, 300)))
    for all_, some in zip(whole[1:], half[1:], strict=True):
        assert all_.sd * 0.97 < some.sd < all_.sd * 1.6 and some.relative == all_.relative


@pytest.mark.nightly
def test_intervals_of_maximum_likelihood_hold_the_truth():
    """Of 20 logs, 19 do on average, and at least 16 with probability .997."""
    truth, held = np.log(np.array([0.6, 0.4]) / 0.9), np.zeros(2)
    for seed in range(20):
        log = simulated(300, 9, seed)
        counts = counted(*log, 300)
        model = model_at(most_likely(counts), counts)
        posterior = shared_posterior(model, sessions(*log, 300))
        intervals = [each for each in shared_intervals(model, posterior) if each.position > 1]
        held += [
            np.log(each.relative_low) <= true <= np.log(each.relative_high)
            for each, true in zip(intervals, truth, strict=True)
        ]
    assert (held >= 16).all()

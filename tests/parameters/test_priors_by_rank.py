"""Rows that training has not shown are taken for those of average ranks, or of the rank where the policy puts them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.polynomial.hermite_e import hermegauss
from posteriors import standardised

from clickexp.data import Sessions
from clickexp.evaluation.groups import ClickMetrics
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig, HashEmbedding, QREmbedding, RobeDEmbedding
from clickexp.parameters.table import NEVER_SHOWN, Prior, Rows, Table, new_table
from clickexp.training import Trainer, natural_gradient
from clickexp.types import ByRank, swap_list_and_rank

PRECISION, MEAN, SLOPE, BEND, BASELINE = 0.8, 0.2, -0.7, 0.15, -1.0
LINE = (-1.1, 0.8, 0.3)
"""Intercept and slope of x given a log rank, and the variance around that line."""
SHOWN, NEW = 1, 2
RANKS = 4


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, np.float64)))


def mean_probability(mean, precision):
    nodes, weights = hermegauss(80)
    return sigmoid(np.asarray(mean)[..., None] + nodes / np.sqrt(precision)) @ (
        weights / weights.sum()
    )


@pytest.fixture(scope="module")
def model():
    """A position-based model of a log that has shown the first document only, at average ranks and without clicks."""
    config = EmbeddingParameterConfig(posterior="normal_by_rank", baseline=BASELINE)
    model = PositionBasedModel(
        positions=RANKS, query_doc_pairs=3, attraction=config, rngs=nnx.Rngs(0)
    )
    values = (
        jnp.zeros((4, 3)).at[:, 2].set(NEVER_SHOWN).at[SHOWN].set(jnp.asarray([-0.3, -0.5, 0.0]))
    )
    prior = Prior(jnp.log(jnp.float32(PRECISION)), jnp.full(1, MEAN), jnp.array([[SLOPE], [BEND]]))
    model.attraction.table.set_value(Rows(values, 1, prior, jnp.asarray(LINE)))
    return model


def batch(ids, mask=None):
    ids = jnp.asarray(ids, jnp.int32)
    return {
        "query_doc_ids": ids,
        "positions": jnp.arange(1, ids.shape[1] + 1)[None],
        "clicks": jnp.zeros(ids.shape, bool),
        "mask": jnp.ones(ids.shape, bool) if mask is None else jnp.asarray(mask),
    }


def x_now(rank):
    return LINE[0] + LINE[1] * np.log(rank)


def now(rank):
    """The expectation of the mean over x of that expectation and variance."""
    bend = BEND * (x_now(rank) ** 2 + LINE[2] - 1)
    return BASELINE + MEAN + SLOPE * x_now(rank) + bend


@nnx.jit
def clicks(model, lists):
    return model.predict_clicks(lists)


@nnx.jit
def scores(model, lists):
    return model.predict_relevance(lists), model.predict_attraction(lists)


def test_clicks_on_a_new_document_follow_the_rank_where_it_is_shown(model):
    lists = batch([[NEW, SHOWN, 3, NEW]])
    expected = mean_probability([now(1), BASELINE + MEAN - BEND - 0.3, now(3), now(4)], PRECISION)
    expected[1] = mean_probability([BASELINE + MEAN - BEND - 0.3], PRECISION * np.exp(1.0))[0]
    examination = sigmoid(model.examination.weight[...][1 : RANKS + 1])

    @nnx.jit
    def said(model, lists):
        outputs = ClickMetrics().outputs(model, ByRank(lists))
        predicted = model.predict_clicks(lists), model.predict_conditional_clicks(lists)
        pairs = outputs["log_probs"], outputs["conditional_log_probs"]
        return model.compute_loss(lists, aggregate=False), [
            *predicted,
            *(swap_list_and_rank(pair.log) for pair in pairs),
        ]

    loss, predicted = said(model, lists)
    for found in predicted:
        np.testing.assert_allclose(np.exp(found[0]), examination * expected, rtol=2e-4)
    np.testing.assert_allclose(loss[0], -np.log1p(-examination * expected), rtol=2e-4)


def test_ranks_count_the_documents_that_are_shown(model):
    lists = batch([[SHOWN, SHOWN, NEW, NEW]], mask=[[True, False, True, True]])
    both = np.exp(clicks(model, lists)[0, 2:]) / sigmoid(model.examination.weight[...][3:5])
    np.testing.assert_allclose(both, mean_probability([now(2), now(3)], PRECISION), rtol=2e-4)


def test_what_ranks_documents_does_not_know_their_order(model):
    """Else labelled lists, which come in the order of a policy, would tell the answer."""
    first, second = batch([[NEW, SHOWN, 3]]), batch([[3, SHOWN, NEW]])
    average = mean_probability([BASELINE + MEAN], PRECISION)[0]
    for found, of_second in zip(scores(model, first), scores(model, second), strict=True):
        np.testing.assert_array_equal(found, of_second)
        np.testing.assert_allclose(np.exp(np.asarray(found)[0, [0, 2]]), average, rtol=1e-4)


@pytest.mark.nightly
def test_draws_of_new_documents_vary_around_the_prior_of_the_rank(model):
    lists = batch([[NEW, SHOWN, 3, NEW]])
    drawn = jax.jit(
        jax.vmap(lambda key: jnp.exp(model.sample_parameters(key).predict_clicks(lists)[0])),
    )(jax.random.split(jax.random.key(0), 4000))
    expected = np.exp(clicks(model, lists)[0])
    np.testing.assert_allclose(
        drawn.mean(0), expected, atol=5 * float(drawn.std(0).max()) / np.sqrt(4000)
    )


def test_a_draw_of_a_new_document_follows_the_rank(model):
    drawn, log_ranks = model.sample_parameters(jax.random.key(1)), np.log(np.float32([1, 3]))
    first, third = np.ravel(drawn.attraction.table.take(np.array([NEW, NEW]), log_ranks))
    assert first - third == pytest.approx(now(1) - now(3), rel=1e-5)
    assert not drawn.has_posteriors


def test_samples_are_of_the_predicted_probabilities(model):
    """Of documents that training has not shown too, in the order of the log; else as at the average rank."""
    sessions = 40_000
    one = batch([[NEW, SHOWN, 3, NEW]])
    lists = {name: jnp.broadcast_to(values, (sessions, RANKS)) for name, values in one.items()}
    turned = batch([[NEW], [SHOWN], [3], [NEW]])
    examination = sigmoid(model.examination.weight[...][1 : RANKS + 1])
    expected = {
        True: np.exp(clicks(model, one)[0]),
        False: examination * np.exp(np.asarray(scores(model, turned)[1])[:, 0]),
    }
    assert abs(expected[True][0] - expected[False][0]) > 0.05
    for in_log_order, probabilities in expected.items():
        sample = jax.jit(lambda lists, key: model.sample(lists, key, in_log_order).clicks)
        found = np.asarray(sample(lists, jax.random.key(2))).mean(0)
        sigma = np.sqrt(probabilities * (1 - probabilities) / sessions)
        assert (np.abs(found - probabilities) < 5 * sigma).all(), in_log_order


STORES = {
    "full": lambda: new_table(40, 2, 1.0, "normal_by_rank"),
    "hash": lambda: HashEmbedding(40, 2, 1.0, "normal_by_rank", compression_ratio=2),
    "robe": lambda: RobeDEmbedding(40, 2, 1.0, "normal_by_rank", compression_ratio=2),
    "addition": lambda: QREmbedding(
        40, 2, 1.0, "normal_by_rank", compression_ratio=2, qr_combination="addition"
    ),
}


@pytest.mark.parametrize("store", STORES)
def test_embeddings_of_new_rows_follow_the_logarithm_of_the_rank(store):
    """Of each store, as often as it has rows that make an embedding up, and with their signs."""
    made = STORES[store]()
    nodes = [made] if isinstance(made, Table) else [node for _, node in nnx.iter_graph(made)]
    tables = [node for node in nodes if isinstance(node, Table)]
    for table in tables:
        rows = table.get_value()
        values = rows.values.at[:, rows.numbers].set(NEVER_SHOWN)
        slopes = jnp.tile(jnp.array([[SLOPE], [BEND]]), rows.dim)
        prior = Prior(jnp.zeros(()), jnp.zeros(rows.dim), slopes)
        table.set_value(Rows(values, rows.dim, prior, jnp.asarray(LINE)))
    ids = jnp.arange(1, 9)
    take = jax.jit(made.take)
    np.testing.assert_array_equal(take(ids), 0)
    ranks = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    means = now(ranks) - BASELINE - MEAN
    found = np.asarray(take(ids, np.log(ranks).astype(np.float32)))
    np.testing.assert_allclose(
        np.abs(found), np.abs(means)[:, None] * len(tables) * np.ones(2), rtol=1e-5
    )


def test_only_priors_by_rank_keep_ranks():
    assert new_table(5, 2, 1.0, "normal").get_value().values.shape == (5, 4)
    assert new_table(5, 2, 1.0, "normal_by_rank").get_value().values.shape == (5, 5)


def test_rows_that_are_always_shown_at_one_rank_tell_nothing_of_others():
    """Lists of one document: x has no spread, and a new document at another rank is one of average rank."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 50, (2000, 1)).astype(np.int32)
    log = Sessions.from_arrays(
        query_doc_ids=ids, clicks=rng.random(ids.shape) < 0.3, query_doc_pairs=60
    )
    model = PositionBasedModel(
        positions=RANKS, query_doc_pairs=60, click_rate=0.3, rngs=nnx.Rngs(0)
    )
    Trainer(epochs=2).train(model, log, log)
    lists = batch([[55, 55, 55, 55]])
    attraction = clicks(model, lists) - np.log(
        sigmoid(model.examination.weight[...][1 : RANKS + 1])
    )
    np.testing.assert_allclose(attraction, scores(model, lists)[1], rtol=1e-4)


@pytest.mark.parametrize(
    "noise", [0.5, *(pytest.param(noise, marks=pytest.mark.nightly) for noise in (0.0, 3.0))]
)
def test_ranks_in_one_list_tell_of_mean_ranks_as_far_as_rows_differ(noise):
    """The line is the regression of x, of the documents of all lists, on their log ranks."""
    rng = np.random.default_rng(1)
    query = rng.integers(40, size=3000)
    order = np.argsort(
        rng.normal(0, 1, (40, 6))[query] + noise * rng.normal(0, 1, (3000, 6)), axis=1
    )
    ids = (query[:, None] * 6 + order + 1).astype(np.int32)
    log = Sessions.from_arrays(
        query_doc_ids=ids, clicks=rng.random(ids.shape) < 0.3, query_doc_pairs=250
    )
    model = PositionBasedModel(positions=6, query_doc_pairs=250, click_rate=0.3, rngs=nnx.Rngs(0))
    for _ in range(2):  # a second training starts from what its own log shows
        Trainer(epochs=1).train(model, log, log)
    log_ranks = np.broadcast_to(np.log(np.arange(1, 7)), ids.shape).ravel()
    counts = np.bincount(ids.ravel(), minlength=251)
    x = np.zeros(251)
    x[counts > 0] = standardised(ids.ravel(), log_ranks)
    rows = model.attraction.table.get_value()
    np.testing.assert_allclose(rows.values[counts > 0, 2], x[counts > 0], atol=2e-4)
    assert np.isinf(rows.values[counts == 0, 2]).all()
    slope, intercept = np.polyfit(log_ranks, x[ids.ravel()], 1)
    around = np.var(x[ids.ravel()] - intercept - slope * log_ranks)
    np.testing.assert_allclose(rows.log_ranks, [intercept, slope, around], atol=1e-3)


def ordered_log(rng, documents, sessions):
    """Lists of six in the order of a policy that knows part of the truth, and clicks."""
    truth = np.linspace(-2.0, 1.0, documents.size)
    shown = np.stack([rng.choice(documents.size, 6, replace=False) for _ in range(sessions)])
    shown = np.take_along_axis(shown, np.argsort(rng.normal(-truth[shown], 0.5), axis=1), axis=1)
    clicks = rng.random(shown.shape) < sigmoid(truth[shown])
    return Sessions.from_arrays(
        query_doc_ids=documents[shown].astype(np.int32), clicks=clicks, query_doc_pairs=60
    )


@pytest.mark.parametrize(
    "posterior", [pytest.param("normal", marks=pytest.mark.nightly), "normal_by_rank"]
)
def test_training_goes_on_from_posteriors_that_another_log_has_left(posterior):
    """At tiny rates nothing changes, whether the second log shows documents, at other ranks, or not."""
    rng = np.random.default_rng(2)
    config = EmbeddingParameterConfig(posterior=posterior)
    model = PositionBasedModel(
        positions=6, query_doc_pairs=60, attraction=config, click_rate=0.3, rngs=nnx.Rngs(0)
    )
    log = ordered_log(rng, np.arange(1, 41), 1500)
    Trainer(epochs=6).train(model, log, log)
    before, state = model.attraction.table.get_value(), nnx.state(model)
    assert posterior == "normal" or before.prior.slopes[0, 0] < -0.3
    other = ordered_log(rng, rng.permutation(np.arange(21, 51)), 300)
    slow = natural_gradient(1e-7, 1e-7, 1e-7)
    for _ in range(2):
        Trainer(slow, epochs=1).train(model, other, other)
    after = model.attraction.table.get_value()
    known = jnp.arange(1, 41)
    np.testing.assert_allclose(after.take(known), before.take(known), atol=1e-3)
    np.testing.assert_allclose(after.variance(known), before.variance(known), rtol=1e-3)
    assert np.ptp(before.take(known)) > 1
    new = jnp.arange(51, 61)
    np.testing.assert_allclose(
        after.take(new), float(after.prior.mean[0]) * np.ones((10, 1)), atol=1e-5
    )
    assert jax.tree.structure(state) == jax.tree.structure(nnx.state(model))


def test_rows_that_were_not_counted_leave_the_prior_its_slope():
    """Batches that come anew in each pass: the one that counts has shown the first document only."""
    known, later = batch([[SHOWN] * RANKS]), batch([[SHOWN, NEW, 3, NEW]])

    class Changing:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter([known if self.passes == 1 else later])  # counted

    config = EmbeddingParameterConfig(posterior="normal_by_rank")
    model = PositionBasedModel(
        positions=RANKS, query_doc_pairs=3, attraction=config, rngs=nnx.Rngs(0)
    )
    batches = Changing()
    Trainer(epochs=3).train(model, batches, [known])
    assert batches.passes == 4
    assert np.isfinite(model.attraction.table.get_value().prior.slopes).all()
    assert np.isfinite(clicks(model, later)).all()

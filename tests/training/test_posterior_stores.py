"""Compressed tables and mixtures with posteriors find the parameters of simulated users."""

from functools import partial

import numpy as np
import pytest
from flax import nnx
from small_logs import sigmoid
from zoo import fill

from clickexp.data import Sessions
from clickexp.metrics import LogLikelihood
from clickexp.models import CascadeModel, MixtureModel, PositionBasedModel
from clickexp.parameters import (
    EmbeddingParameterConfig,
    HashEmbedding,
    QREmbedding,
    RobeDEmbedding,
    Table,
)
from clickexp.training import Trainer

pytestmark = pytest.mark.nightly

QUERIES, DOCUMENTS, RANKS = 100, 8, 6
PAIRS = QUERIES * DOCUMENTS
IDS = np.arange(1, PAIRS + 1)
EXAMINATION = np.arange(1, RANKS + 1) ** -0.7
SIZES = {"positions": RANKS, "query_doc_pairs": PAIRS}


def random_lists(rng, sessions):
    """Ids of documents of one query, in random order."""
    shown = np.argsort(rng.random((sessions, DOCUMENTS)), axis=1)[:, :RANKS]
    return (rng.integers(QUERIES, size=(sessions, 1)) * DOCUMENTS + shown + 1).astype(np.int32)


def trained(kind, ids, clicks, **settings):
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=PAIRS)
    model = kind(**SIZES, click_rate=float(clicks.mean()), **settings, rngs=nnx.Rngs(0))
    Trainer(seed=0, metrics={"ll": LogLikelihood()}).train(model, log, log)
    return model


def examination(model):
    return sigmoid(model.examination.weight[...])[1 : RANKS + 1]


def examination_error(model):
    """Mean error relative to rank 1, as far as clicks identify examination."""
    found = examination(model)
    return np.abs(found / found[0] / EXAMINATION - 1)[1:].mean()


def coverage(tower, truth, top=1.0):
    """Fraction of the 95 % intervals of click rates at rank 1 that hold the truth.

    `top` is the estimated examination there.
    """
    mean, variance = tower.posterior({"query_doc_ids": IDS[None].astype(np.int32)})
    mean, half = (
        np.asarray(mean[0], np.float64),
        1.959964 * np.sqrt(np.asarray(variance[0], np.float64)),
    )
    rate = sigmoid(truth[IDS])
    return ((top * sigmoid(mean - half) <= rate) & (rate <= top * sigmoid(mean + half))).mean()


STORES = {
    "hash": HashEmbedding,
    "QR addition": partial(QREmbedding, qr_combination="addition"),
    "QR multiplication": QREmbedding,
    "ROBE": RobeDEmbedding,
}
SPREAD = 0.8


@pytest.mark.parametrize("name", STORES)
def test_compressed_tables_find_the_attraction_of_users_that_they_can_express(name):
    """Users of such a store with random numbers.

    What it makes of them is tested by definition in test_compressed.py. Tables of a row per id
    would have twice as many numbers. Half of the rows serve several documents, which the intervals
    count on.
    """
    rng, store = np.random.default_rng(1), STORES[name]
    users = fill(
        store(PAIRS + 1, 1, compression_ratio=2), lambda shape: rng.normal(0, SPREAD, shape)
    )
    truth = np.asarray(users.take(np.arange(PAIRS + 1)), np.float64)[:, 0] - 1.0
    ids = random_lists(rng, 12_000)
    clicks = rng.random(ids.shape) < EXAMINATION * sigmoid(truth[ids])
    config = EmbeddingParameterConfig(embedding_fn=store, compression_ratio=2)
    model = trained(PositionBasedModel, ids, clicks, attraction=config)
    assert examination_error(model) < 0.05
    assert 0.91 < coverage(model.attraction, truth, examination(model)[0]) < 0.98
    tables = [node for _, node in nnx.iter_graph(model) if isinstance(node, Table)]
    assert all(table.get_value().has_posteriors for table in tables)
    if name in ("hash", "ROBE"):  # of factors and terms, one may do the work of the other
        assert np.exp(-tables[0].get_value().prior.log_precision / 2) == pytest.approx(
            SPREAD, rel=0.15
        )


@pytest.mark.timeout(900)
def test_a_mixture_finds_its_users_with_a_table_of_posteriors_each():
    """Three of five users follow PBM; the others are cascade users who like other documents."""
    rng, sessions, share = np.random.default_rng(2), 16_000, 0.6
    ids, browsing = random_lists(rng, sessions), rng.random((sessions, 1)) < share
    truth = rng.normal(-0.5, 1.0, PAIRS + 1), rng.normal(-1.5, 0.8, PAIRS + 1)
    chance = rng.random(ids.shape)
    attracted = chance < sigmoid(truth[1][ids])
    first = attracted & (np.cumsum(attracted, axis=1) == 1)
    clicks = np.where(browsing, chance < EXAMINATION * sigmoid(truth[0][ids]), first)
    model = trained(MixtureModel, ids, clicks, models=[PositionBasedModel, CascadeModel])
    pbm, cascade = model.models
    assert np.exp(model.log_prior()[0]) == pytest.approx(share, abs=0.05)
    assert examination_error(pbm) < 0.05
    assert 0.91 < coverage(pbm.attraction, truth[0], examination(pbm)[0]) < 0.98
    assert 0.91 < coverage(cascade.attraction, truth[1]) < 0.98
    # of PBM, clicks do not tell attraction from examination at the first rank
    tower = cascade.attraction
    prior = tower.table.get_value().prior
    assert float(tower.baseline[...] + prior.mean[0]) == pytest.approx(truth[1].mean(), abs=0.15)
    assert np.exp(-prior.log_precision / 2) == pytest.approx(truth[1].std(), rel=0.15)

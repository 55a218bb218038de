"""Sums of towers: logits, posteriors and limits of the sum are those of its terms together."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from scipy.special import expit
from zoo import fill

from clickexp.data import Column, Sessions
from clickexp.errors import ConfigError
from clickexp.models import DocumentCTRModel, UserBrowsingModel
from clickexp.parameters import (
    EmbeddingParameterConfig,
    LinearParameterConfig,
    Sizes,
    SumParameterConfig,
    Table,
)
from clickexp.training import Trainer, natural_gradient

PAIRS, DOCUMENTS, FEATURES = 9, 4, 3
SIZES = Sizes(
    PAIRS,
    click_rate=0.2,
    columns={"document_ids": DOCUMENTS},
    features={"query_doc_features": FEATURES},
)


def table(**settings):
    return EmbeddingParameterConfig(**settings)


def document(**settings):
    return table(use_feature="document_ids", add_baseline=False, **settings)


def built(**terms):
    """The sum with normal numbers everywhere."""
    rng = np.random.default_rng(1)
    return fill(
        SumParameterConfig(terms).build(SIZES, rngs=nnx.Rngs(0)),
        lambda shape: rng.normal(size=shape),
    )


def uncertain(**terms):
    """The sum with posteriors that differ from each other and from their priors."""
    rng = np.random.default_rng(2)
    tower = SumParameterConfig(terms).build(SIZES, rngs=nnx.Rngs(0))
    for term in tower.terms.values():
        rows = term.table.get_value()
        values = jnp.asarray(rng.normal(0, 0.5, rows.values.shape), jnp.float32)
        prior = dataclasses.replace(
            rows.prior, mean=jnp.full(rows.dim, 0.3), log_precision=jnp.log(jnp.float32(3))
        )
        term.table.set_value(dataclasses.replace(rows, values=values, prior=prior))
    return tower


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return {
        "query_doc_ids": rng.integers(0, PAIRS + 1, (5, 6)).astype(np.int32),
        "document_ids": rng.integers(0, DOCUMENTS + 1, (5, 6)).astype(np.int32),
        "query_doc_features": rng.normal(size=(5, 6, FEATURES)).astype(np.float32),
        "positions": np.arange(1, 7, dtype=np.int32)[None],
        "clicks": rng.random((5, 6)) < 0.3,
        "mask": np.ones((5, 6), bool),
    }


@nnx.jit
def logit(tower, batch):
    return tower.logit(batch)


@nnx.jit
def posterior(tower, batch):
    return tower.posterior(batch)


def test_the_logit_is_the_sum_of_those_of_the_terms(batch):
    tower = built(
        pair=table(posterior="none"),
        document=document(posterior="none"),
        features=LinearParameterConfig(),
    )
    terms = (logit(tower.terms[name], batch) for name in ("pair", "document", "features"))
    pair, of_document, features = (np.float64(each) for each in terms)
    np.testing.assert_allclose(logit(tower, batch), pair + of_document + features, atol=1e-5)
    assert posterior(tower, batch)[1] is None


def test_the_probability_is_the_mean_over_the_posteriors_of_all_tables(batch):
    tower = uncertain(pair=table(posterior="normal"), document=document(posterior="normal"))
    terms = [posterior(tower.terms[name], batch) for name in ("pair", "document")]
    mean, variance = (sum(np.float64(part) for part in parts) for parts in zip(*terms, strict=True))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    expected = (
        expit(mean[..., None] + np.sqrt(variance)[..., None] * nodes) @ weights / weights.sum()
    )
    assert 0.5 < np.sqrt(variance).max() < 2
    log_prob, prob = nnx.jit(lambda tower, batch: (tower.log_prob(batch), tower.prob(batch)))(
        tower, batch
    )
    np.testing.assert_allclose(np.exp(log_prob), expected, rtol=1.2e-3)
    np.testing.assert_allclose(prob, expected, rtol=1.2e-3)


def test_each_table_has_a_row_for_every_value_of_its_column(batch):
    tower = built(pair=table(), document=document())
    rows = {name: term.table.get_value().values.shape[0] for name, term in tower.terms.items()}
    assert rows == {"pair": PAIRS + 1, "document": DOCUMENTS + 1}
    assert tower.limits() == {"query_doc_ids": PAIRS, "document_ids": DOCUMENTS}


def test_the_smallest_table_of_a_column_limits_it():
    tower = built(small=table(use_feature="document_ids", parameters=2), large=document())
    assert tower.limits() == {"document_ids": 2}


def test_each_table_has_a_prior_of_its_own():
    terms = {
        "pair": table(posterior="normal", prior_precision=4.0),
        "document": document(posterior="normal"),
    }
    tower = SumParameterConfig(terms).build(SIZES, rngs=nnx.Rngs(0))
    precisions = {
        name: float(jnp.exp(term.table.get_value().prior.log_precision))
        for name, term in tower.terms.items()
    }
    assert precisions == pytest.approx({"pair": 4.0, "document": 1.0})


def test_a_term_may_be_left_out_and_one_is_needed():
    tower = SumParameterConfig({"pair": table(), "document": None}).build(SIZES, rngs=nnx.Rngs(0))
    assert list(tower.terms) == ["pair"]
    with refuses(ConfigError, "at least one", "terms="):
        SumParameterConfig({"pair": None})


def test_models_take_a_sum_for_a_tower(batch):
    terms = {"pair": table(posterior="none"), "document": document(posterior="none")}
    sizes = {
        "query_doc_pairs": PAIRS,
        "positions": 6,
        "columns": {"document_ids": DOCUMENTS},
        "rngs": nnx.Rngs(0),
    }
    model = UserBrowsingModel(attraction=SumParameterConfig(terms), **sizes)
    alone = DocumentCTRModel(
        PAIRS, document(posterior="none"), columns=sizes["columns"], rngs=nnx.Rngs(0)
    )
    with refuses(ValueError, "document_ids"):
        model.predict_clicks({**batch, "document_ids": batch["document_ids"] + DOCUMENTS})
    shapes = (
        nnx.eval_shape(lambda model: model.predict_clicks(batch), each).shape
        for each in (alone, model)
    )
    assert len({*shapes}) == 1
    both = nnx.DiffState(0, nnx.Any(nnx.Param, Table))
    gradient = nnx.jit(nnx.grad(lambda model: model.compute_loss(batch), argnums=both))(model)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def hierarchical_log(queries=400, documents=60, shown=24, lists=44_000, ranks=4, seed=0):
    """Logits -1 + N(0, 1) of the document + N(0, .5) of the pair; only the first pairs of a query are shown."""
    rng = np.random.default_rng(seed)
    of_query = np.stack([rng.permutation(documents) for _ in range(queries)])
    logits = -1 + rng.normal(0, 1, documents)[of_query] + rng.normal(0, 0.5, of_query.shape)
    query = rng.integers(0, queries, lists)
    place = rng.random((lists, shown)).argsort(axis=1)[:, :ranks]
    clicks = rng.random((lists, ranks)) < expit(logits[query[:, None], place])
    log = Sessions.from_arrays(
        query_doc_ids=(query[:, None] * documents + place + 1).astype(np.int32),
        clicks=clicks,
        extra={Column("document_ids", "int32"): of_query[query[:, None], place] + 1},
    ).with_pairs(queries * documents)
    return log, of_query, logits


@pytest.fixture(scope="module")
def fitted():
    """The log, its truth, and a model of pairs and documents that was fitted to it."""
    log, of_query, logits = hierarchical_log()
    terms = {"pair": table(posterior="normal"), "document": document(posterior="normal")}
    model = DocumentCTRModel(
        log.query_doc_pairs,
        SumParameterConfig(terms),
        columns={"document_ids": 60},
        rngs=nnx.Rngs(0),
    )
    train, val = log.slice(0, 40_000), log.slice(40_000, 44_000)
    Trainer(natural_gradient(), 30, None, batch_size=512, decays=2).train(model, train, val)
    return model, of_query, logits


@pytest.mark.nightly
def test_learned_priors_say_how_much_documents_and_pairs_differ(fitted):
    model, _, _ = fitted
    sd = {
        name: float(jnp.exp(-term.table.get_value().prior.log_precision / 2))
        for name, term in model.ctr.terms.items()
    }
    assert sd["document"] == pytest.approx(1.0, abs=0.2)  # of 60 documents: standard error .09
    assert sd["pair"] == pytest.approx(0.5, abs=0.08)


@pytest.mark.nightly
def test_a_pair_never_shown_borrows_from_its_document(fitted):
    model, of_query, logits = fitted
    ids = np.arange(1, of_query.size + 1, dtype=np.int32).reshape(of_query.shape)
    batch = {
        "query_doc_ids": ids,
        "document_ids": of_query.astype(np.int32) + 1,
        "mask": np.ones(ids.shape, bool),
    }
    predicted = np.float64(model.ctr.logit(batch))
    unseen = slice(None), slice(24, None)
    of_documents = logits[unseen].var() - 0.25  # what the document explains
    error = np.mean((predicted - logits)[unseen] ** 2)
    assert error < 0.25 + 0.05 * of_documents + 0.02

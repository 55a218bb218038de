"""Tables that a loss reads at the same ids lie side by side; they train as the same tables apart do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_logs import leaves, packed, ragged_log, superbatch

from clickexp.data.batches import batch_like
from clickexp.models import (
    DynamicBayesianNetwork,
    MixtureModel,
    PositionBasedModel,
    UserBrowsingModel,
)
from clickexp.parameters import EmbeddingParameterConfig, HashEmbedding, Table
from clickexp.training import Trainer, lazy_adagrad, lazy_adam, natural_gradient
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.step import TrainStep, split_model

RANKS, PAIRS, BATCH, STEPS, PASSES = 4, 30, 16, 4, 3
SIZES = {"query_doc_pairs": PAIRS, "click_rate": 0.3}
POINTS = EmbeddingParameterConfig(posterior="none")
LOG = ragged_log(BATCH * STEPS, RANKS, PAIRS - 3)
BATCH_LIKE = batch_like(packed(LOG, PAIRS))
nightly = pytest.mark.nightly


def dbn(**towers):
    return DynamicBayesianNetwork(**SIZES, **towers, rngs=nnx.Rngs(0))


def with_sites(model):
    """The model with what earlier logs say, of some rows and of each table something else."""
    rng = np.random.default_rng(0)
    for _, table in [*nnx.iter_graph(model)]:
        if isinstance(table, Table):
            rows = table.get_value().with_sites()
            sites = rng.gamma(2.0, size=(PAIRS + 1, 2)) * (rng.random((PAIRS + 1, 1)) < 0.7)
            values = rows.values.at[:, -2:].set(jnp.asarray(sites, jnp.float32))
            table.set_value(dataclasses.replace(rows, values=values))
    return model


def mixture():
    parts = [PositionBasedModel, UserBrowsingModel]
    return MixtureModel(parts, positions=RANKS, **SIZES, rngs=nnx.Rngs(0))


CASES = {
    "posteriors": (dbn, natural_gradient(), 8),
    "sites": (lambda: with_sites(dbn()), natural_gradient(), 8),
    "posteriors by Adagrad": (dbn, lazy_adagrad(), 16),
    "points by Adam": (lambda: dbn(attraction=POINTS, satisfaction=POINTS), lazy_adam(), 12),
    "a mixture": (mixture, natural_gradient(), 8),
}


def trained(build, optimizer, batch):
    """The packed tables, and all that is learned, after some passes with refits of the priors."""
    graphdef, state = split_model(build(), optimizer, batch=batch)
    step, arrays = TrainStep(graphdef, optimizer), superbatch(LOG, BATCH)
    nothing = learned_priors.no_documents(state.tables)
    found = jax.jit(step.count)(nothing, state, arrays, np.int32(STEPS))
    tables = jax.jit(learned_priors.shares)(state.tables, found, {})
    state = dataclasses.replace(state, tables=tables, steps_per_pass=jnp.float32(STEPS))
    steps, refit = jax.jit(step), jax.jit(learned_priors.refit_priors)
    for _ in range(PASSES):
        state, *_ = steps(state, arrays, np.int32(STEPS))
        state = dataclasses.replace(state, tables=refit(state.tables))
    return state.tables, leaves((packing.learned(state.tables), state.params))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "posteriors" else nightly) for n in CASES]
)
def test_tables_train_side_by_side_as_they_do_apart(name):
    build, optimizer, width = CASES[name]
    apart, expected = trained(build, optimizer, None)
    tables, found = trained(build, optimizer, BATCH_LIKE)
    assert len(packing.groups(apart)) == 2
    ((path, members),) = packing.groups(tables).items()
    assert len(members) == 2 and packing.arrays(tables)[path].shape == (PAIRS + 1, width)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    assert max(np.abs(each).max() for each in found) > 0.5


APART = {
    "fewer rows": dict(
        satisfaction=EmbeddingParameterConfig(embedding_fn=HashEmbedding, compression_ratio=2)
    ),
    "equally many rows, other ids": dict(
        satisfaction=EmbeddingParameterConfig(embedding_fn=HashEmbedding, compression_ratio=1)
    ),
    "numbers beside posteriors": dict(satisfaction=POINTS),
    "more than a cache line": dict(satisfaction=EmbeddingParameterConfig(embedding_features=8)),
}


@pytest.mark.parametrize("name", APART)
def test_tables_that_do_not_fit_together_lie_apart(name):
    _, state = split_model(dbn(**APART[name]), natural_gradient(), batch=BATCH_LIKE)
    assert [len(members) for members in packing.groups(state.tables).values()] == [1, 1]


def test_a_trainer_finds_them_in_its_training_sessions():
    """Without these, tables lie apart, since what a loss reads shows on a batch."""
    arrays = [
        packing.groups(Trainer().learner(dbn(), train).state.tables)
        for train in (packed(LOG, PAIRS), None)
    ]
    assert list(map(len, arrays)) == [1, 2]

"""Lookups of table rows wherever a tower makes them: in a scan, under vmap, in a part that is never run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_logs import leaves, ragged_log, superbatch

from clickexp.errors import ConfigError
from clickexp.models import DocumentCTRModel
from clickexp.parameters import Parameter, new_table
from clickexp.training import LazyAdagrad, Optimizer
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.step import TrainStep, split_model

RANKS, PAIRS, BATCH, STEPS, DIM = 4, 12, 16, 3, 2


class Sequential(Parameter):
    """A logit per rank that depends on the rows of the ranks above: h_r = tanh(h_{r-1} + row_r)."""

    def __init__(self):
        self.table = new_table(PAIRS + 1, DIM, prior_precision=0.5)
        rows = np.random.default_rng(0).normal(size=(PAIRS + 1, DIM)).astype(np.float32)
        self.table.get_value().values = jnp.asarray(rows)

    def logit(self, batch):
        raise NotImplementedError

    def cell(self, state, row):
        state = jnp.tanh(state + row)
        return state, jnp.sum(state, axis=-1)


class AtOnce(Sequential):
    def logit(self, batch):
        rows = jnp.moveaxis(self.table.take(batch["query_doc_ids"]), 1, 0)
        return jax.lax.scan(self.cell, jnp.zeros(rows.shape[1:]), rows)[1].T


class InScan(Sequential):
    def logit(self, batch):
        def step(state, ids):
            return self.cell(state, self.table.take(ids))

        ids = batch["query_doc_ids"].T
        return jax.lax.scan(step, jnp.zeros((ids.shape[1], DIM)), ids)[1].T


class InCompiledScan(InScan):
    def logit(self, batch):
        return jax.jit(super().logit)(batch)


class UnderVmap(Sequential):
    def logit(self, batch):
        def one_list(ids):
            return jax.lax.scan(self.cell, jnp.zeros(DIM), self.table.take(ids))[1]

        return jax.vmap(one_list)(batch["query_doc_ids"])


class InCond(Sequential):
    def logit(self, batch):
        ids = batch["query_doc_ids"]
        return jax.lax.cond(ids[0, 0] > 3, lambda: self.table.take(ids)[..., 0], lambda: jnp.zeros(ids.shape))


class WithUnreadTable(AtOnce):
    def __init__(self):
        super().__init__()
        self.spare = new_table(5, 3, prior_precision=1.0)


def trained(tower, steps=STEPS):
    """Tables after counting rows and some steps, by name."""
    model = DocumentCTRModel(PAIRS, tower, rngs=nnx.Rngs(0))
    optimizer = Optimizer(optax.sgd(0.1), LazyAdagrad(0.5))
    graphdef, state = split_model(model, optimizer)
    step, arrays = TrainStep(graphdef, optimizer), superbatch(ragged_log(BATCH * STEPS, RANKS, PAIRS), BATCH)
    found = jax.jit(step.count)(learned_priors.no_documents(state.tables), state, arrays, np.int32(STEPS))
    state = dataclasses.replace(state, tables=learned_priors.shares(state.tables, found))
    state, loss, _ = jax.jit(step)(state, arrays, np.int32(steps))
    return leaves(packing.learned(state.tables)), loss


@pytest.fixture(scope="module")
def reference():
    return trained(AtOnce())


@pytest.mark.parametrize("tower", [InScan, InCompiledScan, UnderVmap])
def test_a_lookup_trains_the_same_rows_wherever_it_stands(tower, reference):
    (expected,), expected_loss = reference
    (rows,), loss = trained(tower())
    np.testing.assert_allclose(rows, expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert np.abs(rows[:, :DIM] - Sequential().table.get_value().values).max() > 0.1


def test_rows_outside_a_scanned_batch_and_masked_documents_keep_every_bit():
    """The log shows no document above PAIRS - 3; padding points at row 0, which no list shows."""
    model = DocumentCTRModel(PAIRS, InScan(), rngs=nnx.Rngs(0))
    optimizer = Optimizer(optax.set_to_zero(), LazyAdagrad(0.5))
    graphdef, state = split_model(model, optimizer)
    columns = ragged_log(BATCH, RANKS, PAIRS - 3)
    step, arrays = TrainStep(graphdef, optimizer), superbatch(columns, BATCH)
    (before,) = leaves(state.tables)
    (after,) = leaves(jax.jit(step)(state, arrays, np.int32(1))[0].tables)
    shown = np.arange(RANKS) < columns["lengths"][:, None]
    untouched = np.setdiff1d(np.arange(PAIRS + 1), columns["query_doc_ids"][shown])
    assert untouched.size > 0
    np.testing.assert_array_equal(after[untouched], before[untouched])


def test_a_table_that_the_loss_never_reads_stays_as_it_is(reference):
    (rows, spare), _ = sorted_by_width(trained(WithUnreadTable())[0]), None
    np.testing.assert_allclose(rows, reference[0][0], rtol=2e-5, atol=1e-6)
    assert (spare[:, :3] == 0).all()


def sorted_by_width(tables):
    return sorted(tables, key=lambda values: -len(values))


def test_a_lookup_that_may_not_happen_is_refused():
    with pytest.raises(ConfigError, match="a table is read inside cond; read it before"):
        trained(InCond())

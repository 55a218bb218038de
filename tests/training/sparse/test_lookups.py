"""Reads of rows: before a scan over ranks, where they train, and inside of what JAX traces apart, which is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from refusals import refuses
from small_logs import leaves, ragged_log, shown, superbatch

from clickexp.errors import ConfigError
from clickexp.models import DocumentCTRModel
from clickexp.parameters import Parameter, new_table
from clickexp.training import LazyAdagrad, Optimizer, natural_gradient
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


class Compiled(Sequential):
    def logit(self, batch):
        return jax.jit(self.table.take)(batch["query_doc_ids"])[..., 0]


class UnderVmap(Sequential):
    def logit(self, batch):
        def one_list(ids):
            return jax.lax.scan(self.cell, jnp.zeros(DIM), self.table.take(ids))[1]

        return jax.vmap(one_list)(batch["query_doc_ids"])


class WithUnreadTable(AtOnce):
    def __init__(self):
        super().__init__()
        self.spare = new_table(5, 3, prior_precision=1.0)


COLUMNS = ragged_log(BATCH * STEPS, RANKS, PAIRS - 3)
UNTOUCHED = np.setdiff1d(np.arange(PAIRS + 1), COLUMNS["query_doc_ids"][shown(COLUMNS)])


def trained(tower):
    """Tables after counting rows and some steps, and the loss of the steps."""
    model = DocumentCTRModel(PAIRS, tower, rngs=nnx.Rngs(0))
    optimizer = Optimizer(optax.sgd(0.1), LazyAdagrad(0.5))
    graphdef, state = split_model(model, optimizer)
    step, arrays = TrainStep(graphdef, optimizer), superbatch(COLUMNS, BATCH)
    nothing = learned_priors.no_documents(state.tables)
    found = jax.jit(step.count)(nothing, state, arrays, np.int32(STEPS))
    state = dataclasses.replace(state, tables=learned_priors.shares(state.tables, found, {}))
    state, loss, _ = jax.jit(step)(state, arrays, np.int32(STEPS))
    return leaves(packing.learned(state.tables)), loss


@pytest.fixture(scope="module")
def reference():
    return trained(AtOnce())


class Twice(AtOnce):
    """Reads the same ids twice."""

    def logit(self, batch):
        logits = super().logit(batch)
        return (logits + super().logit(batch)) / 2


def test_reads_of_the_same_ids_get_the_same_rows(reference):
    """Others keep every bit: those no list shows, and row 0, which padding points at."""
    (expected,), expected_loss = reference
    (rows,), loss = trained(Twice())
    np.testing.assert_allclose(rows, expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    before = np.asarray(Sequential().table.get_value().values)
    assert np.abs(rows[:, :DIM] - before).max() > 0.1
    assert {0, PAIRS} < set(UNTOUCHED)
    np.testing.assert_array_equal(rows[UNTOUCHED, :DIM], before[UNTOUCHED])


def counted(tower):
    """Documents and sums of log ranks of each row of a table whose prior follows ranks."""
    tower.table = new_table(PAIRS + 1, DIM, 0.5, "normal_by_rank")
    model, optimizer = DocumentCTRModel(PAIRS, tower, rngs=nnx.Rngs(0)), natural_gradient()
    graphdef, state = split_model(model, optimizer)
    count, nothing = TrainStep(graphdef, optimizer).count, learned_priors.no_documents(state.tables)
    (found,) = jax.jit(count)(nothing, state, superbatch(COLUMNS, BATCH), np.int32(STEPS)).values()
    return found


def test_log_ranks_of_documents_are_counted():
    ids, mask = COLUMNS["query_doc_ids"], shown(COLUMNS)
    log_ranks = np.broadcast_to(np.log(np.arange(1, RANKS + 1)), ids.shape)[mask]
    columns = [np.bincount(ids[mask], weights, PAIRS + 1) for weights in (None, log_ranks)]
    found = counted(AtOnce())
    np.testing.assert_allclose(found.sums, np.stack(columns, axis=1), rtol=1e-5)
    np.testing.assert_allclose(found.squares, log_ranks @ log_ranks, rtol=1e-5)


def test_a_table_that_the_loss_never_reads_stays_as_it_is(reference):
    (rows, spare), _ = sorted_by_width(trained(WithUnreadTable())[0]), None
    np.testing.assert_allclose(rows, reference[0][0], rtol=2e-5, atol=1e-6)
    assert (spare[:, :3] == 0).all()


def sorted_by_width(tables):
    return sorted(tables, key=lambda values: -len(values))


@pytest.mark.parametrize("tower", [InScan, UnderVmap, Compiled])
def test_a_read_inside_of_what_is_traced_apart_is_refused(tower):
    with refuses(ConfigError, "a table is read inside a loop", "rows of all documents before"):
        trained(tower())

"""The table step: optimizers against float64 loops, gradients against those of whole tables."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_logs import fill_tables, leaves, ragged_log, shown, sigmoid, superbatch

from clickexp.data.batches import at_step, with_mask
from clickexp.models import (
    DocumentCTRModel,
    DocumentRankCTRModel,
    DynamicBayesianNetwork,
    PositionBasedModel,
    UserBrowsingModel,
)
from clickexp.numerics import log_add
from clickexp.parameters import (
    DeepParameterConfig,
    EmbeddingParameter,
    EmbeddingParameterConfig,
    Parameter,
    Table,
    new_table,
)
from clickexp.training import (
    LazyAdagrad,
    LazyAdam,
    LazySGD,
    Optimizer,
    RowOptimizer,
    lazy_adagrad,
    lazy_adam,
)
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.step import TrainStep, split_model

RANKS, PAIRS, BATCH, STEPS = 4, 12, 16, 6
FREE = EmbeddingParameterConfig(add_baseline=False, posterior="none", prior_precision=0.0)
ROWS_ONLY = optax.set_to_zero()


def document_model(pairs=PAIRS):
    """P(click) = s(row): the gradient of a row is the sum of s(row) - click over its documents."""
    return fill_tables(DocumentCTRModel(pairs, FREE, rngs=nnx.Rngs(0)))


@functools.cache
def compiled(rule):
    """A step of the model of documents, and its state before."""
    optimizer = Optimizer(ROWS_ONLY, rule)
    graphdef, state = split_model(document_model(), optimizer)
    return jax.jit(TrainStep(graphdef, optimizer)), state


def run_steps(rule, columns, steps=STEPS, start=None):
    """Packed rows before the first step and after each, and without what the optimizer keeps."""
    (step, state), arrays = compiled(rule), superbatch(columns, BATCH)
    state = state if start is None else dataclasses.replace(state, tables=start(state.tables))
    states = [state]
    for index in range(steps):
        one = {name: values[index][None] for name, values in arrays.items()}
        states.append(step(states[-1], one, np.int32(1))[0])
    packed = [leaves(each.tables)[0] for each in states]
    return packed, [leaves(packing.learned(each.tables))[0][:, :1] for each in states]


def sgd(rule, row, memory, grad, step):
    return row - rule.learning_rate * grad


def adagrad(rule, row, memory, grad, step):
    memory["total"] = memory.get("total", 0.0) + grad**2
    return row - rule.learning_rate * grad / (np.sqrt(memory["total"]) + rule.eps)


def adam(rule, row, memory, grad, step):
    """Bias corrections count the steps of the run; decay is decoupled and scaled by the rate."""
    memory["m"] = rule.b1 * memory.get("m", 0.0) + (1 - rule.b1) * grad
    memory["v"] = rule.b2 * memory.get("v", 0.0) + (1 - rule.b2) * grad**2
    m, v = memory["m"] / (1 - rule.b1**step), memory["v"] / (1 - rule.b2**step)
    return row - rule.learning_rate * (m / (np.sqrt(v) + rule.eps) + rule.weight_decay * row)


RULES = {
    "sgd": (LazySGD(0.3), sgd),
    "adagrad": (LazyAdagrad(0.5, eps=1e-6), adagrad),
    "adam": (LazyAdam(0.05, b1=0.8, b2=0.95), adam),
    "adam with decay": (LazyAdam(0.05, weight_decay=0.5), adam),
}


def by_hand(rows, rule, update, columns, steps=STEPS):
    """The same steps row by row in float64: only rows of documents that are shown change."""
    rows, memories = rows.astype(np.float64), [{} for _ in rows]
    batches, masks = (
        superbatch(columns, BATCH),
        superbatch(dict(mask=shown(columns)), BATCH)["mask"],
    )
    for index in range(steps):
        grads = {}
        for place in np.argwhere(masks[index]):
            row = batches["query_doc_ids"][index][tuple(place)]
            error = sigmoid(rows[row]) - batches["clicks"][index][tuple(place)]
            grads[row] = grads.get(row, 0.0) + error
        for row, grad in grads.items():
            rows[row] = update(rule, rows[row], memories[row], grad, index + 1)
    return rows


@pytest.mark.parametrize("name", RULES)
def test_row_optimizers_match_a_float64_loop(name):
    """Rows out of the batch keep every bit, and so do those that masked documents point at."""
    rule, update = RULES[name]
    columns = ragged_log(BATCH * STEPS, RANKS, PAIRS - 2)
    mask = shown(columns)
    columns["query_doc_ids"] = np.where(mask, columns["query_doc_ids"], PAIRS)
    columns["query_doc_ids"][0][~mask[0]] = -1
    columns["clicks"] |= ~mask
    packed, rows = run_steps(rule, columns)
    expected = by_hand(rows[0], rule, update, columns)
    np.testing.assert_allclose(rows[-1], expected, rtol=2e-5, atol=2e-5)
    assert np.abs(expected - rows[0]).max() > 0.1
    for index in range(STEPS):
        batch = slice(index * BATCH, (index + 1) * BATCH)
        touched = np.unique(columns["query_doc_ids"][batch][mask[batch]])
        changed = np.flatnonzero((packed[index] != packed[index + 1]).any(axis=1))
        np.testing.assert_array_equal(changed, touched)
    never = [0, PAIRS - 1, PAIRS]
    np.testing.assert_array_equal(packed[0][never], packed[-1][never])
    assert packed[-1].shape == (PAIRS + 1, 4)
    assert (packed[-1][:, 0] == 0).all()  # the accumulator, between steps
    if rule.slots == 2:
        assert (packed[-1][1 : PAIRS - 1, 2] > 0).all()


def test_the_first_step_of_rows_that_start_at_zero():
    """Where a logit is exactly 0 its gradient is s(0) - click, too."""
    columns, rule = ragged_log(BATCH, RANKS, PAIRS), LazySGD(0.3)
    _, (before, after) = run_steps(
        rule, columns, 1, lambda tables: jax.tree.map(jnp.zeros_like, tables)
    )
    assert (before == 0).all()
    np.testing.assert_allclose(after, by_hand(before, rule, sgd, columns, 1), rtol=1e-5)


def test_log_add_shares_its_gradient_between_equals():
    for a in (-1.0, -1e30):
        gradients = jax.grad(log_add, argnums=(0, 1))(a, a)
        np.testing.assert_allclose(gradients, (0.5, 0.5), rtol=1e-6)


def test_an_all_masked_batch_changes_nothing():
    columns = ragged_log(BATCH, RANKS, PAIRS)
    columns["lengths"][:] = 0
    (before, after), _ = run_steps(RULES["adam with decay"][0], columns, 1)
    np.testing.assert_array_equal(before, after)


def test_lazy_adam_is_adam_where_every_row_is_touched():
    columns = ragged_log(BATCH * STEPS, RANKS, PAIRS, full=True)
    everything = np.resize(np.arange(PAIRS + 1), BATCH * RANKS).reshape(BATCH, RANKS)
    columns["query_doc_ids"] = np.tile(everything, (STEPS, 1)).astype(np.int32)
    adam = optax.adam(0.05, b1=0.8, b2=0.95)
    _, seen = run_steps(RULES["adam"][0], columns)
    rows = jnp.asarray(seen[0][:, 0])
    optimizer = adam.init(rows)
    for clicks in superbatch(columns, BATCH)["clicks"]:
        errors = sigmoid(rows)[everything] - clicks
        gradient = np.bincount(everything.ravel(), errors.ravel(), PAIRS + 1)
        with jax.numpy_dtype_promotion("standard"):
            changes, optimizer = adam.update(jnp.asarray(gradient, jnp.float32), optimizer)
        rows += changes
    np.testing.assert_allclose(seen[-1][:, 0], rows, rtol=1e-5, atol=1e-5)


class TakesTwice(Parameter):
    """Reads one table for two ids a document, one of them of a list a session."""

    def __init__(self, *, rngs):
        self.table = new_table(PAIRS + 1, 2)

    def logit(self, batch):
        one = self.table.take(batch["query_doc_ids"])
        other = self.table.take(batch["query_doc_ids"][:, ::-1])
        return one[..., 0] * other[..., 1] + one[..., 1]


def shared_tower():
    """One tower plays both roles of DBN: its table is taken from twice with the same ids."""
    tower = EmbeddingParameter(dataclasses.replace(FREE, parameters=PAIRS), rngs=nnx.Rngs(0))
    return DynamicBayesianNetwork(attraction=tower, satisfaction=tower, rngs=nnx.Rngs(0))


def wide():
    towers = EmbeddingParameterConfig(embedding_features=3, posterior="none", prior_precision=0.0)
    return PositionBasedModel(RANKS, PAIRS, attraction=towers, rngs=nnx.Rngs(0))


def table_examination():
    examination = EmbeddingParameterConfig(
        use_feature="examination_idx",
        parameters=(RANKS + 1) ** 2,
        posterior="none",
        prior_precision=0.0,
    )
    return UserBrowsingModel(RANKS, PAIRS, examination, FREE, rngs=nnx.Rngs(0))


def ranks_by_document():
    rows = (PAIRS + 1) * RANKS
    ctr = EmbeddingParameterConfig(
        use_feature="ctr_idx", parameters=rows - 1, posterior="none", prior_precision=0.0
    )
    return DocumentRankCTRModel(RANKS, PAIRS, ctr, rngs=nnx.Rngs(0))


MODELS = {
    "one take": lambda: PositionBasedModel(RANKS, PAIRS, attraction=FREE, rngs=nnx.Rngs(0)),
    "several features a row": wide,
    "two takes": lambda: DocumentCTRModel(ctr=TakesTwice, rngs=nnx.Rngs(0)),
    "two tables": lambda: DynamicBayesianNetwork(PAIRS, FREE, FREE, rngs=nnx.Rngs(0)),
    "one tower in two roles": shared_tower,
    "document and rank": ranks_by_document,
    "table of examination": table_examination,
}


MANY = ("several features a row", "two takes", "one tower in two roles")
"""What the model of documents above does not have."""


def by_tier(names, in_default):
    marks = {True: (), False: pytest.mark.nightly}
    return [pytest.param(name, marks=marks[name in in_default]) for name in names]


@pytest.mark.parametrize("name", by_tier(MODELS, MANY))
def test_gradients_are_those_of_the_whole_table(name):
    """A step of plain descent at rate 1 moves every parameter by its gradient."""
    model, columns = fill_tables(MODELS[name]()), ragged_log(BATCH, RANKS, PAIRS)
    arrays, optimizer = superbatch(columns, BATCH), Optimizer(optax.sgd(1.0), LazySGD(1.0))
    graphdef, state = split_model(model, optimizer)
    state, loss, documents = jax.jit(TrainStep(graphdef, optimizer))(state, arrays, np.int32(1))

    graphdef, tables, params, other = nnx.split(model, Table, nnx.Param, ...)

    def summed_loss(tables, params):
        batch = at_step(with_mask(jax.tree.map(jnp.asarray, arrays)), 0)
        batch["query_doc_ids"] = jnp.where(batch["mask"], batch["query_doc_ids"], 0)
        return nnx.merge(graphdef, tables, params, other).compute_loss(batch, aggregate=False).sum()

    gradients = jax.jit(jax.value_and_grad(summed_loss, argnums=(0, 1)))
    expected, (table_grads, grads) = gradients(tables, params)
    after_tables = packing.learned(state.tables)
    moved = zip(*map(leaves, (after_tables, tables, table_grads)), strict=True)
    for after, before, grad in moved:
        np.testing.assert_allclose(before - after, grad, rtol=1e-4, atol=2e-6)
        assert np.abs(grad).max() > 0.01
    for after, before, grad in zip(*map(leaves, (state.params, params, grads)), strict=True):
        np.testing.assert_allclose(before - after, grad / (BATCH * RANKS), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert documents == columns["lengths"].sum()


class PerSession(Parameter):
    """Reads one row per session: its ids have no axis of documents, and no mask applies to them."""

    def __init__(self, *, rngs):
        self.table = new_table(PAIRS + 1, 1, prior_precision=1.0)

    def logit(self, batch):
        return self.table.take(batch["query_doc_ids"][:, 0])


DROPOUT = DeepParameterConfig(features=3, hidden_units=4, layers=1, dropout=0.5)
IDLE = {
    "two tables": (
        MODELS["two tables"],
        Optimizer(optax.adam(0.1), LazyAdam(0.05, weight_decay=0.5)),
    ),
    "prior, dropout": (
        lambda: PositionBasedModel(RANKS, PAIRS, DROPOUT, rngs=nnx.Rngs(0)),
        lazy_adagrad(),
    ),
    "ids of sessions": (lambda: DocumentCTRModel(ctr=PerSession, rngs=nnx.Rngs(0)), lazy_adam()),
    "dense": (MODELS["one take"], Optimizer(optax.adamw(0.1))),
}


def array_leaves(tree):
    leaves = jax.tree.leaves(tree)
    keys = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [
        np.asarray(jax.random.key_data(leaf) if key else leaf) for leaf, key in zip(leaves, keys)
    ]


@pytest.mark.parametrize("name", by_tier(IDLE, ["ids of sessions"]))
def test_batches_past_the_last_step_change_nothing(name):
    """Even if they hold sessions: the same bits as from a loop over the others alone."""
    build, optimizer = IDLE[name]
    columns = ragged_log(BATCH * STEPS, RANKS, PAIRS)
    columns["query_doc_features"] = (
        np.random.default_rng(1).normal(size=(BATCH * STEPS, RANKS, 3)).astype("f4")
    )
    arrays, model = superbatch(columns, BATCH), build()
    model.train()
    graphdef, start = split_model(model, optimizer)
    step = TrainStep(graphdef, optimizer)

    @jax.jit
    def traced_loop(state, steps):
        def body(index, carry):
            state, loss, documents = carry
            batch = at_step(with_mask(arrays), index)
            state, batch_loss = step._step(state, batch, jnp.array(True))
            return state, loss + batch_loss, documents + jnp.sum(batch["mask"], dtype=jnp.int32)

        return jax.lax.fori_loop(0, steps, body, (state, jnp.zeros(()), jnp.zeros((), jnp.int32)))

    arrays = jax.tree.map(jnp.asarray, arrays)
    for steps in (STEPS - 2, STEPS):
        found, expected = (
            jax.jit(step)(start, arrays, np.int32(steps)),
            traced_loop(start, np.int32(steps)),
        )
        for one, other in zip(array_leaves(found), array_leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other)
    nothing = learned_priors.no_documents(start.tables)
    counted = jax.jit(step.count)(nothing, start, arrays, np.int32(STEPS - 2))
    few = {name: values[: STEPS - 2] for name, values in arrays.items()}
    expected = jax.jit(step.count)(nothing, start, few, np.int32(STEPS - 2))
    for one, other in zip(array_leaves(counted), array_leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@dataclasses.dataclass(frozen=True)
class HalfSteps(RowOptimizer):
    """A user's rule: one `update`."""

    def update(self, row, state, grad, step):
        return row - self.learning_rate / 2 * grad, []


def test_a_rule_of_the_user_is_one_update():
    columns = ragged_log(BATCH * STEPS, RANKS, PAIRS)
    (_, ours), (_, theirs) = (run_steps(rule, columns) for rule in (LazySGD(0.3), HalfSteps(0.6)))
    np.testing.assert_array_equal(ours[-1], theirs[-1])
    assert (ours[0] != ours[-1]).any()

"""The Gaussian prior of rows: its share a step, its sum an epoch, the estimate it leads to."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_logs import fill_tables, leaves, packed, ragged_log, shown, sigmoid, superbatch

from clickexp.metrics import LogLikelihood
from clickexp.models import DocumentCTRModel, DynamicBayesianNetwork
from clickexp.parameters import EmbeddingParameter, EmbeddingParameterConfig
from clickexp.parameters.table import new_table
from clickexp.training import EarlyStopping, LazySGD, Optimizer, Trainer
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.step import TrainStep, split_model

RANKS, PAIRS, BATCH, STEPS, PRECISION = 4, 9, 8, 5, 1.7


def tower(precision, baseline=False):
    return EmbeddingParameterConfig(
        parameters=PAIRS, add_baseline=baseline, posterior="none", prior_precision=precision
    )


def one_role(precision):
    return DocumentCTRModel(PAIRS, tower(precision), rngs=nnx.Rngs(0))


def two_roles(precision):
    shared = EmbeddingParameter(tower(precision), rngs=nnx.Rngs(0))
    return DynamicBayesianNetwork(attraction=shared, satisfaction=shared, rngs=nnx.Rngs(0))


COLUMNS = ragged_log(BATCH * STEPS, RANKS, PAIRS - 2)
COUNTS = np.bincount(COLUMNS["query_doc_ids"][shown(COLUMNS)], minlength=PAIRS + 1)


@functools.cache
def moves_of_an_epoch(build, precision):
    """Rows before any step, the sum of descent steps at rate 1 of an epoch, and shares."""
    model, optimizer = fill_tables(build(precision)), Optimizer(optax.set_to_zero(), LazySGD(1.0))
    graphdef, state = split_model(model, optimizer)
    step, arrays = TrainStep(graphdef, optimizer), superbatch(COLUMNS, BATCH)
    nothing = learned_priors.no_documents(state.tables)
    found = jax.jit(step.count)(nothing, state, arrays, np.int32(STEPS))
    state = dataclasses.replace(state, tables=learned_priors.shares(state.tables, found, {}))
    run, total = jax.jit(step), 0.0
    (before,), (packed,) = leaves(packing.learned(state.tables)), leaves(state.tables)
    for index in range(STEPS):
        one = {name: values[index][None] for name, values in arrays.items()}
        (after,) = leaves(packing.learned(run(state, one, np.int32(1))[0].tables))
        total = total + (after.astype(np.float64) - before)[:, 0]
    return before, total, packed[:, -1]


@pytest.mark.parametrize("build", [one_role, pytest.param(two_roles, marks=pytest.mark.nightly)])
def test_an_epoch_pulls_a_row_by_precision_times_row(build):
    """However often its documents are shown, in whatever batches; unseen rows are not pulled."""
    rows, with_prior, _ = moves_of_an_epoch(build, PRECISION)
    _, without, _ = moves_of_an_epoch(build, 0.0)
    seen = COUNTS > 0
    expected = np.where(seen, -PRECISION * rows[:, 0], 0.0)
    assert 0 < seen.sum() < PAIRS and np.abs(expected).max() > 1
    np.testing.assert_allclose(with_prior - without, expected, rtol=1e-4, atol=1e-5)


def test_the_share_of_a_document_is_one_over_the_count_of_its_row_or_zero():
    *_, share = moves_of_an_epoch(one_role, PRECISION)
    np.testing.assert_allclose(share, (COUNTS > 0) / np.maximum(COUNTS, 1), rtol=1e-6)


def newton_map(columns, precision, iterations=30):
    """Minimiser (baseline, rows) in float64 of the summed loss + precision / 2 sum(rows^2)."""
    mask = shown(columns)
    ids, clicks = columns["query_doc_ids"][mask], columns["clicks"][mask].astype(np.float64)
    design = np.column_stack([np.ones(len(ids)), np.eye(PAIRS + 1)[ids]])
    penalty = precision * np.diag([0.0, *np.ones(PAIRS + 1)])
    theta = np.zeros(PAIRS + 2)
    for _ in range(iterations):
        p = sigmoid(design @ theta)
        gradient = design.T @ (p - clicks) + penalty @ theta
        theta -= np.linalg.solve(design.T @ (design * (p * (1 - p))[:, None]) + penalty, gradient)
    assert np.abs(gradient).max() < 1e-9
    return theta[0], theta[1:]


@pytest.mark.parametrize("precision", [0.5, pytest.param(4.0, marks=pytest.mark.nightly)])
def test_training_reaches_the_map_estimate(precision):
    """Full-batch descent; log and prior are repeated, so that an epoch has many steps."""
    columns, repeats = ragged_log(32, RANKS, PAIRS), 800
    baseline, rows = newton_map(columns, precision)
    tiled = {name: np.tile(v, (repeats, *[1] * (v.ndim - 1))) for name, v in columns.items()}
    log = packed(tiled, PAIRS)
    model = DocumentCTRModel(PAIRS, tower(precision * repeats, baseline=True), rngs=nnx.Rngs(0))
    optimizer = Optimizer(optax.sgd(2.0), LazySGD(0.1))
    options = dict(batch_size=32, eval_batch_size=32, steps_per_execution=100, shuffle=False)
    options["metrics"] = {"ll": LogLikelihood()}
    Trainer(optimizer, 2, EarlyStopping(patience=2), **options).train(model, log, log.slice(0, 32))
    np.testing.assert_allclose(model.ctr.table.get_value().values[:, 0], rows, atol=1e-3)
    np.testing.assert_allclose(model.ctr.baseline[...], baseline, atol=1e-3)
    assert np.abs(rows).max() > 0.1


def test_the_prior_of_a_large_table_is_fitted_to_some_of_its_blocks(monkeypatch):
    """A parabola by least squares over shown rows of the blocks that count; the means of shown rows stay."""
    monkeypatch.setattr(learned_priors, "_ENOUGH", 10_000)
    block, number, rng = learned_priors._BLOCK, 40_000, np.random.default_rng(0)
    table = new_table(number, 1, 1.0, "normal_by_rank")
    x, shown = rng.normal(size=number), rng.random(number) < 0.8
    curve = 0.4 - 0.7 * x + 0.2 * (x**2 - 1)
    offsets = np.where(shown, curve + rng.normal(size=number), 0.0)
    values = np.stack(
        [offsets, np.where(shown, -0.5, 0.0), np.where(shown, x, np.inf), shown / 7], axis=1
    )
    rows = dataclasses.replace(table.get_value(), values=jnp.asarray(values, jnp.float32))
    found = jax.jit(learned_priors._refitted)(rows, rows.prior)
    counted = shown & (np.arange(number) // block % (number // 10_000) == 0)
    assert 5000 < counted.sum() < 10_000
    bend, slope, constant = np.polyfit(x[counted], offsets[counted], 2)
    expected = constant + bend, slope, bend
    np.testing.assert_allclose(
        [found.prior.mean[0], *found.prior.slopes[:, 0]], expected, rtol=1e-3
    )
    np.testing.assert_allclose(found.means(found.values)[shown, 0], offsets[shown], atol=1e-5)
    assert (np.asarray(found.values)[~shown, 0] == 0).all()


def test_accelerators_refit_a_large_table_in_few_turns(monkeypatch):
    """Kernels of each turn take longer to start than to run there; blocks for the cache of a CPU are 24,415."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rows = new_table(1, 1, 1.0, "normal_by_rank").get_value()
    values = jax.ShapeDtypeStruct((100_000_000, 4), jnp.float32)
    large = dataclasses.replace(rows, values=values)
    text = jax.jit(learned_priors._refitted).lower(large, rows.prior).as_text()
    turns = re.findall(r"cond \{\s+%\w+ = stablehlo.constant dense<(\d+)>", text)
    assert max(map(int, turns)) == 24

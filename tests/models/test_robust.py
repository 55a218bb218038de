"""Padding, batch shapes, positions and traces: what must not change a model's answers."""

import jax
import jax.numpy as jnp
import numpy as np
import zoo
from flax import nnx
from jax.extend.core import jaxprs_in_params

from clickexp.types import ByRank

ALONE = [zoo.UBM, zoo.DBN]


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


@zoo.nightly_every_model
def test_it_does_not_matter_what_padding_holds(case):
    run, model, rng = zoo.runner(case.name), zoo.random_model(case), np.random.default_rng(2)
    batch = zoo.every_click_vector(np.tile(np.arange(zoo.RANKS + 1), 16))
    garbage = {
        "query_doc_ids": rng.integers(0, zoo.PAIRS, batch["mask"].shape).astype(np.int32),
        "positions": rng.integers(0, 2, batch["mask"].shape).astype(np.int32),
        "clicks": rng.random(batch["mask"].shape) < 0.5,
    }
    other = {name: np.where(batch["mask"], batch[name], values) for name, values in garbage.items()}
    for function in run.predict, run.loss:
        jax.tree.map(same, function(model, {**batch, **other}), function(model, batch))


@zoo.nightly_every_model
def test_neither_more_ranks_of_padding_nor_positions_shared_by_all_lists_matter(case):
    run, model, batch = zoo.runner(case.name), zoo.random_model(case), zoo.every_click_vector()
    more = zoo.POSITIONS - zoo.RANKS
    longer = {name: np.pad(values, ((0, 0), (0, more))) for name, values in batch.items()}
    longer["positions"] = np.arange(1, zoo.POSITIONS + 1, dtype=np.int32)[None]
    batch["positions"] = np.tile(longer["positions"][:, : zoo.RANKS], (len(batch["mask"]), 1))
    actual = run.predict(model, longer)
    jax.tree.map(lambda a, e: same(a[:, : zoo.RANKS], e), actual, run.predict(model, batch))
    assert np.all(actual["loss"][:, zoo.RANKS :] == 0)


@zoo.by_tier(ALONE, nightly=zoo.without(zoo.CASES, ALONE))
def test_one_session_and_one_document_are_batches_like_any_other(case):
    """The first list alone, and its first document alone."""
    run, model, batch = zoo.runner(case.name), zoo.random_model(case), zoo.every_click_vector()
    expected = run.predict(model, batch)
    for row in 0, 21:
        for ranks in zoo.RANKS, 1:
            alone = {name: values[row : row + 1, :ranks] for name, values in batch.items()}
            actual = run.predict(model, alone)
            jax.tree.map(lambda a, e: same(a, e[row : row + 1, :ranks]), actual, expected)


@zoo.by_tier([zoo.DBN], nightly=zoo.without(zoo.CASES, [zoo.DBN]))
def test_one_trace_a_shape(case):
    """Fresh, random and updated parameters, numpy and JAX batches: all the same program."""
    run, batch, model = zoo.Runner(case), zoo.every_click_vector(), zoo.random_model(case)
    _, gradient = run.loss(model, batch)
    updated = zoo.random_model(case)
    nnx.update(updated, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model), gradient))
    for other in zoo.point(case.build(rngs=nnx.Rngs(1))), model, updated:
        for inputs in batch, {name: jnp.asarray(values) for name, values in batch.items()}:
            run.predict(other, inputs)
            run.loss(other, inputs)
    shapes = batch["clicks"].shape, batch["positions"].shape
    assert run.traces["predict", *shapes] == 1
    assert run.traces["loss", *shapes] == 1


def program_size(case, method, ranks):
    """Operations in the program of a method for lists of so many ranks, loops counted once."""
    sizes = {name: ranks for name in ("positions",) if name in case.build.keywords}
    model = case.build(rngs=nnx.Rngs(0), **sizes)
    shape = jax.ShapeDtypeStruct((4, ranks), jnp.int32)
    flags = jax.ShapeDtypeStruct((4, ranks), bool)
    batch = {"query_doc_ids": shape, "positions": shape, "clicks": flags, "mask": flags}
    return operations(
        jax.make_jaxpr(lambda lists: getattr(model, method)(ByRank(lists)))(batch).jaxpr
    )


def operations(jaxpr):
    inner = [j for equation in jaxpr.eqns for j in jaxprs_in_params(equation.params)]
    return len(jaxpr.eqns) + sum(map(operations, inner))


@zoo.nightly_every_model
def test_programs_do_not_grow_with_the_ranks(case):
    for method in "conditional", "marginal":
        assert program_size(case, method, 40) == program_size(case, method, 10), method

"""The offset for the context of a search session: its formula, and what it leaves as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses

from clickexp.data.context import CONTEXT
from clickexp.errors import ConfigError
from clickexp.models import PositionBasedModel, UserBrowsingModel
from clickexp.parameters import (
    ContextParameterConfig,
    EmbeddingParameterConfig,
    PositionParameterConfig,
    Sizes,
    SumParameterConfig,
    Table,
)
from clickexp.parameters.context import in_new_session

LISTS, RANKS, PAIRS = 6, 3, 9


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    lists = {name: rng.integers(0, 4, (LISTS, 1)).astype(np.uint8) for name in [*CONTEXT][:3]}
    repeated = {name: rng.random((LISTS, 1)) < 0.5 for name in [*CONTEXT][3:5]}
    return {
        **lists,
        **repeated,
        "document_seen": rng.integers(0, 3, (LISTS, RANKS)).astype(np.uint8),
        "query_doc_ids": rng.integers(1, PAIRS + 1, (LISTS, RANKS)).astype(np.int32),
        "positions": np.arange(1, RANKS + 1, dtype=np.int32)[None],
        "clicks": rng.random((LISTS, RANKS)) < 0.4,
        "mask": np.ones((LISTS, RANKS), bool),
    }


LINEAR = ContextParameterConfig()


def built(config=LINEAR, seed=1):
    tower = config.build(Sizes(), rngs=nnx.Rngs(0))
    tower.weight[...] = jnp.asarray(
        np.random.default_rng(seed).normal(size=tower.weight.shape), jnp.float32
    )
    return tower


@nnx.jit
def logit(tower, batch):
    return tower.logit(batch)


def regressors(batch):
    """x, document by document."""
    found = np.zeros((LISTS, RANKS, 9))
    for at in np.ndindex(LISTS, RANKS):
        index, previous, clicks = (float(batch[name][at[0], 0]) for name in [*CONTEXT][:3])
        repeated, same = (float(batch[name][at[0], 0]) for name in [*CONTEXT][3:5])
        seen = int(batch["document_seen"][at])
        found[at] = [
            *(index > 0, np.log1p(index), previous > 0, clicks > 0, np.log1p(clicks)),
            *(repeated, same, seen > 0, seen > 1),
        ]
    return found


def test_the_offset_is_linear_in_what_came_before(batch):
    tower = built()
    expected = regressors(batch) @ np.float64(tower.weight[...])
    np.testing.assert_allclose(logit(tower, batch), expected, atol=2e-6)


def test_a_network_starts_from_the_same_lists(batch):
    tower = built(ContextParameterConfig(hidden_units=[4]))
    layer = tower.hidden.layers[0]

    def hidden(x):
        z = x @ np.float64(layer.kernel[...]) + np.float64(layer.bias[...])
        return np.where(z > 0, z, np.expm1(np.minimum(z, 0)))

    expected = (hidden(regressors(batch)) - hidden(np.zeros(9))) @ np.float64(tower.weight[...])
    np.testing.assert_allclose(logit(tower, batch), expected, atol=5e-6)


@pytest.mark.parametrize("hidden_units", [(), (4, 3)])
def test_it_is_zero_for_the_first_list_of_a_user_and_without_context(batch, hidden_units):
    tower = built(ContextParameterConfig(hidden_units=hidden_units))
    first = {name: np.zeros_like(values) for name, values in batch.items()}
    np.testing.assert_array_equal(logit(tower, first), 0.0)
    np.testing.assert_array_equal(logit(tower, {"mask": batch["mask"]}), 0.0)


def test_columns_of_lists_make_one_offset_per_list(batch):
    tower = built(ContextParameterConfig(columns=["session_clicks", "query_repeated"]))
    assert logit(tower, batch).shape == (LISTS, 1)


def test_a_batch_with_part_of_the_context_is_an_error(batch):
    del batch["session_clicks"]
    with pytest.raises(KeyError, match="session_clicks"):
        built().logit(batch)


def test_in_a_new_session_the_other_term_is_left():
    table, sizes = EmbeddingParameterConfig(), Sizes(PAIRS)
    tower = SumParameterConfig({"pair": table, "context": LINEAR}).build(sizes, rngs=nnx.Rngs(0))
    assert in_new_session(tower) == ("terms/pair/", tower.terms["pair"])
    assert in_new_session(tower.terms["pair"]) == ("", tower.terms["pair"])
    both = SumParameterConfig({"one": table, "other": table}).build(sizes, rngs=nnx.Rngs(0))
    assert in_new_session(both) == ("", both)


def test_the_data_needs_search_sessions():
    sizes = Sizes(columns={"session_index": 3, "session_clicks": 4})
    with refuses(ConfigError, "previous_clicks", "dataset.columns.search_session="):
        ContextParameterConfig().build(sizes, rngs=nnx.Rngs(0))
    ContextParameterConfig(columns=["session_index"]).build(sizes, rngs=nnx.Rngs(0))
    for columns in ([], ["clicks"]):
        with refuses(ConfigError, f"columns={columns}", "session_index, "):
            ContextParameterConfig(columns=columns)


def with_context(model, role, default):
    terms = {"tower": default, "context": ContextParameterConfig()}
    return model(RANKS, PAIRS, **{role: SumParameterConfig(terms)}, rngs=nnx.Rngs(0))


ROLES = {
    "attraction": EmbeddingParameterConfig(),
    "examination": PositionParameterConfig(),
    "browsing": PositionParameterConfig(use_feature="examination_idx"),
}


@nnx.jit
def said(model, batch):
    return (
        model.predict_clicks(batch),
        model.predict_relevance(batch),
        model.predict_attraction(batch),
    )


@pytest.mark.parametrize("role", ["attraction", "examination"])
def test_clicks_depend_on_context_and_relevance_does_not(batch, role):
    fitted = with_context(PositionBasedModel, role, ROLES[role])
    alone = PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0))
    clicks, relevance, _ = map(np.asarray, said(fitted, batch))
    np.testing.assert_allclose(clicks, said(alone, batch)[0], atol=1e-5)  # it starts from nothing
    term = getattr(fitted, role).terms["context"]
    term.weight[...] = built().weight[...]
    moved, relevance_then, attraction = map(np.asarray, said(fitted, batch))
    assert np.abs(clicks - moved).max() > 0.1
    np.testing.assert_array_equal(relevance_then, relevance)
    np.testing.assert_array_equal(attraction, relevance)
    first = {name: values for name, values in batch.items() if name not in CONTEXT}
    np.testing.assert_allclose(said(fitted, first)[0], said(alone, first)[0], atol=1e-5)


@nnx.jit
def clicks_and_conditional(model, batch):
    return model.predict_clicks(batch), model.predict_conditional_clicks(batch)


def test_ubm_sums_over_last_clicks_with_context(batch):
    model = with_context(UserBrowsingModel, "examination", ROLES["browsing"])
    model.examination.terms["context"].weight[...] = built().weight[...]
    total = np.zeros((LISTS, RANKS))
    for clicks in np.ndindex(*[2] * RANKS):
        each = {**batch, "clicks": np.broadcast_to(np.array(clicks, bool), (LISTS, RANKS))}
        found, log_p = (np.float64(values) for values in clicks_and_conditional(model, each))
        p = np.where(each["clicks"], np.exp(log_p), -np.expm1(log_p)).prod(axis=1)
        total += p[:, None] * each["clicks"]
    np.testing.assert_allclose(np.exp(found), total, rtol=2e-5)


def test_its_weights_are_learned(batch):
    model = with_context(PositionBasedModel, "examination", ROLES["examination"])
    both = nnx.DiffState(0, nnx.Any(nnx.Param, Table))
    gradient = nnx.jit(nnx.grad(lambda model: model.compute_loss(batch), argnums=both))(model)
    assert np.abs(jax.tree.leaves(gradient.examination.terms["context"])[0]).max() > 1e-4

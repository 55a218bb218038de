"""Models drawn from the posteriors of their tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from posteriors import NORMAL, filled
from small_logs import state_of

from clickexp.models import (
    DocumentCTRModel,
    DynamicBayesianNetwork,
    MixtureModel,
    PositionBasedModel,
)
from clickexp.parameters import EmbeddingParameterConfig, HashEmbedding, QREmbedding, RobeDEmbedding

BATCH = {
    "query_doc_ids": np.array([[1, 2, 3]], np.int32),
    "positions": np.array([[1, 2, 3]], np.int32),
    "mask": np.ones((1, 3), bool),
}
SIZES = dict(positions=3, query_doc_pairs=3)
DRAWS = 2000


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"embedding_features": 2},
        pytest.param(
            {"embedding_fn": HashEmbedding, "compression_ratio": 2}, marks=pytest.mark.nightly
        ),
        pytest.param(
            {"embedding_fn": RobeDEmbedding, "compression_ratio": 2, "embedding_features": 2},
            marks=pytest.mark.nightly,
        ),
        {"embedding_fn": QREmbedding, "compression_ratio": 1, "embedding_features": 2},
    ],
    ids=lambda settings: getattr(settings.get("embedding_fn"), "__name__", f"full {len(settings)}"),
)
def test_draws_have_the_mean_and_deviation_of_the_posterior(settings):
    config = EmbeddingParameterConfig(posterior="normal_by_rank", baseline=-1.0, **settings)
    model = filled(PositionBasedModel(attraction=config, **SIZES, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(model)
    mean, variance = (np.asarray(each, np.float64) for each in model.attraction.posterior(BATCH))
    if settings.get("embedding_fn") is RobeDEmbedding:
        variance = None  # two numbers of one embedding may be one number of the array

    @jax.jit
    @jax.vmap
    def draw(key):
        return nnx.merge(graphdef, state, copy=True).sample_parameters(key).attraction.logit(BATCH)

    logits = np.asarray(draw(jax.random.split(jax.random.key(1), DRAWS)), np.float64)
    error = logits.std(axis=0) / DRAWS**0.5
    assert (np.abs(logits.mean(axis=0) - mean) < 5 * error).all()
    if variance is not None:
        np.testing.assert_allclose(logits.var(axis=0), variance, rtol=8 * (2 / DRAWS) ** 0.5)
        assert np.ptp(variance) > 0.01


def test_the_model_itself_stays():
    model = filled(
        DynamicBayesianNetwork(attraction=NORMAL, satisfaction=NORMAL, **SIZES, rngs=nnx.Rngs(0))
    )
    before, rngs = state_of(model), nnx.Rngs(3)
    drawn, other = model.sample_parameters(rngs), model.sample_parameters(rngs)
    logits = [each.attraction.logit(BATCH) for each in (drawn, other, model)]
    assert all(np.ptp(np.stack(pair), axis=0).min() > 1e-4 for pair in (logits[:2], logits[1:]))
    np.testing.assert_array_equal(drawn.continuation.weight[...], model.continuation.weight[...])
    drawn.continuation.weight[...] += 1
    for table in (drawn.attraction.table, drawn.satisfaction.table):
        table.set_value(jax.tree.map(jnp.zeros_like, table.get_value()))
    for found, expected in zip(state_of(model), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert drawn.attraction.posterior(BATCH)[1] is None and type(drawn) is DynamicBayesianNetwork
    first, again = (
        model.sample_parameters(jax.random.key(0)).attraction.logit(BATCH) for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)


def test_roles_of_one_model_are_drawn_apart():
    """The same posterior twice: two different draws."""
    model = DynamicBayesianNetwork(
        attraction=NORMAL, satisfaction=NORMAL, **SIZES, rngs=nnx.Rngs(0)
    )
    drawn = model.sample_parameters(jax.random.key(2))
    assert np.abs(drawn.attraction.logit(BATCH) - drawn.satisfaction.logit(BATCH)).min() > 1e-4


def test_shared_towers_are_drawn_once():
    model = filled(
        MixtureModel(
            [PositionBasedModel, DocumentCTRModel, PositionBasedModel],
            shared={"attraction": NORMAL, "ctr": NORMAL},
            **SIZES,
            rngs=nnx.Rngs(0),
        )
    )
    drawn = model.sample_parameters(jax.random.key(0))
    first, ctr, second = drawn.models
    assert first.attraction is second.attraction is not model.models[0].attraction
    assert (ctr.ctr.logit(BATCH) != first.attraction.logit(BATCH)).all()
    assert (
        nnx.jit(lambda model: model.predict_clicks(BATCH))(drawn).shape == (1, 3)
        and drawn.name == model.name
    )


def test_without_posteriors_a_copy():
    config = EmbeddingParameterConfig(posterior="none")
    model = PositionBasedModel(attraction=config, **SIZES, rngs=nnx.Rngs(0))
    model.attraction.table.set_value(
        jax.tree.map(lambda x: x + 1.0, model.attraction.table.get_value())
    )
    drawn = model.sample_parameters(nnx.Rngs(0))
    for found, expected in zip(state_of(drawn), state_of(model), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert drawn.attraction is not model.attraction

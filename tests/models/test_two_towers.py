"""The additive two-tower model against numpy, and its settings against confounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_tables import with_fixed_tables
from flax import nnx
from small_logs import packed, sigmoid

from clickexp.data import Dataset
from clickexp.models import TwoTowersModel
from clickexp.models.two_towers import POLICY_SHARE

IDS = np.array([[1, 2, 3], [3, 1, 2], [1, 3, 2]], np.int32)
CLICKS = np.array([[True, False, False], [False, True, True], [True, False, True]])
BATCH = {
    "query_doc_ids": IDS,
    "clicks": CLICKS,
    "mask": np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]], bool),
    "positions": np.arange(1, 4, dtype=np.int32)[None],
}
BIAS, DOCUMENT = np.float32([0, 0.7, -0.4, -1.2]), np.float32([0, 0.3, -0.8, 1.1])


def model_of(**settings):
    model = TwoTowersModel(3, 3, rngs=nnx.Rngs(0), **settings)
    model.bias.weight[...] = jnp.asarray(BIAS)
    table = model.attraction.table.get_value()
    model.attraction.table.set_value(type(table)(jnp.asarray(DOCUMENT)[:, None], 1))
    model.eval()
    return model


@nnx.jit
def losses(model, batch):
    return model.compute_loss(batch, aggregate=False)


def losses_by_hand():
    p = sigmoid(BIAS[1:] + DOCUMENT[IDS])
    return np.where(BATCH["mask"], -np.where(CLICKS, np.log(p), np.log(1 - p)), 0)


def test_a_click_has_the_sum_of_both_logits():
    model = model_of()
    np.testing.assert_allclose(losses(model, BATCH), losses_by_hand(), rtol=1e-5)
    expected = np.where(BATCH["mask"], np.log(sigmoid(BIAS[1:] + DOCUMENT[IDS])), -np.inf)
    np.testing.assert_allclose(model.predict_clicks(BATCH), expected, rtol=1e-5)
    order = np.argsort(model.predict_relevance(BATCH)[0])
    np.testing.assert_array_equal(order, np.argsort(DOCUMENT[IDS[0]]))


def test_dropout_leaves_the_bias_out_of_some_documents_in_training():
    model = model_of(dropout=0.5)
    np.testing.assert_allclose(losses(model, BATCH), losses_by_hand(), rtol=1e-5)
    model.train()
    found = np.asarray(losses(model, BATCH))
    without, twice = (
        np.where(BATCH["mask"], -np.where(CLICKS, np.log(p), np.log(1 - p)), 0)
        for p in (sigmoid(DOCUMENT[IDS]), sigmoid(2 * BIAS[1:] + DOCUMENT[IDS]))
    )
    dropped = np.isclose(found, without, rtol=1e-5)
    assert (dropped | np.isclose(found, twice, rtol=1e-5)).all()
    assert 0 < dropped[BATCH["mask"]].mean() < 1


def test_a_reversed_gradient_moves_the_bias_against_the_regression_on_it():
    def slope(reversal):
        def loss(bias, adversary):
            model = model_of(reversal=reversal)
            model.bias.weight[...] = bias
            if model.adversary is not None:
                model.adversary[...] = adversary
            model = with_fixed_tables(model, bias[0])
            return model.compute_loss(BATCH, aggregate=False).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(BIAS), jnp.float32([0.8, -0.1]))

    def regression(bias, adversary):
        p = jax.nn.sigmoid(adversary[0] * bias[1:] + adversary[1])
        return -jnp.sum(jnp.where(CLICKS, jnp.log(p), jnp.log(1 - p)), where=BATCH["mask"])

    slopes = jax.jit(jax.grad(regression, argnums=(0, 1)))
    of_bias, of_regression = slopes(jnp.asarray(BIAS), jnp.float32([0.8, -0.1]))
    plain, (reversed_, of_adversary) = slope(0.0)[0], slope(0.5)
    np.testing.assert_allclose(reversed_, plain - 0.5 * of_bias, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(of_adversary, of_regression, rtol=1e-4)


def test_weights_of_the_policy_are_counted_in_the_log():
    sessions = packed({"query_doc_ids": IDS, "clicks": CLICKS}, 3)
    dataset = Dataset("log", sessions, sessions.slice(0, 0), sessions.slice(0, 0), 3, 3)
    model = model_of(policy_weighting=True, clip=0.5)
    shares = model.prepare(dataset).train.column(POLICY_SHARE)
    expected = [[2 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 2 / 3], [2 / 3, 1 / 3, 2 / 3]]
    np.testing.assert_allclose(shares, expected, rtol=1e-6)
    new = packed(
        {"query_doc_ids": np.array([[4, 1, 4]], np.int32), "clicks": np.zeros((1, 3), bool)}, 4
    )
    shown = packed({"query_doc_ids": IDS, "clicks": CLICKS}, 4)
    held_out = model.prepare(Dataset("log", shown, new, new.slice(0, 0), 4, 3)).val.column(
        POLICY_SHARE
    )
    # 4 as validation has it
    np.testing.assert_allclose(held_out, [[1 / 2, shares[IDS == 1].min(), 1 / 2]], rtol=1e-6)
    found = losses(model, {**BATCH, POLICY_SHARE: shares})
    np.testing.assert_allclose(found, losses_by_hand() / np.maximum(expected, 0.5), rtol=1e-5)
    assert model_of().prepare(dataset) is dataset


@pytest.mark.parametrize(
    "settings",
    [
        {"reversal": 1.0},
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ({}, {"dropout": 0.3})),
    ],
)
def test_gradients_are_finite_at_extreme_logits(settings):
    def loss(scale):
        model = model_of(**settings)
        model.bias.weight[...] = scale * jnp.asarray(BIAS)
        return with_fixed_tables(model, scale).compute_loss(BATCH)

    assert np.isfinite(jax.jit(jax.grad(loss))(1e4))

"""Logits so large that events are certain: losses and gradients stay finite, and right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from flax import nnx

every_model = zoo.by_tier(zoo.REPRESENTATIVE, as_users=zoo.CASES)


def with_logits(case, size, signs=(-1.0, 1.0), seed=0):
    """The case's model with logits of that size and random signs: baselines are 0, a mixture has one component."""
    rng = np.random.default_rng(seed)
    model = zoo.fill(case.build(rngs=nnx.Rngs(0)), lambda shape: size * rng.choice(signs, shape))
    baselines = nnx.state(model, lambda path, leaf: "baseline" in path)
    nnx.update(model, jax.tree.map(jnp.zeros_like, baselines))
    prior = nnx.state(model, lambda path, leaf: "prior" in path)
    nnx.update(
        model, jax.tree.map(lambda leaf: size * jnp.arange(leaf.size, dtype=leaf.dtype), prior)
    )
    return model


def finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


@every_model
@pytest.mark.parametrize("size", [50.0, 1e4])
def test_extreme_logits_keep_losses_and_gradients_finite(case, size):
    run, batch = zoo.runner(case.name), zoo.every_click_vector()
    for seed in range(3):
        model = with_logits(case, size, seed=seed)
        assert finite([run.predict(model, batch), run.loss(model, batch)])


@every_model
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_gradients_push_against_confident_mistakes(case, sign):
    """Logits of one sign at +-1e4 with all clicks the other way: the loss has a slope that leads back."""
    batch = zoo.every_click_vector()
    batch["clicks"] = np.full_like(batch["clicks"], sign < 0)
    _, gradient = zoo.runner(case.name).loss(with_logits(case, 1e4, [sign]), batch)
    assert finite(gradient)
    names = {"ctr", "attraction", "true_positive", "false_positive"}
    towers = [leaf for path, leaf in nnx.to_flat_state(gradient) if names & {*path}]
    leaves = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(towers)])
    assert (sign * leaves).max() > 1e-3
    assert (sign * leaves).min() >= 0


@every_model
def test_certain_events_cost_nothing(case):
    """Logits of +-1e4 leave one possible session, whose probability is 1."""
    run, batch = zoo.runner(case.name), zoo.every_click_vector()
    for seed in range(3):
        model = with_logits(case, 1e4, seed=seed)
        clicks = run.sample(model, zoo.repeated(batch), jax.random.key(seed)).clicks[
            : len(batch["mask"])
        ]
        assert clicks.any() or seed
        observed = {**batch, "clicks": clicks}
        outputs = run.predict(model, observed)
        np.testing.assert_allclose(outputs["loss"], 0, atol=1e-6)
        np.testing.assert_allclose(np.exp(outputs["clicks"]), clicks, atol=1e-6)
        assert finite(run.loss(model, observed))


@every_model
def test_lists_without_documents_cost_nothing_and_have_no_gradient(case):
    run, batch = (
        zoo.runner(case.name),
        zoo.every_click_vector(np.zeros(len(zoo.VECTORS) * zoo.LISTS, int)),
    )
    for model in zoo.random_model(case), with_logits(case, 1e4):
        assert np.all(run.predict(model, batch)["loss"] == 0)
        assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(run.loss(model, batch)))

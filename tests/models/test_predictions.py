"""Predictions and losses of every click model against enumeration in float64."""

import functools

import jax
import numpy as np
import oracle
import zoo

FLOOR = 1e-8
"""What the cascade model gives a second click, which its story never has."""

DAILY, DAILY_EXACT = (zoo.without(cases, [zoo.SHARED]) for cases in (zoo.CASES, zoo.EXACT))
every_model = zoo.by_tier(DAILY, as_users=zoo.CASES)
every_exact_model = zoo.by_tier(DAILY_EXACT, as_users=zoo.EXACT)
nightly_every_model = zoo.by_tier(zoo.REPRESENTATIVE, as_users=zoo.CASES)
nightly_every_exact_model = zoo.by_tier(zoo.REPRESENTATIVE, as_users=zoo.EXACT)


def close(actual, expected, rtol=2e-5, atol=2e-6):
    np.testing.assert_allclose(actual, expected, rtol, atol)


def predict(case, model, batch):
    return zoo.runner(case.name).predict(model, batch)


def said(case):
    """What the case's random model predicts for the click vectors [lists * vectors, ranks]."""
    return predict(case, zoo.random_model(case), zoo.every_click_vector())


@functools.cache
def joints(case):
    """Those of the case's random model."""
    return zoo.joints(case, zoo.random_model(case))


def by_list(values):
    return np.reshape(values, (zoo.LISTS, len(zoo.VECTORS), zoo.RANKS))


@every_model
def test_probabilities_of_all_click_vectors_sum_to_one(case):
    outputs = said(case)
    close(np.exp(-by_list(outputs["loss"]).sum(-1, dtype=np.float64)).sum(-1), np.ones(zoo.LISTS))


@every_model
def test_each_event_and_its_complement_sum_to_one(case):
    outputs = said(case)
    close(np.exp(outputs["clicks"]) + np.exp(outputs["no_clicks"]), np.ones_like(outputs["clicks"]))
    complement = np.where(np.tile(zoo.VECTORS, (zoo.LISTS, 1)), np.nan, np.exp(-outputs["loss"]))
    skipped = ~np.isnan(complement)
    close(
        np.exp(outputs["conditional_clicks"][skipped]) + complement[skipped], np.ones(skipped.sum())
    )


@every_model
def test_conditional_ignores_the_click_itself_and_those_below(case):
    conditional = by_list(said(case)["conditional_clicks"])
    for rank in range(zoo.RANKS):
        for above in np.unique(zoo.VECTORS[:, :rank], axis=0):
            same = (zoo.VECTORS[:, :rank] == above).all(axis=1)
            assert np.ptp(conditional[:, same, rank], axis=1).max() == 0


@every_exact_model
def test_conditional_is_that_of_the_enumeration(case):
    outputs = said(case)
    for actual, joint in zip(by_list(outputs["conditional_clicks"]), joints(case), strict=True):
        expected = oracle.conditional(joint, zoo.VECTORS)
        possible = ~np.isnan(expected)
        close(actual[possible], np.log(np.maximum(expected[possible], FLOOR)))
        assert np.all(actual[~possible] <= np.float32(np.log(FLOOR)))


def test_published_conditional_of_the_cascade_model_is_the_marginal_up_to_the_first_click():
    outputs = said(zoo.CM_MARGINAL)
    first = (np.cumsum(zoo.VECTORS, axis=1) - zoo.VECTORS) == 0
    for actual, joint in zip(
        by_list(outputs["conditional_clicks"]), joints(zoo.CM_MARGINAL), strict=True
    ):
        close(actual, np.where(first, np.log(oracle.marginal(joint, zoo.VECTORS)), np.log(FLOOR)))


@every_model
def test_marginal_is_that_of_the_enumeration(case):
    outputs = said(case)
    for actual, joint in zip(by_list(outputs["clicks"]), joints(case), strict=True):
        close(actual, np.broadcast_to(np.log(oracle.marginal(joint, zoo.VECTORS)), actual.shape))


@every_exact_model
def test_loss_of_a_list_is_minus_the_log_of_its_probability(case):
    outputs = said(case)
    losses = by_list(outputs["loss"]).sum(-1, dtype=np.float64)
    probabilities = np.array(joints(case))
    possible = probabilities > 0
    close(losses[possible], -np.log(probabilities[possible]))
    assert losses[~possible].min(initial=np.inf) > -np.log(FLOOR) - 1e-4


@every_exact_model
def test_loss_stays_exact_where_float32_probabilities_are_not(case):
    """Logits up to +-14: probabilities within 1e-6 of 1, whose complements 1 - p would lose their digits."""
    rng = np.random.default_rng(3)
    model = zoo.fill(
        zoo.random_model(case), lambda shape: rng.choice([-7.0, -3.5, 3.5, 7.0], shape)
    )
    losses = by_list(predict(case, model, zoo.every_click_vector())["loss"]).sum(
        -1, dtype=np.float64
    )
    probabilities = np.array(zoo.joints(case, model))
    possible = probabilities > 0
    close(losses[possible], -np.log(probabilities[possible]))


@nightly_every_exact_model
def test_mean_loss_weighs_documents_and_masked_ones_count_nothing(case):
    lengths = np.tile(np.arange(zoo.RANKS + 1), 16)
    batch, model = zoo.every_click_vector(lengths), zoo.random_model(case)
    outputs, (mean_loss, _) = predict(case, model, batch), zoo.runner(case.name).loss(model, batch)
    of_vectors = np.repeat(joints(case), len(zoo.VECTORS), axis=0)
    starts = (zoo.VECTORS[None] == batch["clicks"][:, None]) | ~batch["mask"][:, None]
    probabilities = (of_vectors * starts.all(axis=-1)).sum(axis=-1)
    possible = probabilities > 0
    close(outputs["loss"].sum(-1, dtype=np.float64)[possible], -np.log(probabilities[possible]))
    close(mean_loss, outputs["loss"].sum(dtype=np.float64) / lengths.sum())
    assert np.all(outputs["loss"][~batch["mask"]] == 0)
    for name in "conditional_clicks", "clicks", "relevance", "attraction", "examination":
        assert np.all(outputs[name][~batch["mask"]] == -np.inf)
        assert np.all(np.isfinite(outputs[name][batch["mask"]]))


RELEVANCE = {
    "CM": ["attraction"], "CM marginal": ["attraction"], "PBM": ["attraction"], "UBM": ["attraction"],
    "DCM": ["attraction"], "CCM": ["attraction"], "DBN": ["attraction", "satisfaction"],
    "SDBN": ["attraction", "satisfaction"], "GCTR": ["click_rate"], "RCTR": ["click_rate"],
    "DCTR": ["click_rate"], "DRCTR": ["click_rate"], "TrustBias": ["attraction"],
}  # fmt: skip


PRODUCTS = [case for case in zoo.CASES if case.name in RELEVANCE]


@zoo.by_tier(PRODUCTS, as_users=PRODUCTS)
def test_relevance_is_a_product_of_parameters(case):
    model = zoo.random_model(case)
    outputs = said(case)
    for actual, ids, positions in zip(by_list(outputs["relevance"]), *zoo.lists(), strict=True):
        parameters = case.probabilities(model, ids, positions)
        expected = sum(np.log(parameters[name]) for name in RELEVANCE[case.name])
        close(actual, np.broadcast_to(expected, actual.shape))


@every_model
def test_examination_and_attraction_are_those_of_the_hidden_events(case):
    """The trust-bias model takes the true-positive rate for examination, as its docstring states."""
    model = zoo.random_model(case)
    outputs = said(case)
    shown = zip(
        by_list(outputs["examination"]), by_list(outputs["attraction"]), *zoo.lists(), strict=True
    )
    for examination, attraction, ids, positions in shown:
        parameters = case.probabilities(model, ids, positions)
        hidden = oracle.hidden(case.story, **parameters)
        expected = parameters.get("true_positive", hidden["examined"])
        close(np.exp(examination), np.broadcast_to(expected, examination.shape))
        if "prior" not in parameters:
            known = parameters.get("attraction", parameters.get("click_rate"))
            close(np.exp(attraction), np.broadcast_to(known, attraction.shape))


@nightly_every_model
def test_gradient_is_the_slope_of_the_loss(case):
    """Central differences along a random direction, the loss in float64 from the float32 parts."""
    model, batch, rng = zoo.random_model(case), zoo.every_click_vector(), np.random.default_rng(5)
    _, gradient = zoo.runner(case.name).loss(model, batch)
    leaves, structure = jax.tree.flatten(gradient)
    direction = [rng.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]
    slope = sum(
        np.vdot(d.astype(np.float64), leaf) for d, leaf in zip(direction, leaves, strict=True)
    )

    def loss(step):
        moved = zoo.random_model(case)
        start = jax.tree.leaves(zoo.nnx.state(moved))
        values = [a + np.float32(step) * d for a, d in zip(start, direction, strict=True)]
        zoo.nnx.update(moved, jax.tree.unflatten(structure, values))
        return predict(case, moved, batch)["loss"].mean(dtype=np.float64)

    np.testing.assert_allclose((loss(1e-2) - loss(-1e-2)) / 2e-2, slope, rtol=2e-3, atol=2e-5)

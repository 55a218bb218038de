"""Models that state only a conditional: marginals, draws and holes in lists, against enumeration in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from flax import nnx

from clickexp.models import ClickModel, SequentialClickModel, derived
from clickexp.numerics import log_sigmoid_pair
from clickexp.types import ByRank

RANKS, LISTS = 5, 6
VECTORS = np.array(list(itertools.product([False, True], repeat=RANKS)))


class Habit(SequentialClickModel):
    """A state that remembers clicks: h' = h / 2 + click above; logit = 1 - h + bias of the document."""

    name = "Habit"

    def inputs(self, batch):
        return jnp.sin(batch["query_doc_ids"].astype(jnp.float32))

    def start(self, batch):
        return jnp.zeros(batch["mask"].shape[1])

    def step(self, state, inputs, previous):
        state = state / 2 + previous.astype(jnp.float32)
        return state, log_sigmoid_pair(inputs + 1 - state)

    def relevance(self, batch):
        return jnp.sin(batch["query_doc_ids"].astype(jnp.float32))


class ConditionalOnly(ClickModel):
    """The same user with nothing but a conditional."""

    name = "Habit"

    def conditional(self, batch):
        return Habit().conditional(batch)


def by_hand(ids, mask):
    """P(click vector) and P(c_r = 1 | c_<r) along each, [2^RANKS] and [2^RANKS, RANKS], in float64."""
    joint, conditional = np.ones(len(VECTORS)), np.zeros(VECTORS.shape)
    for row, clicks in enumerate(VECTORS):
        state, previous = 0.0, False
        for rank in range(RANKS):
            if not mask[rank]:
                joint[row] *= not clicks[rank]
                continue
            state = state / 2 + previous
            conditional[row, rank] = 1 / (1 + np.exp(-(np.sin(float(ids[rank])) + 1 - state)))
            previous = clicks[rank]
            joint[row] *= conditional[row, rank] if previous else 1 - conditional[row, rank]
    return joint, conditional


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    mask = rng.random((LISTS, RANKS)) < 0.7
    mask[0], mask[1] = True, False
    clicks = rng.random((LISTS, RANKS)) < 0.5
    return {
        "query_doc_ids": rng.integers(0, 9, (LISTS, RANKS)).astype(np.int32),
        "positions": np.arange(1, RANKS + 1, dtype=np.int32)[None],
        "clicks": clicks & mask,
        "mask": mask,
    }


def test_lists_of_a_log_come_with_their_lengths(batch):
    """As the loader gives them, with padding behind a list."""
    mask = np.arange(RANKS) < np.arange(LISTS)[:, None] % RANKS + 1
    plain = {**batch, "mask": mask, "clicks": batch["clicks"] & mask}
    predict = jax.jit(
        lambda lists: (Habit().conditional(ByRank(lists)), Habit().marginal(ByRank(lists)))
    )
    with_lengths = predict({**plain, "lengths": mask.sum(axis=1)})
    for found, expected in zip(with_lengths, predict(plain), strict=True):
        np.testing.assert_array_equal(found.log, expected.log)


def test_the_conditional_skips_documents_that_are_not_shown(batch):
    log_probs = np.asarray(jax.jit(Habit().predict_conditional_clicks)(batch))
    for ids, mask, clicks, log_prob in zip(
        batch["query_doc_ids"], batch["mask"], batch["clicks"], log_probs, strict=True
    ):
        row = int((VECTORS == clicks).all(axis=1).argmax())
        expected = by_hand(ids, mask)[1][row]
        np.testing.assert_allclose(np.exp(log_prob[mask]), expected[mask], rtol=1e-5)


@pytest.mark.parametrize(
    "model", [Habit(), ConditionalOnly()], ids=["prefix tree", "conditional alone"]
)
def test_marginals_are_those_of_the_enumeration(model, batch, monkeypatch):
    monkeypatch.setattr(derived, "EXACT_RANKS", RANKS)
    predict = jax.jit(
        lambda lists: (model.predict_clicks(lists), model.marginal(ByRank(lists)).complement.T)
    )
    log_probs, no_clicks = map(np.asarray, predict(batch))
    for ids, mask, log_prob, no_click in zip(
        batch["query_doc_ids"], batch["mask"], log_probs, no_clicks, strict=True
    ):
        joint, _ = by_hand(ids, mask)
        np.testing.assert_allclose(joint.sum(), 1)
        np.testing.assert_allclose(np.exp(log_prob[mask]), (joint @ VECTORS)[mask], rtol=1e-5)
        np.testing.assert_allclose(np.exp(no_click[mask]), 1 - (joint @ VECTORS)[mask], rtol=1e-5)


@pytest.mark.parametrize("model", [Habit(), ConditionalOnly()], ids=["scan", "conditional alone"])
def test_draws_follow_the_model(model, batch):
    """One list at a time: fewer lists than ranks."""
    sessions = 20_000
    one = {name: values[:1] for name, values in batch.items()}
    sample = jax.jit(jax.vmap(lambda key: model.sample(one, key).clicks[0]))
    clicks = np.asarray(sample(jax.random.split(jax.random.key(0), sessions)))
    joint, _ = by_hand(one["query_doc_ids"][0], one["mask"][0])
    found = np.array([(clicks == vector).all(axis=1).mean() for vector in VECTORS])
    sigma = np.sqrt(joint * (1 - joint) / sessions)
    assert (np.abs(found - joint) < 5 * sigma + 1e-9).all()


def test_long_lists_average_over_draws(batch, monkeypatch):
    """With the limit below the list's length; the mean of conditionals is within 5 sigma of the enumeration."""
    monkeypatch.setattr(derived, "EXACT_RANKS", 4)
    assert (
        derived.marginal_method(RANKS) == "mean over 256 sampled sessions"
        and derived.marginal_method(4) == "exact"
    )
    assert Habit().marginal_method(RANKS) == derived.marginal_method(RANKS)
    probabilities = np.exp(np.asarray(jax.jit(Habit().predict_clicks)(batch)))
    for ids, mask, found in zip(batch["query_doc_ids"], batch["mask"], probabilities, strict=True):
        joint, conditional = by_hand(ids, mask)
        expected = joint @ VECTORS
        spread = np.sqrt(np.maximum(joint @ conditional**2 - expected**2, 0) / derived.DRAWS)
        assert (np.abs(found - expected) < 5 * spread + 1e-5)[mask].all()


@zoo.by_tier([zoo.UBM], nightly=[zoo.DBN, zoo.CCM, zoo.MIXTURE])
def test_what_is_derived_equals_a_model_s_own_marginal(case):
    @nnx.jit
    def marginals(model, lists):
        batch = ByRank(lists)
        return model.marginal(batch), derived.marginal(model.conditional, batch)

    lists = zoo.every_click_vector()
    own, enumerated = marginals(zoo.random_model(case), lists)
    np.testing.assert_allclose(
        enumerated.log, np.broadcast_to(own.log, lists["mask"].T.shape), atol=2e-5
    )

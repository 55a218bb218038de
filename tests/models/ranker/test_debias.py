"""Corrections of clicks, by enumeration over all click vectors of small lists in float64."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_logs import fill_tables, packed, ragged_log, superbatch

from clickexp.data import Dataset
from clickexp.errors import ConfigError
from clickexp.models import Ranker, TwoTowersModel
from clickexp.models.ranker.debias import (
    POLICY_PROPENSITY,
    AffineCorrection,
    InversePropensity,
    NoDebias,
    PolicyAware,
    corrected_relevance,
)
from clickexp.models.ranker.learned import DoublyRobust, DualLearning, PairDebias, RegressionEM
from clickexp.models.ranker.losses import ApproxNDCGLoss, PointwiseLoss, Poly1Loss, SoftmaxLoss
from clickexp.models.ranker.pairs import LambdaLoss, PairwiseLoss, WarpLoss
from clickexp.models.two_towers import POLICY_SHARE
from clickexp.parameters import DeepCrossParameterConfig, DeepParameterConfig, LinearParameterConfig
from clickexp.parameters.base import Sizes
from clickexp.propensities import Propensities
from clickexp.training import lazy_adam
from clickexp.training.step import TrainStep, split_model

EXAMINATION = np.array([1.0, 0.5, 0.25])
RELEVANCE = np.array([0.3, 0.9, 0.6])
TRUST = np.array([0.2, 0.1, 0.05])
"""Click rate of irrelevant documents."""
VECTORS = np.array(list(itertools.product([False, True], repeat=3)))
SCORES = np.float32([0.4, -0.3, 0.8])
GIVEN = Propensities(tuple(EXAMINATION))
LINEAR = SoftmaxLoss(), PointwiseLoss(), Poly1Loss()


def probabilities(rates):
    return np.prod(np.where(VECTORS, rates, 1 - rates), axis=1)


def batch_of(clicks, **more):
    clicks = np.atleast_2d(clicks)
    positions = np.arange(1, clicks.shape[1] + 1, dtype=np.int32)[None]
    return {"clicks": clicks, "mask": np.ones(clicks.shape, bool), "positions": positions, **more}


def slopes(debias, loss, clicks, learned=None, **more):
    """Gradient of the loss of each click vector in the scores."""

    def losses(scores):
        repeated = jnp.broadcast_to(scores, clicks.shape)
        return debias.loss(loss, repeated, batch_of(clicks, **more), learned)

    return np.asarray(jax.jacobian(losses)(SCORES), np.float64)


def of_relevance(loss, relevance=RELEVANCE):
    """Gradient of the loss of full information, in which labels are relevance."""

    def value(scores):
        return loss(scores[None], np.float32(relevance)[None], np.ones((1, 3), bool))[0]

    return np.asarray(jax.grad(value)(SCORES), np.float64)


@pytest.mark.parametrize("loss", LINEAR, ids=lambda loss: loss.name)
def test_gradients_of_inverse_propensity_scoring_are_unbiased(loss):
    chances = probabilities(EXAMINATION * RELEVANCE)
    found = chances @ slopes(InversePropensity(propensity=GIVEN), loss, VECTORS)
    np.testing.assert_allclose(found, of_relevance(loss), atol=1e-6)
    naive = chances @ slopes(NoDebias(), loss, VECTORS)
    assert np.abs(naive - of_relevance(loss)).max() > 0.05


@pytest.mark.parametrize("loss", LINEAR, ids=lambda loss: loss.name)
def test_gradients_of_the_affine_correction_are_unbiased_under_trust_bias(loss):
    slope = np.array([0.8, 0.3, 0.1])
    chances = probabilities(TRUST + slope * RELEVANCE)
    method = AffineCorrection(propensity=Propensities(tuple(slope), offsets=tuple(TRUST)))
    np.testing.assert_allclose(chances @ slopes(method, loss, VECTORS), of_relevance(loss), atol=1e-6)
    ips = chances @ slopes(InversePropensity(propensity=Propensities(tuple(slope))), loss, VECTORS)
    assert np.abs(ips - of_relevance(loss)).max() > 0.05


def test_weights_that_subtract_no_offsets_are_of_click_rates_of_relevant_documents():
    slope = np.array([0.8, 0.3, 0.4])  # grows at the last position, where the click rate does not
    given = Propensities(tuple(slope / slope[0]), offsets=tuple(TRUST), first=slope[0])
    rates = TRUST + slope
    batch = batch_of(np.zeros((1, 3), bool))
    np.testing.assert_allclose(InversePropensity(propensity=given).weights(batch)[0], rates[0] / rates, rtol=1e-6)
    np.testing.assert_allclose(AffineCorrection(propensity=given).weights(batch)[0], slope[0] / slope, rtol=1e-6)


@pytest.mark.parametrize("loss", LINEAR, ids=lambda loss: loss.name)
@pytest.mark.parametrize("method", [AffineCorrection, DoublyRobust], ids=lambda method: method.name)
def test_documents_whose_estimates_are_below_0_keep_finite_scores(method, loss):
    """Their loss alone falls without end: after 2,000 steps of 0.1 scores would differ by dozens."""
    debias = method(propensity=Propensities((1.0, 0.5, 0.5), offsets=(0.3, 0.2, 0.2)))
    ids = np.array([[1, 2, 3]], np.int32)
    learned = debias.build(Sizes(query_doc_pairs=3), nnx.Rngs(0))
    batch = batch_of([True, False, False], query_doc_ids=ids)
    step = jax.jit(jax.grad(lambda scores: debias.loss(loss, scores[None], batch, learned)[0]))
    scores = jax.lax.fori_loop(0, 2_000, lambda _, scores: scores - 0.1 * step(scores), jnp.zeros(3))
    assert scores[0] > scores[1:].max() + 5
    assert np.abs(scores).max() < 12


def test_clipped_weights_and_positions_without_propensity():
    method = InversePropensity(propensity=Propensities((1.0, 0.5, 0.01, None)), clip=0.1)
    np.testing.assert_allclose(
        method.weights(batch_of(np.zeros((1, 5), bool)))[0], [1, 2, 10, 0, 0], rtol=1e-6
    )


def test_the_affine_correction_without_offsets_is_refused():
    """It would be inverse propensity scoring under another name."""
    ids = np.ones((1, 3), np.int32)
    few = packed({"query_doc_ids": ids, "clicks": ids > 9}, 1)
    with pytest.raises(ConfigError, match=r"debias=affine needs click rates .* \(given\) have none: give propensity"):
        AffineCorrection(propensity=GIVEN).prepare(Dataset("log", few, few, few, 1, 3))


@pytest.mark.parametrize("name", ["policy_aware", "doubly_robust"])
def test_clicks_at_positions_without_propensity_correct_nothing(name):
    known = Propensities((1.0, 0.5, None))
    column = {POLICY_PROPENSITY: np.full((1, 3), 0.01, np.float32)}
    clicks = np.array([[False, False, True], [False, False, False]])
    if name == "policy_aware":
        found = slopes(PolicyAware(propensity=known), SoftmaxLoss(), clicks, **column)
    else:
        method, ids = DoublyRobust(propensity=known), {"query_doc_ids": np.array([[1, 2, 3]], np.int32)}
        tower = method.build(Sizes(query_doc_pairs=3), nnx.Rngs(0))
        found = slopes(method, SoftmaxLoss(), clicks, _Known(tower, ids))
    np.testing.assert_allclose(found[0], found[1], atol=1e-7)


@dataclasses.dataclass(frozen=True)
class _Known:
    """A tower of given documents."""

    tower: object
    ids: dict

    def logit(self, batch):
        return self.tower.logit(self.ids)


@pytest.mark.parametrize("wrong", ["nothing", "regression", "divisor", "both"])
def test_the_doubly_robust_estimate_is_unbiased_if_either_part_is_right(wrong):
    alpha, beta = EXAMINATION, TRUST * 0.5
    estimate = RELEVANCE if wrong in ("nothing", "divisor") else np.array([0.8, 0.1, 0.2])
    divisor = alpha if wrong in ("nothing", "regression") else np.maximum(alpha, 0.6)
    chances = probabilities(beta + alpha * RELEVANCE)
    mean = chances @ corrected_relevance(VECTORS, estimate, alpha, beta, divisor)
    assert np.allclose(mean, RELEVANCE) == (wrong != "both")


@dataclasses.dataclass(frozen=True)
class _Logits:
    """A tower of one list, with given logits."""

    values: jax.Array

    def logit(self, batch):
        return self.values[None]


def logit(p):
    return jnp.asarray(np.log(p / (1 - p)), jnp.float32)


@pytest.mark.parametrize("loss", LINEAR, ids=lambda loss: loss.name)
@pytest.mark.parametrize("wrong", ["nothing", "regression", "divisor", "both"])
def test_gradients_of_doubly_robust_losses_are_unbiased_if_either_part_is_right(wrong, loss):
    """The divisor is that of the weights: wrong where the clip is above a propensity."""
    alpha, beta = EXAMINATION, TRUST * 0.5
    tower = _Logits(logit(RELEVANCE if wrong in ("nothing", "divisor") else np.array([0.8, 0.1, 0.2])))
    clip = 0.05 if wrong in ("nothing", "regression") else 0.6
    method = DoublyRobust(propensity=Propensities(tuple(alpha), offsets=tuple(beta)), clip=clip)
    found = probabilities(beta + alpha * RELEVANCE) @ slopes(method, loss, VECTORS, tower)
    if wrong == "both":
        assert np.abs(found - of_relevance(loss)).max() > 0.05
    else:
        np.testing.assert_allclose(found, of_relevance(loss), atol=1e-6)


def test_true_relevance_is_the_fixed_point_of_the_regression_of_doubly_robust():
    alpha, beta = EXAMINATION, TRUST * 0.5
    method = DoublyRobust(propensity=Propensities(tuple(alpha), offsets=tuple(beta)))
    chances = np.float32(probabilities(beta + alpha * RELEVANCE))

    def expected(logits):
        shown = jnp.broadcast_to(SCORES, VECTORS.shape)
        return jnp.sum(chances * method.loss(SoftmaxLoss(), shown, batch_of(VECTORS), _Logits(logits)))

    np.testing.assert_allclose(jax.grad(expected)(logit(RELEVANCE)), 0, atol=1e-6)
    wrong = jax.grad(expected)(logit(np.array([0.8, 0.1, 0.2])))
    assert np.abs(wrong).min() > 0.01


def test_policy_aware_weights_are_unbiased_where_a_page_cuts_documents_off():
    """Two of three documents shown, in one of two orders, of which the second leaves out document 0."""
    shown, policy = [[0, 1], [1, 2]], np.array([0.7, 0.3])
    of_documents = np.array([0.7 * 1, 0.7 * 0.5 + 0.3 * 1, 0.3 * 0.5])
    method = PolicyAware(propensity=GIVEN, clip=0.01)
    expected = np.zeros(3)
    for chance, documents in zip(policy, shown, strict=True):
        for clicks in itertools.product([False, True], repeat=2):
            rates = EXAMINATION[:2] * RELEVANCE[documents]
            weight = chance * np.prod(np.where(clicks, rates, 1 - rates))
            column = {POLICY_PROPENSITY: np.float32(of_documents[documents])[None]}
            labels = [
                method.loss(_Label(place), jnp.zeros((1, 2)), batch_of(np.array(clicks), **column))[0]
                for place in range(2)
            ]
            np.add.at(expected, documents, weight * np.array(labels))
    np.testing.assert_allclose(expected, RELEVANCE, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class _Label(SoftmaxLoss):
    """The weighted label of one place."""

    place: int

    def value(self, lists, key):
        return (lists.labels * lists.weights)[:, self.place]


def test_policy_propensities_are_counted_in_the_log():
    """Query 1 has four sessions; document 3 was shown in one of them, second."""
    ids = np.array([[1, 2], [2, 1], [1, 2], [1, 3], [4, 5]])
    sessions = packed({"query_doc_ids": ids, "clicks": ids > 9, "query_ids": np.array([1, 1, 1, 1, 2])}, 5)
    few = packed({"query_doc_ids": ids[:1], "clicks": ids[:1] > 9, "query_ids": np.array([1])}, 5).slice(0, 0)
    dataset = Dataset("log", sessions, few, few, 5, 2)
    made = PolicyAware(propensity=Propensities((1.0, 0.4))).prepare(dataset).train
    expected = {1: (3 + 0.4) / 4, 2: (2 * 0.4 + 1) / 4, 3: 0.4 / 4, 4: 1.0, 5: 0.4}
    np.testing.assert_allclose(made.column(POLICY_PROPENSITY), np.vectorize(expected.get)(ids), rtol=1e-6)
    queries = np.array([1, 1, 1, 1, 2])
    swapped = packed({"query_doc_ids": ids[:, ::-1].copy(), "clicks": ids > 9, "query_ids": queries}, 5)
    shifted = dataclasses.replace(dataset, test=swapped)  # another policy, which is not that of training
    again = PolicyAware(propensity=Propensities((1.0, 0.4))).prepare(shifted)
    np.testing.assert_array_equal(again.train.column(POLICY_PROPENSITY), made.column(POLICY_PROPENSITY))
    subset = dataclasses.replace(dataset, train=sessions.select(np.array([3, 0])))
    part = PolicyAware(propensity=Propensities((1.0, 0.4))).prepare(subset).train
    np.testing.assert_allclose(part.column(POLICY_PROPENSITY), [[1, 0.2], [1, 0.2]], rtol=1e-6)


def test_true_examination_and_relevance_are_the_fixed_point_of_dual_learning():
    """Neither has a gradient where both softmaxes are proportional to the truth, over all clicks on all orders."""
    method, learned = DualLearning(), DualLearning().build(Sizes(positions=3), nnx.Rngs(0))
    learned.values[...] = jnp.float32(np.log([1, *EXAMINATION]))
    learned.train()
    orders = list(itertools.permutations(range(3)))

    def expected(scores, learned):
        total = 0.0
        for order in orders:
            chances = np.float32(probabilities(EXAMINATION * RELEVANCE[list(order)])) / len(orders)
            shown = jnp.broadcast_to(scores[jnp.array(order)], VECTORS.shape)
            total += jnp.sum(chances * method.loss(SoftmaxLoss(), shown, batch_of(VECTORS), learned))
        return total

    truth = np.log(RELEVANCE).astype(np.float32)
    of_scores, of_curve = nnx.grad(expected, argnums=(0, 1))(truth, learned)
    np.testing.assert_allclose(of_scores, 0, atol=1e-6)
    np.testing.assert_allclose(of_curve["values"][...], 0, atol=1e-6)
    of_scores, _ = nnx.grad(expected, argnums=(0, 1))(SCORES, learned)
    assert np.abs(of_scores).max() > 0.05
    np.testing.assert_allclose(method.examination(learned), EXAMINATION, rtol=1e-6)


def test_a_step_of_regression_em_by_hand():
    method = RegressionEM(step=0.25, initial=0.6)
    learned = method.build(Sizes(positions=3), nnx.Rngs(0))
    clicks = np.array([[True, False, False], [False, False, True]])
    scores, r = np.broadcast_to(SCORES, clicks.shape), 1 / (1 + np.exp(-np.float64(SCORES)))
    learned.eval()
    likelihood = method.loss(PointwiseLoss(), jnp.asarray(scores), batch_of(clicks), learned)
    np.testing.assert_allclose(likelihood, -np.log(np.where(clicks, 0.6 * r, 1 - 0.6 * r)).sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(learned.values[...], np.float32(0.6))
    relevant = np.where(clicks, 1, (1 - 0.6) * r / (1 - 0.6 * r))
    expected = -(relevant * np.log(r) + (1 - relevant) * np.log(1 - r)).sum(axis=1)
    learned.train()
    losses = method.loss(PointwiseLoss(), jnp.asarray(scores), batch_of(clicks), learned)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    examined = np.where(clicks, 1, 0.6 * (1 - r) / (1 - 0.6 * r)).mean(axis=0)
    np.testing.assert_allclose(learned.values[1:], 0.75 * 0.6 + 0.25 * examined, rtol=1e-6)


def test_a_step_of_pair_debias_by_hand():
    method = PairDebias(step=0.5, power=1.0)
    learned = method.build(Sizes(positions=3), nnx.Rngs(0))
    learned.clicked.values[...] = jnp.float32([1, 1, 0.5, 0.25])
    learned.others.values[...] = jnp.float32([1, 1, 0.8, 0.6])
    learned.train()
    plus, minus = np.array([1, 0.5, 0.25]), np.array([1, 0.8, 0.6])
    clicks = np.array([[True, False, False], [False, True, False]])
    cost = np.log1p(np.exp(np.float64(SCORES)[None] - np.float64(SCORES)[:, None]))
    pairs = np.array([[[c[i] * (not c[j]) * cost[i, j] for j in range(3)] for i in range(3)] for c in clicks])
    losses = method.loss(PairwiseLoss(), jnp.broadcast_to(SCORES, (2, 3)), batch_of(clicks), learned)
    np.testing.assert_allclose(losses, (pairs / plus[:, None] / minus).sum(axis=(1, 2)), rtol=1e-5)
    of_clicked, of_others = (pairs / minus).sum(axis=(0, 2)), (pairs / plus[:, None]).sum(axis=(0, 1))
    moved = 0.5 * plus + 0.5 * np.sqrt(of_clicked / of_clicked[0])
    moved[2] = plus[2]  # no pair was clicked there
    np.testing.assert_allclose(learned.clicked.values[1:], moved, rtol=1e-5)
    np.testing.assert_allclose(
        learned.others.values[1:], 0.5 * minus + 0.5 * np.sqrt(of_others / of_others[0]), rtol=1e-5
    )


@pytest.mark.parametrize(
    "method, loss",
    [
        (AffineCorrection(), WarpLoss()),
        (AffineCorrection(), PairwiseLoss()),
        (DoublyRobust(), ApproxNDCGLoss()),
        (RegressionEM(), SoftmaxLoss()),
        (PairDebias(), SoftmaxLoss()),
    ],
    ids=lambda given: given.name,
)
def test_a_combination_that_is_not_defined_ends_in_one_line(method, loss):
    with pytest.raises(
        ConfigError, match=f"debias={method.name} is not defined for loss={loss.name}; choose "
    ):
        Ranker(loss=loss, debias=method, query_doc_pairs=4, positions=3, rngs=nnx.Rngs(0))


def test_a_ranker_without_its_propensities_says_so():
    ranker = Ranker(debias=InversePropensity(), query_doc_pairs=4, rngs=nnx.Rngs(0))
    with pytest.raises(ConfigError, match="debias=ips needs propensities"):
        ranker.compute_loss(batch_of(VECTORS, query_doc_ids=np.ones((8, 3), np.int32)))


OFFSETS = Propensities(tuple(EXAMINATION), offsets=tuple(TRUST))
METHODS = {
    "none": (NoDebias(), WarpLoss()),
    "ips": (InversePropensity(propensity=GIVEN), SoftmaxLoss()),
    "affine": (AffineCorrection(propensity=OFFSETS), PointwiseLoss()),
    "policy_aware": (PolicyAware(propensity=GIVEN), SoftmaxLoss()),
    "dla": (DualLearning(), SoftmaxLoss()),
    "regression_em": (RegressionEM(), PointwiseLoss()),
    "pair_debias": (PairDebias(), LambdaLoss()),
    "doubly_robust": (DoublyRobust(propensity=GIVEN), SoftmaxLoss()),
}


def ranker_of(name, **given):
    debias, loss = METHODS[name]
    return Ranker(loss=loss, debias=debias, query_doc_pairs=6, positions=8, rngs=nnx.Rngs(0), **given)


MODELS = {
    **{name: functools.partial(ranker_of, name) for name in METHODS},
    **{
        f"ips {name}": functools.partial(
            ranker_of, "ips", attraction=tower, features={"query_doc_features": 5}
        )
        for name, tower in {
            "linear": LinearParameterConfig(),
            "deep": DeepParameterConfig(layers=1, hidden_units=4),
            "deep_cross": DeepCrossParameterConfig(deep_layers=1, cross_layers=1),
        }.items()
    },
    "two_towers": lambda: TwoTowersModel(8, 6, policy_weighting=True, reversal=0.5, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_scores_do_not_depend_on_padding_and_batches(name):
    model = fill_tables(MODELS[name]())
    model.eval()
    columns, rng = ragged_log(5, 4, 6), np.random.default_rng(0)
    mask = np.arange(4) < columns["lengths"][:, None]
    batch = {
        "query_doc_ids": columns["query_doc_ids"],
        "clicks": columns["clicks"],
        "mask": mask,
        "query_doc_features": rng.normal(size=(5, 4, 5)).astype(np.float32),
        POLICY_PROPENSITY: rng.uniform(0.1, 1, (5, 4)).astype(np.float32),
        POLICY_SHARE: rng.uniform(0.1, 1, (5, 4)).astype(np.float32),
    }

    def placed(batch):
        return {**batch, "positions": np.arange(1, batch["mask"].shape[1] + 1, dtype=np.int32)[None]}

    def padded(values):
        return np.pad(values, ((0, 2), (0, 3), (0, 0))[: values.ndim], mode="edge")

    wide = placed(
        {**{key: padded(values) for key, values in batch.items()}, "mask": np.pad(mask, ((0, 2), (0, 3)))}
    )
    plain, wider = (np.asarray(model.compute_loss(each, aggregate=False)) for each in (placed(batch), wide))
    total = plain if plain.ndim == 1 else np.pad(plain, ((0, 0), (0, 3)))
    np.testing.assert_allclose(wider[:5], total, rtol=1e-5)
    np.testing.assert_array_equal(wider[5:], 0)
    scores, more = (np.asarray(model.predict_relevance(each)) for each in (placed(batch), wide))
    np.testing.assert_allclose(more[:5, :4], scores, rtol=1e-6)
    assert (more[:, 4:] == -np.inf).all() and (more[5:] == -np.inf).all()
    parts = [
        placed({key: values[part] for key, values in batch.items()}) for part in (slice(0, 3), slice(3, 5))
    ]
    for found, whole in (
        ([model.compute_loss(each, aggregate=False) for each in parts], plain),
        ([model.predict_relevance(each) for each in parts], scores),
    ):
        np.testing.assert_allclose(np.concatenate(found), whole, rtol=1e-5)


@pytest.mark.as_users
@pytest.mark.parametrize("name", METHODS)
def test_no_step_touches_a_whole_table(name):
    """The cost of a step does not grow with the number of documents."""
    debias, loss = METHODS[name]
    pairs, batch = 50_000, 16
    ranker = Ranker(loss=loss, debias=debias, query_doc_pairs=pairs, positions=4, rngs=nnx.Rngs(0))
    graphdef, state = split_model(ranker, lazy_adam())
    columns = ragged_log(32, 4, pairs, full=True)
    arrays = superbatch({**columns, POLICY_PROPENSITY: np.ones((32, 4), np.float32)}, batch)
    compiled = (
        jax.jit(TrainStep(graphdef, lazy_adam()), donate_argnums=0)
        .lower(state, arrays, np.int32(2))
        .compile()
    )
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * pairs / 4

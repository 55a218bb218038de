"""Corrections of clicks, by enumeration over all click vectors of small lists in float64."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses
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
from clickexp.models.ranker.losses import (
    ApproxNDCGLoss,
    GumbelNDCGLoss,
    Loss,
    PointwiseLoss,
    Poly1Loss,
    SoftmaxLoss,
)
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


def slopes(debias, clicks, learned=None, losses=LINEAR, **more):
    """Gradient of each loss of each click vector in the scores, by its name."""

    def of_vectors(scores):
        repeated, batch = jnp.broadcast_to(scores, clicks.shape), batch_of(clicks, **more)
        return {loss.name: debias.loss(loss, repeated, batch, learned) for loss in losses}

    return jax.tree.map(np.float64, jax.jit(jax.jacobian(of_vectors))(SCORES))


@functools.partial(nnx.jit, static_argnums=(0, 1))
def losses_of(debias, loss, learned, batch):
    """Those of the scores; what the correction learns by separate steps moves."""
    return debias.loss(loss, jnp.broadcast_to(SCORES, batch["mask"].shape), batch, learned)


@pytest.fixture(scope="module")
def of_relevance():
    """Gradient of each loss of full information, in which labels are relevance, by its name."""

    def values(scores):
        lists = scores[None], np.float32(RELEVANCE)[None], np.ones((1, 3), bool)
        return {loss.name: loss(*lists)[0] for loss in LINEAR}

    return jax.tree.map(np.float64, jax.jit(jax.jacobian(values))(SCORES))


def test_gradients_of_inverse_propensity_scoring_are_unbiased(of_relevance):
    chances = probabilities(EXAMINATION * RELEVANCE)
    weighted, naive = (
        slopes(each, VECTORS) for each in (InversePropensity(propensity=GIVEN), NoDebias())
    )
    for name, expected in of_relevance.items():
        np.testing.assert_allclose(chances @ weighted[name], expected, atol=1e-6, err_msg=name)
        assert np.abs(chances @ naive[name] - expected).max() > 0.05, name


def test_gradients_of_the_affine_correction_are_unbiased_under_trust_bias(of_relevance):
    slope = np.array([0.8, 0.3, 0.1])
    chances = probabilities(TRUST + slope * RELEVANCE)
    method = AffineCorrection(propensity=Propensities(tuple(slope), offsets=tuple(TRUST)))
    corrected = slopes(method, VECTORS)
    weighted = slopes(InversePropensity(propensity=Propensities(tuple(slope))), VECTORS)
    for name, expected in of_relevance.items():
        np.testing.assert_allclose(chances @ corrected[name], expected, atol=1e-6, err_msg=name)
        assert np.abs(chances @ weighted[name] - expected).max() > 0.05, name


def test_weights_that_subtract_no_offsets_are_of_click_rates_of_relevant_documents():
    slope = np.array([0.8, 0.3, 0.4])  # grows at the last position, where the click rate does not
    given = Propensities(tuple(slope / slope[0]), offsets=tuple(TRUST), first=slope[0])
    rates = TRUST + slope
    batch = batch_of(np.zeros((1, 3), bool))
    np.testing.assert_allclose(
        InversePropensity(propensity=given).weights(batch)[0], rates[0] / rates, rtol=1e-6
    )
    np.testing.assert_allclose(
        AffineCorrection(propensity=given).weights(batch)[0], slope[0] / slope, rtol=1e-6
    )


def test_documents_whose_estimates_are_below_0_keep_finite_scores():
    """Their loss alone falls without end: after 2,000 steps of 0.1 scores would differ by dozens."""
    batch = batch_of([True, False, False], query_doc_ids=np.array([[1, 2, 3]], np.int32))

    def descended(method, loss):
        debias = method(propensity=Propensities((1.0, 0.5, 0.5), offsets=(0.3, 0.2, 0.2)))
        learned = debias.build(Sizes(query_doc_pairs=3), nnx.Rngs(0))
        slope = jax.grad(lambda scores: debias.loss(loss, scores[None], batch, learned)[0])
        return jax.lax.fori_loop(
            0, 2_000, lambda _, scores: scores - 0.1 * slope(scores), jnp.zeros(3)
        )

    pairs = list(itertools.product((AffineCorrection, DoublyRobust), LINEAR))
    found = jax.jit(lambda: [descended(*pair) for pair in pairs])()
    for (method, loss), scores in zip(pairs, found, strict=True):
        assert scores[0] > scores[1:].max() + 5, (method.name, loss.name)
        assert np.abs(scores).max() < 12, (method.name, loss.name)


def test_clipped_weights_and_positions_without_propensity():
    method = InversePropensity(propensity=Propensities((1.0, 0.5, 0.01, None)), clip=0.1)
    np.testing.assert_allclose(
        method.weights(batch_of(np.zeros((1, 5), bool)))[0], [1, 2, 10, 0, 0], rtol=1e-6
    )


def test_the_affine_correction_without_offsets_is_refused():
    """It would be inverse propensity scoring under another name."""
    ids = np.ones((1, 3), np.int32)
    few = packed({"query_doc_ids": ids, "clicks": ids > 9}, 1)
    with refuses(ConfigError, "debias=affine", "(given)", "propensity.offsets", "debias=ips"):
        AffineCorrection(propensity=GIVEN).prepare(Dataset("log", few, few, few, 1, 3))


@pytest.mark.parametrize("name", ["policy_aware", "doubly_robust"])
def test_clicks_at_positions_without_propensity_correct_nothing(name):
    known = Propensities((1.0, 0.5, None))
    column = {POLICY_PROPENSITY: np.full((1, 3), 0.01, np.float32)}
    clicks = np.array([[False, False, True], [False, False, False]])
    if name == "policy_aware":
        found = slopes(PolicyAware(propensity=known), clicks, losses=[SoftmaxLoss()], **column)
    else:
        method, ids = (
            DoublyRobust(propensity=known),
            {"query_doc_ids": np.array([[1, 2, 3]], np.int32)},
        )
        tower = method.build(Sizes(query_doc_pairs=3), nnx.Rngs(0))
        found = slopes(method, clicks, _Known(tower, ids), [SoftmaxLoss()])
    np.testing.assert_allclose(*found["softmax"], atol=1e-7)


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


@pytest.mark.parametrize("wrong", ["nothing", "regression", "divisor", "both"])
def test_gradients_of_doubly_robust_losses_are_unbiased_if_either_part_is_right(
    wrong, of_relevance
):
    """The divisor is that of the weights: wrong where the clip is above a propensity."""
    alpha, beta = EXAMINATION, TRUST * 0.5
    tower = _Logits(
        logit(RELEVANCE if wrong in ("nothing", "divisor") else np.array([0.8, 0.1, 0.2]))
    )
    clip = 0.05 if wrong in ("nothing", "regression") else 0.6
    method = DoublyRobust(propensity=Propensities(tuple(alpha), offsets=tuple(beta)), clip=clip)
    found, chances = slopes(method, VECTORS, tower), probabilities(beta + alpha * RELEVANCE)
    for name, expected in of_relevance.items():
        if wrong == "both":
            assert np.abs(chances @ found[name] - expected).max() > 0.05, name
        else:
            np.testing.assert_allclose(chances @ found[name], expected, atol=1e-6, err_msg=name)


def test_true_relevance_is_the_fixed_point_of_the_regression_of_doubly_robust():
    alpha, beta = EXAMINATION, TRUST * 0.5
    method = DoublyRobust(propensity=Propensities(tuple(alpha), offsets=tuple(beta)))
    chances = np.float32(probabilities(beta + alpha * RELEVANCE))

    def expected(logits):
        shown = jnp.broadcast_to(SCORES, VECTORS.shape)
        return jnp.sum(
            chances * method.loss(SoftmaxLoss(), shown, batch_of(VECTORS), _Logits(logits))
        )

    slope = jax.jit(jax.grad(expected))
    np.testing.assert_allclose(slope(logit(RELEVANCE)), 0, atol=1e-6)
    wrong = slope(logit(np.array([0.8, 0.1, 0.2])))
    assert np.abs(wrong).min() > 0.01


def test_policy_aware_weights_are_unbiased_where_a_page_cuts_documents_off():
    """Two of three documents shown, in one of two orders, of which the second leaves out document 0."""
    shown, policy = [[0, 1], [1, 2]], np.array([0.7, 0.3])
    of_documents = np.array([0.7 * 1, 0.7 * 0.5 + 0.3 * 1, 0.3 * 0.5])
    method = PolicyAware(propensity=GIVEN, clip=0.01)
    labels = jax.jit(
        lambda batch: [
            method.loss(_Label(place), jnp.zeros((1, 2)), batch)[0] for place in range(2)
        ]
    )
    expected = np.zeros(3)
    for chance, documents in zip(policy, shown, strict=True):
        for clicks in itertools.product([False, True], repeat=2):
            rates = EXAMINATION[:2] * RELEVANCE[documents]
            weight = chance * np.prod(np.where(clicks, rates, 1 - rates))
            column = {POLICY_PROPENSITY: np.float32(of_documents[documents])[None]}
            np.add.at(
                expected, documents, weight * np.array(labels(batch_of(np.array(clicks), **column)))
            )
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
    sessions = packed(
        {"query_doc_ids": ids, "clicks": ids > 9, "query_ids": np.array([1, 1, 1, 1, 2])}, 5
    )
    few = packed(
        {"query_doc_ids": ids[:1], "clicks": ids[:1] > 9, "query_ids": np.array([1])}, 5
    ).slice(0, 0)
    dataset = Dataset("log", sessions, few, few, 5, 2)
    made = PolicyAware(propensity=Propensities((1.0, 0.4))).prepare(dataset).train
    expected = {1: (3 + 0.4) / 4, 2: (2 * 0.4 + 1) / 4, 3: 0.4 / 4, 4: 1.0, 5: 0.4}
    np.testing.assert_allclose(
        made.column(POLICY_PROPENSITY), np.vectorize(expected.get)(ids), rtol=1e-6
    )
    queries = np.array([1, 1, 1, 1, 2])
    swapped = packed(
        {"query_doc_ids": ids[:, ::-1].copy(), "clicks": ids > 9, "query_ids": queries}, 5
    )
    # another policy, which is not that of training
    shifted = dataclasses.replace(dataset, test=swapped)
    again = PolicyAware(propensity=Propensities((1.0, 0.4))).prepare(shifted)
    np.testing.assert_array_equal(
        again.train.column(POLICY_PROPENSITY), made.column(POLICY_PROPENSITY)
    )
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
            total += jnp.sum(
                chances * method.loss(SoftmaxLoss(), shown, batch_of(VECTORS), learned)
            )
        return total

    truth, slopes_of = (
        np.log(RELEVANCE).astype(np.float32),
        nnx.jit(nnx.grad(expected, argnums=(0, 1))),
    )
    of_scores, of_curve = slopes_of(truth, learned)
    np.testing.assert_allclose(of_scores, 0, atol=1e-6)
    np.testing.assert_allclose(of_curve["values"][...], 0, atol=1e-6)
    of_scores, _ = slopes_of(SCORES, learned)
    assert np.abs(of_scores).max() > 0.05
    np.testing.assert_allclose(method.examination(learned), EXAMINATION, rtol=1e-6)


def test_a_step_of_regression_em_by_hand():
    method = RegressionEM(step=0.25, initial=0.6)
    learned = method.build(Sizes(positions=3), nnx.Rngs(0))
    clicks = np.array([[True, False, False], [False, False, True]])
    r = 1 / (1 + np.exp(-np.float64(SCORES)))
    learned.eval()
    likelihood = losses_of(method, PointwiseLoss(), learned, batch_of(clicks))
    np.testing.assert_allclose(
        likelihood, -np.log(np.where(clicks, 0.6 * r, 1 - 0.6 * r)).sum(axis=1), rtol=1e-6
    )
    np.testing.assert_array_equal(learned.values[...], np.float32(0.6))
    relevant = np.where(clicks, 1, (1 - 0.6) * r / (1 - 0.6 * r))
    expected = -(relevant * np.log(r) + (1 - relevant) * np.log(1 - r)).sum(axis=1)
    learned.train()
    losses = losses_of(method, PointwiseLoss(), learned, batch_of(clicks))
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
    pairs = np.array(
        [[[c[i] * (not c[j]) * cost[i, j] for j in range(3)] for i in range(3)] for c in clicks]
    )
    losses = losses_of(method, PairwiseLoss(), learned, batch_of(clicks))
    np.testing.assert_allclose(losses, (pairs / plus[:, None] / minus).sum(axis=(1, 2)), rtol=1e-5)
    of_clicked, of_others = (
        (pairs / minus).sum(axis=(0, 2)),
        (pairs / plus[:, None]).sum(axis=(0, 1)),
    )
    moved = 0.5 * plus + 0.5 * np.sqrt(of_clicked / of_clicked[0])
    moved[2] = plus[2]  # no pair was clicked there
    np.testing.assert_allclose(learned.clicked.values[1:], moved, rtol=1e-5)
    np.testing.assert_allclose(
        learned.others.values[1:], 0.5 * minus + 0.5 * np.sqrt(of_others / of_others[0]), rtol=1e-5
    )
    losses_of(method, PairwiseLoss(), learned, batch_of(clicks[[1, 1]]))
    # nothing to compare with
    np.testing.assert_allclose(learned.clicked.values[1:], moved, rtol=1e-5)


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
    with refuses(ConfigError, f"debias={method.name}", f"loss={loss.name}", "; choose "):
        Ranker(loss=loss, debias=method, query_doc_pairs=4, positions=3, rngs=nnx.Rngs(0))


def test_losses_of_ones_own_are_taken_by_what_they_are():
    """A name in results decides nothing."""

    class SquaredLoss(Loss):
        name, linear = "squared", True

        def value(self, lists, key):
            return jnp.sum(
                lists.scores**2 - 2 * lists.weights * lists.labels * lists.scores, axis=1
            )

    class MyPairwiseLoss(PairwiseLoss):
        name = "mine"

    for method, loss in [
        (AffineCorrection(), SquaredLoss()),
        (DoublyRobust(), SquaredLoss()),
        (PairDebias(), MyPairwiseLoss()),
    ]:
        ranker = Ranker(loss=loss, debias=method, query_doc_pairs=4, positions=3, rngs=nnx.Rngs(0))
        assert ranker.loss is loss


def test_noise_differs_from_step_to_step_of_training_alone():
    ranker = fill_tables(Ranker(loss=GumbelNDCGLoss(), query_doc_pairs=3, rngs=nnx.Rngs(0)))
    batch = batch_of([True, False, False], query_doc_ids=np.array([[1, 2, 3]], np.int32))
    loss = nnx.jit(Ranker.compute_loss)
    ranker.train()
    assert loss(ranker, batch) != loss(ranker, batch)
    ranker.eval()
    assert loss(ranker, batch) == loss(ranker, batch)


def test_a_ranker_without_its_propensities_says_so():
    ranker = Ranker(debias=InversePropensity(), query_doc_pairs=4, rngs=nnx.Rngs(0))
    with refuses(ConfigError, "debias=ips", "debias.propensity", "propensity=given"):
        nnx.jit(Ranker.compute_loss)(
            ranker, batch_of(VECTORS, query_doc_ids=np.ones((8, 3), np.int32))
        )


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
    return Ranker(
        loss=loss, debias=debias, query_doc_pairs=6, positions=8, rngs=nnx.Rngs(0), **given
    )


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
    "two_towers": lambda: TwoTowersModel(
        8, 6, policy_weighting=True, reversal=0.5, rngs=nnx.Rngs(0)
    ),
}


@nnx.jit
def losses_and_scores(models, batch):
    """Of each model, so that one program has all: it compiles faster than one for each."""
    return [
        (model.compute_loss(batch, aggregate=False), model.predict_relevance(batch))
        for model in models
    ]


def test_losses_and_scores_do_not_depend_on_padding_and_batches():
    models = [fill_tables(build()) for build in MODELS.values()]
    for model in models:
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
        return {
            **batch,
            "positions": np.arange(1, batch["mask"].shape[1] + 1, dtype=np.int32)[None],
        }

    def padded(values):
        return np.pad(values, ((0, 2), (0, 3), (0, 0))[: values.ndim], mode="edge")

    wide = placed(
        {
            **{key: padded(values) for key, values in batch.items()},
            "mask": np.pad(mask, ((0, 2), (0, 3))),
        }
    )
    means = nnx.jit(lambda models, batch: [model.compute_loss(batch) for model in models])
    short, first, last = (
        losses_and_scores(models, placed({key: values[part] for key, values in batch.items()}))
        for part in (slice(0, 5), slice(0, 3), slice(2, 5))
    )
    for name, (losses, _), mean in zip(MODELS, short, means(models, placed(batch)), strict=True):
        np.testing.assert_allclose(mean, float(losses.sum()) / mask.sum(), rtol=1e-5, err_msg=name)
    each = zip(MODELS, short, losses_and_scores(models, wide), first, last, strict=True)
    for name, (plain, scores), (wider, more), of_first, of_last in each:
        total = plain if plain.ndim == 1 else np.pad(plain, ((0, 0), (0, 3)))
        np.testing.assert_allclose(wider[:5], total, rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(wider[5:], 0, err_msg=name)
        np.testing.assert_allclose(more[:5, :4], scores, rtol=1e-6, err_msg=name)
        assert (more[:, 4:] == -np.inf).all() and (more[5:] == -np.inf).all(), name
        for whole, of_part, rest in zip((plain, scores), of_first, of_last, strict=True):
            np.testing.assert_allclose(of_part, whole[:3], rtol=1e-5, err_msg=name)
            np.testing.assert_allclose(rest, whole[2:], rtol=1e-5, err_msg=name)


@pytest.mark.as_users
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "doubly_robust" else pytest.mark.nightly)
        for name in METHODS
    ],
)
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

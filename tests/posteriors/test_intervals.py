"""Intervals of shared probabilities from the posterior of their logits, against draws from it."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree
from refusals import refuses
from small_logs import sigmoid

from clickexp.data import Sessions
from clickexp.errors import UserError
from clickexp.models import (
    ClickChainModel,
    DependentClickModel,
    DynamicBayesianNetwork,
    MixtureModel,
    PositionBasedModel,
    Ranker,
    TrustBiasModel,
    UserBrowsingModel,
)
from clickexp.models.ranker.learned import DualLearning
from clickexp.models.ranker.losses import SoftmaxLoss
from clickexp.parameters import (
    ContextParameterConfig,
    DeepParameterConfig,
    PositionParameterConfig,
    SumParameterConfig,
)
from clickexp.posteriors import shared as posterior_module
from clickexp.posteriors.information import Information
from clickexp.posteriors.intervals import (
    of_first_positions,
    propensity,
    shared_intervals,
    short_intervals,
    why_no_intervals,
)
from clickexp.posteriors.shared import SharedPosterior, count_shared, shared_posterior

SIZES = {"positions": 3, "query_doc_pairs": 4}
IDS = np.array([[1, 2, 3], [2, 4, 1], [3, 1, 2]], np.int32)
CLICKS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], bool)
SESSIONS = Sessions.from_arrays(query_doc_ids=IDS, clicks=CLICKS, query_doc_pairs=4)
NORMAL = np.random.default_rng(0).standard_normal((200_000, 16))


def built(kind, **towers):
    return kind(**SIZES, **towers, rngs=nnx.Rngs(0))


def test_examination_without_intervals_has_a_reason(monkeypatch):
    by_position = PositionParameterConfig()
    both = SumParameterConfig({"first": by_position, "second": by_position})
    model = built(PositionBasedModel, examination=both)
    assert "SumParameter, and intervals are of towers" in why_no_intervals(model, None)
    ranker = built(Ranker, loss=SoftmaxLoss(), debias=DualLearning())
    assert "the correction of a ranker" in why_no_intervals(ranker, None)
    model = built(PositionBasedModel)
    assert "shared_intervals=false" in why_no_intervals(model, None)
    monkeypatch.setattr("clickexp.posteriors.intervals.MOST_SHARED", 3)
    numbers = count_shared(model)
    assert numbers == 5  # positions 0 to 3, and the baseline of attraction
    assert f"{numbers} shared numbers, and intervals are for 3" in why_no_intervals(model, None)


def posterior_of(names, seed=0):
    """A random covariance of small deviations."""
    root = 0.02 * np.random.default_rng(seed).normal(size=(len(names), len(names)))
    return SharedPosterior(tuple(names), root @ root.T)


def drawn(posterior, logits):
    """Logits [draws, numbers] from the posterior around these."""
    root = np.linalg.cholesky(posterior.covariance + 1e-12 * np.eye(len(logits)))
    return logits + NORMAL[:, : len(logits)] @ root.T


def bounds(values):
    return np.quantile(values, [0.025, 0.975], axis=0)


def test_a_posterior_given_numbers_has_the_rest_of_the_precision_matrix():
    root = np.random.default_rng(1).normal(size=(4, 4))
    posterior = SharedPosterior(("a", "b", "c", "d"), root @ root.T)
    given = posterior.given(["d", "b"])
    assert given.names == ("a", "c")
    precision = np.linalg.inv(posterior.covariance)[np.ix_([0, 2], [0, 2])]
    np.testing.assert_allclose(given.covariance, np.linalg.inv(precision), rtol=1e-8)
    assert posterior.given([]).names == posterior.names
    np.testing.assert_array_equal(posterior.given([]).covariance, posterior.covariance)


FIRST = [
    (PositionBasedModel, ["examination/weight[2]"]),
    (TrustBiasModel, ["false_positive/weight[2]", "true_positive/weight[2]"]),
    # position 2, no click above; rows have four last clicks
    (UserBrowsingModel, ["examination/weight[8]"]),
    (DependentClickModel, []),
    (DynamicBayesianNetwork, []),
]


def test_attraction_is_known_given_the_first_position_that_the_log_shows():
    """Rows of position 1 are not among the names."""
    for kind, first in FIRST:
        model = built(kind)
        names = [
            name
            for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))
            for place in range(variable.get_value().size)
            if (
                name := "/".join(map(str, path))
                + (f"[{place}]" if variable.get_value().ndim else "")
            )
            and not (path[-1] == "weight" and place < (8 if kind is UserBrowsingModel else 2))
        ]
        assert sorted(of_first_positions(model, posterior_of(names))) == first, kind


def test_one_component_of_a_mixture_is_enough_to_know_attraction():
    shared = {"attraction": PositionBasedModel.roles["attraction"]}

    def first(*kinds):
        mixture = MixtureModel(kinds, shared=shared, **SIZES, rngs=nnx.Rngs(0))
        names = [f"models/{k}/examination/weight[{i}]" for k in range(2) for i in (1, 2, 3)]
        return of_first_positions(mixture, posterior_of(names))

    assert first(PositionBasedModel, PositionBasedModel) == ["models/0/examination/weight[1]"]
    assert first(PositionBasedModel, DynamicBayesianNetwork) == []


def test_ratios_of_examination_and_their_intervals():
    model = built(PositionBasedModel)
    weights = np.array([0.0, 2.0, 0.5, -1.0])
    model.examination.weight[...] = jnp.asarray(weights)
    posterior = posterior_of([f"examination/weight[{i}]" for i in (1, 2, 3)])
    found = shared_intervals(model, posterior)
    assert propensity(model, posterior, SESSIONS) == found
    assert [(each.parameter, each.position, each.last_click) for each in found] == [
        ("examination", i, None) for i in (1, 2, 3)
    ]
    ratios = sigmoid(drawn(posterior, weights[1:]))
    ratios /= ratios[:, :1]
    for each, low, high, values in zip(found, *bounds(ratios), np.log(ratios).T, strict=True):
        assert each.low is each.high is None and each.value == pytest.approx(
            sigmoid(weights[each.position])
        )
        assert each.relative == pytest.approx(each.value / found[0].value)
        assert (each.relative_low, each.relative_high) == pytest.approx((low, high), rel=0.01)
        assert each.sd == pytest.approx(values.std(), rel=0.02, abs=1e-6)


def test_a_ratio_is_open_from_a_deviation_of_three_and_a_half():
    """Of bounds that are exp(3.5 * 1.96), a thousand times the ratio, apart from it, nobody learns anything."""
    model = built(PositionBasedModel)
    # the first is 1, whatever its error
    model.examination.weight[...] = jnp.asarray([0.0, 20.0, 0.0, 0.0])
    names = tuple(f"examination/weight[{i}]" for i in (1, 2, 3))
    # of logits of 0, whose probability has half their slope in its logarithm
    sds = np.array([1.0, 6.8, 7.2])
    found = shared_intervals(model, SharedPosterior(names, np.diag(sds**2)))
    assert [each.sd for each in found[1:]] == pytest.approx(sds[1:] / 2, rel=1e-5)
    assert found[1].relative_low == pytest.approx(0.5 * np.exp(-1.96 * 3.4), rel=1e-3)
    assert found[2].relative_low is found[2].relative_high is None


@pytest.mark.parametrize(
    "kind, key",
    [
        (PositionBasedModel, "positions"),
        pytest.param(UserBrowsingModel, "examination_idx", marks=pytest.mark.nightly),
    ],
)
def test_with_context_they_are_those_of_a_new_search_session(kind, key):
    alone = built(kind)
    weights = np.random.default_rng(3).normal(size=alone.examination.weight.shape)
    terms = {
        "context": ContextParameterConfig(["session_index"]),
        "tower": PositionParameterConfig(use_feature=key),
    }
    model = built(kind, examination=SumParameterConfig(terms))
    model.examination.terms["context"].weight[...] = jnp.array([3.0, 4.0])
    for tower in (alone.examination, model.examination.terms["tower"]):
        tower.weight[...] = jnp.asarray(weights)
    places = (1, 2, 3) if kind is PositionBasedModel else (4, 8, 9, 12)
    names = [f"weight[{i}]" for i in places]
    posterior = posterior_of([f"examination/{name}" for name in names])
    in_sum = tuple(f"examination/terms/tower/{name}" for name in names)
    of_sum = SharedPosterior(in_sum, posterior.covariance)
    assert shared_intervals(model, of_sum) == shared_intervals(alone, posterior) != []
    assert propensity(model, of_sum, SESSIONS) == propensity(alone, posterior, SESSIONS) != []


def test_cells_of_ubm_and_their_means_by_position():
    model = built(UserBrowsingModel)
    weights = np.random.default_rng(1).normal(size=16)
    model.examination.weight[...] = jnp.asarray(weights)
    # (position, last click): (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)
    places = [4, 8, 9, 12, 13, 14]
    posterior = posterior_of([f"examination/weight[{i}]" for i in places])
    cells = shared_intervals(model, posterior)
    assert [(each.position, each.last_click) for each in cells] == [(i // 4, i % 4) for i in places]
    logits = drawn(posterior, weights[places])
    table = sigmoid(logits)
    for each, low, high in zip(cells, *bounds(table / table[:, :1]), strict=True):
        assert (each.relative_low, each.relative_high) == pytest.approx((low, high), rel=0.02)
    # given clicks, the second rank has seen (0, 1, 0) clicked at 1: sessions 1; the third (1, 2, 0)
    second = (2 * table[:, 1] + table[:, 2]) / 3
    by_rank = [table[:, 0], second, table[:, 3:6].mean(axis=1)]
    means = propensity(model, posterior, SESSIONS)
    assert [each.position for each in means] == [1, 2, 3]
    for each, values in zip(means, by_rank, strict=True):
        expected = tuple(bounds(values / table[:, 0]))
        assert (each.relative_low, each.relative_high) == pytest.approx(expected, rel=0.02)


def test_continuation_has_intervals_of_its_own():
    model = built(DependentClickModel)
    model.continuation.weight[...] = jnp.asarray([0.0, 1.0, -0.5, 0.2])
    posterior = posterior_of(["continuation/weight[1]", "continuation/weight[2]"])
    found = shared_intervals(model, posterior)
    assert propensity(model, posterior, SESSIONS) == [] and [each.position for each in found] == [
        1,
        2,
    ]
    for each, logit, variance in zip(
        found, (1.0, -0.5), np.diag(posterior.covariance), strict=True
    ):
        half = 1.959964 * variance**0.5
        expected = sigmoid(logit), sigmoid(logit - half), sigmoid(logit + half)
        assert (each.value, each.low, each.high) == pytest.approx(expected, rel=1e-5)
        assert each.sd == pytest.approx(variance**0.5, rel=1e-5) and each.relative is None


def test_global_numbers_and_components_of_mixtures():
    model = MixtureModel([PositionBasedModel, DynamicBayesianNetwork], **SIZES, rngs=nnx.Rngs(0))
    examination = [f"models/0/examination/weight[{i}]" for i in (1, 3)]
    names = [*examination, "models/1/continuation/weight[0]"]
    found = shared_intervals(model, posterior_of(names))
    places = [("models/0/examination", 1), ("models/0/examination", 3)]
    places += [("models/1/continuation", None)]
    assert [(each.parameter, each.position) for each in found] == places
    assert found[1].relative is not None and found[2].low < found[2].value < found[2].high


def test_slopes_of_the_trust_bias_model():
    model = built(TrustBiasModel)
    true, false = np.array([2.0, 1.0, -3.0]), np.array([-2.0, -3.0, -2.9])
    model.true_positive.weight[...] = jnp.asarray([0.0, *true])
    model.false_positive.weight[...] = jnp.asarray([0.0, *false])
    sides = "true_positive", "false_positive"
    posterior = posterior_of([f"{side}/weight[{i}]" for side in sides for i in (1, 2, 3)])
    found = shared_intervals(model, posterior)
    logits = drawn(posterior, np.concatenate([true, false]))
    slopes = sigmoid(logits[:, :3]) - sigmoid(logits[:, 3:])
    low, high = bounds(slopes[:, 1] / slopes[:, 0])
    assert [each.parameter for each in found] == ["slope"] * 3
    assert (found[1].relative_low, found[1].relative_high) == pytest.approx((low, high), rel=0.02)
    # true below false positives: open
    assert found[2].relative_low is found[2].relative_high is None


def test_covariance_of_any_function():
    model = built(PositionBasedModel)
    posterior = posterior_of(["examination/weight[2]", "attraction/baseline"])

    def function(model):
        return jnp.stack([3 * model.examination.weight[2], model.attraction.baseline[...] ** 2])

    slopes = np.diag([3.0, 2 * float(model.attraction.baseline[...])])
    values, found = posterior.moments_of(model, function)
    np.testing.assert_allclose(found, slopes @ posterior.covariance @ slopes.T, rtol=1e-5)
    np.testing.assert_array_equal(values, function(model))
    with refuses(UserError, "another model", "Run the experiment again"):
        posterior_of(["continuation/weight[1]"]).moments_of(model, function)


def test_posteriors_come_back_from_their_file(tmp_path):
    posterior = posterior_of(["a/weight[1]", "b"])
    posterior.save(tmp_path / "shared.npz")
    again = SharedPosterior.load(tmp_path / "shared.npz")
    assert again.names == posterior.names
    np.testing.assert_array_equal(again.covariance, posterior.covariance)
    (tmp_path / "shared.npz").write_bytes((tmp_path / "shared.npz").read_bytes()[:100])
    with refuses(UserError, "shared.npz is damaged", "Run the experiment again"):
        SharedPosterior.load(tmp_path / "shared.npz")
    right = posterior.covariance
    for covariance in (right[1:], right.astype(complex), right.astype(str)):
        np.savez(tmp_path / "shared.npz", names=np.array(posterior.names), covariance=covariance)
        with refuses(UserError, "shared.npz is damaged", "Run the experiment again"):
            SharedPosterior.load(tmp_path / "shared.npz")


def inform(monkeypatch, matrix, first, complete, score, used=(1, 2, 3)):
    """Lets a log say this about the examination of PBM; returns the data that are looked at."""
    looked_at = []

    def information(model, data, report, devices):
        looked_at.append(data)
        report(data.count, data.count)
        return Information(np.array(used), matrix, first, complete, score)

    monkeypatch.setattr(posterior_module, "information", information)
    return looked_at


def informed(seed):
    """Information without what rows explain, less a part, and less another; of five numbers of unlike scales."""
    roots = np.random.default_rng(seed).normal(size=(3, 5, 5)) * [1.0, 10.0, 0.5, 2.0, 3.0]
    matrix, *parts = (root.T @ root for root in roots)
    matrix += np.diag([1.0, 100.0, 0.25, 4.0, 9.0])
    return matrix, matrix + parts[0] / 5, matrix + parts[0] / 5 + parts[1] / 5


def test_the_covariance_is_the_inverse_information_and_the_step_that_is_left(monkeypatch):
    """The last number is a nuisance."""
    matrix, first, complete = informed(2)
    score = 1e-3 * np.random.default_rng(3).normal(size=5)
    progress = []
    inform(monkeypatch, matrix, first, complete, score, used=(1, 2, 3, 4))
    model = built(PositionBasedModel)
    found = shared_posterior(model, SESSIONS, lambda *counts: progress.append(counts))
    assert found.names == tuple(f"examination/weight[{i}]" for i in range(4))
    left = found.covariance - np.linalg.inv(matrix)[:4, :4]
    step = np.linalg.solve(first, score)
    np.testing.assert_allclose(left, np.outer(step, step)[:4, :4], rtol=1e-6, atol=1e-12)
    assert progress == [(3, 3)]


def test_the_step_that_is_left_is_at_most_a_deviation_in_each_direction(monkeypatch):
    matrix, first, complete = informed(4)
    inform(monkeypatch, matrix, first, complete, np.full(5, 1e6), used=range(5))
    found = shared_posterior(built(PositionBasedModel), SESSIONS)
    left = found.covariance - np.linalg.inv(matrix)
    # the square of its length in deviations, of five directions
    assert np.trace(first @ left) == pytest.approx(5)


@pytest.mark.parametrize("left", [0.5, 1e-3, -0.03])
def test_an_indefinite_matrix_makes_deviations_seven_times_as_large_at_most(monkeypatch, left):
    """Rows take off all but `left` of the information in one oblique direction of three, or more than there is."""
    root = np.random.default_rng(3).normal(size=(3, 3))
    direction = np.array([0.6, 0.0, 0.8])
    complete = root.T @ root
    matrix = root.T @ (np.eye(3) - (1 - left) * np.outer(direction, direction)) @ root
    inform(monkeypatch, matrix, matrix, complete, np.zeros(3))
    found = shared_posterior(built(PositionBasedModel), SESSIONS).covariance
    moved = np.linalg.solve(root, direction)
    widened = (1 / max(left, 0.02) - 1) * np.outer(moved, moved)
    np.testing.assert_allclose(found, np.linalg.inv(complete) + widened, rtol=1e-6)


def test_estimates_are_as_far_off_as_eigenvalues_are_below_zero(monkeypatch):
    """Of information with rows known, which explain nothing here."""
    complete = 1.6 * np.eye(3) - 0.6 * np.ones((3, 3))
    values, vectors = np.linalg.eigh(complete)
    assert values[0] == pytest.approx(-0.2)
    inform(monkeypatch, complete, complete, complete, np.zeros(3))
    found = shared_posterior(built(PositionBasedModel), SESSIONS).covariance
    np.testing.assert_allclose(found, (vectors / np.maximum(values, 0.2)) @ vectors.T, rtol=1e-6)


def test_a_number_that_a_log_says_nothing_of_leaves_others_as_sure(monkeypatch):
    """Its curvature is negative, and large beside the least information of .01; it gets that, and no step."""
    complete = np.array([[4.0, 0.05, 1.0], [0.05, -0.07, 0.0], [1.0, 0.0, 8.0]])
    inform(monkeypatch, complete, complete, complete, np.array([0.0, 5.0, 0.0]))
    found = shared_posterior(built(PositionBasedModel), SESSIONS).covariance
    others = np.ix_([0, 2], [0, 2])
    np.testing.assert_allclose(found[others], np.linalg.inv(complete[others]), rtol=1e-6)
    np.testing.assert_allclose(found[1], [0.0, 100.0, 0.0], atol=1e-6)


def test_the_first_sessions_represent_a_log_that_takes_longer(monkeypatch):
    """With their share of the covariance; without a finite one there is no posterior."""
    model, matrix = built(PositionBasedModel), np.diag([4.0, 5.0, 8.0])
    looked_at = inform(monkeypatch, matrix, matrix, matrix, np.zeros(3))
    whole = shared_posterior(model, SESSIONS)
    numbers = ravel_pytree(nnx.state(model, nnx.Param))[0].size
    monkeypatch.setattr(posterior_module, "WORK", 2 * numbers + 1)
    part = shared_posterior(model, SESSIONS)
    assert [data.count for data in looked_at] == [3, 2]
    np.testing.assert_allclose(whole.covariance, np.diag([1 / 4, 1 / 5, 1 / 8]))
    np.testing.assert_allclose(part.covariance, whole.covariance * 2 / 3)
    inform(monkeypatch, matrix, matrix, matrix, np.full(3, np.nan))
    assert shared_posterior(model, SESSIONS) is None


def test_models_of_many_shared_numbers_have_no_posterior():
    deep = DeepParameterConfig(use_feature="query_doc_features", features=20)
    assert shared_posterior(built(PositionBasedModel, attraction=deep), SESSIONS) is None


def test_what_the_log_does_not_show_is_left_out():
    """Lists of two ranks do not tell the third, nor do those without clicks what clicks do."""
    sessions = Sessions.from_arrays(
        query_doc_ids=IDS[:, :2], clicks=CLICKS[:, :2] & False, query_doc_pairs=4
    )
    posterior = shared_posterior(built(UserBrowsingModel), sessions)
    examination = {"examination/weight[4]", "examination/weight[8]"}
    assert set(posterior.names) == examination | {"attraction/baseline"}
    assert np.isfinite(posterior.covariance).all()


@pytest.mark.parametrize(
    "noise, is_short", [(1e6, ""), (3.0, "TrustBias"), (0.3, "TrustBias DBN CCM")]
)
def test_intervals_are_short_where_a_policy_orders_lists(noise, is_short):
    """Of trust bias also where a weak one does, which leaves a tenth of the variance of scores between documents."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=20) + noise * rng.normal(size=(5000, 20))
    ids = 1 + np.argsort(-scores, axis=1)[:, :10].astype(np.int32)
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=ids > 15, query_doc_pairs=20)
    sizes = dict(positions=10, query_doc_pairs=20, rngs=nnx.Rngs(0))
    models = [
        TrustBiasModel(**sizes),
        PositionBasedModel(**sizes),
        DynamicBayesianNetwork(query_doc_pairs=20, rngs=nnx.Rngs(0)),
        DynamicBayesianNetwork(query_doc_pairs=20, fix_continuation=True, rngs=nnx.Rngs(0)),
        ClickChainModel(query_doc_pairs=20, rngs=nnx.Rngs(0)),
    ]
    warned = {model.name: short_intervals(model, log) for model in models}
    assert [name for name, why in warned.items() if why] == is_short.split()
    assert "attract least" in (warned[models[0].name] or "attract least")
    assert "going on" in (warned["DBN"] or "going on")

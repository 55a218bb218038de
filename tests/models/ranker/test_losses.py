"""Losses of rankings against float64 NumPy, and Rax where it has them."""

import functools
import itertools

import jax
import numpy as np
import pytest
import rax
from flax import nnx
from refusals import refuses
from scipy.stats import rankdata

from clickexp.errors import ConfigError
from clickexp.models import Ranker
from clickexp.models.ranker.losses import (
    ApproxNDCGLoss,
    GumbelNDCGLoss,
    ListMLELoss,
    PointwiseLoss,
    Poly1Loss,
    SoftmaxLoss,
)
from clickexp.models.ranker.pairs import LambdaLoss, PairwiseLoss, WarpLoss

OF_LISTS = PointwiseLoss, SoftmaxLoss, Poly1Loss, ListMLELoss, ApproxNDCGLoss, GumbelNDCGLoss
LOSSES = {loss.name: loss for loss in (*OF_LISTS, PairwiseLoss, LambdaLoss, WarpLoss)}

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(4, 6)).astype(np.float32)
CLICKS = np.array(
    [[0, 1, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 1]], bool
)
WHERE = np.array(
    [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1], [1, 1, 0, 1, 1, 1]], bool
)
CLICKS &= WHERE
WEIGHTS = RNG.uniform(0.5, 4, SCORES.shape).astype(np.float32)
KEY = jax.random.key(3)
OF_CLICKS = [name for name in LOSSES if name != "pointwise"]
"""Losses to which documents without click add nothing of their own."""


@functools.partial(jax.jit, static_argnums=0)
def of_lists(losses, *given):
    return [loss(*given, key=KEY) for loss in losses]


@jax.jit
def sums_and_slopes(scores, *given):
    """Of each loss in one program, which takes less time to compile than one program for each."""

    def sum_of(loss):
        return lambda scores: loss(scores, *given, KEY).sum()

    return {name: jax.value_and_grad(sum_of(loss()))(scores) for name, loss in LOSSES.items()}


def losses(*given):
    found = of_lists(tuple(loss() for loss in LOSSES.values()), *given)
    return dict(zip(LOSSES, map(np.asarray, found), strict=True))


def loss_of(name, *given, **settings):
    if not settings:
        return losses(*given)[name]
    return np.asarray(of_lists((LOSSES[name](**settings),), *given)[0])


def by_hand(name, scores, clicks, where, weights, **settings):
    """One list, float64, by loops."""
    f, c, w = (np.asarray(each, np.float64)[where] for each in (scores, clicks, weights))
    n, clicked = len(f), np.flatnonzero(np.asarray(clicks)[where])
    p = np.exp(f) / np.exp(f).sum()
    if name == "pointwise":
        s = 1 / (1 + np.exp(-f))
        return -sum(
            w[i] * c[i] * np.log(s[i]) + (1 - w[i] * c[i]) * np.log(1 - s[i]) for i in range(n)
        )
    if name == "softmax":
        return -sum(w[i] * np.log(p[i]) for i in clicked)
    if name == "poly1":
        return sum(
            w[i] * (-np.log(p[i]) + settings.get("epsilon", 1.0) * (1 - p[i])) for i in clicked
        )
    pairs = [(i, j) for i in clicked for j in range(n) if not c[j]]
    if name == "pairwise":
        return sum(w[i] * np.log1p(np.exp(f[j] - f[i])) for i, j in pairs)
    if name == "lambda":
        rank = {i: 1 + k for k, i in enumerate(np.argsort(-f, kind="stable"))}
        between = {
            "dcg": lambda i, j: (rank[i], rank[j]),
            "dcg2": lambda i, j: (abs(rank[i] - rank[j]), abs(rank[i] - rank[j]) + 1),
        }[settings.get("metric", "dcg")]
        change = {
            (i, j): abs(1 / np.log2(1 + a) - 1 / np.log2(1 + b))
            for i, j in pairs
            for a, b in [between(i, j)]
        }
        return sum(w[i] * change[i, j] * np.log1p(np.exp(f[j] - f[i])) for i, j in pairs)
    if name == "listmle":
        order = [*sorted(clicked, key=lambda i: -f[i]), *(j for j in range(n) if not c[j])]
        return sum(
            w[i] * (np.log(sum(np.exp(f[j]) for j in order[place:])) - f[i])
            for place, i in enumerate(order)
            if c[i]
        )
    if name == "approx_ndcg":
        smooth = [
            1 + sum(1 / (1 + np.exp(f[i] - f[j])) for j in range(n) if j != i) for i in range(n)
        ]
        ideal = sum(1 / np.log2(2 + k) for k in range(len(clicked)))
        return -sum(w[i] / np.log2(1 + smooth[i]) for i in clicked) / (ideal or 1)
    assert name == "warp"
    total = 0.0
    for i in clicked:
        hinges = [1 - f[i] + f[j] for j in range(n) if not c[j] and 1 - f[i] + f[j] >= 0]
        if hinges:
            total += w[i] * sum(1 / k for k in range(1, len(hinges) + 1)) * np.mean(hinges)
    return total


@pytest.mark.parametrize(
    "name, settings",
    [*((name, {}) for name in LOSSES if name != "gumbel_ndcg"), ("lambda", {"metric": "dcg2"})],
)
def test_a_loss_is_what_counting_by_hand_gives(name, settings):
    found = loss_of(name, SCORES, CLICKS, WHERE, WEIGHTS, **settings)
    lists = zip(SCORES, CLICKS, WHERE, WEIGHTS, strict=True)
    expected = [by_hand(name, *each, **settings) for each in lists]
    np.testing.assert_allclose(found, expected, rtol=3e-6)


def test_gumbel_ndcg_is_the_mean_over_noisy_scores():
    noise = 0.5 * np.asarray(jax.random.gumbel(KEY, (2, *SCORES.shape)))
    expected = np.mean(
        [
            [
                by_hand("approx_ndcg", *each)
                for each in zip(SCORES + drawn, CLICKS, WHERE, WEIGHTS, strict=True)
            ]
            for drawn in noise
        ],
        axis=0,
    )
    found = loss_of("gumbel_ndcg", SCORES, CLICKS, WHERE, WEIGHTS, samples=2, beta=0.5)
    np.testing.assert_allclose(found, expected, rtol=3e-6)
    with refuses(ValueError, "gumbel_ndcg", "give key"):
        GumbelNDCGLoss()(SCORES, CLICKS, WHERE)


@pytest.mark.parametrize("name", OF_CLICKS)
def test_a_single_click_has_its_weight_times_the_naive_loss(name):
    """At each rank. Normalising labels after weighting would cancel the weight."""
    clicks = np.eye(6, dtype=bool)
    scores, weights = (np.repeat(each[:1], 6, axis=0) for each in (SCORES, WEIGHTS))
    naive = loss_of(name, scores, clicks, np.ones((6, 6), bool))
    assert naive.all()
    weighted = loss_of(name, scores, clicks, np.ones((6, 6), bool), weights)
    np.testing.assert_allclose(weighted, WEIGHTS[0] * naive, rtol=1e-6)


def padded(array, value):
    """Of three documents and a list more, which are not shown."""
    return np.pad(array, ((0, 1), (0, 3)), constant_values=value)


PADDED = padded(CLICKS, True), padded(WHERE, False), padded(WEIGHTS, np.float32(9))
"""Clicks, mask and weights; gradients are compiled in their shape alone."""


@pytest.mark.parametrize("name", OF_CLICKS)
def test_a_list_without_clicks_has_no_loss(name):
    np.testing.assert_array_equal(loss_of(name, SCORES, np.zeros_like(CLICKS), WHERE, WEIGHTS), 0)
    _, where, weights = PADDED
    _, slope = sums_and_slopes(padded(SCORES, np.float32(0)), np.zeros_like(where), where, weights)[
        name
    ]
    np.testing.assert_array_equal(slope, 0)


@pytest.mark.parametrize(
    "name", [name for name in LOSSES if name != "gumbel_ndcg"]
)  # which draws noise for padding
def test_padding_changes_nothing_and_has_no_gradient(name):
    scores = padded(SCORES, np.float32(50))
    found = loss_of(name, scores, *PADDED)
    np.testing.assert_allclose(found[:-1], loss_of(name, SCORES, CLICKS, WHERE, WEIGHTS), rtol=1e-6)
    assert found[-1] == 0
    _, slope = sums_and_slopes(scores, *PADDED)[name]
    np.testing.assert_array_equal(np.asarray(slope)[~PADDED[1]], 0)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_scores_have_finite_losses_and_gradients(name):
    for scale in 0, 1e4:
        value, slope = sums_and_slopes(
            padded(np.sign(SCORES) * np.float32(scale), np.float32(0)), *PADDED
        )[name]
        assert np.isfinite(value) and np.isfinite(slope).all(), scale


ONE_CLICK = (np.arange(6)[None] == [[1], [2], [5], [0]]).astype(np.float32)
DISTINCT = WHERE * np.float32(
    [[3, 1, 4, 0, 2, 0], [5, 4, 3, 2, 1, 0], [3, 0, 2, 1, 0, 0], [2, 3, 0, 0, 4, 1]]
)
IN_RAX = {
    "pointwise": ((CLICKS,), {}, 1e-6),
    "softmax": ((CLICKS, WEIGHTS), {}, 1e-6),
    "poly1": ((ONE_CLICK,), {}, 1e-5),
    "pairwise": ((CLICKS,), {}, 1e-5),
    "lambda dcg": ((CLICKS,), {"metric": "dcg"}, 1e-5),
    "lambda dcg2": ((CLICKS,), {"metric": "dcg2"}, 1e-5),
    "approx_ndcg": ((CLICKS,), {"temperature": 0.5}, 1e-5),
    "gumbel_ndcg": ((CLICKS,), {"temperature": 0.5, "samples": 5, "beta": 0.7}, 1e-5),
    "listmle": ((DISTINCT,), {}, 1e-5),
    "warp": ((CLICKS,), {"alpha": "constant"}, 1e-5),
}
"""Labels and weights, settings, and how far both may be apart.

Weights are 1, since Rax weighs some differently; lists have one click for poly1, whose labels Rax
normalises.
"""


@jax.jit
@jax.numpy_dtype_promotion("standard")
def of_rax(scores):
    given, clicks = {"where": jax.numpy.asarray(WHERE), "reduce_fn": None}, np.float32(CLICKS)
    step = functools.partial(rax.utils.approx_ranks, step_fn=lambda x: jax.nn.sigmoid(x / 0.5))

    def approx(scores):  # rax.approx_t12n, which needs an older JAX
        return -rax.ndcg_metric(scores, clicks, rank_fn=step, **given)

    def of_pairs(loss=rax.pairwise_logistic_loss, **settings):
        return loss(scores, clicks, **settings, **given).sum(axis=1)

    noise = 0.7 * jax.random.gumbel(KEY, (5, *scores.shape))  # as rax.gumbel_t12n draws it
    length = scores.shape[1]  # of the padded list, by which Rax scales
    return {
        "pointwise": rax.pointwise_sigmoid_loss(scores, clicks, **given).sum(axis=1),
        "softmax": rax.softmax_loss(scores, clicks, weights=WEIGHTS, **given),
        "poly1": rax.poly1_softmax_loss(scores, ONE_CLICK, **given),
        "pairwise": of_pairs(),
        "lambda dcg": of_pairs(lambdaweight_fn=rax.dcg_lambdaweight) / length,
        "lambda dcg2": of_pairs(lambdaweight_fn=rax.dcg2_lambdaweight) / length,
        "approx_ndcg": approx(scores),
        "gumbel_ndcg": jax.vmap(approx)(scores + noise).mean(axis=0),
        "listmle": rax.listmle_loss(scores, DISTINCT, **given),
        "warp": of_pairs(rax.pairwise_hinge_loss),
    }


def test_losses_agree_with_rax_where_it_has_them():
    theirs = of_rax(SCORES)
    for name, ((labels, *weights), settings, rtol) in IN_RAX.items():
        found = loss_of(name.split()[0], SCORES, labels, WHERE, *weights, **settings)
        np.testing.assert_allclose(found, theirs[name], rtol, err_msg=name)


@pytest.mark.parametrize("metric", ["dcg", "dcg2"])
def test_lambdas_weigh_pairs_by_what_they_are_named_after(metric):
    loss = loss_of("lambda", SCORES, CLICKS, WHERE, metric=metric)
    plain = loss_of("pairwise", SCORES, CLICKS, WHERE)
    assert ((loss > 0) & (loss <= plain + 1e-5)).all()


@pytest.mark.parametrize("name, weight", [("pointwise", 10.0), ("softmax", -1.0), ("poly1", -1.0)])
def test_losses_of_labels_out_of_range_have_a_lower_bound(name, weight):
    """A click of weight 10 with the pointwise loss, a label below 0 with all; between the bounds nothing changes."""
    clicks, where = np.array([[True, False, False]]), np.ones((1, 3), bool)
    weights = np.full((1, 3), weight, np.float32)
    shape = np.float32([[np.sign(weight), 0, 0]])
    found = [
        loss_of(name, scale * shape, clicks, where, weights)[0]
        for scale in (1.0, 9.9, 100.0, 1000.0)
    ]
    assert found[1] < found[0] < 20 and 0 < found[2] < found[3]
    expected = by_hand(name, 9.9 * shape[0], clicks[0], where[0], weights[0])
    assert found[1] == pytest.approx(expected, rel=1e-5)


def test_warp_costs_and_their_limits():
    np.testing.assert_allclose(
        WarpLoss().costs(4),
        [0, 1, 1 + 1 / 2, 1 + 1 / 2 + 1 / 3, 1 + 1 / 2 + 1 / 3 + 1 / 4],
        rtol=1e-6,
    )
    top_only = WarpLoss(alpha=[1.0])
    # whether the top rank is missed
    np.testing.assert_array_equal(top_only.costs(5), [0, 1, 1, 1, 1, 1])
    # precision at 3
    np.testing.assert_array_equal(WarpLoss(alpha=[1, 1, 1]).costs(5), [0, 1, 2, 3, 3, 3])
    np.testing.assert_array_equal(WarpLoss(alpha="constant").costs(5), range(6))  # the rank itself
    np.testing.assert_array_equal(WarpLoss(alpha=[1, 0.5]).costs(5), [0, 1, 1.5, 1.5, 1.5, 1.5])
    for order in itertools.permutations([0.0, 5.0, 10.0, 15.0]):  # gaps beyond the margin
        lists = np.float32([order]), np.array([[True, False, False, False]]), np.ones((1, 4), bool)
        above = sum(each > order[0] for each in order[1:])
        mean = (
            np.mean([1 + each - order[0] for each in order[1:] if each > order[0]]) if above else 0
        )
        np.testing.assert_allclose(
            loss_of("warp", *lists, alpha=(1.0,)), (above > 0) * mean, rtol=1e-6
        )
        np.testing.assert_allclose(
            loss_of("warp", *lists, alpha="constant"), above * mean, rtol=1e-6
        )


def test_warp_of_constant_costs_is_the_average_rank():
    """All violators are 7 above, so that each has hinge 8: the loss counts the others above each clicked document."""
    for ups in itertools.product([False, True], repeat=5):
        for clicked in ([True] + [False] * 4, [True, True] + [False] * 3):
            clicks = np.array([clicked])
            scores = np.where(clicks, 0.0, np.where(ups, 7.0, -7.0)).astype(np.float32)
            ranks = rankdata(-scores[0], method="min")[clicks[0]]
            loss = loss_of("warp", scores, clicks, np.ones((1, 5), bool), alpha="constant")
            np.testing.assert_allclose(loss / (8 * clicks.sum()), [ranks.mean() - 1], rtol=1e-6)


def test_warp_takes_no_rising_costs():
    for alpha in [1.0, 2.0], [], [1.0, -1.0], "linear":
        with refuses(ConfigError, f"loss.alpha={alpha!r}", "give"):
            WarpLoss(alpha=alpha)


@pytest.mark.parametrize("name", LOSSES)
def test_linear_losses_take_the_mean_of_labels_to_the_mean_of_losses(name):
    first, second = RNG.normal(size=(2, *SCORES.shape)).astype(np.float32)
    losses = [
        loss_of(name, SCORES, labels, WHERE) for labels in (first, second, (first + second) / 2)
    ]
    linear = np.allclose(losses[2], (losses[0] + losses[1]) / 2, rtol=1e-4, atol=1e-5)
    assert linear == LOSSES[name].linear


@pytest.mark.parametrize("documents", [1, 3])
def test_the_loss_of_a_batch_is_the_mean_over_its_documents(documents):
    """All scores start at 0, where the logistic loss is log 2; a batch of one document is no exception."""
    ranker = Ranker(loss=PointwiseLoss(), query_doc_pairs=3, rngs=nnx.Rngs(0))
    mask = np.arange(3)[None] < documents
    batch = {
        "query_doc_ids": np.array([[1, 2, 3]], np.int32),
        "positions": np.array([[1, 2, 3]], np.int32),
        "clicks": np.array([[True, False, False]]) & mask,
        "mask": mask,
    }
    np.testing.assert_allclose(ranker.compute_loss(batch), np.log(2), rtol=1e-6)

"""Two rankers judged by simulated users: both tests find the better one, and interleaving needs fewer sessions."""

from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layout_logs import PAIRS, layout_log
from refusals import refuses
from scipy import stats

from clickexp.errors import UserError
from clickexp.evaluation.scores import relevance_scores
from clickexp.models import DynamicBayesianNetwork, Model, PositionBasedModel, UserBrowsingModel
from clickexp.online import User, compare_rankers
from clickexp.online.ab import METRICS
from clickexp.parameters import Parameter
from clickexp.simulation import simulate
from clickexp.simulation.towers import FixedParameter

SIZES = dict(sessions=1000, queries=100, documents_per_query=20, positions=10)
FEW = dict(sessions=4000, days=4, positions=6)


@pytest.fixture(scope="module")
def pbm_log():
    return simulate(PositionBasedModel, seed=7, **SIZES)


OTHERS = [
    pytest.param(user, marks=pytest.mark.nightly)
    for user in (UserBrowsingModel, DynamicBayesianNetwork)
]


@pytest.fixture(scope="module", params=[PositionBasedModel, *OTHERS])
def log(request, pbm_log):
    kind = request.param
    return pbm_log if kind is PositionBasedModel else simulate(kind, seed=7, **SIZES)


def ranker(log, noise, seed):
    """Orders by the true attraction and noise."""
    truth = log.truth.attraction.values[...]
    scores = truth + noise * np.random.default_rng((11, seed)).normal(size=truth.shape)
    return PositionBasedModel(
        10, log.query_doc_pairs, attraction=FixedParameter(scores), rngs=nnx.Rngs(0)
    )


def test_both_tests_agree_and_interleaving_needs_fewer_sessions(log):
    both = 0
    for seed, (noise_a, noise_b) in enumerate([(0.0, 2.0), (3.0, 0.5), (0.5, 1.5), (1.0, 1.1)]):
        a, b = ranker(log, noise_a, seed), ranker(log, noise_b, 100 + seed)
        result = compare_rankers(
            a, b, log.truth, log.ranking, sessions=20_000, days=2, positions=6, seed=seed
        )
        own = result.interleaving
        for name, metric in result.ab.metrics.items():
            if own.better and metric.better:
                both += 1
                assert metric.better == own.better, name
                assert own.preference.units_needed < metric.difference.units_needed, name
    assert both >= 8


def test_the_tests_estimate_what_the_user_does(pbm_log):
    """Means of the A/B test follow from the click probabilities of the lists, for users as PBM has them."""
    a, b = ranker(pbm_log, 0.0, 1), ranker(pbm_log, 2.0, 2)
    result = compare_rankers(
        a, b, pbm_log.truth, pbm_log.ranking, sessions=40_000, days=1, positions=6
    )
    attraction = 1 / (1 + np.exp(-np.asarray(pbm_log.truth.attraction.values[...], np.float64)))
    examination = 1 / (1 + np.exp(-(2.0 - 1.5 * np.log(np.arange(1, 7)))))
    ids = pbm_log.ranking.column("query_doc_ids")
    for model, found in ((a, "a"), (b, "b")):
        scores = np.asarray(model.attraction.values[...])[ids]
        shown = np.take_along_axis(ids, np.argsort(-scores, axis=1)[:, :6], axis=1)
        click = attraction[shown] * examination
        metric = result.ab.metrics["clicks_per_session"]
        error = metric.difference.standard_error
        assert abs(getattr(metric, found) - click.sum(axis=1).mean()) < 5 * error
        none = (1 - click).prod(axis=1).mean()
        abandonment = result.ab.metrics["abandonment"]
        assert abs(getattr(abandonment, found) - none) < 5 * abandonment.difference.standard_error


def test_a_ranker_does_not_differ_from_itself(pbm_log):
    one = ranker(pbm_log, 1.0, 1)
    result = compare_rankers(one, one, pbm_log.truth, pbm_log.ranking, **FEW)
    assert result.same == 1.0 and result.interleaving.better is None
    assert all(metric.better is None for metric in result.ab.metrics.values())


@pytest.mark.nightly
def test_five_percent_of_comparisons_of_a_ranker_with_itself_are_significant(log, monkeypatch):
    """With any user, of every metric and of interleaving, within the 99.9% range of a binomial count.

    What each comparison would compile again is compiled once. Clicks of consecutive seeds would be shared by two tests.
    """
    one, user = ranker(log, 1.0, 1), User(log.truth)
    score = relevance_scores(one)
    monkeypatch.setattr("clickexp.online.lists.relevance_scores", lambda model, report: score)
    monkeypatch.setattr("clickexp.online.comparison.User", lambda *given: user)
    comparisons, settings = 400, dict(sessions=1000, days=1, positions=6)
    significant = Counter()
    for number in range(comparisons):
        result = compare_rankers(one, one, log.truth, log.ranking, seed=2 * number, **settings)
        significant.update(name for name, metric in result.ab.metrics.items() if metric.better)
        significant.update(["interleaving"] if result.interleaving.better else [])
    low, high = stats.binom.interval(0.999, comparisons, 0.05)
    assert all(low <= significant[name] <= high for name in (*METRICS, "interleaving")), significant


def test_ties_are_in_random_order_the_same_for_both(pbm_log):
    class Equal(Model):
        name = "Equal"

        def relevance(self, batch):
            return 0.0 * batch["query_doc_ids"].astype("float32")

    result = compare_rankers(Equal(), Equal(), pbm_log.truth, pbm_log.ranking, **FEW)
    assert result.same == 1.0


def test_days_add_up_and_the_same_seed_gives_the_same_sessions(pbm_log):
    a, b = ranker(pbm_log, 0.0, 1), ranker(pbm_log, 2.0, 2)
    first, again = (
        compare_rankers(a, b, pbm_log.truth, pbm_log.ranking, seed=5, **FEW) for _ in range(2)
    )
    assert first == again != compare_rankers(a, b, pbm_log.truth, pbm_log.ranking, seed=6, **FEW)
    assert [sum(day.ab.sessions) for day in first.days] == [1000, 2000, 3000, 4000]
    widths = [day.ab.metrics["click_rate"].difference.standard_error for day in first.days]
    assert widths == sorted(widths, reverse=True) and first.ab is first.days[-1].ab


def test_users_are_assigned_with_all_of_their_sessions(pbm_log):
    a, b = ranker(pbm_log, 0.0, 1), ranker(pbm_log, 2.0, 2)
    result = compare_rankers(a, b, pbm_log.truth, pbm_log.ranking, users=500, **FEW)
    assert 490 < sum(result.ab.units) <= 500 and sum(result.ab.sessions) == 4000
    assert result.as_dict()["days"][0]["ab"]["metrics"]["click_rate"]["a"] > 0


def test_what_does_not_fit_is_refused(pbm_log):
    class Ranker(Model):
        name = "Ranker"

        def relevance(self, batch):
            return batch["query_doc_ids"].astype("float32")

    class Broken(Ranker):
        def relevance(self, batch):
            return float("nan") * batch["query_doc_ids"].astype("float32")

    one, lists = ranker(pbm_log, 1.0, 1), pbm_log.ranking
    with refuses(UserError, "the user is a Ranker", "Choose a click model"):
        compare_rankers(one, one, Ranker(), lists, **FEW)
    with refuses(UserError, "B scores documents as nan"):
        compare_rankers(one, Broken(), pbm_log.truth, lists, **FEW)
    short = PositionBasedModel(3, pbm_log.query_doc_pairs, rngs=nnx.Rngs(0))
    with refuses(UserError, "Q cannot click on these lists: positions"):
        compare_rankers(one, one, short, lists, names=("A", "B", "Q"), **FEW)
    small = PositionBasedModel(10, 20, rngs=nnx.Rngs(0))
    with refuses(UserError, "the user cannot click on these lists: query_doc_ids"):
        compare_rankers(one, one, small, lists, **FEW)
    with refuses(UserError, "days=5", "at most 4"):
        compare_rankers(one, one, pbm_log.truth, lists, sessions=4, days=5)
    with refuses(UserError, "sessions=0", "at least 1"):
        compare_rankers(one, one, pbm_log.truth, lists, sessions=0)


def test_a_user_who_reads_other_columns_cannot_click(pbm_log):
    class Device(PositionBasedModel):
        def marginal(self, batch):
            pair = super().marginal(batch)
            return pair._replace(log=pair.log + 0.0 * batch["device"])

        def draw(self, batch, key):
            return (
                super()
                .draw(batch.replace(clicks=batch.clicks), key)
                ._replace(clicks=super().draw(batch, key).clicks & (batch["device"] > -1))
            )

    one = ranker(pbm_log, 1.0, 1)
    with refuses(UserError, "the user cannot click on these lists", "device"):
        compare_rankers(
            one, one, Device(10, pbm_log.query_doc_pairs, rngs=nnx.Rngs(0)), pbm_log.ranking, **FEW
        )


def test_users_click_alike_in_chunks_of_any_size(pbm_log, monkeypatch):
    """Click rates by rank do not depend on how many sessions are drawn at a time."""
    shown = np.tile(pbm_log.ranking.column("query_doc_ids")[:1], (30_001, 1)).astype(np.int32)
    user = User(pbm_log.truth)
    whole = user.clicks(shown, 0).mean(axis=0)
    monkeypatch.setattr("clickexp.online.users._CHUNK", 7000)
    pieces = user.clicks(shown, 1).mean(axis=0)
    assert (abs(whole - pieces) < 5 * np.sqrt(2 * whole * (1 - whole) / len(shown))).all()


class OnlyOnPhones(Parameter):
    """Users of device 1 examine all, others nothing."""

    def logit(self, batch):
        return jnp.where(batch["device"] == 1, 40.0, -40.0) * jnp.ones(batch["positions"].shape)


def test_users_are_on_the_device_of_their_list():
    dataset = layout_log(3000)
    lists, always = dataset.test, FixedParameter(np.full(PAIRS + 1, 40.0))
    user = PositionBasedModel(
        4, PAIRS, attraction=always, examination=OnlyOnPhones(), rngs=nnx.Rngs(0)
    )
    one = PositionBasedModel(4, PAIRS, attraction=always, rngs=nnx.Rngs(0))
    result = compare_rankers(one, one, user, lists, **(FEW | {"sessions": 20_000}))
    phones = lists.column("device") == 1
    rate = result.days[-1].ab.metrics["clicks_per_session"]
    expected = (phones * lists.column("lengths")).mean()
    sd = (phones * lists.column("lengths")).std() / np.sqrt(10_000)
    assert abs(rate.a - expected) < 5 * sd and abs(rate.b - expected) < 5 * sd
    with refuses(UserError, "the user cannot click on these lists", "device"):
        User(user).check(lists.column("query_doc_ids"))

"""Simulated logs: who asks, what is shown, who clicks; and whether fitting recovers the truth."""

import functools
import inspect
import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from small_logs import sigmoid

from clickexp import models
from clickexp.errors import ConfigError
from clickexp.metrics import LogLikelihood
from clickexp.models import (
    ClickModel,
    DocumentCTRModel,
    DynamicBayesianNetwork,
    PositionBasedModel,
    SequentialClickModel,
    UserBrowsingModel,
)
from clickexp.simulation.simulated import GroundTruth, simulate
from clickexp.training import Trainer

QUERIES, CANDIDATES, RANKS = 12, 8, 5
SMALL = dict(queries=QUERIES, documents_per_query=CANDIDATES, positions=RANKS)
TOP, DECAY, CONTINUATION = 2.0, 1.5, 2.0
LL = {"ll": LogLikelihood()}


def never(query_doc_pairs, ctr, *, rngs):
    """A user that costs little to compile; `ctr` is the true attraction."""
    return DocumentCTRModel(query_doc_pairs, ctr, rngs=rngs)


class Known:
    """A user of a click model, who records the true towers that the simulation handed out."""

    def __init__(self, model):
        self.model, self.towers = model, {}
        roles = ("attraction", "satisfaction", "examination", "continuation", "ctr")
        wanted = [name for name in inspect.signature(model.__init__).parameters if name in roles]
        names = ["positions", "query_doc_pairs", *wanted]
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in [*names, "rngs"]
        ]
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *, rngs, positions, query_doc_pairs, **towers):
        self.towers = towers
        sizes = dict(positions=positions, query_doc_pairs=query_doc_pairs)
        taken = inspect.signature(self.model.__init__).parameters
        return self.model(**{n: v for n, v in sizes.items() if n in taken}, **towers, rngs=rngs)

    def values(self, role):
        return np.asarray(self.towers[role].values[...], np.float64)


def columns_of(*parts):
    """The columns of several parts of a dataset, one after the other."""
    return {
        name: np.concatenate([part.column(name) for part in parts]) for name in parts[0].columns
    }


def everything(dataset):
    return columns_of(dataset.train, dataset.val, dataset.test)


@pytest.fixture(scope="module")
def plain():
    """A log of 60,000 sessions, its columns, and its user."""
    user = Known(DocumentCTRModel)
    dataset = simulate(user, sessions=60_000, zipf_exponent=0.8, **SMALL)
    return dataset, everything(dataset), user.values("ctr")


def test_sizes_of_the_parts(plain):
    dataset, _, _ = plain
    assert (dataset.train.count, dataset.val.count, dataset.test.count) == (42_000, 9_000, 9_000)
    assert dataset.query_doc_pairs == QUERIES * CANDIDATES and dataset.positions == RANKS
    assert dataset.train.query_doc_pairs == dataset.query_doc_pairs
    assert 0 < dataset.click_rate < 0.5


def test_queries_follow_zipf(plain):
    _, columns, _ = plain
    seen = np.bincount(columns["query_ids"], minlength=QUERIES)
    expected = np.arange(1, QUERIES + 1) ** -0.8
    expected *= len(columns["query_ids"]) / expected.sum()
    deviation = np.sqrt(expected * (1 - expected / expected.sum()))
    assert (np.abs(seen - expected) < 5 * deviation).all()


def test_lists_show_different_documents_of_their_query(plain):
    _, columns, _ = plain
    ids = columns["query_doc_ids"]
    assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all()
    assert ((ids - 1) // CANDIDATES == columns["query_ids"][:, None]).all()
    assert (columns["lengths"] == RANKS).all()


def test_the_noisy_policy_prefers_attractive_documents_but_shows_all(plain):
    _, columns, attraction = plain
    by_rank = attraction[columns["query_doc_ids"]].mean(axis=0)
    assert (np.diff(by_rank) < 0).all()
    assert set(np.unique(columns["query_doc_ids"])) == set(range(1, QUERIES * CANDIDATES + 1))


def test_policy_noise_is_a_standard_deviation():
    """Of two documents the first comes first with probability Phi((a - b) / (noise sqrt 2))."""
    user, noise, sessions = Known(DocumentCTRModel), 1.5, 20_000
    dataset = simulate(
        user,
        sessions=sessions,
        queries=4,
        documents_per_query=2,
        positions=2,
        zipf_exponent=0.0,
        policy_noise=noise,
    )
    columns, attraction = everything(dataset), user.values("ctr")
    for query in range(4):
        first = columns["query_doc_ids"][columns["query_ids"] == query, 0] == 1 + 2 * query
        difference = attraction[1 + 2 * query] - attraction[2 + 2 * query]
        p = 0.5 * (1 + math.erf(difference / (noise * math.sqrt(2)) / math.sqrt(2)))
        assert abs(first.mean() - p) < 5 * np.sqrt(p * (1 - p) / first.size)


def test_labels_grade_the_true_attraction(plain):
    """They rise with attraction, and about half of the documents have label 0."""
    dataset, columns, attraction = plain
    label = np.full(attraction.shape, np.nan)
    label[columns["query_doc_ids"]] = columns["labels"]
    ranked = label[1:][np.argsort(attraction[1:])]
    assert (np.diff(ranked) >= 0).all() and set(ranked) == {0, 1, 2, 3, 4}
    assert (ranked == 0).mean() == pytest.approx(0.5, abs=0.05)
    for part in (dataset.train, dataset.ranking):
        np.testing.assert_array_equal(label[part.column("query_doc_ids")], part.column("labels"))


def test_ranking_lists_are_one_a_query_in_random_order(plain):
    dataset, _, attraction = plain
    ranking = columns_of(dataset.ranking)
    ids = ranking["query_doc_ids"]
    np.testing.assert_array_equal(ranking["query_ids"], np.arange(QUERIES))
    assert ((ids - 1) // CANDIDATES == np.arange(QUERIES)[:, None]).all()
    assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all() and not ranking["clicks"].any()
    rises = np.diff(attraction[ids], axis=1) > 0
    assert abs(rises.mean() - 0.5) < 5 * 0.5 / np.sqrt(rises.size)


def test_without_noise_the_most_attractive_documents_are_shown_in_order():
    user = Known(PositionBasedModel)
    columns = everything(simulate(user, sessions=100, policy_noise=0.0, **SMALL))
    attraction = user.values("attraction")[1:].reshape(QUERIES, CANDIDATES)
    best = np.argsort(-attraction, axis=1)[:, :RANKS]
    expected = 1 + columns["query_ids"][:, None] * CANDIDATES + best[columns["query_ids"]]
    np.testing.assert_array_equal(columns["query_doc_ids"], expected)


def test_a_seed_fixes_every_bit():
    one, same, other = (
        everything(simulate(never, sessions=300, seed=seed, **SMALL)) for seed in (4, 4, 5)
    )
    for name, values in one.items():
        np.testing.assert_array_equal(values, same[name])
    for name in ("query_doc_ids", "clicks", "labels", "query_ids"):
        assert (one[name] != other[name]).any()


def test_chunks_of_sessions_do_not_repeat():
    """Clicks are drawn in chunks of 65,536 sessions; the second chunk has its own."""
    always = dict(
        queries=1, documents_per_query=2, positions=2, policy_noise=0.0, attraction_mean=0.0
    )
    columns = everything(simulate(never, sessions=2 * 65_536, attraction_spread=0.1, **always))
    first, second = columns["clicks"][:65_536], columns["clicks"][65_536:]
    agree = (first == second).mean()
    assert abs(agree - 0.5) < 0.02


USERS = {
    name: value
    for name, value in vars(models).items()
    if inspect.isclass(value)
    and issubclass(value, ClickModel)
    and value
    not in (
        ClickModel,
        SequentialClickModel,
        models.NeuralClickModel,
        models.ContextAwareClickModel,
    )
} | {
    "SDBN": functools.partial(DynamicBayesianNetwork, fix_continuation=True),
    "MixtureModel": functools.partial(models.MixtureModel, [PositionBasedModel, UserBrowsingModel]),
}


OFTEN = ("MixtureModel", "TrustBiasModel", "TwoTowersModel")


@pytest.mark.parametrize(
    "name",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.nightly)
        for name in sorted(USERS)
    ],
)
def test_every_model_can_be_the_user(name):
    dataset = simulate(USERS[name], sessions=2_000, attraction_mean=-1.0, **SMALL)
    rates = everything(dataset)["clicks"].mean(axis=0)
    assert (0 < rates).all() and (rates < 0.6).all()
    if not name.endswith("CTRModel"):
        assert rates[0] > rates[-1] + 0.05


def test_a_model_without_true_towers_is_no_user():
    """Its vectors of documents would all be alike."""
    with refuses(ConfigError, "dataset.user=NeuralClickModel", "none of the true towers"):
        simulate(models.NeuralClickModel, sessions=100, **SMALL)


def test_a_ranker_is_no_user():
    with refuses(ConfigError, "dataset.user=Ranker", "does not click"):
        simulate(models.Ranker, sessions=100, **SMALL)
    with refuses(ConfigError, "dataset.user=MixtureModel", "needs models"):
        simulate(models.MixtureModel, sessions=100, **SMALL)


def test_users_behave_as_their_models_say():
    """A cascade user clicks at most once; so does a dependent user who never goes on."""
    cascade = everything(simulate(models.CascadeModel, sessions=500, attraction_mean=0.0, **SMALL))
    assert cascade["clicks"].sum(axis=1).max() == 1
    options = dict(sessions=500, attraction_mean=0.0, **SMALL)
    short = everything(simulate(models.DependentClickModel, continuation=-30.0, **options))
    long = everything(simulate(models.DependentClickModel, continuation=30.0, **options))
    assert short["clicks"].sum(axis=1).max() == 1 < long["clicks"].sum(axis=1).mean()


def test_a_query_needs_a_document_for_every_position():
    with refuses(ConfigError, "6 positions", "only 5 documents", "documents_per_query"):
        simulate(never, sessions=10, queries=2, documents_per_query=5, positions=6)


def test_the_truth_keeps_row_0_for_padding():
    truth = GroundTruth.draw(QUERIES, CANDIDATES, -2.5, 1.5, np.random.default_rng(0))
    assert truth.query_doc_pairs == QUERIES * CANDIDATES == len(truth.attraction) - 1
    many = GroundTruth.draw(100, 100, -2.5, 1.5, np.random.default_rng(0)).attraction
    assert (
        abs(many.mean() + 2.5) < 5 * 1.5 / 100
        and abs(many.std() - 1.5) < 5 * 1.5 / np.sqrt(2) / 100
    )


# The click probabilities of three users in float64, straight from their definitions.


def examination(distance):
    return sigmoid(TOP - DECAY * np.log(distance))


def position_based(user, columns):
    return (
        examination(np.arange(1, RANKS + 1))
        * sigmoid(user.values("attraction"))[columns["query_doc_ids"]]
    )


def user_browsing(user, columns):
    attraction = sigmoid(user.values("attraction"))[columns["query_doc_ids"]]
    probabilities, last = np.empty(attraction.shape), np.zeros(len(attraction))
    for rank in range(1, RANKS + 1):
        probabilities[:, rank - 1] = examination(rank - last) * attraction[:, rank - 1]
        last = np.where(columns["clicks"][:, rank - 1], rank, last)
    return probabilities


def dynamic_bayesian(user, columns):
    """Filters P(examining | clicks above) down the list with Bayes' rule."""
    attraction, satisfaction = (
        sigmoid(user.values(role))[columns["query_doc_ids"]]
        for role in ("attraction", "satisfaction")
    )
    goes_on, examining = sigmoid(CONTINUATION), np.ones(len(attraction))
    probabilities = np.empty(attraction.shape)
    for rank in range(RANKS):
        a = attraction[:, rank]
        probabilities[:, rank] = examining * a
        still = examining * (1 - a) / (1 - examining * a)
        clicked = columns["clicks"][:, rank]
        examining = goes_on * np.where(clicked, 1 - satisfaction[:, rank], still)
    return probabilities


TRUTHS = {
    PositionBasedModel: position_based,
    UserBrowsingModel: user_browsing,
    DynamicBayesianNetwork: dynamic_bayesian,
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(PositionBasedModel, marks=pytest.mark.nightly),
        UserBrowsingModel,
        DynamicBayesianNetwork,
    ],
    ids=lambda model: model.__name__,
)
def simulated(request):
    """A user of a kind of model, the log of its clicks, and the true click probabilities."""
    user = Known(request.param)
    settings = dict(sessions=150_000, attraction_mean=-1.0, policy_noise=5.0, seed=3)
    return user, simulate(user, **settings, **SMALL), TRUTHS[request.param]


@pytest.fixture(scope="module")
def fitted(simulated):
    """A model fitted to the clicks of a user of its own kind, beside these."""
    user, dataset, truth = simulated
    sizes = dict(
        positions=RANKS, query_doc_pairs=dataset.query_doc_pairs, click_rate=dataset.click_rate
    )
    taken = inspect.signature(user.model.__init__).parameters
    model = user.model(**{n: v for n, v in sizes.items() if n in taken}, rngs=nnx.Rngs(0))
    trainer = Trainer(epochs=20, early_stopping=None, metrics=LL, batch_size=1024)
    trainer.train(model, dataset.train, dataset.val)
    return model, user, dataset, truth


def test_clicks_come_at_the_rate_of_the_user_at_every_rank(simulated):
    """Given the clicks above, clicks minus their probabilities are a martingale: 5 sigma a rank."""
    user, dataset, truth = simulated
    columns = everything(dataset)
    p = truth(user, columns)
    deviation = np.sqrt((p * (1 - p)).sum(axis=0))
    assert (np.abs(columns["clicks"].sum(axis=0) - p.sum(axis=0)) < 5 * deviation).all()


@pytest.mark.nightly
def test_the_fit_is_as_good_as_the_truth_on_test_sessions(fitted):
    model, user, dataset, truth = fitted
    columns = columns_of(dataset.test)
    p = truth(user, columns)
    best = np.log(np.where(columns["clicks"], p, 1 - p)).mean()
    found = Trainer().evaluate(model, dataset.test, LL).compute()["ll"]
    assert -0.0005 < best - found < 0.0005


@pytest.mark.nightly
def test_the_fit_recovers_the_parameters(fitted):
    """Attraction to 5 standard errors of the clicks of a document, and what moves the user down the list.

    PBM and UBM leave a common factor open, which moves from examination to attraction.
    """
    model, user, dataset, _ = fitted
    attraction = sigmoid(user.values("attraction"))[1:]
    batch = dict(query_doc_ids=jnp.arange(1, dataset.query_doc_pairs + 1)[None])
    found = np.asarray(model.attraction.prob(batch), np.float64)[0]
    ids, clicks = dataset.train.column("query_doc_ids"), dataset.train.column("clicks")
    clicks = np.bincount(ids[clicks], minlength=len(found) + 1)[1:]
    often = clicks > 100
    ratio, sigma = (found / attraction)[often], 1 / np.sqrt(clicks[often])
    assert often.sum() > 50
    if isinstance(model, DynamicBayesianNetwork):
        assert (np.abs(ratio - 1) < 5 * sigma).all()
        assert float(model.continuation.prob(batch)[0, 0]) == pytest.approx(
            sigmoid(CONTINUATION), abs=0.02
        )
        return
    scale_of_rows = np.average(ratio, weights=clicks[often])
    assert (np.abs(ratio / scale_of_rows - 1) < 5 * sigma).all()
    ranks = np.arange(1, RANKS + 1)
    if isinstance(model, PositionBasedModel):
        weights, distance = model.examination.weight[...][1:], ranks
    else:
        index = [(r, last) for r in ranks for last in range(r)]
        weights = model.examination.weight[...][
            np.array([r * (RANKS + 1) + last for r, last in index])
        ]
        distance = np.array([r - last for r, last in index])
    scale = sigmoid(np.asarray(weights)) / examination(distance)
    np.testing.assert_allclose(scale / scale.mean(), 1, atol=0.1)
    np.testing.assert_allclose(scale.mean() * scale_of_rows, 1, atol=0.05)

"""Mixtures: whose session it is, towers in common, and whether fitting finds the populations again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from flax import nnx
from refusals import refuses
from small_logs import packed, ragged_log, sigmoid, state_of

from clickexp.errors import ConfigError
from clickexp.metrics import LogLikelihood
from clickexp.models import (
    DocumentCTRModel,
    DynamicBayesianNetwork,
    GlobalCTRModel,
    MixtureModel,
    PositionBasedModel,
    TrustBiasModel,
    UserBrowsingModel,
)
from clickexp.models.mixture import shared_towers
from clickexp.parameters import EmbeddingParameterConfig, Table
from clickexp.simulation.towers import FixedParameter
from clickexp.training import Trainer
from clickexp.training.checkpoint import load_model, save_model
from clickexp.training.optimizers import lazy_sgd

PAIRS, RANKS = 40, 6
SIZES = dict(positions=RANKS, query_doc_pairs=PAIRS)
LL = {"ll": LogLikelihood()}


def a_batch(sessions=64, seed=0):
    columns = ragged_log(sessions, RANKS, PAIRS, seed)
    mask = np.arange(RANKS) < columns.pop("lengths")[:, None]
    return {**columns, "mask": mask, "positions": np.arange(1, RANKS + 1, dtype=np.int32)[None]}


NUMBERS = EmbeddingParameterConfig(baseline=0.0, posterior="none")


def pbm_and_dbn_with_one_attraction():
    attraction = EmbeddingParameterConfig(parameters=PAIRS, posterior="none", prior_precision=0.0)
    return MixtureModel(
        [PositionBasedModel, functools.partial(DynamicBayesianNetwork, satisfaction=NUMBERS)],
        shared={"attraction": attraction},
        **SIZES,
        rngs=nnx.Rngs(0),
    )


@nnx.jit
def answers(models, batch):
    names = "compute_loss", "predict_clicks", "predict_conditional_clicks", "predict_relevance"
    return [[getattr(model, name)(batch) for name in names] for model in models]


def same_answers(batch, expected, *actual):
    of_expected, *of_actual = answers([expected, *actual], batch)
    for found in of_actual:
        for a, e in zip(found, of_expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


@zoo.by_tier([zoo.UBM, zoo.CM], nightly=[zoo.PBM, zoo.CCM, zoo.RCTR, zoo.TRUST_BIAS])
def test_a_mixture_of_one_and_of_equals_is_that_model(case):
    model, batch = (
        zoo.random_model(case),
        zoo.every_click_vector(np.tile(np.arange(zoo.RANKS + 1), 16)),
    )
    twice = MixtureModel([model, zoo.random_model(case)])
    twice.prior[...] = jnp.array([1.0, -2.0])
    same_answers(batch, model, MixtureModel([model]), twice)


def test_clicks_above_tell_which_component_is_at_work():
    """Click rates 0.8 and 0.2, prior 1/4 and 3/4: Bayes' rule after a click, a skip, and a masked document."""
    rates = [GlobalCTRModel(FixedParameter(np.log(odds)), rngs=nnx.Rngs(0)) for odds in (4, 1 / 4)]
    model = MixtureModel(rates)
    model.prior[...] = jnp.log(jnp.array([1.0, 3.0]))
    batch = dict(
        clicks=np.array([[True, False, True]]),
        mask=np.array([[True, True, True]]),
        query_doc_ids=np.ones((1, 3), np.int32),
    )
    first = (1 * 0.8 + 3 * 0.2) / 4
    second = (1 * 0.8 * 0.8 + 3 * 0.2 * 0.2) / (1 * 0.8 + 3 * 0.2)
    third = (0.8 * 0.2 * 0.8 + 3 * 0.2 * 0.8 * 0.2) / (0.8 * 0.2 + 3 * 0.2 * 0.8)
    predicted = nnx.jit(
        lambda model, batch: (model.predict_clicks(batch), model.predict_conditional_clicks(batch))
    )
    clicks, conditional = predicted(model, batch)
    np.testing.assert_allclose(np.exp(conditional), [[first, second, third]], rtol=1e-6)
    np.testing.assert_allclose(np.exp(clicks), [[first] * 3], rtol=1e-6)
    _, conditional = predicted(model, {**batch, "mask": np.array([[True, False, True]])})
    np.testing.assert_allclose(np.exp(conditional)[0, 2], second, rtol=1e-6)


def test_temperature_divides_the_logits_of_the_prior():
    for temperature in 0.5, 1.0, 4.0:
        model = MixtureModel([DocumentCTRModel] * 3, temperature, **SIZES, rngs=nnx.Rngs(0))
        np.testing.assert_allclose(np.exp(model.log_prior()), 1 / 3, rtol=1e-6)
        model.prior[...] = jnp.array([0.0, 1.0, -1.0])
        odds = np.exp(np.array([0.0, 1.0, -1.0]) / temperature)
        np.testing.assert_allclose(np.exp(model.log_prior()), odds / odds.sum(), rtol=1e-6)


def test_relevance_is_the_mean_under_the_prior():
    model = zoo.random_model(zoo.MIXTURE)
    batch, share = zoo.every_click_vector(), np.exp(model.log_prior())
    relevance = nnx.jit(lambda models: [model.predict_relevance(batch) for model in models])
    found, *each = relevance([model, *model.models])
    expected = np.einsum("k,kbr->br", share, np.exp(each))
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-5)


def test_a_sample_tells_the_component_and_what_all_components_know():
    """The first component always clicks, the second never; 5 sigma around the prior."""
    models = [
        PositionBasedModel(RANKS, attraction=FixedParameter(z), rngs=nnx.Rngs(0))
        for z in (1e4, -1e4)
    ]
    for model in models:
        model.examination.weight[...] += 1e4
    model = MixtureModel(models)
    model.prior[...] = jnp.log(jnp.array([1.0, 3.0]))
    batch = a_batch(10_000)
    sample = nnx.jit(lambda model, batch, key: model.sample(batch, key))(
        model, batch, jax.random.key(0)
    )
    assert sample.component.shape == (10_000,)
    assert abs((sample.component == 0).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 10_000)
    np.testing.assert_array_equal(sample.clicks, batch["mask"] & (sample.component == 0)[:, None])
    np.testing.assert_array_equal(sample.attraction, sample.clicks)
    np.testing.assert_array_equal(sample.examination, batch["mask"])
    assert sample.satisfaction is None


def test_a_tower_built_once_is_one_set_of_variables(tmp_path):
    model = pbm_and_dbn_with_one_attraction()
    merged = nnx.merge(*nnx.split(model))
    for each in model, merged:
        assert each.models[0].attraction is each.models[1].attraction
    tables = [path[2] for path, _ in nnx.to_flat_state(nnx.state(model, Table))]
    assert tables == ["attraction", "satisfaction"]
    rng = np.random.default_rng(0)
    zoo.fill(model, lambda shape: rng.normal(size=shape))
    save_model(model, tmp_path / "model.npz")
    loaded = load_model(pbm_and_dbn_with_one_attraction(), tmp_path / "model.npz")
    for a, e in zip(state_of(loaded), state_of(model), strict=True):
        np.testing.assert_array_equal(a, e)
    assert loaded.models[0].attraction is loaded.models[1].attraction
    same_answers(a_batch(), model, loaded)


def test_the_table_step_adds_the_gradients_of_all_components():
    """One step of gradient descent over the whole log, beside automatic differentiation of the dense table."""
    columns = ragged_log(64, RANKS, PAIRS)
    model, other = pbm_and_dbn_with_one_attraction(), pbm_and_dbn_with_one_attraction()
    batch = a_batch()
    graphdef, tables, rest = nnx.split(other, Table, ...)

    def loss(tables):
        return nnx.merge(graphdef, tables, rest).compute_loss(batch, aggregate=False).sum()

    gradient = nnx.to_flat_state(jax.jit(jax.grad(loss))(tables))[0][1].get_value().values
    trainer = Trainer(lazy_sgd(0.1), epochs=1, early_stopping=None, batch_size=64, shuffle=False)
    log = packed(columns, PAIRS)
    trainer.train(model, log, log)
    assert np.abs(gradient).max() > 0.1
    for component in model.models:
        np.testing.assert_allclose(
            component.attraction.table.get_value().values, -0.1 * gradient, rtol=1e-4, atol=1e-6
        )


def test_shared_towers_replace_those_of_partials():
    constructors = [
        functools.partial(PositionBasedModel, attraction=EmbeddingParameterConfig()),
        functools.partial(DocumentCTRModel, ctr=EmbeddingParameterConfig()),
    ]
    tower = FixedParameter(0.0)
    one, other = MixtureModel(
        constructors, shared={"attraction": tower}, **SIZES, rngs=nnx.Rngs(0)
    ).models
    assert one.attraction is other.ctr is tower  # a click rate of documents is their attraction


def test_components_share_the_tower_that_all_of_them_state():
    kinds = PositionBasedModel, DynamicBayesianNetwork
    for towers in ({}, {"attraction": NUMBERS}):
        models = [functools.partial(kind, **towers) for kind in kinds]
        one, _, other = MixtureModel(
            [models[0], GlobalCTRModel, models[1]],
            shared=["attraction"],
            **SIZES,
            rngs=nnx.Rngs(0),
        ).models
        assert one.attraction is other.attraction
        assert one.attraction.config.posterior == (
            NUMBERS.posterior if towers else EmbeddingParameterConfig().posterior
        )
    # of modules of one's own, configurations make partials
    models = [functools.partial(kind, attraction=functools.partial(dict, a=1)) for kind in kinds]
    assert shared_towers(models, ["attraction"])["attraction"].keywords == {"a": 1}
    with refuses(ConfigError, "attraction", "do not share it"):
        differ = [functools.partial(PositionBasedModel, attraction=NUMBERS), PositionBasedModel]
        MixtureModel(differ, shared=["attraction"], **SIZES, rngs=nnx.Rngs(0))


def test_components_of_one_kind_start_apart_but_towers_in_common_stay():
    shared = {"attraction": FixedParameter(1.0)}
    first, second = MixtureModel(
        [PositionBasedModel] * 2, shared=shared, **SIZES, rngs=nnx.Rngs(0)
    ).models
    difference = np.abs(first.examination.weight[...] - second.examination.weight[...])
    assert 0 < difference.min() and difference.max() < 0.5
    assert first.attraction.values[...] == 1.0
    shared = {"attraction": EmbeddingParameterConfig()}
    first, second = MixtureModel(
        [PositionBasedModel] * 2, shared=shared, **SIZES, rngs=nnx.Rngs(0)
    ).models
    assert first.attraction is second.attraction and first.attraction.baseline[...] == 0.0


def test_what_makes_no_mixture_is_refused():
    for arguments, parts in (
        (dict(models=[]), ("mixture", "at least one")),
        (dict(models=[DocumentCTRModel], temperature=0.0), ("temperature=0.0", "above 0")),
        (dict(models=[DocumentCTRModel], temperature=-1.0), ("temperature=-1.0", "above 0")),
    ):
        with refuses(ConfigError, *parts):
            MixtureModel(**arguments, **SIZES, rngs=nnx.Rngs(0))
    with refuses(ValueError, "mixture", "rngs=nnx.Rngs"):
        MixtureModel([DocumentCTRModel], **SIZES)


def test_its_name_tells_the_components():
    assert (
        MixtureModel([UserBrowsingModel, DocumentCTRModel], **SIZES, rngs=nnx.Rngs(0)).name
        == "Mixture(UBM, DCTR)"
    )


def simulated(user, sessions, seed=0):
    """Three quarters and one quarter of a log of the user's clicks on random lists."""
    rng = np.random.default_rng(seed)
    ids = rng.permuted(np.tile(np.arange(1, PAIRS + 1, dtype=np.int32), (sessions, 1)), axis=1)[
        :, :RANKS
    ]
    mask = np.ones(ids.shape, bool)
    batch = dict(
        query_doc_ids=ids, mask=mask, positions=np.arange(1, RANKS + 1, dtype=np.int32)[None]
    )
    clicks = np.asarray(jax.jit(lambda key: user.sample(batch, key).clicks)(jax.random.key(seed)))
    columns = dict(query_doc_ids=ids, clicks=clicks, lengths=mask.sum(axis=1).astype(np.int32))
    cut = sessions * 3 // 4
    return [
        packed({n: v[s] for n, v in columns.items()}, PAIRS) for s in (slice(cut), slice(cut, None))
    ]


def attraction_logits(seed=0):
    return np.random.default_rng(seed).normal(-0.5, 1.5, PAIRS + 1).astype(np.float32)


def fit(model, train, test):
    Trainer(epochs=30, early_stopping=None, batch_size=512, metrics=LL).train(model, train, test)
    return model


def ll(model, test):
    return Trainer().evaluate(model, test, LL).compute()["ll"]


@pytest.mark.nightly
def test_two_populations_are_found_again():
    """A third look at the top only, the others read on: shares, examination up to its scale, and the likelihood."""
    logits = np.array([[0, 3, -1, -3, -4, -4, -4], [0, 2, 2, 2, 1, 1, 1]], np.float32)
    attraction = FixedParameter(attraction_logits())
    users = [PositionBasedModel(RANKS, attraction=attraction, rngs=nnx.Rngs(0)) for _ in logits]
    for user, weight in zip(users, logits, strict=True):
        user.examination.weight[...] = jnp.asarray(weight)
    user = MixtureModel(users)
    user.prior[...] = jnp.log(jnp.array([1.0, 2.0]))
    train, test = simulated(user, 80_000)
    shared = {"attraction": EmbeddingParameterConfig()}
    model = fit(
        MixtureModel([PositionBasedModel] * 2, shared=shared, **SIZES, rngs=nnx.Rngs(0)),
        train,
        test,
    )
    assert -0.0005 < ll(user, test) - ll(model, test) < 0.0005
    alone = fit(PositionBasedModel(**SIZES, rngs=nnx.Rngs(0)), train, test)
    assert ll(model, test) - ll(alone, test) > 0.005
    weights = np.array([component.examination.weight[...] for component in model.models])
    order = np.argsort(weights[:, -1])
    np.testing.assert_allclose(np.exp(model.log_prior())[order], [1 / 3, 2 / 3], atol=0.03)
    found = sigmoid(weights[order, 1:])
    for examination, truth in zip(found, sigmoid(logits[:, 1:]), strict=True):
        np.testing.assert_allclose(examination / examination[0], truth / truth[0], atol=0.05)


@pytest.mark.nightly
def test_trust_bias_is_found_again():
    """What attraction adds to the click rate of a rank, t - f, up to its scale; and the likelihood."""
    true_positive = np.array([0, 3, 2, 1, 0.5, 0, -0.5], np.float32)
    false_positive = np.array([0, 0, -1, -2, -3, -3, -3], np.float32)
    sizes = dict(SIZES, attraction=FixedParameter(attraction_logits()))
    user = TrustBiasModel(**sizes, rngs=nnx.Rngs(0))
    user.true_positive.weight[...] = jnp.asarray(true_positive)
    user.false_positive.weight[...] = jnp.asarray(false_positive)
    train, test = simulated(user, 80_000)
    model = fit(TrustBiasModel(**SIZES, rngs=nnx.Rngs(0)), train, test)
    assert -0.0005 < ll(user, test) - ll(model, test) < 0.0005
    alone = fit(PositionBasedModel(**SIZES, rngs=nnx.Rngs(0)), train, test)
    assert ll(model, test) - ll(alone, test) > 0.002
    found = sigmoid(model.true_positive.weight[...][1:]) - sigmoid(
        model.false_positive.weight[...][1:]
    )
    truth = sigmoid(true_positive[1:]) - sigmoid(false_positive[1:])
    np.testing.assert_allclose(found / found[0], truth / truth[0], atol=0.05)
    every = np.arange(1, PAIRS + 1)[None]
    learned = np.exp(
        model.predict_relevance(dict(query_doc_ids=every, mask=np.ones(every.shape, bool)))
    )[0]
    assert np.corrcoef(learned, sigmoid(attraction_logits()[1:]))[0, 1] > 0.995

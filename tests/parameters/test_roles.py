"""Every tower in every role, modules of one's own, and what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import nnx
from refusals import refuses
from zoo import fill, sigmoid

from clickexp import models, parameters
from clickexp.errors import ConfigError
from clickexp.parameters import Parameter, Sizes, build_parameter
from clickexp.simulation.towers import DecayingExamination, FixedParameter

FEATURES, PAIRS, RANKS = 3, 9, 3
VECTORS = np.array(list(itertools.product([False, True], repeat=RANKS)))


class Doubled(nnx.Module):
    """A module of a user: twice the first feature times a weight."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.weight = nnx.Param(jax.random.normal(rngs.params(), ()))

    def __call__(self, batch):
        return 2 * self.weight[...] * batch["query_doc_features"][..., 0]


class Careless(Doubled):
    def __call__(self, batch):
        return super().__call__(batch)[..., None]


TOWERS = {
    "global": parameters.GlobalParameterConfig(0.3),
    "position": parameters.PositionParameterConfig(parameters=RANKS),
    "embedding": parameters.EmbeddingParameterConfig(parameters=PAIRS),
    "embedding of 8": parameters.EmbeddingParameterConfig(parameters=PAIRS, embedding_features=8),
    "linear": parameters.LinearParameterConfig(features=FEATURES),
    "deep": parameters.DeepParameterConfig(features=FEATURES, hidden_units=4),
    "deep_cross": parameters.DeepCrossParameterConfig(features=FEATURES, hidden_units=4),
    "parameter": FixedParameter(np.linspace(-1, 1, PAIRS + 1)),
    "decay": DecayingExamination(1.0, 0.5),
    "module": Doubled(rngs=nnx.Rngs(5)),
    "constructor": Doubled,
}


def every_tower(*daily):
    """Each tower, in both tiers where it is named: each tower is in one role."""
    given = [(name, () if name in daily else pytest.mark.nightly) for name in TOWERS]
    return pytest.mark.parametrize(
        "source", [pytest.param(TOWERS[name], id=name, marks=marks) for name, marks in given]
    )


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, PAIRS + 1, (1, RANKS)).astype(np.int32)
    features = rng.normal(size=(1, RANKS, FEATURES)).astype(np.float32)
    return {
        "query_doc_ids": np.tile(ids, (len(VECTORS), 1)),
        "positions": np.arange(1, RANKS + 1, dtype=np.int32)[None],
        "query_doc_features": np.tile(features, (len(VECTORS), 1, 1)),
        "clicks": VECTORS,
        "mask": np.ones_like(VECTORS),
    }


@nnx.jit
def logits(tower, batch):
    return tower.logit(batch)


@nnx.jit
def losses_and_clicks(model, batch):
    return model.compute_loss(batch, aggregate=False), model.predict_clicks(batch)


def probabilities(tower, batch):
    """What the tower returns for the list, [RANKS] in float64."""
    return sigmoid(np.broadcast_to(logits(tower, batch), VECTORS.shape)[0])


def check(model, batch, story, **roles):
    """Probabilities of all click vectors are those of the story with the towers' own logits."""
    losses, clicks = losses_and_clicks(model, batch)
    joint, vectors = oracle.enumerate_clicks(story, **roles)
    np.testing.assert_allclose(np.exp(-losses.sum(-1)), joint, rtol=2e-5)
    np.testing.assert_allclose(np.exp(clicks[0]), oracle.marginal(joint, vectors), rtol=2e-5)


@every_tower("embedding", "linear", "module", "position")
def test_attraction_satisfaction_and_continuation(batch, source):
    model = models.DynamicBayesianNetwork(
        attraction=source, satisfaction=source, continuation=source, rngs=nnx.Rngs(1)
    )
    names = "attraction", "satisfaction", "continuation"
    roles = {name: probabilities(getattr(model, name), batch) for name in names}
    check(model, batch, oracle.dynamic_bayesian_network, **roles)


@every_tower("global", "embedding of 8", "deep", "parameter")
def test_click_rate(batch, source):
    model = models.GlobalCTRModel(source, rngs=nnx.Rngs(1))
    check(model, batch, oracle.independent_clicks, click_rate=probabilities(model.ctr, batch))


@every_tower("deep_cross", "decay", "constructor")
def test_examination_that_may_depend_on_the_last_click(batch, source):
    model = models.UserBrowsingModel(RANKS, examination=source, attraction=source, rngs=nnx.Rngs(1))
    above = [np.minimum(last, batch["positions"] - 1) for last in range(RANKS)]
    columns = [
        probabilities(model.examination, {**batch, "last_click_positions": last}) for last in above
    ]
    roles = {
        "examination": np.transpose([*columns, columns[0]]),
        "attraction": probabilities(model.attraction, batch),
    }
    check(model, batch, oracle.user_browsing_model, **roles)


def test_embedding_of_rank_and_last_click_may_serve_as_examination(batch):
    largest = (RANKS + 1) ** 2 - 1
    config = parameters.EmbeddingParameterConfig(use_feature="examination_idx", parameters=largest)
    model = models.UserBrowsingModel(RANKS, PAIRS, examination=config, rngs=nnx.Rngs(1))
    rng = np.random.default_rng(3)
    fill(model, lambda shape: rng.normal(size=shape))
    rows = model.examination.baseline[...] + model.examination.table.get_value().values[:, 0]
    index = np.arange(1, RANKS + 1)[:, None] * (RANKS + 1) + np.arange(RANKS + 1)
    roles = {
        "examination": sigmoid(rows[index]),
        "attraction": probabilities(model.attraction, batch),
    }
    check(model, batch, oracle.user_browsing_model, **roles)


def test_a_built_parameter_is_used_as_it_is_and_a_module_is_wrapped():
    given = FixedParameter(0.0)
    assert build_parameter("attraction", given, None, Sizes(), rngs=nnx.Rngs(0)) is given
    module = Doubled(rngs=nnx.Rngs(0))
    assert build_parameter("attraction", module, None, Sizes(), rngs=nnx.Rngs(0)).module is module


def test_a_constructor_is_called_with_the_stream_of_the_model():
    built = build_parameter("attraction", Doubled, None, Sizes(), rngs=nnx.Rngs(7))
    assert built.module.weight[...] == Doubled(rngs=nnx.Rngs(7)).weight[...]
    fixed = build_parameter(
        "attraction", lambda rngs: FixedParameter(1.0), None, Sizes(), rngs=nnx.Rngs(7)
    )
    assert isinstance(fixed, FixedParameter)


def test_logits_of_the_wrong_shape_are_refused(batch):
    model = models.CascadeModel(attraction=Careless, rngs=nnx.Rngs(0))
    with refuses(ValueError, "Careless", "(8, 3, 1)", "[batch, rank]"):
        model.compute_loss(batch)


class LogitOnly(nnx.Module):
    """The methods of a parameter without its base class, and no __call__."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 1, rngs=rngs)

    def logit(self, batch):
        return self.linear(batch["query_doc_features"])[..., 0]


class LogitParameter(LogitOnly, Parameter):
    """The same, derived from the base class."""


def test_a_module_that_cannot_be_called_is_refused_before_the_first_batch():
    for source in LogitOnly, LogitOnly(nnx.Rngs(0)):
        with refuses(
            ConfigError, "attraction", "LogitOnly", "__call__", "clickexp.parameters.Parameter"
        ):
            models.CascadeModel(attraction=source, rngs=nnx.Rngs(0))
    models.CascadeModel(attraction=LogitParameter, rngs=nnx.Rngs(0))


def test_what_is_no_tower_is_refused():
    for nonsense in 3, "deep", {"features": 2}, None:
        with refuses(TypeError, "attraction", "Parameter", type(nonsense).__name__):
            build_parameter("attraction", nonsense, None, Sizes(), rngs=nnx.Rngs(0))


def test_default_towers_ask_for_the_sizes_they_need():
    for build, missing in (
        (models.CascadeModel, "query_doc_pairs"),
        (models.DynamicBayesianNetwork, "query_doc_pairs"),
        (models.ClickChainModel, "query_doc_pairs"),
        (models.DocumentCTRModel, "query_doc_pairs"),
        (models.RankCTRModel, "positions"),
        (models.PositionBasedModel, "positions"),
        (models.DependentClickModel, "query_doc_pairs"),
    ):
        with refuses(ValueError, f"{missing}=...", "give it"):
            build(rngs=nnx.Rngs(0))


def test_towers_built_by_hand_ask_for_their_number_of_rows():
    for parameter, config in (
        (parameters.EmbeddingParameter, parameters.EmbeddingParameterConfig()),
        (parameters.PositionParameter, parameters.PositionParameterConfig()),
    ):
        with refuses(ValueError, type(config).__name__, "parameters="):
            parameter(config, rngs=nnx.Rngs(0))


def test_click_rates_of_0_and_1_have_no_logit():
    for click_rate, *parts in (
        (0.0, "no document", "column of clicks"),
        (1.0, "every document", "column of clicks"),
        (1.5, "click_rate=1.5", "at least 0 and at most 1"),
    ):
        with refuses(ValueError, *parts):
            models.DocumentCTRModel(5, click_rate=click_rate, rngs=nnx.Rngs(0))


def test_document_rank_tables_larger_than_an_index_are_refused():
    with refuses(ValueError, "ctr_idx", "3,470,000,009", "2,147,483,647"):
        models.DocumentRankCTRModel(10, 347_000_000, rngs=nnx.Rngs(0))


def test_combinations_are_named():
    config = parameters.DeepCrossParameterConfig(features=2, combination="sideways")
    with refuses(ValueError, "sideways"):
        models.CascadeModel(attraction=config, rngs=nnx.Rngs(0))


def test_a_parameter_of_ones_own_needs_a_logit_only(batch):
    class Steep(Parameter):
        def logit(self, batch):
            return -jnp.asarray(batch["positions"], jnp.float32)

    model = models.RankCTRModel(ctr=Steep(), rngs=nnx.Rngs(0))
    _, clicks = losses_and_clicks(model, batch)
    np.testing.assert_allclose(np.exp(clicks[0]), sigmoid([-1, -2, -3]), rtol=1e-6)

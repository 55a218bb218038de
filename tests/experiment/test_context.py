"""`+context=OPTION` adds a term to the tower of a role, in every model that takes one."""

from functools import partial

import numpy as np
import pytest
from compositions import options, resolved, values
from flax import nnx
from refusals import refuses
from small_logs import ragged_log

from clickexp.data import Dataset, Sessions
from clickexp.data.batches import at_step, with_mask
from clickexp.data.features import Features
from clickexp.data.feed import feed
from clickexp.data.schema import Column
from clickexp.errors import ConfigError
from clickexp.experiment.build import build_model
from clickexp.experiment.instantiate import model_constructor
from clickexp.models import (
    CascadeModel,
    ClickModel,
    ContextAwareClickModel,
    DocumentCTRModel,
    DynamicBayesianNetwork,
    MixtureModel,
    NeuralClickModel,
    PositionBasedModel,
    RankCTRModel,
    TwoTowersModel,
    UserBrowsingModel,
)
from clickexp.parameters import (
    ContextParameter,
    ContextParameterConfig,
    EmbeddingParameterConfig,
    PositionParameterConfig,
    SumParameterConfig,
)
from clickexp.training.em.bernoulli import BernoulliTowers

TREC = ("dataset=tiangong_st", "dataset.path=.")


def composed(*overrides):
    """The arguments that a model is built with."""
    return resolved(*TREC, *overrides).new_model.keywords


NETWORKS = {"ncm", "cacm"}
"""Models with no towers, of which context is a part of its own."""
WITHOUT = {"gctr", "rctr", "drctr"}
"""Models with no tower of a role: click rates of everything, of ranks, of documents at ranks."""
MODELS = sorted({*options("model")} - WITHOUT - NETWORKS)


def every_model(*daily):
    """These in both tiers, the others in the nightly one."""
    params = [
        pytest.param(name, marks=() if name in daily else pytest.mark.nightly) for name in MODELS
    ]
    return pytest.mark.parametrize("name", params)


def sums(settings):
    """Names of the towers that are a sum of themselves and of context, those of components with a number before."""
    for name, tower in settings.items():
        if isinstance(tower, SumParameterConfig) and "context" in tower.terms:
            yield name
    if isinstance(settings.get("shared"), dict):
        yield from (f"shared.{role}" for role in sums(settings["shared"]))
    for number, model in enumerate(settings.get("models", ())):
        yield from (f"models.{number}.{name}" for name in sums(getattr(model, "keywords", {})))


def added(kind, *, role=None, **settings):
    """The same for context that is added to a class of models with these arguments."""
    return [*sums(kind.with_context(settings, ContextParameterConfig(role=role)))]


@every_model("cm", "mixture", "ranker", "ubm")
def test_every_model_takes_context(name):
    model, before = composed(f"model={name}", "+context=both"), composed(f"model={name}")
    keys = [*sums(model)]
    assert len(keys) == (2 if name == "mixture" else 1)  # whose components take different roles
    for key in (key for key in keys if "." not in key):
        assert model[key].terms["tower"] == before[key]
        assert model[key].terms["context"].columns[-1] == "document_seen"


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_networks_take_context_but_for_no_role(name):
    assert composed(f"model={name}")["context"] is None
    term = composed(f"model={name}", "+context=document")["context"]
    assert term.columns == ("document_seen",) and term.role is None
    with refuses(ConfigError, "role=examination", "choose another"):
        composed(f"model={name}", "+context=list", "context.role=examination")


@pytest.fixture(scope="module")
def data():
    columns = ragged_log(40, 3, 9, seed=1)
    sizes = {"document_ids": 5, "query_numbers": 4}
    ids = columns["query_doc_ids"]
    extra = {
        Column(name, "int32"): np.where(ids > 0, ids % most + 1, 0) for name, most in sizes.items()
    }
    sessions = {"session_ids": np.arange(40) // 4, "query_ids": np.arange(40) % 3}
    log = Sessions.from_arrays(**columns, **sessions, extra=extra).with_pairs(9)
    log = log.with_features(
        Features(np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32))
    )
    return Dataset("log", log, log, log, 9, 3)


@every_model("ranker", "ubm")
def test_context_without_weight_leaves_every_model_as_it_is(name, data):
    """With weight, it changes the predictions of lists that have context, and no relevance."""
    columns = {*data.train.columns, *data.train.derived}
    batch = at_step(with_mask(next(feed(data.train.with_batch_columns(columns), 40, 1)).arrays), 0)
    found = []
    for overrides in ([], ["+context=both"]):
        given = values(*TREC, f"model={name}", *overrides)
        model = build_model(model_constructor(given), data, 0)
        model.eval()
        found.append(model)
    without, with_context = found
    predict = (
        "predict_conditional_clicks" if isinstance(without, ClickModel) else "predict_relevance"
    )
    shown = batch["mask"].astype(bool)
    before = np.asarray(getattr(without, predict)(batch))[shown]
    np.testing.assert_allclose(
        np.asarray(getattr(with_context, predict)(batch))[shown], before, atol=1e-5
    )
    if not isinstance(without, ClickModel):
        return
    relevance = np.asarray(with_context.predict_relevance(batch))
    terms = [part for _, part in nnx.iter_graph(with_context) if isinstance(part, ContextParameter)]
    for term in terms:
        term.weight[...] -= 1.0
    assert (
        np.abs(np.asarray(with_context.predict_conditional_clicks(batch))[shown] - before).max()
        > 0.01
    )
    np.testing.assert_array_equal(with_context.predict_relevance(batch), relevance)


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_model_without_the_role_says_so(name):
    with refuses(ConfigError, "context", "leave it or the context out"):
        composed(f"model={name}", "+context=list")


def test_examination_has_it_by_default_and_any_role_by_request():
    assert added(UserBrowsingModel) == added(PositionBasedModel) == ["examination"]
    assert added(CascadeModel) == ["attraction"]
    assert added(DynamicBayesianNetwork, role="satisfaction") == ["satisfaction"]
    with refuses(
        ConfigError, "context.role=examination", "(it takes attraction, continuation, satisfaction)"
    ):
        added(DynamicBayesianNetwork, role="examination")


def test_a_role_may_have_another_name_in_a_model():
    assert added(DocumentCTRModel) == added(DocumentCTRModel, role="attraction") == ["ctr"]
    assert added(TwoTowersModel) == ["bias"]


def test_it_is_added_to_the_tower_that_is_given_or_the_default():
    given = PositionParameterConfig(initial=0.5)
    settings = {"examination": given, "attraction": None}
    context = ContextParameterConfig()
    found = PositionBasedModel.with_context(settings, context)
    assert found["examination"].terms == {"tower": given, "context": context}
    context = ContextParameterConfig(role="attraction")
    found = PositionBasedModel.with_context(settings, context)
    assert found["attraction"].terms["tower"] == PositionBasedModel.roles["attraction"]


def test_components_of_a_mixture_that_take_the_role_have_it():
    models = [PositionBasedModel, partial(DynamicBayesianNetwork, fix_continuation=True)]
    own = partial(added, MixtureModel, models=models)
    assert own(shared=["attraction"]) == ["shared.attraction", "models.0.examination"]
    assert own() == ["models.0.examination", "models.1.attraction"]
    assert own(shared=["attraction"], role="attraction") == ["shared.attraction"]
    shared = {"attraction": EmbeddingParameterConfig()}
    assert own(shared=shared, role="attraction") == ["shared.attraction"]
    with refuses(ConfigError, "context.role=bias", "satisfaction)"):
        own(role="bias")


def test_networks_in_a_mixture_take_context():
    models = [UserBrowsingModel, NeuralClickModel, ContextAwareClickModel]
    settings, context = {"models": models, "shared": ["attraction"]}, ContextParameterConfig()
    model = MixtureModel.with_context(settings, context)
    assert [*sums(model)] == ["models.0.examination"]
    assert [each.keywords["context"] for each in model["models"][1:]] == [context] * 2
    context = ContextParameterConfig(role="attraction")
    model = MixtureModel.with_context(settings, context)
    assert [*sums(model)] == ["shared.attraction"] and model["models"][1:] == models[1:]


def test_a_component_without_a_role_for_context_is_an_error():
    models = [PositionBasedModel, RankCTRModel]
    with refuses(ConfigError, "RankCTRModel", "leave it or the context out"):
        added(MixtureModel, models=models)
    assert added(MixtureModel, models=models, role="examination") == ["models.0.examination"]


def test_a_key_that_the_term_does_not_have_is_an_error():
    with refuses(ConfigError, "hiden_units"):
        resolved(*TREC, "+context=list", "+context.hiden_units=[4]")


def test_counts_cannot_estimate_it():
    term = ContextParameterConfig()
    examination = SumParameterConfig({"tower": PositionParameterConfig(), "context": term})
    model = PositionBasedModel(3, 9, examination, rngs=nnx.Rngs(0))
    with refuses(
        ConfigError, "examination: ", "SumParameter", "choose a tower of one number per row"
    ):
        BernoulliTowers(model)

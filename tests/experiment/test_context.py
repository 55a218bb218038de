"""`+context=OPTION` adds a term to the tower of a role, in every model that takes one."""

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
from clickexp.experiment.instantiate import constructor
from clickexp.models import ClickModel, PositionBasedModel
from clickexp.parameters import (
    ContextParameter,
    ContextParameterConfig,
    PositionParameterConfig,
    SumParameterConfig,
)
from clickexp.training.em.bernoulli import BernoulliTowers

TREC = ("dataset=tiangong_st", "dataset.path=.")


def composed(*overrides):
    return values(*TREC, *overrides)["model"]


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


def sums(node, key=""):
    """Keys of towers that are a sum of themselves and of context."""
    if isinstance(node, dict):
        if "context" in (node.get("terms") or {}):
            yield key
        for name, value in node.items():
            yield from sums(value, f"{key}.{name}".lstrip("."))
    for at, value in enumerate(node if isinstance(node, list) else []):
        yield from sums(value, f"{key}.{at}")


@every_model("cm", "mixture", "ranker", "ubm")
def test_every_model_takes_context(name):
    model, before = (
        resolved(*TREC, f"model={name}", "+context=both").values["model"],
        composed(f"model={name}"),
    )
    keys = [*sums(model)]
    assert len(keys) == (2 if name == "mixture" else 1)  # whose components take different roles
    for key in keys:
        at, tower = before, model
        for part in key.split("."):
            at, tower = (
                node[int(part)] if isinstance(node, list) else node[part] for node in (at, tower)
            )
        assert tower["terms"]["tower"] == at
        assert tower["terms"]["context"]["columns"][-1] == "document_seen"


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_networks_take_context_but_for_no_role(name):
    assert composed(f"model={name}")["context"] is None
    term = resolved(*TREC, f"model={name}", "+context=document").values["model"]["context"]
    assert term["columns"] == ["document_seen"] and "role" not in term
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
        model = build_model(constructor(composed(f"model={name}", *overrides), "model"), data, 0)
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
    assert list(sums(composed("model=ubm", "+context=list"))) == ["examination"]
    assert list(sums(composed("model=cm", "+context=list"))) == ["attraction"]
    dbn = composed("model=dbn", "+context=list", "context.role=satisfaction")
    assert list(sums(dbn)) == ["satisfaction"]
    with refuses(
        ConfigError, "context.role=examination", "(it takes attraction, continuation, satisfaction)"
    ):
        composed("model=dbn", "+context=list", "context.role=examination")


def test_components_of_a_mixture_that_take_the_role_have_it():
    mixture = (
        "model=mixture",
        "model.components=[pbm,dbn]",
        "model.shared=[attraction]",
        "+context=document",
    )
    assert sorted(sums(composed(*mixture))) == ["models.0.examination", "shared.attraction"]
    assert list(sums(composed(*mixture, "model.shared=[]"))) == [
        "models.0.examination",
        "models.1.attraction",
    ]
    assert list(sums(composed(*mixture, "context.role=attraction"))) == ["shared.attraction"]


def test_networks_in_a_mixture_take_context():
    mixture = ("model=mixture", "model.components=[ubm,ncm,cacm]", "+context=document")
    model = composed(*mixture)
    assert list(sums(model)) == ["models.0.examination"]
    assert [each["context"]["columns"] for each in model["models"][1:]] == [["document_seen"]] * 2
    model = composed(*mixture, "context.role=attraction")
    assert list(sums(model)) == ["shared.attraction"]
    assert model["models"][1]["context"] is model["models"][2]["context"] is None


def test_a_component_without_a_role_for_context_is_an_error():
    mixture = ("model=mixture", "model.components=[pbm,rctr]", "+context=list")
    with refuses(ConfigError, "RankCTRModel in model.components", "leave it or the context out"):
        composed(*mixture)
    assert list(sums(composed(*mixture, "context.role=examination"))) == ["models.0.examination"]


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

"""`+context=OPTION` adds a term to the tower of a role, in every model that takes one."""

import pytest
from flax import nnx
from hydra import compose, initialize_config_dir
from places import ROOT

from clickexp.errors import ConfigError
from clickexp.experiment.resolve import resolve
from clickexp.experiment.values import resolved_values
from clickexp.models import PositionBasedModel
from clickexp.parameters import ContextParameterConfig, PositionParameterConfig, SumParameterConfig
from clickexp.training.em.bernoulli import BernoulliTowers

CONF = ROOT / "conf"
TREC = ("dataset=tiangong_st", "dataset.path=.")


def composed(*overrides, check=False):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", list(overrides))
        return resolve(cfg, overrides).values if check else resolved_values(cfg, overrides)


MODELS = sorted(file.stem for file in (CONF / "model").glob("*.yaml"))


WITHOUT = {"gctr", "rctr", "drctr"}
"""Models whose only tower is no role's: a click rate for everything, of each rank, or of each document at each."""


def sums(node, key=""):
    """Keys of towers that are a sum of themselves and of context."""
    if isinstance(node, dict):
        if "context" in (node.get("terms") or {}):
            yield key
        for name, value in node.items():
            yield from sums(value, f"{key}.{name}".lstrip("."))
    for at, value in enumerate(node if isinstance(node, list) else []):
        yield from sums(value, f"{key}.{at}")


@pytest.mark.parametrize("name", [model for model in MODELS if model not in WITHOUT])
def test_every_model_takes_context(name):
    before = composed(*TREC, f"model={name}")["model"]
    values = composed(*TREC, f"model={name}", "+context=both", check=True)
    (key, *more) = sums(values["model"])
    at, tower = before, values["model"]
    for part in key.split("."):
        at, tower = (node[int(part)] if isinstance(node, list) else node[part] for node in (at, tower))
    assert tower["terms"]["tower"] == at and not more
    assert tower["terms"]["context"]["columns"][-1] == "document_seen"


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_model_without_the_role_says_so(name):
    with pytest.raises(ConfigError, match=r"role=attraction: this model takes no tower of attraction \(it takes none"):
        composed(*TREC, f"model={name}", "+context=list")


def test_examination_has_it_by_default_and_any_role_by_request():
    assert list(sums(composed(*TREC, "model=ubm", "+context=list")["model"])) == ["examination"]
    assert list(sums(composed(*TREC, "model=cm", "+context=list")["model"])) == ["attraction"]
    dbn = composed(*TREC, "model=dbn", "+context=list", "context.role=satisfaction")["model"]
    assert list(sums(dbn)) == ["satisfaction"]
    with pytest.raises(ConfigError, match=r"takes no tower of examination \(it takes attraction, continuation, satis"):
        composed(*TREC, "model=dbn", "+context=list", "context.role=examination")


def test_components_of_a_mixture_that_take_the_role_have_it():
    mixture = ("model=mixture", "model.components=[pbm,dbn]", "model.shared=[attraction]", "+context=document")
    assert list(sums(composed(*TREC, *mixture)["model"])) == ["models.0.examination"]
    assert list(sums(composed(*TREC, *mixture, "context.role=attraction")["model"])) == ["shared.attraction"]


def test_a_key_that_the_term_does_not_have_is_an_error():
    with pytest.raises(ConfigError, match="hiden_units"):
        composed(*TREC, "+context=list", "+context.hiden_units=[4]", check=True)


def test_counts_cannot_estimate_it():
    term = ContextParameterConfig()
    examination = SumParameterConfig({"tower": PositionParameterConfig(), "context": term})
    model = PositionBasedModel(3, 9, examination, rngs=nnx.Rngs(0))
    with pytest.raises(ConfigError, match="examination: counts cannot estimate this SumParameter"):
        BernoulliTowers(model)

"""Mixtures are made of parts in Python, without Hydra; what it composes of them is in `test_conf`."""

from functools import partial

import pytest
from flax import nnx

from clickexp.errors import ConfigError
from clickexp.experiment.instantiate import model_constructor
from clickexp.experiment.mixture import Component, mixture_of
from clickexp.models import CascadeModel, DocumentCTRModel
from tests.refusals import refuses

TOWER = {"_target_": "clickexp.parameters.EmbeddingParameterConfig"}
MODELS = {
    "cm": Component(
        {"_target_": "clickexp.models.CascadeModel", "_partial_": True, "attraction": TOWER},
        frozenset({"attraction"}),
    ),
    "dctr": Component(
        {
            "_target_": "clickexp.models.DocumentCTRModel",
            "_partial_": True,
            "ctr": TOWER,
            "temperature": 2.0,  # as a preset of the mixture leaves it in every model
        },
        frozenset({"attraction"}),
    ),
    "mixture": Component({"_target_": "clickexp.models.MixtureModel"}, frozenset()),
}


def composed(*components, shared=("attraction",)):
    mixture = {
        "_target_": "clickexp.models.MixtureModel",
        "_partial_": True,
        "components": [*components],
        "shared": [*shared],
        "temperature": 0.5,
    }
    return mixture_of(mixture, {"attraction"}, MODELS, MODELS.__getitem__)


def test_the_node_of_a_mixture_builds_the_components_with_the_tower_that_they_share():
    node, roles = composed("cm", "dctr")
    new_model = model_constructor({"model": node})
    model = new_model(positions=3, query_doc_pairs=5, rngs=nnx.Rngs(0))
    one, other = model.models
    assert roles == {"attraction"} and model.temperature == 0.5
    assert isinstance(one, CascadeModel) and isinstance(other, DocumentCTRModel)
    assert one.attraction is other.ctr


@pytest.mark.parametrize(
    "make, parts",
    [
        (partial(composed, "cm", "cmm"), ["'cmm'", "choose from cm, dctr, mixture"]),
        (partial(composed, "mixture"), ["mixture is a mixture itself"]),
        (partial(composed, "cm", shared=["atraction"]), ["model.shared", "'atraction'"]),
    ],
)
def test_parts_that_make_no_mixture_are_named(make, parts):
    with refuses(ConfigError, *parts):
        make()

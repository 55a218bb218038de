"""Groups that only rankers read: loss, debias and propensity."""

import pytest
from hydra import compose, initialize_config_dir
from places import ROOT

from clickexp.errors import ConfigError
from clickexp.experiment.resolve import resolve
from clickexp.runs.store import config_hash


def resolved(*overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return resolve(compose("config", list(overrides)), overrides)


def test_other_models_have_none_of_the_groups():
    plain, given = resolved("model=pbm"), resolved("model=pbm", "loss=softmax", "debias=ips")
    assert not {"loss", "debias", "propensity"} & given.values.keys()
    assert config_hash(given.values) == config_hash(plain.values)
    assert given.without_effect == (
        "loss=softmax has no effect: this model reads no loss",
        "debias=ips has no effect: this model reads no debias",
    )


def test_a_ranker_has_those_that_it_reads():
    naive, ips = resolved("model=ranker"), resolved("model=ranker", "debias=ips")
    assert {"loss", "debias"} <= naive.values.keys() and "propensity" not in naive.values
    assert (
        ips.values["model"]["debias"]["propensity"]["_target_"]
        == "clickexp.propensities.HarvestedPropensities"
    )
    assert not naive.without_effect and not ips.without_effect


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["loss=warp", "debias=affine"],
            "debias=affine is not defined for loss=warp; choose pointwise, softmax, poly1",
        ),
        (
            ["debias=pair_debias"],
            "debias=pair_debias is not defined for loss=softmax; choose pairwise, lambda",
        ),
        (["loss=warp", "loss.alpha=[1,2]"], "none larger than those before it"),
        (["debias=ips", "propensity=given", "propensity.values=[0,1]"], "propensity.values"),
        (["debias=ips", "debias.clip=2.0"], "clip"),
    ],
)
def test_what_cannot_be_combined_ends_before_data_is_read(overrides, message):
    with pytest.raises(ConfigError) as error:
        resolved("model=ranker", *overrides)
    assert message in str(error.value) and "\n" not in str(error.value)

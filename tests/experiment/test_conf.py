"""Options and presets combine as they should; tests/test_documented_commands.py composes and builds each of them."""

import functools
import importlib
import inspect

import pytest
import yaml
from compositions import CONF, options, resolved, values, with_hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from refusals import refuses

from clickexp.errors import ConfigError
from clickexp.experiment.instantiate import constructor
from clickexp.runs.hashing import config_hash


def test_every_experiment_passes_the_checks_before_data_is_read():
    assert {resolved(f"+experiment={name}").settings.seed for name in options("experiment")} <= {
        0,
        1,
    }


APART = {
    ("dataset/baidu_ultr.yaml", "positions"),  # those of its files, which Python users count
    ("dataset/yandex_clax.yaml", "positions"),
    ("parameter/global.yaml", "initial"),  # chosen for examination, it starts as positions do
}
"""Defaults of files that are not those of Python."""


def test_defaults_are_the_same_in_files_and_in_python():
    apart, compared = set(), 0
    for file in sorted(CONF.rglob("*.yaml")):
        content = yaml.safe_load(file.read_text())
        target = content.get("_target_", "???") if isinstance(content, dict) else "???"
        if target == "???":
            continue
        module, _, name = target.rpartition(".")
        known = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        for key in content.keys() & known.keys():
            value, default = content[key], known[key].default
            if isinstance(value, int | float) and default is not inspect.Parameter.empty:
                compared += 1
                if value != default:
                    apart.add((str(file.relative_to(CONF)), key))
    assert apart == APART and compared > 100


SWEEPS = [f"+sweep={name}" for name in options("sweep")]


@functools.cache
def keys_of(preset):
    """What a sweep's preset varies: values by key."""
    hydra = with_hydra(preset).hydra
    assert hydra.mode.name == "MULTIRUN" and hydra.sweeper.params
    lines = [f"{key}={value}" for key, value in hydra.sweeper.params.items()]
    return {
        each.get_key_element(): values_swept(each)
        for each in OverridesParser.create().parse_overrides(lines)
    }


def values_swept(override):
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    return (
        list(override.sweep_string_iterator())
        if override.is_discrete_sweep()
        else [override.value().start]
    )


def points(preset):
    """Overrides of a few jobs, in which each value of each key occurs."""
    swept = keys_of(preset)
    for at in range(max(map(len, swept.values()))):
        yield [f"{key}={each[at % len(each)]}" for key, each in swept.items()]


def first_point(preset):
    return next(points(preset))


def test_every_sweep_composes_and_names_options_that_there_are():
    for preset in SWEEPS:
        assert values(preset, *first_point(preset))["model"], preset
        for key, names in keys_of(preset).items():
            group = key.partition("@")[0]
            assert not (CONF / group).is_dir() or {*names} <= {*options(group)}, (preset, key)


@pytest.mark.nightly
def test_every_point_of_a_sweep_composes():
    for preset in SWEEPS:
        for point in points(preset):
            assert values(preset, *point)["model"], (preset, point)


@pytest.mark.nightly
@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_sweep_combines_with_every_experiment(experiment):
    for preset in SWEEPS:
        if preset == "+sweep=models" and experiment.endswith("mixture"):
            continue  # the components of a mixture are no other model's
        assert values(f"+experiment={experiment}", preset, *first_point(preset))["model"], preset


def test_the_debug_preset_keeps_the_dataset():
    config = values("debug=fast", "dataset=lists", "dataset.path=x")
    assert config["max_sessions"] == 4000 and config["dataset"]["path"] == "x"
    assert config["trainer"]["epochs"] == 2 and values()["trainer"]["epochs"] == 50


@pytest.mark.parametrize("trainer", ["em", "counting"])
def test_the_debug_preset_takes_trainers_without_epochs(trainer):
    assert callable(constructor(values("debug=fast", f"trainer={trainer}")["trainer"], "trainer"))


WITHOUT_ATTRACTION = {"gctr", "rctr", "drctr", "ncm", "cacm"}
ALL_MODELS = [model for model in options("model") if model != "mixture"]
FEW_MODELS = ["rctr", "dctr", "ubm", "dbn", "ncm"]
every_model = pytest.mark.parametrize(
    "models", [FEW_MODELS, pytest.param(ALL_MODELS, marks=pytest.mark.nightly)]
)


@every_model
def test_a_role_is_overridden_for_every_model_alike(models):
    for model in [*models, "mixture"]:
        node = values(f"model={model}", "parameter@attraction=linear", "attraction.features=3")[
            "model"
        ]
        node = node["models"][0] if model == "mixture" else node
        taken = node.get("attraction") or node.get("ctr") or {}
        linear = taken.get("_target_") == "clickexp.parameters.LinearParameterConfig"
        assert linear or model in WITHOUT_ATTRACTION, model


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (["model=dctr", "parameter@attraction=hash", "attraction.compression_ratio=10"], []),
        (["model=pbm", "parameter@continuation=embedding"],
         ["parameter@continuation=embedding", "no tower of continuation", "(it takes attraction, examination)"]),
        (["model=rctr", "attraction.prior_precision=2"],
         ["attraction.prior_precision=2", "no tower of attraction", "(it takes none)"]),
        (["model=mixture", "model.components=[gctr,dctr]", "parameter@attraction=hash", "parameter@examination=global"],
         ["parameter@examination=global", "no tower of examination", "(it takes attraction)"]),
        (["model=pbm", "trainer=em", "optimizer.learning_rate=0.5"],
         ["optimizer.learning_rate=0.5", "takes no optimizer"]),
        (["model=dctr", "trainer=counting", "optimizer=adam"], ["optimizer=adam", "takes no optimizer"]),
        (["model=pbm", "optimizer=adam", "optimizer.learning_rate=0.5"], []),
    ],
)  # fmt: skip
def test_what_model_or_trainer_does_not_take_is_reported(overrides, parts):
    lines = resolved(*overrides).without_effect
    assert len(lines) == bool(parts)
    assert all(part in lines[0] for part in parts)


@pytest.mark.parametrize(
    "trainer, is_read", [("em", False), ("counting", False), ("default", True)]
)
def test_an_optimizer_is_of_a_configuration_where_the_trainer_has_one(trainer, is_read):
    """Runs of one configuration run once in a sweep."""
    found = [
        values("model=dctr", f"trainer={trainer}", f"optimizer={name}") for name in ("adam", "sgd")
    ]
    hashes = {*map(config_hash, found)}
    assert len(hashes) == 1 + is_read and ("optimizer" in found[0]) == is_read


@pytest.mark.parametrize(
    "model, role, feature",
    [("ubm", "examination", "examination_idx"), ("pbm", "examination", "positions")],
)
def test_a_model_brings_the_default_tower_of_its_role(model, role, feature):
    assert values(f"model={model}")["model"][role]["use_feature"] == feature
    other = values(f"model={model}", f"parameter@{role}=embedding")["model"][role]
    assert other["_target_"] == "clickexp.parameters.EmbeddingParameterConfig"


def test_every_file_opens_with_a_command_and_explains_its_keys():
    for file in CONF.rglob("*.yaml"):
        lines = [line for line in file.read_text().splitlines() if line != "# @package _global_"]
        logging = file.parent.name in ("job_logging", "hydra_logging")
        assert lines[0].startswith("# " if logging else "# clickexp"), file


def mixture(*overrides):
    return values("model=mixture", *overrides)["model"]


@every_model
def test_each_component_has_the_towers_that_it_has_alone(models):
    overrides = ["parameter@attraction=linear", "attraction.features=3", "continuation.initial=0.5"]
    several = mixture(f"model.components=[{','.join(models)}]", "model.shared=[]", *overrides)[
        "models"
    ]
    assert several == [values(f"model={name}", *overrides)["model"] for name in models]


def test_a_component_has_the_default_tower_of_its_role():
    assert mixture("model.components=[ubm]", "model.shared=[]")["models"] == [
        values("model=ubm")["model"]
    ]


def test_components_have_the_tower_that_they_share():
    tower = values("attraction.embedding_features=2")["model"]["attraction"]
    model = mixture("model.components=[pbm,dctr]", "attraction.embedding_features=2")
    assert model["shared"] == ["attraction"]
    assert [model["models"][0]["attraction"], model["models"][1]["ctr"]] == [tower, tower]
    resolved("model=mixture", "model.components=[gctr,rctr]")  # which share nothing


def test_a_component_may_be_spelled_out_or_come_twice():
    node = "{_target_:clickexp.models.CascadeModel,_partial_:true,min_log_prob:-9.0}"
    first, *others = mixture(f"model.components=[{node},pbm,pbm]")["models"]
    assert first["min_log_prob"] == -9.0 and others[0] == others[1]


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (["model.components=pbm"], ["model.components='pbm'", "not a list"]),
        (["model.shared=null"], ["model.shared=None", "not a list"]),
        (["model.components=[pbm,ubm]", "model.shared=[examination]"],
         ["model.shared", "examination", "parameter@examination=..."]),
    ],
)  # fmt: skip
def test_what_is_no_mixture_is_reported_in_one_line(overrides, parts):
    with refuses(ConfigError, *parts) as error:
        resolved("model=mixture", *overrides)
    assert "\n" not in str(error.value)


def test_keys_of_components_are_checked():
    node = "{_target_:clickexp.models.CascadeModel,_partial_:true,conditionl:marginal}"
    with refuses(ConfigError, "model.models.0.conditionl", "there is no such key"):
        constructor(mixture(f"model.components=[{node}]"), "model")

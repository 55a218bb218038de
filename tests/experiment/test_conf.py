"""Every option of every group composes, resolves, and builds what it describes."""

import functools
import re

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from places import ROOT

from clickexp.errors import ConfigError
from clickexp.experiment.instantiate import build_optimizer, constructor, instantiate
from clickexp.experiment.overrides import CHOSEN
from clickexp.experiment.resolve import resolve
from clickexp.experiment.values import resolved_values
from clickexp.loggers import Logger
from clickexp.utils.signatures import accepted

CONF = ROOT / "conf"
GROUPS = ("dataset", "model", "parameter", "metric", "optimizer", "trainer", "logger", "launcher", "search", *CHOSEN)
NEEDED = {
    **{
        f"dataset={name}": ["dataset.path=x"]
        for name in ("csv", "impressions", "yandex_clax", "baidu_ultr", "baidu_ultr_uva")
    },
    "propensity=given": ["propensity.values=[1,0.5]"],
    "propensity=run": ["propensity.run=x"],
    "dataset=parquet": ["dataset.path=x"],
    "trainer=clax2025": ["+experiment=clax2025_yandex_baseline"],
    "dataset=prepared": ["dataset.path=x"],
    "dataset=letor": ["dataset.path=x"],
    "dataset=tiangong_st": ["dataset.path=x"],
    "dataset=yandex": ["dataset.path=x"],
    "parameter=linear": ["attraction.features=3"],
    "parameter=deep": ["attraction.features=3"],
    "parameter=deep_cross": ["attraction.features=3"],
    "parameter=module": [
        "attraction._target_=flax.nnx.Linear",
        "+attraction.in_features=2",
        "+attraction.out_features=1",
    ],
}


def options(group):
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


@functools.cache
def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return resolved_values(compose("config", list(overrides)), overrides)


@pytest.mark.parametrize("choice", [f"{group}={option}" for group in GROUPS for option in options(group)])
def test_every_option_builds(choice):
    group = choice.split("=")[0]
    override = choice.replace("parameter=", "parameter@attraction=")
    ranker = ["model=ranker", *(["debias=ips"] if group == "propensity" else [])] if group in CHOSEN else []
    config = composed(*ranker, override, *NEEDED.get(choice, []))
    assert (group in config["model"]) == (group in ("loss", "debias"))
    for part in ("dataset", "model"):
        assert callable(constructor(config[part], part))
    built = {part: instantiate(config[part], part) for part in ("metric", "logger")}
    built["optimizer"] = build_optimizer(config["optimizer"])
    new_trainer = constructor(config["trainer"], "trainer")
    parts = dict(optimizer=built["optimizer"], metrics=built["metric"].get("click"), logger=Logger())
    assert new_trainer(**accepted(new_trainer, parts)).logger is parts["logger"]
    groups = {name for name, part in built["metric"].items() if isinstance(part, dict)}
    assert {"click", "test", "ranking", "counterfactual", "truth"} >= groups
    assert group != "logger" or set(config["logger"] or {}) <= {choice.split("=")[1]}


@pytest.mark.parametrize(
    "preset", [f"{group}={name}" for group in ("experiment", "sweep") for name in options(group)]
)
def test_every_preset_composes(preset):
    assert composed(f"+{preset}")["model"]["_target_"].startswith("clickexp.models.")


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_passes_the_checks_before_data_is_read(experiment):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        overrides = [f"+experiment={experiment}"]
        assert resolve(compose("config", overrides), overrides).settings.seed in (0, 1)


@functools.cache
def points(preset):
    """Overrides of jobs of a sweep's preset: each value of each key once, the first of them first."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        hydra = compose("config", [preset], return_hydra_config=True).hydra
    assert hydra.mode.name == "MULTIRUN" and hydra.sweeper.params
    parsed = OverridesParser.create().parse_overrides([f"{k}={v}" for k, v in hydra.sweeper.params.items()])
    first = {o.get_key_element(): next(values_of(o)) for o in parsed}
    every = [first | {o.get_key_element(): value} for o in parsed for value in values_of(o)]
    return [[f"{key}={value}" for key, value in point.items()] for point in [first, *every]]


def values_of(override):
    if not override.is_sweep_override():
        return iter([override.get_value_element_as_str()])
    return (
        override.sweep_string_iterator() if override.is_discrete_sweep() else iter([override.value().start])
    )


@pytest.mark.parametrize("sweep", options("sweep"))
def test_every_point_of_a_sweep_composes(sweep):
    for point in points(f"+sweep={sweep}"):
        assert composed(f"+sweep={sweep}", *point)["model"]


@pytest.mark.parametrize("sweep", options("sweep"))
@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_sweep_combines_with_every_experiment(experiment, sweep):
    presets = [f"+experiment={experiment}", f"+sweep={sweep}"]
    if sweep == "models" and experiment.endswith("mixture"):
        pytest.skip("the components of a mixture are no other model's")
    assert composed(*presets, *points(presets[1])[0])["model"]


def test_the_debug_preset_keeps_the_dataset():
    config = composed("debug=fast", "dataset=parquet", "dataset.path=x")
    assert config["max_sessions"] == 4000 and config["dataset"]["path"] == "x"
    assert config["trainer"]["epochs"] == 2 and composed()["trainer"]["epochs"] == 50


@pytest.mark.parametrize("trainer", ["em", "counting"])
def test_the_debug_preset_takes_trainers_without_epochs(trainer):
    assert callable(constructor(composed("debug=fast", f"trainer={trainer}")["trainer"], "trainer"))


@pytest.mark.parametrize("model", options("model"))
def test_a_role_is_overridden_for_every_model_alike(model):
    config = composed(f"model={model}", "parameter@attraction=linear", "attraction.features=3")
    node = config["model"].get("shared") or config["model"]
    taken = node.get("attraction") or node.get("ctr")  # networks have neither
    without = ("gctr", "rctr", "drctr", "ncm", "cacm")
    assert model in without or taken["_target_"] == "clickexp.parameters.LinearParameterConfig"


@pytest.mark.parametrize(
    "overrides, lines",
    [
        (["model=dctr", "parameter@attraction=hash", "attraction.compression_ratio=10"], []),
        (["model=pbm", "parameter@continuation=embedding"],
         ["parameter@continuation=embedding has no effect: this model takes no tower of continuation (it takes "
          "attraction, examination)"]),
        (["model=rctr", "attraction.prior_precision=2"],
         ["attraction.prior_precision=2 has no effect: this model takes no tower of attraction (it takes none)"]),
        (["model=mixture", "model.components=[gctr,dctr]", "parameter@attraction=hash", "parameter@examination=global"],
         ["parameter@examination=global has no effect: this model takes no tower of examination (it takes "
          "attraction)"]),
    ],
)  # fmt: skip
def test_a_tower_that_the_model_does_not_take_is_reported(overrides, lines):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert list(resolve(compose("config", overrides), overrides).without_effect) == lines


@pytest.mark.parametrize(
    "model, role, feature", [("ubm", "examination", "examination_idx"), ("pbm", "examination", "positions")]
)
def test_a_model_brings_the_default_tower_of_its_role(model, role, feature):
    assert composed(f"model={model}")["model"][role]["use_feature"] == feature
    other = composed(f"model={model}", f"parameter@{role}=embedding")["model"][role]
    assert other["_target_"] == "clickexp.parameters.EmbeddingParameterConfig"


@pytest.mark.parametrize("file", sorted(CONF.rglob("*.yaml")), ids=lambda f: str(f.relative_to(CONF)))
def test_every_file_opens_with_a_command_and_explains_its_keys(file):
    lines = [line for line in file.read_text().splitlines() if line != "# @package _global_"]
    assert lines[0].startswith("# ")
    if file.parent.name not in ("job_logging", "hydra_logging"):
        assert lines[0].startswith("# clickexp")


MIXTURE = "model=mixture"
ALL_MODELS = [model for model in options("model") if model != "mixture"]


def components(*overrides):
    return composed(MIXTURE, *overrides)["model"]["models"]


def test_each_component_has_the_towers_that_it_has_alone():
    overrides = ["parameter@attraction=linear", "attraction.features=3", "continuation.initial=0.5"]
    names = ",".join(ALL_MODELS)
    several = components(f"model.components=[{names}]", "model.shared=[]", *overrides)
    assert several == [composed(f"model={name}", *overrides)["model"] for name in ALL_MODELS]
    assert composed("model=ubm")["model"] in components("model.components=[ubm]", "model.shared=[]")


def test_towers_of_shared_roles_stand_once():
    model = composed(MIXTURE, "model.components=[pbm,ubm,dbn,rctr]", "attraction.embedding_features=2")[
        "model"
    ]
    assert model["shared"] == {"attraction": composed("attraction.embedding_features=2")["attraction"]}
    assert not any("attraction" in component for component in model["models"])
    assert [*map(len, model["models"])] == [3, 3, 5, 2]
    both = composed(
        MIXTURE, "model.components=[pbm,ubm]", "model.shared=[examination]", "parameter@examination=global"
    )
    assert both["model"]["shared"]["examination"]["_target_"].endswith("GlobalParameterConfig")
    assert composed(MIXTURE, "model.components=[gctr,rctr]")["model"]["shared"] == {}


def test_a_click_rate_of_documents_shares_the_tower_of_attraction():
    model = composed(MIXTURE, "model.components=[gctr,dctr,pbm]")["model"]
    assert [component.get("ctr") for component in model["models"]] == [None, "attraction", None]
    assert model["shared"] == {"attraction": composed()["attraction"]}


def test_a_component_may_be_spelled_out_or_come_twice():
    node = "{_target_:clickexp.models.CascadeModel,_partial_:true,conditional:marginal}"
    first, *others = components(f"model.components=[{node},pbm,pbm]")
    assert first["conditional"] == "marginal" and others[0] == others[1]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["model.components=[pbm,ubmm]"], "there is no model 'ubmm'; choose from cacm, cacm_minus, ccm, cm"),
        (["model.components=[pbm,mixture]"], "mixture is a mixture itself"),
        (["model.components=pbm"], "model.components='pbm' is not a list"),
        (["model.shared=null"], "model.shared=None is not a list"),
        (["model.shared=[atraction]"], "no component has a role 'atraction'"),
        (["model.components=[pbm,ubm]", "model.shared=[examination]"], "different towers for examination"),
    ],
)
def test_what_is_no_mixture_is_reported_in_one_line(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        composed(MIXTURE, *overrides)
    assert "\n" not in str(error.value)


def test_keys_of_components_are_checked():
    node = "{_target_:clickexp.models.CascadeModel,_partial_:true,conditionl:marginal}"
    with pytest.raises(ConfigError, match=r"model\.models\.0\.conditionl: there is no such key"):
        constructor(composed(MIXTURE, f"model.components=[{node}]")["model"], "model")

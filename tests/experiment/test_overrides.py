"""The words of a command line: roles as groups, words that are no overrides, and names that may have been meant."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from places import ROOT
from refusals import refuses

from clickexp.errors import ConfigError
from clickexp.experiment.conf import roles
from clickexp.experiment.overrides import CommandLine, canonical, check_launcher, parsed, values_of
from clickexp.experiment.resolve import resolve
from clickexp.experiment.values import compose_values
from clickexp.runs.store import values
from clickexp.utils.suggest import did_you_mean, nearest

CONF = ROOT / "conf"


def composed(*words):
    overrides = CommandLine(words).overrides
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose_values(compose("config", overrides), overrides).values


def unresolved(*words):
    overrides = CommandLine(words).overrides
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose_values(compose("config", overrides), overrides).unresolved


def test_roles_are_chosen_as_every_other_group():
    layers = [f"{role}.layers=3" for role in roles()]
    short, whole = (
        unresolved(*(f"{key}{role}=deep" for role in roles()), *layers)
        for key in ("", "parameter@")
    )
    assert short == whole
    for role in roles():
        assert (
            short[role]["_target_"].endswith("DeepParameterConfig") and short[role]["layers"] == 3
        ), role


def test_components_of_a_mixture_have_the_towers_that_were_chosen():
    words = [
        "model=mixture",
        "model.components=[pbm,dbn]",
        "attraction=global",
        "satisfaction=linear",
    ]
    model = composed(*words)["model"]
    assert model["models"][0]["attraction"]["_target_"].endswith("GlobalParameterConfig")
    assert model["models"][1]["satisfaction"]["_target_"].endswith("LinearParameterConfig")


@pytest.mark.parametrize(
    "word, meant",
    [
        ("attraction=deep", "parameter@attraction=deep"),
        ("attraction=deep,linear", "parameter@attraction=deep,linear"),
        ("attraction=choice(deep,linear)", "parameter@attraction=choice(deep,linear)"),
        ("attraction=glob(*)", "parameter@attraction=glob(*)"),
        ("attraction='deep'", "parameter@attraction='deep'"),
        ("parameter@attraction=deep", "parameter@attraction=deep"),
        ("attraction=null", "attraction=null"),
        ("attraction=${satisfaction}", "attraction=${satisfaction}"),
        ("attraction={initial:1}", "attraction={initial:1}"),
        ("attraction.layers=3", "attraction.layers=3"),
        ("+attraction.layers=3", "+attraction.layers=3"),
        ("~attraction", "~attraction"),
        ("model=pbm", "model=pbm"),
        ("metric=[click,ranking]", "metric=[click,ranking]"),
    ],
)
def test_only_the_choice_of_a_tower_is_rewritten(word, meant):
    assert canonical([word]) == canonical(canonical([word])) == [meant]


def test_records_and_tables_name_the_choice_in_one_way():
    short, long = (
        canonical(["attraction=deep", "seed=1"]),
        canonical(["parameter@attraction=deep", "seed=1"]),
    )
    assert values(short) == values(long) == {"parameter@attraction": "deep", "seed": 1}


def test_options_may_stand_between_overrides():
    assert CommandLine(["model=pbm", "-m", "seed=1,2"]).arguments == ["-m", "model=pbm", "seed=1,2"]
    words = ["model=pbm", "--config-dir", "my=conf", "seed=1", "--cfg", "job"]
    assert CommandLine(words).arguments == [
        "--config-dir",
        "my=conf",
        "--cfg",
        "job",
        "model=pbm",
        "seed=1",
    ]


SPELLING = "key=value"
SEVERAL = "sweep over several with -m"


@pytest.mark.parametrize(
    "words, parts",
    [
        ("pbm", ["pbm: ", SPELLING, "model=pbm"]),
        ("model = pbm", ["model: ", SPELLING]),
        ("-m model=pbm ubm", ["ubm: ", SPELLING, "-m model=pbm,ubm"]),
        ("seed=1 --model pbm", ["--model: ", SPELLING]),
        ("--model=pbm", ["--model=pbm: ", SPELLING]),
        ("-x", ["-x: ", SPELLING]),
        ("--cfg jbo", ["'jbo'", "job"]),
        ("~model", ["~model", "model=..."]),
        ("~dataset=simulated", ["dataset", "cannot be left out"]),
        ("metric=[]", ["metric=[]", "metric=click"]),
        ("model=[pbm,ubm]", ["one model", f"{SEVERAL} model=pbm,ubm", "model=mixture"]),
        ("-m trainer=[em],default", ["one trainer", f"{SEVERAL} trainer=em"]),
        ("parameter@attraction=[deep,linear]", [f"{SEVERAL} parameter@attraction=deep,linear"]),
    ],
)
def test_words_that_no_run_can_be_made_of(words, parts):
    with refuses(ConfigError, *parts) as error:
        CommandLine(words.split())
    assert "\n" not in str(error.value)


def test_values_are_read_without_the_quotes_and_backslashes_of_hydra():
    lines = ['a="a, b"', r"b=c\ d", r"c=p$\{seed\}", r"d='it\'s'", 'e="5"', "f=5", "g=null"]
    expected = ["a, b", "c d", "p${seed}", "it's", "5", 5, None]
    assert [*values(lines).values()] == expected


def test_values_that_need_quotes_are_shown_with_them():
    with refuses(ConfigError, "quotes", "'dataset.columns.rank=\"Rang ⭐\"'"):
        CommandLine(["dataset.columns.rank=Rang ⭐"])
    (override,) = parsed(CommandLine(['dataset.columns.rank="Rang ⭐"', "seed=1"]).overrides[:1])
    assert values_of(override) == ["Rang ⭐"]


@pytest.mark.parametrize("line", ["tags=[a,", "a..b=⭐", "~⭐", "seed=1,2,"])
def test_no_quotes_are_advised_where_they_do_not_help(line):
    with refuses(ConfigError, line) as error:
        CommandLine([line])
    assert "quotes" not in str(error.value)


@pytest.mark.parametrize(
    "line", ["hydra.run.dir=a[b]c", "dataset.path=my (1)/log.csv", "notes=a, b}"]
)
def test_text_with_the_signs_of_lists_is_shown_in_quotes(line):
    key, _, value = line.partition("=")
    with refuses(ConfigError, line, f"'{key}=\"{value}\"'"):
        CommandLine([line])


@pytest.mark.parametrize("group", ["attraction", "parameter@attraction"])
def test_options_of_a_group_that_is_swept_are_set_in_each_job(group):
    """Hydra would look for compression_ratio in the default tower, which has none."""
    words = [
        "-m",
        f"{group}=hash,robe",
        "attraction.compression_ratio=5",
        "optimizer.learning_rate=0.1",
    ]
    overrides = CommandLine(words).overrides
    assert overrides == [
        "parameter@attraction=hash,robe", "attraction.compression_ratio=choice(5)", "optimizer.learning_rate=0.1",
    ]  # fmt: skip
    assert canonical(overrides) == overrides
    assert (
        canonical(["attraction=hash", "attraction.compression_ratio=5"])[1]
        == "attraction.compression_ratio=5"
    )


def test_lists_are_for_groups_that_take_several():
    assert canonical(["logger=[]", "metric=[click]", "tags=[a,b]"]) == [
        "logger=[]",
        "metric=[click]",
        "tags=[a,b]",
    ]


@pytest.mark.parametrize(
    "word", ["launcher=slurm", "launcher=accelerators", "hydra/launcher=clickexp_ray"]
)
def test_a_single_run_has_no_launcher(word):
    with refuses(ConfigError, word, "add -m"):
        check_launcher(["model=pbm", word])
    check_launcher(["launcher=basic", "hydra/launcher=basic", "hydra.launcher.x=1", "model=pbm"])


KEYS = [
    "seed", "model", "dataset", "dataset.seed", "dataset.positions", "dataset.path", "optimizer.learning_rate",
    "optimizer.dense_learning_rate", "trainer.epochs", "trainer.seed", "trainer.early_stopping.mode",
    "attraction.prior_precision", "satisfaction.prior_precision", "satisfaction.deep.layers", "+experiment",
]  # fmt: skip


@pytest.mark.parametrize(
    "name, meant",
    [
        ("lr", ["optimizer.learning_rate"]),
        ("optimizer.lr", ["optimizer.learning_rate"]),
        ("optimiser.learning_rate", ["optimizer.learning_rate"]),
        ("trainer.epoch", ["trainer.epochs"]),
        ("num_epochs", ["trainer.epochs"]),
        ("modle", ["model"]),
        ("sead", ["seed"]),
        ("random_seed", ["seed"]),
        ("trainr.seed", ["trainer.seed"]),
        ("model.positons", ["dataset.positions"]),
        ("prior_precision", ["attraction.prior_precision", "satisfaction.prior_precision"]),
        ("data", ["dataset"]),
        ("data_dir", ["dataset.path"]),
        ("expriment", ["+experiment"]),
        ("nothing_alike", []),
    ],
)
def test_the_nearest_names_are_those_that_are_meant(name, meant):
    assert nearest(name, KEYS) == meant
    text = did_you_mean(name, KEYS)
    assert bool(text) == bool(meant) and all(key in text for key in meant)


def test_roles_are_those_of_the_defaults_lists(tmp_path):
    assert set(roles()) >= {"attraction", "satisfaction", "examination", "continuation"}
    (tmp_path / "model").mkdir()
    defaults = "[{/parameter@_global_.visibility: position}, {override /parameter@_global_.attraction: hash}, _self_]"
    (tmp_path / "model/mine.yaml").write_text(f"defaults: {defaults}\n")
    (tmp_path / "model/broken.yaml").write_text("a: }")
    assert set(roles(tmp_path)) - set(roles()) == {"visibility"}
    assert canonical(["visibility=deep"], tmp_path) == ["parameter@visibility=deep"]
    assert canonical(["visibility=deep"]) == ["visibility=deep"]


PROPENSITY = """
defaults: [{/parameter@_global_.visibility: position}, _self_]
_target_: visibility_model.Propensity
_partial_: true
attraction: ${attraction}
visibility: ${visibility}
"""
MODEL = """
from clickexp.models import PositionBasedModel

class Propensity(PositionBasedModel):
    def __init__(self, attraction=None, visibility=None, **sizes):
        super().__init__(attraction=attraction, examination=visibility, **sizes)
"""


def test_a_model_from_outside_has_a_role_of_its_own(tmp_path, monkeypatch):
    """It is chosen, checked and shown as ours are, with nothing of it in the package."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/mine.yaml").write_text(PROPENSITY)
    (tmp_path / "visibility_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    words = [
        "--config-dir",
        str(tmp_path),
        "model=mine",
        "visibility=global",
        "visibility.initial=0.5",
    ]
    overrides = CommandLine([*words, "satisfaction=global"]).overrides
    with initialize_config_dir(str(CONF), version_base="1.3"):
        search = f"hydra.searchpath=['file://{tmp_path}']"
        config = resolve(compose("config", [search, *overrides]), overrides)
    assert config.values["model"]["visibility"]["initial"] == 0.5
    (line,) = config.without_effect
    assert all(
        part in line
        for part in ("parameter@satisfaction=global", "(it takes attraction, visibility)")
    )
    assert not {"visibility", "satisfaction"} & config.values.keys()


def test_options_in_folders_and_packages_of_a_user_are_known(tmp_path, monkeypatch):
    (tmp_path / "mine/model").mkdir(parents=True)
    (tmp_path / "mine/model/own.yaml").write_text("_target_: my.Model\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "mine"
    for words in (
        ["-cd", str(folder)],
        [f"hydra.searchpath=[file://{folder}]"],
        ["hydra.searchpath=[pkg://mine]"],
    ):
        given = CommandLine([*words, "model=own"])
        assert given.folders == [folder] and given.searchpath == [
            f"hydra.searchpath=['file://{folder}']"
        ]
    (tmp_path / "mine/model/inner").mkdir()
    (tmp_path / "mine/model/inner/own.yaml").touch()
    assert CommandLine(["-cd", str(folder), "model=inner/own"]).overrides == ["model=inner/own"]
    assert CommandLine(["hydra.searchpath=[pkg://nowhere.conf]"]).overrides
    assert CommandLine(["hydra/job_logging=disabled"]).overrides == ["hydra/job_logging=disabled"]
    for word in ("model=glob(*)", "model=${other}"):
        assert CommandLine([word]).overrides == [word]


def test_options_that_plugins_store_are_chosen_as_ours_are():
    store = ConfigStore.instance()
    store.store(group="model", name="stored", node={"_target_": "my.Model"}, provider="a plugin")
    try:
        assert composed("model=stored")["model"] == {"_target_": "my.Model"}
    finally:
        del store.repo["model"]

"""Groups that only rankers read: loss, debias and propensity."""

import numpy as np
import polars as pl
import pytest
import yaml
from compositions import CONF, options, resolved, run_in, values, with_hydra
from refusals import refuses

from clickexp.data import Dataset, Sessions
from clickexp.errors import ConfigError
from clickexp.experiment.build import build_model
from clickexp.experiment.instantiate import constructor
from clickexp.experiment.result import _examination
from clickexp.runs.hashing import config_hash


def test_other_models_have_none_of_the_groups():
    plain, given = resolved("model=pbm"), resolved("model=pbm", "loss=softmax", "debias=ips")
    assert not {"loss", "debias", "propensity"} & given.values.keys()
    assert config_hash(given.values) == config_hash(plain.values)
    lines = given.without_effect
    assert ["loss=softmax" in lines[0], "debias=ips" in lines[1], len(lines)] == [True, True, 2]


def test_a_ranker_has_those_that_it_reads():
    naive, ips = resolved("model=ranker"), resolved("model=ranker", "debias=ips")
    assert {"loss", "debias"} <= naive.values.keys() and "propensity" not in naive.values
    source = ips.values["model"]["debias"]["propensity"]
    assert source["_target_"] == "clickexp.propensities.HarvestedPropensities"
    assert not naive.without_effect and not ips.without_effect


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (
            ["loss=warp", "debias=affine"],
            ["debias=affine", "loss=warp", "choose pointwise, softmax, poly1"],
        ),
        (["debias=pair_debias"], ["debias=pair_debias", "loss=softmax", "choose pairwise, lambda"]),
        (["loss=warp", "loss.alpha=[1,2]"], ["alpha", "none larger than those before it"]),
        (["debias=ips", "propensity=given", "propensity.values=[0,1]"], ["propensity.values"]),
        (["debias=ips", "debias.clip=2.0"], ["clip"]),
    ],
)
def test_what_cannot_be_combined_ends_before_data_is_read(overrides, parts):
    with refuses(ConfigError, *parts) as error:
        resolved("model=ranker", *overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (
            ["trainer.early_stopping.metric=snips_dcg@10"],
            ["snips_dcg@10", "metric=[all,counterfactual]"],
        ),
        (["trainer.early_stopping.metric=ndcg@7"], ["ndcg@7", "add 7 to metric.cutoffs"]),
        (["trainer=em"], ["Ranker", "use trainer=default"]),
        (["trainer=counting"], ["Ranker", "use trainer=default"]),
        (
            ["optimized_metric=test/ppl"],
            ["Did you mean test/loss?", "val/loss, test/loss, test/dcg@1"],
        ),
        (
            ["debias=ips", "propensity=given", "propensity.values=0.5"],
            ["values=0.5", "give a list"],
        ),
        (
            ["debias=affine", "propensity=click_rate"],
            ["debias=affine", "click rates of irrelevant documents"],
        ),
        (
            ["debias=affine", "propensity=given", "propensity.values=[1,0.5]"],
            ["debias=affine", "GivenPropensities"],
        ),
    ],
)
def test_mistakes_about_rankers_are_answered_with_the_remedy(overrides, parts):
    with refuses(ConfigError, *parts):
        resolved("model=ranker", *overrides)


@pytest.mark.parametrize(
    "chosen, kind",
    [
        (["propensity=run", "propensity.run=a"], "RunPropensities"),
        (["propensity=harvest"], "HarvestedPropensities"),
    ],
)
def test_users_who_trust_ranks_are_corrected_by_other_propensities_too(chosen, kind):
    trusting = ["+experiment=ultr_letor", "+variant=trusting", "debias=ips", *chosen]
    node = values("model=ranker", *trusting)["model"]["debias"]["propensity"]
    assert node["_target_"] == f"clickexp.propensities.{kind}"


METHODS = options("method")
LISTS = ["dataset=letor", "dataset.path=lists", "parameter@attraction=linear"]
SOURCES = {"true": "simulated", "click_rate": "click_rate", "": "harvest"}


def meant(name):
    """The loss, the correction and the source of propensities that the name of a method states."""
    loss = max((each for each in options("loss") if f"{name}_".startswith(f"{each}_")), key=len)
    rest = name.removeprefix(loss).removeprefix("_")
    debias = max(
        (each for each in options("debias") if f"{rest}_".startswith(f"{each}_")),
        key=len,
        default="none",
    )
    return loss, debias, SOURCES[rest.removeprefix(debias).removeprefix("_")]


def test_methods_are_what_their_names_say():
    for name in METHODS:
        given = [f"+method={name}", *LISTS]
        config, chosen = resolved(*given), with_hydra(*given).hydra.runtime.choices
        if name in ("pbm", "two_towers"):
            assert chosen["model"] == name
            continue
        loss, debias, source = meant(name)
        assert (chosen["model"], chosen["loss"], chosen["debias"]) == ("ranker", loss, debias), name
        reads_none = "propensity" not in config.values["model"]["debias"]
        assert reads_none or chosen["propensity"] == source, name


@pytest.mark.nightly
@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_experiment_are_what_their_names_say(name):
    model = resolved("+experiment=ultr_letor", f"method={name}").values["model"]
    chosen = [f"model={name}"]
    if name not in ("pbm", "two_towers"):
        loss, debias, source = meant(name)
        chosen = ["model=ranker", f"loss={loss}", f"debias={debias}"]
        chosen += [f"propensity={source}"] if "propensity" in model["debias"] else []
    assert model == resolved(*chosen, *LISTS).values["model"]


def test_the_experiment_sweeps_over_all_methods():
    experiment = yaml.safe_load((CONF / "experiment/ultr_letor.yaml").read_text())
    listed = experiment["hydra"]["sweeper"]["params"]["method"].replace(" ", "").split(",")
    assert sorted(listed) == METHODS


def run_on(log, tmp_path, *overrides):
    """The result of a small run on a parquet file."""
    small = ["trainer.epochs=2", "report=false", "dataset=lists", "metric=click", "progress=off"]
    return run_in(
        tmp_path / "run", *overrides, *small, f"dataset.path={log}", f"cache_dir={tmp_path}/cache"
    )


@pytest.mark.nightly
def test_two_towers_say_what_the_log_identifies(tmp_path, capsys):
    rng = np.random.default_rng(0)
    ids = rng.permuted(np.tile([1, 2, 3], (300, 1)), axis=1)
    columns = {"query_doc_ids": ids.tolist(), "clicks": (rng.random((300, 3)) < 0.4).tolist()}
    pl.DataFrame(columns).write_parquet(tmp_path / "log.parquet")
    run_on(tmp_path / "log.parquet", tmp_path, "model=two_towers", "logger=console")
    assert (
        "examination: documents link all 3 positions; weakest link: 3 documents at both"
        in capsys.readouterr().out
    )


def log_of_positions_1_and_3():
    """Of training, the first 240 lists; the others show position 4."""
    rng = np.random.default_rng(0)
    shape = 300, 2
    positions = np.tile([1, 3], (300, 1))
    positions[-60:] = [1, 4]
    return {
        "query_doc_ids": rng.integers(1, 9, shape),
        "clicks": rng.random(shape) < 0.4,
        "positions": positions,
    }


def test_no_examination_is_reported_of_positions_that_training_has_not_shown():
    """The gradient never reaches them."""
    log = Sessions.from_arrays(**log_of_positions_1_and_3())
    dataset = Dataset("log", log.slice(0, 240), log.slice(240, 270), log.slice(270, 300), 8, 4)
    model = build_model(
        constructor(values("model=ranker", "debias=dla")["model"], "model"), dataset, 0
    )
    found = _examination(model, dataset)["propensity"]
    assert [(each["position"], each["relative"]) for each in found] == [
        (1, 1.0),
        (3, pytest.approx(1.0)),
    ]


@pytest.mark.nightly
def test_a_run_reports_examination_of_positions_that_training_has_shown(tmp_path):
    columns = log_of_positions_1_and_3()
    pl.DataFrame({name: values.tolist() for name, values in columns.items()}).write_parquet(
        tmp_path / "log.parquet"
    )
    found = run_on(
        tmp_path / "log.parquet", tmp_path, "model=ranker", "debias=dla", "logger=jsonl"
    ).propensity
    assert [each.position for each in found] == [1, 3]

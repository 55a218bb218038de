"""Real logs: every model trains, and those that know of ranks and documents beat the click rate per rank."""

import ast
import os
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from places import ROOT

from clickexp.experiment.run import run_experiment

DATA = Path(os.environ.get("CLICKEXP_DATA", ROOT.parent / "shared/data"))
LOGS, LISTS = DATA / "web_search_sessions", DATA / "lambdarank"
MODELS = ("gctr", "rctr", "dctr", "drctr", "cm", "pbm", "ubm", "dcm", "ccm", "dbn", "sdbn")

needs_lists = pytest.mark.skipif(
    not LISTS.is_dir(), reason="the folder lambdarank is not there; CLICKEXP_DATA names where it lies"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    if not LOGS.is_dir():
        pytest.skip("the folder web_search_sessions is not there; CLICKEXP_DATA names where it lies")
    folder = tmp_path_factory.mktemp("real")
    results = {}
    for model in MODELS:
        (folder / model).mkdir()
        overrides = [
            "dataset=tiangong_st",
            f"dataset.path={LOGS}",
            f"cache_dir={folder}/cache",
            f"model={model}",
        ]
        overrides += ["logger=console", "progress=off", "metric=[click,ranking]", "metric.cutoffs=[10]"]
        overrides += ["save_model=false"]
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            results[model] = run_experiment(compose("config", overrides), folder / model)
    return results


@pytest.fixture(scope="module")
def clicks():
    """Clicks [session, rank] of the training and test sessions, read without the package."""
    files = LOGS / "train_per_query_quid.txt", LOGS / "test_per_query_quid.txt"
    return [
        np.array([ast.literal_eval(line.split("\t")[4]) for line in file.read_text().splitlines()], float)
        for file in files
    ]


def log_likelihood_and_perplexity(rates, clicks):
    """Of click rates, one number or one a rank."""
    observed = np.log(np.where(clicks == 1, rates, 1 - rates))
    return observed.mean(), np.exp(-observed.mean(axis=0)).mean()


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_and_reports_clicks_and_ranking(results, clicks, model):
    result = results[model]
    assert result["per_rank"]["sessions"] == [363] * 10
    assert 0 < result["test"]["ndcg@10"] < 1
    assert result["train"]["best_epoch"] >= 1
    _, constant = log_likelihood_and_perplexity(clicks[0].mean(), clicks[1])
    assert result["test"]["ppl"] < constant + 1e-3


@pytest.mark.parametrize("model, axis", [("gctr", None), ("rctr", 0)])
def test_click_rates_come_out_as_counted(results, clicks, model, axis):
    ll, ppl = log_likelihood_and_perplexity(clicks[0].mean(axis=axis), clicks[1])
    assert results[model]["test"]["ll"] == pytest.approx(ll, abs=5e-4)
    assert results[model]["test"]["ppl"] == pytest.approx(ppl, abs=5e-4)


@pytest.mark.parametrize("model", ["pbm", "ubm", "ccm", "dbn"])
def test_models_of_ranks_and_documents_beat_the_click_rate_per_rank(results, model):
    assert results[model]["test"]["ppl"] < results["rctr"]["test"]["ppl"]
    assert results[model]["test"]["cond_ppl"] < results["rctr"]["test"]["cond_ppl"]
    assert results[model]["test"]["ll"] > results["rctr"]["test"]["ll"]


@needs_lists
@pytest.mark.as_users
def test_a_deep_tower_learns_to_rank_from_clicks_alone(tmp_path):
    """A random order of the test lists has nDCG@10 0.579, LambdaMART on the labels 0.736."""
    overrides = ["dataset=letor", f"dataset.path={LISTS}", "model=pbm", "parameter@attraction=deep"]
    overrides += [f"cache_dir={tmp_path}/cache", "logger=console", "progress=off", "metric=[click,ranking]"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        result = run_experiment(compose("config", overrides), tmp_path, None, overrides)
    assert result["test"]["ndcg@10"] >= 0.70

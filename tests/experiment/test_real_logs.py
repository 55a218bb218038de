"""Real logs: every model trains, and those that know of ranks and documents beat the click rate per rank."""

import ast
import functools

import numpy as np
import pytest
from compositions import run_in
from places import REAL_LOGS

LOGS, LISTS = REAL_LOGS / "web_search_sessions", REAL_LOGS / "lambdarank"
MODELS = ("gctr", "rctr", "dctr", "drctr", "cm", "pbm", "ubm", "dcm", "ccm", "dbn", "sdbn")

needs_lists = pytest.mark.skipif(
    not LISTS.is_dir(),
    reason="the folder lambdarank is not there; CLICKEXP_DATA names where it lies",
)


every_model = pytest.mark.parametrize(
    "model",
    [pytest.param(each, marks=() if each == "rctr" else pytest.mark.nightly) for each in MODELS],
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """results(model): of a run on the logs of TianGong-ST, which each model has once."""
    if not LOGS.is_dir():
        pytest.skip(
            "the folder web_search_sessions is not there; CLICKEXP_DATA names where it lies"
        )
    folder = tmp_path_factory.mktemp("real")
    places = ["dataset=tiangong_st", f"dataset.path={LOGS}", f"cache_dir={folder}/cache"]
    quiet = ["logger=console", "progress=off", "save_model=false"]

    @functools.cache
    def result(model):
        metrics = ("metric=[click,ranking]", "metric.cutoffs=[10]")
        return run_in(folder / model, *places, f"model={model}", *metrics, *quiet)

    return result


@pytest.fixture(scope="module")
def clicks():
    """Clicks [session, rank] of the training and test sessions, read without the package."""
    lines = [
        (LOGS / f"{part}_per_query_quid.txt").read_text().splitlines() for part in ("train", "test")
    ]
    return [
        np.array([ast.literal_eval(line.split("\t")[4]) for line in each], float) for each in lines
    ]


def log_likelihood_and_perplexity(rates, clicks):
    """Of click rates, one number or one a rank."""
    observed = np.log(np.where(clicks == 1, rates, 1 - rates))
    return observed.mean(), np.exp(-observed.mean(axis=0)).mean()


@every_model
def test_every_model_trains_and_reports_clicks_and_ranking(results, clicks, model):
    result = results(model)
    assert result.per_rank["sessions"] == [363] * 10
    assert 0 < result.test["ndcg@10"] < 1
    assert result.train.best_epoch >= 1
    _, constant = log_likelihood_and_perplexity(clicks[0].mean(), clicks[1])
    assert result.test["ppl"] < constant + 1e-3


@pytest.mark.parametrize(
    "model, axis", [("rctr", 0), pytest.param("gctr", None, marks=pytest.mark.nightly)]
)
def test_click_rates_come_out_as_counted(results, clicks, model, axis):
    ll, ppl = log_likelihood_and_perplexity(clicks[0].mean(axis=axis), clicks[1])
    assert results(model).test["ll"] == pytest.approx(ll, abs=5e-4)
    assert results(model).test["ppl"] == pytest.approx(ppl, abs=5e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["pbm", "ubm", "ccm", "dbn"])
def test_models_of_ranks_and_documents_beat_the_click_rate_per_rank(results, model):
    """UBM without the clicks above does not: over eight seeds its perplexity is 1.191 to 1.195, beside 1.1925."""
    test, of_ranks = results(model).test, results("rctr").test
    assert model == "ubm" or test["ppl"] < of_ranks["ppl"]
    assert test["cond_ppl"] < of_ranks["cond_ppl"]
    assert test["ll"] > of_ranks["ll"]


@needs_lists
@pytest.mark.nightly
@pytest.mark.as_users
def test_a_deep_tower_learns_to_rank_from_clicks_alone(tmp_path):
    """A random order of the test lists has nDCG@10 0.579, LambdaMART on the labels 0.736.

    From the start that the documentation advises for networks.
    """
    given = ["dataset=letor", f"dataset.path={LISTS}", "model=pbm", "parameter@attraction=deep"]
    given.append("examination.initial=1.0")
    quiet = [f"cache_dir={tmp_path}/cache", "logger=console", "progress=off"]
    result = run_in(tmp_path / "run", *given, "metric=[click,ranking]", *quiet)
    assert result.test["ndcg@10"] >= 0.70

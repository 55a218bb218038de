"""Early stopping on rankings judged by clicks alone."""

import pytest

import clickexp

WORDS = (
    "metric=[click,counterfactual]",
    "trainer.early_stopping.metric=snips_dcg@10",
    "trainer.epochs=2",
    "dataset=simulated",
    "dataset.sessions=2000",
    "logger=jsonl",
    "report=false",
    "shared_intervals=false",
    "progress=off",
)


@pytest.mark.parametrize(
    "words",
    [("model=ranker", "debias=ips"), pytest.param(("model=pbm",), marks=pytest.mark.nightly)],
    ids=" ".join,
)
def test_any_model_stops_on_an_estimate_from_clicks(words, tmp_path):
    folder = tmp_path / "run"
    run = clickexp.run(*words, *WORDS, f"cache_dir={tmp_path}/cache", folder=folder).result
    (best,) = (epoch for epoch in run.epochs if epoch["epoch"] == run.train.best_epoch)
    assert 0 < run.val["snips_dcg@10"] == best["val/snips_dcg@10"] <= 1
    assert 0 < run.test["snips_dcg@10"] <= 1
    assert run.groups["ranking by clicks"] == ["snips_dcg@10"]

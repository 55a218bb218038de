"""Rankers of clicks alone: early stopping, and weights that are refused before training."""

import pytest
from refusals import refuses

import clickexp
from clickexp.errors import DataError
from clickexp.models.ranker.debias import InversePropensity
from clickexp.training.base import BaseTrainer

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


def test_weights_that_a_log_does_not_have_are_refused_before_training(tmp_path, monkeypatch):
    """They are computed when they are first asked for, which must not be after the training."""

    def weighting(debias, sessions):
        raise DataError("the log has no weights")

    monkeypatch.setattr(InversePropensity, "weighting", weighting)
    monkeypatch.setattr(BaseTrainer, "train", lambda *arguments, **options: pytest.fail("trained"))
    words = ("model=ranker", "debias=ips", *WORDS, f"cache_dir={tmp_path}/cache")
    with refuses(DataError, "the log has no weights"):
        clickexp.run(*words, folder=tmp_path / "run")

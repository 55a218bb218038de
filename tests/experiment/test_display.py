"""The record of a run for its loggers."""

from pathlib import Path
from types import SimpleNamespace

from omegaconf import OmegaConf

from clickexp.experiment.display import run_info


def changes(*overrides, sweep=Path("sweep")):
    settings = SimpleNamespace(
        seed=1, project="tests", group=None, tags=(), notes=None, continue_from=None
    )
    values = {
        "model": {},
        "dataset": {},
        "trainer": {"_target_": "Trainer"},
        "optimizer": {"_target_": "adam"},
    }
    config = SimpleNamespace(values=values, settings=settings, overrides=overrides)
    named = SimpleNamespace(name="PBM")
    origin = SimpleNamespace(fingerprint="a")
    parts = SimpleNamespace(
        config=config,
        folder=Path("runs/0"),
        model=named,
        dataset=named,
        trainer=None,
        origin=origin,
    )
    return run_info(parts, sweep).changes


def test_overrides_are_named_as_they_were_given():
    assert changes("seed=1", "model=pbm", "optimizer.learning_rate=0.1", "max_sessions=5") == (
        "optimizer.learning_rate=0.1",
        "max_sessions=5",
    )


def test_a_job_is_named_by_what_not_all_jobs_of_its_sweep_have(tmp_path):
    words = ["max_sessions=5,6", "dataset.encoding='cp1252'", "optimizer.learning_rate=0.1"]
    OmegaConf.save({"hydra": {"overrides": {"task": words}}}, tmp_path / "multirun.yaml")
    job = "max_sessions=5", "dataset.encoding=cp1252", "optimizer.learning_rate=0.1"
    assert changes(*job, sweep=tmp_path) == ("max_sessions=5",)


def test_long_values_are_cut():
    (given,) = changes(f"dataset.examination_by_rank=[{','.join(['0.125'] * 100)}]")
    assert (
        given.startswith("dataset.examination_by_rank=[0.125,0.125")
        and given.endswith("…")
        and len(given) <= 60
    )

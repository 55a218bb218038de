"""The record of a run for its loggers."""

from pathlib import Path
from types import SimpleNamespace

from clickexp.experiment.display import run_info


def changes(*overrides):
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
    return run_info(parts, Path("sweep")).changes


def test_overrides_are_named_by_their_keys_and_sizes_by_the_last_part():
    assert changes("optimizer.learning_rate=0.1", "max_sessions=5") == (
        "learning_rate=0.1",
        "max_sessions=5",
    )
    assert changes("seed=1", "dataset.seed=0") == ("dataset.seed=0",)
    assert changes("dataset.rate=1", "trainer.rate=2", "trainer.decays=3") == (
        "dataset.rate=1",
        "trainer.rate=2",
        "decays=3",
    )
    assert changes("propensity.run=a", "model.dim=8", "trainer.metric=ppl") == (
        "propensity.run=a",
        "model.dim=8",
        "trainer.metric=ppl",  # metric is a group
    )


def test_long_values_are_cut():
    (given,) = changes(f"dataset.examination_by_rank=[{','.join(['0.125'] * 100)}]")
    assert (
        given.startswith("examination_by_rank=[0.125,0.125")
        and given.endswith("…")
        and len(given) < 85
    )

"""The record of a run for its loggers."""

from pathlib import Path
from types import SimpleNamespace

from clickexp.experiment.display import run_info


def changes(*overrides):
    settings = SimpleNamespace(seed=1, project="tests", group=None, tags=(), notes=None)
    values = {"model": {}, "dataset": {}, "trainer": {"_target_": "Trainer"}, "optimizer": {"_target_": "adam"}}
    config = SimpleNamespace(values=values, settings=settings, overrides=overrides)
    named = SimpleNamespace(name="PBM")
    parts = SimpleNamespace(config=config, folder=Path("runs/0"), model=named, dataset=named, trainer=None)
    return run_info(parts, "sweep").changes


def test_overrides_are_named_by_the_last_part_of_their_key_unless_that_has_another_meaning():
    assert changes("optimizer.learning_rate=0.1", "max_sessions=5") == ("learning_rate=0.1", "max_sessions=5")
    assert changes("seed=1", "dataset.seed=0") == ("dataset.seed=0",)
    assert changes("a.rate=1", "b.rate=2", "c.decay=3") == ("a.rate=1", "b.rate=2", "decay=3")


def test_long_values_are_cut():
    (given,) = changes(f"dataset.examination_by_rank=[{','.join(['0.125'] * 100)}]")
    assert given.startswith("examination_by_rank=[0.125,0.125") and given.endswith("…") and len(given) < 85

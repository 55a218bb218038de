"""Checks before a sweep starts: every value is checked, and as few jobs as possible are composed for it."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import HydraContext
from places import ROOT
from refusals import refuses

from clickexp.errors import UserError
from clickexp.experiment import resolve as resolving
from clickexp.sweeps import checks


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Hydra's context, and the configuration of a sweep."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        places = [
            f"hydra.sweep.dir='{tmp_path_factory.mktemp('sweep')}'",
            "hydra.mode=MULTIRUN",
            "logger=console",
        ]
        config = compose("config", places, return_hydra_config=True)
        yield HydraContext(GlobalHydra.instance().config_loader(), None), config


@pytest.fixture
def check(monkeypatch, sweep):
    """check(jobs) -> how many jobs are composed, and how many configurations are checked in full."""
    composed, resolved = [], []

    def count(calls, function):
        return lambda *given: (calls.append(given), function(*given))[1]

    monkeypatch.setattr(checks, "compose_job", count(composed, checks.compose_job))
    monkeypatch.setattr(resolving, "resolve", count(resolved, resolving.resolve))

    def call(jobs):
        checks.check_jobs(*sweep, jobs)
        return len(composed), len(resolved)

    return call


def test_a_hundred_seeds_are_composed_and_checked_once(check):
    assert check([[f"seed={seed}", "model=pbm"] for seed in range(100)]) == (1, 1)


def test_numbers_are_checked_without_composing_them(check):
    jobs = [
        [f"model={m}", f"optimizer.learning_rate={r}"]
        for m in ("pbm", "ubm")
        for r in (0.1, 0.2, 0.3)
    ]
    assert check(jobs) == (2, 4)


def test_of_combinations_each_option_is_composed_once(check):
    jobs = [
        [f"model={m}", f"optimizer={o}", f"seed={seed}"]
        for m in ("pbm", "ubm", "cm")
        for o in ("lazy_adam", "adamw")
        for seed in (1, 2)
    ]
    assert check(jobs) == (4, 4)


BAD = {
    "seed=-1": ("seed=1", "seed=-1", "at least 0"),
    "seed=1.5": ("seed=1", "seed=1.5", "integer"),
    "max_sessions=0": ("max_sessions=5", "max_sessions=0", "at least 1"),
    "optimizer.learning_rate=-1": (
        "optimizer.learning_rate=0.1",
        "optimizer.learning_rate=-1",
        "a number",
    ),
    "trainer.epochs=1.5": ("trainer.epochs=1", "trainer.epochs=1.5", "integer"),
    "dataset.train_sessions=0.9": (
        "dataset.train_sessions=0.5",
        "train_sessions=0.9",
        "sum to 1.2",
    ),
    "optimized_metric=val/x": (
        "optimized_metric=val/loss",
        "optimized_metric=val/x",
        "the run reports",
    ),
    "trainer=em": ("trainer=default", "em", "CM", "trainer=counting"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_is_found_wherever_it_is(bad, check):
    good, *parts = BAD[bad]
    model = ["model=cm"] if "trainer=" in bad else []
    jobs = [[f"draws={n}", good, *model] for n in range(3)]
    with refuses(UserError, *parts):
        check([*jobs, ["draws=1", bad, *model]])


def test_a_bad_value_is_found_among_options_that_were_all_checked(check):
    jobs = [[f"notes=n{n}", "seed=1"] for n in range(2)]
    with refuses(UserError, "seed=-1", "at least 0"):
        check([*jobs, ["notes=n1", "seed=-1"]])

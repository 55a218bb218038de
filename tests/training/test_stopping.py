"""The rules of early stopping."""

import math
import subprocess
import sys

import numpy as np
import pytest
from flax.training import early_stopping as flax_stopping
from refusals import refuses

from clickexp.errors import ConfigError
from clickexp.training import EarlyStopping, EMTrainer, Trainer
from clickexp.training.stopping import early_stopping_of


def course(stopping, values):
    """What `update` returns for each value, and the epoch to stop after, 0 for none."""
    improved, stopped = [], 0
    for epoch, value in enumerate(values, start=1):
        improved.append(stopping.update({stopping.metric: value, "other": -value}))
        stopped = stopped or (epoch if stopping.should_stop else 0)
    return improved, stopped


def test_more_than_patience_epochs_in_a_row_without_improvement():
    losses = [3.0, 2.0, 2.0, 2.5, 1.0, 1.5, 1.0, 1.0]
    for patience, stops in ((0, 3), (1, 4), (2, 8), (3, 0)):
        improved, stopped = course(EarlyStopping(patience=patience), losses)
        assert improved == [True, True, False, False, True, False, False, False]
        assert stopped == stops, patience


MODES = [
    ("loss", "auto", True),
    ("ll", "min", True),
    ("ll", "max", False),
    ("loss", "max", False),
]


def test_modes():
    for metric, mode, lower_is_better in MODES:
        improved, _ = course(EarlyStopping(metric, mode=mode), [1.0, 0.5, 2.0])
        expected = [True, True, False] if lower_is_better else [True, False, True]
        assert improved == expected, (metric, mode)


@pytest.mark.parametrize(
    "stated, best", [(False, [True, True, False]), (True, [True, False, True])]
)
def test_a_metric_is_improved_in_the_way_that_it_states(stated, best):
    for name in ("brier", "ppl"):  # a name of the package is no exception
        improved, _ = course(EarlyStopping(name).directed({name: stated}), [1.0, 0.5, 2.0])
        assert improved == best
    given = EarlyStopping("brier", mode="max").directed({"brier": False})
    assert course(given, [1.0, 2.0])[0] == [True, True]


def test_without_a_statement_nothing_is_guessed():
    for stopping, stated in ((EarlyStopping("brier"), {}), (EarlyStopping("ppl"), {"ppl": None})):
        with refuses(ConfigError, stopping.metric, "higher_is_better", "early_stopping.mode"):
            stopping.directed(stated)
    with refuses(ConfigError, "early_stopping.metric=brier"):
        EarlyStopping("brier").update({"brier": 0.5})
    assert EarlyStopping("brier", mode="min").directed({}).update({"brier": 0.5})


def test_changes_up_to_min_delta_are_no_improvement():
    """They do not move the best value either, so that small steps add up to an improvement."""
    improved, _ = course(EarlyStopping(min_delta=0.25), [2.0, 1.875, 1.75, 1.625, 1.5, 1.375])
    assert improved == [True, False, False, True, False, False]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_no_numbers_never_improve(bad):
    improved, stopped = course(EarlyStopping(patience=2), [bad, bad, 1.0, bad, 0.5, bad, bad, bad])
    assert improved == [False, False, True, False, True, False, False, False]
    assert stopped == 8


def test_an_infinite_best_is_not_beaten_by_numbers():
    improved, _ = course(EarlyStopping("ndcg@5", mode="max"), [1.0, math.inf, 2.0, 3.0])
    assert improved == [True, True, False, False]


def test_after_rates_have_fallen_the_last_of_equals_is_kept():
    """Up to min_delta; failures count from 0."""
    stopping = EarlyStopping(patience=1, min_delta=0.25)
    assert course(stopping, [2.0, 1.0, 1.25, 1.0]) == ([True, True, False, False], 4)
    stopping.restart()
    improved, stopped = course(stopping, [1.25, 1.5, 1.0, 0.5, 0.75, 0.875])
    assert improved == [True, False, True, True, True, False] and stopped == 2
    stopping.reset()
    assert course(stopping, [2.0, 2.0])[0] == [True, False]


def test_reset_forgets():
    stopping = EarlyStopping(patience=0)
    course(stopping, [1.0, 2.0])
    assert stopping.should_stop
    stopping.reset()
    assert not stopping.should_stop and stopping.update({"loss": 5.0})


def test_an_unknown_mode_is_an_error():
    with refuses(ConfigError, "mode=", "auto, min or max", "'up'"):
        EarlyStopping(mode="up")


@pytest.mark.parametrize("min_delta", [0.0, 1e-5, 0.1, 0.3])
def test_the_early_stopping_of_flax_means_the_same_here(min_delta):
    """Epoch by epoch, over losses whose differences are often the min_delta but for rounding."""
    steps = np.random.default_rng(7).integers(-3, 4, (40, 25)).cumsum(axis=1)
    for patience in (0, 1, 2, 5):
        stopped = set()
        for losses in (2 + steps / 10).tolist():
            theirs = flax_stopping.EarlyStopping(min_delta=min_delta, patience=patience)
            ours = early_stopping_of(theirs)
            for epoch, loss in enumerate(losses):
                theirs = theirs.update(loss)
                assert ours.update({"loss": loss}) == theirs.has_improved, patience
                assert ours.should_stop == theirs.should_stop, patience
                if theirs.should_stop:
                    stopped.add(epoch)
                    break
        assert len(stopped) > 1, patience


def test_what_an_early_stopping_of_flax_has_seen_does_not_count():
    used = flax_stopping.EarlyStopping(patience=1).update(0.5).update(0.7)
    improved, stopped = course(early_stopping_of(used), [3.0, 4.0, 4.0])
    assert improved == [True, False, False] and stopped == 3


def test_trainers_take_the_early_stopping_of_flax():
    rule = flax_stopping.EarlyStopping(min_delta=0.25, patience=3)
    for trainer in Trainer(early_stopping=rule), EMTrainer(early_stopping=rule):
        assert trainer.early_stopping == EarlyStopping(
            "loss", patience=3, min_delta=0.25, mode="min"
        )


WAYS = ("clickexp.EarlyStopping(...)", "flax.training.early_stopping.EarlyStopping(...)", "None")


def test_no_other_early_stopping_is_taken():
    assert early_stopping_of(None) is None
    for wrong in "loss", 3, EarlyStopping, flax_stopping.EarlyStopping:
        with refuses(ConfigError, f"early_stopping={wrong!r}", *WAYS):
            early_stopping_of(wrong)


def test_a_trainer_rejects_another_early_stopping_when_it_is_made():
    for trainer in Trainer(), EMTrainer():
        trainer.early_stopping = "loss"
        with refuses(ConfigError, "early_stopping='loss'", *WAYS):
            trainer.__post_init__()  # tests check the annotation of the argument before


@pytest.mark.nightly
def test_a_trainer_of_a_user_rejects_another_early_stopping_when_it_is_made():
    """In a process where annotations are not checked, as users run it."""
    code = "from clickexp import Trainer; Trainer(early_stopping='loss')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ConfigError: early_stopping='loss': give clickexp.EarlyStopping(...)" in done.stderr

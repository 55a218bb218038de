"""The three answers to "are these runs the same?" agree: each is coarser than the one before."""

import pytest

from clickexp.runs.hashing import config_hash, distinguishing, flat, identity
from clickexp.runs.settings import GROUPS, NOT_HASHED, REPEATED

CONFIG = {
    "seed": 1,
    "draws": 0,
    "report": True,
    "model": {"_target_": "PBM", "attraction": {"lr": 0.1, "seed": 1}},
    "dataset": {"path": "a", "cache": True, "fold": 1, "folds": 3},
    "trainer": {"epochs": 5, "devices": 1, "patience": 1},
}


def changed(name):
    """The configuration with another value of a setting."""
    *group, key = name.split(".")
    if not group:
        return {**CONFIG, key: "other"}
    node = CONFIG.get(group[0], {})
    return {**CONFIG, group[0]: {**node, key: 2}}


def relations(config):
    settings = flat(config)
    return config_hash(config), identity(config), distinguishing(settings, settings)


IGNORED = [f"{name}.{key}" for name, group in GROUPS.items() for key in group.ignored]
CHANGEABLE = [f"{name}.{key}" for name, group in GROUPS.items() for key in group.changeable]


@pytest.mark.parametrize(
    ("names", "same"),
    [
        (["report", *NOT_HASHED, *IGNORED], (True, True, True)),
        (CHANGEABLE, (False, True, False)),
        (["dataset.fold", "seed"], (False, False, True)),
        (sorted(REPEATED - {"seed"}), (False, True, True)),
        (["trainer.patience", "model.lr", "max_sessions"], (False, False, False)),
    ],
    ids=["reports", "continues", "repeats", "repeats_evaluation", "differs"],
)
def test_a_setting_distinguishes_runs_trainings_and_experiments(names, same):
    """Settings that numbers do not depend on distinguish nothing."""
    for name in names:
        pairs = zip(relations(CONFIG), relations(changed(name)), strict=True)
        assert tuple(before == after for before, after in pairs) == same, name


def test_a_fold_distinguishes_experiments_where_queries_are_not_in_folds():
    settings = flat({**CONFIG, "dataset": {"fold": 1, "folds": 1}})
    assert "dataset.fold" in distinguishing(settings, settings)

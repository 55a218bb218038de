"""Which runs are the same, by the settings that their numbers depend on.

Runs of one `config_hash` have the same numbers. Runs of one `identity` continue one training. Runs with the same
`distinguishing` settings repeat one experiment.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from clickexp.runs.settings import GROUPS, NOT_HASHED, REPEATED

_SEED = "seed"
_FOLD, _FOLDS = "dataset.fold", "dataset.folds"
_IGNORED = {f"{name}.{key}" for name, group in GROUPS.items() for key in group.ignored}
_CHANGEABLE = {f"{name}.{key}" for name, group in GROUPS.items() for key in group.changeable}


def config_hash(config: Mapping[str, Any]) -> str:
    """Returns the same for resolved configurations that differ at most in where runs report to and keep files."""
    return hashlib.sha256(json.dumps(hashed(config), sort_keys=True).encode()).hexdigest()[:16]


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings by name that are the same in the runs that one training consists of."""
    may_change = _CHANGEABLE | REPEATED - {_SEED}
    return {name: value for name, value in flat(hashed(config)).items() if name not in may_change}


def distinguishing(chosen: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are the same in the runs of one experiment, which differ in seed and fold.

    Args:
        chosen: Settings or overrides by dotted key.
        settings: All settings of the run.
    """
    left_out = _IGNORED | {_FOLD} if fold_of(settings) is not None else _IGNORED
    varying = NOT_HASHED | REPEATED
    return {
        name: value
        for name, value in chosen.items()
        if name not in left_out and name.partition(".")[0] not in varying
    }


def is_seed(name: str) -> bool:
    """Returns whether a setting is a seed, which that of the run decides unless an override does."""
    return name.rpartition(".")[2] == _SEED


def fold_of(settings: Mapping[str, Any]) -> int | None:
    """Returns the fold of the queries that is the test set; None where they are not in folds."""
    return settings.get(_FOLD) if (settings.get(_FOLDS) or 1) > 1 else None


def hashed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a resolved configuration that the numbers of a run depend on."""
    kept = {name: value for name, value in config.items() if name not in NOT_HASHED}
    for name, node in kept.items():
        if isinstance(node, dict):
            kept[name] = {
                key: value for key, value in node.items() if f"{name}.{key}" not in _IGNORED
            }
    return kept


def flat(node: Any, name: str = "") -> dict[str, Any]:
    """Returns the values of nested mappings and lists by dotted keys; a list of plain values is one value.

    Args:
        node: The configuration.
        name: The key of the node.
    """
    if isinstance(node, list) and any(isinstance(item, dict | list) for item in node):
        node = dict(enumerate(node))
    if not isinstance(node, Mapping) or not node:
        return {name: node}
    values = {}
    for key, part in node.items():
        values |= flat(part, f"{name}.{key}" if name else str(key))
    return values

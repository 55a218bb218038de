"""Which configurations are the same run: the settings that its numbers depend on, as a hash and by name."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

NOT_HASHED = (
    "logger",
    "progress",
    "cache_dir",
    "save_model",
    "shared_intervals",
    "report",
    "verbose",
    "project",
    "group",
    "tags",
    "notes",
    "resume",
    "continue_from",
    "search",
    "sweeps_dir",
    "optimized_metric",
    "reproduction",
)
"""Keys that the numbers of a run do not depend on."""
_NOT_HASHED_OF = {"dataset": "cache", "trainer": "checkpoint_minutes"}
_FIRST_NAMES = {
    "rank_normalization": "short_lists",
    "steps_per_execution": "steps",
    "clickexp.simulation.simulate": "clickexp.data.simulate.simulate",
    "clickexp.simulation.open_letor": "clickexp.data.open_letor",
}
"""Earlier names of keys and targets, which the hashes of configurations are made of."""
_ADDED = (
    {"posterior": "none"},
    {"decays": 0, "rate_decay": 0.5},
    {"draws": 0},
    {"folds": None, "fold": 0},
    {"policy_feature": None},
    {"policy_ranker": None},
    {"randomized_sessions": 0.0},
    {"keep_policy_scores": False},
    {"attraction_by_label": None},
    {"examination_by_rank": None},
    {"trust_positive": None, "trust_negative": None},
    {"search_session": "search_session"},
    {"cold": {"_target_": "clickexp.metrics.ColdStart", "edges": [1, 6, 51]}},
)
"""Settings by which a configuration is what it was before there were any."""
_MAY_CHANGE = ("trainer.epochs", "trainer.iterations", "keep_values", "draws", "dataset.path")
"""Settings that may differ where a training continues: its numbers do not depend on them."""


def config_hash(config: Mapping[str, Any]) -> str:
    """Returns the same for resolved configurations that differ at most in where runs report to and keep files."""
    return hashlib.sha256(json.dumps(_hashed(config), sort_keys=True).encode()).hexdigest()[:16]


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings by name that are the same in the runs that one training consists of."""
    return {name: value for name, value in flat(_hashed(config)).items() if name not in _MAY_CHANGE}


def _hashed(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in config.items() if name not in NOT_HASHED}
    for part, left in _NOT_HASHED_OF.items():
        if isinstance(kept.get(part), dict):
            kept[part] = {name: value for name, value in kept[part].items() if name != left}
    return _first_named(kept)


def _first_named(node: Any) -> Any:
    """Keys and targets by the names that they had when results with a hash were first written."""
    if isinstance(node, dict):
        for added in _ADDED:
            if added.items() <= {name: node.get(name) for name in added}.items():
                node = {name: value for name, value in node.items() if name not in added}
        return {_FIRST_NAMES.get(key, key): _first_named(value) for key, value in node.items()}
    if isinstance(node, list):
        return [*map(_first_named, node)]
    return _FIRST_NAMES.get(node, node) if isinstance(node, str) else node


def flat(node: Any, *, whole_lists: bool = False, name: str = "") -> dict[str, Any]:
    """Returns the values of nested mappings and lists by dotted keys.

    Args:
        node: The configuration.
        whole_lists: Take a list of plain values for one value.
        name: The key of the node.
    """
    inner: Any = node
    if isinstance(node, list) and not (whole_lists and not any(isinstance(each, dict | list) for each in node)):
        inner = dict(enumerate(node))
    if not isinstance(inner, Mapping) or (whole_lists and not inner):
        return {name: node}
    parts = (
        flat(part, whole_lists=whole_lists, name=f"{name}.{key}" if name else str(key))
        for key, part in inner.items()
    )
    return {path: value for part in parts for path, value in part.items()}

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
    return kept


def flat(node: Any, *, whole_lists: bool = False, name: str = "") -> dict[str, Any]:
    """Returns the values of nested mappings and lists by dotted keys.

    Args:
        node: The configuration.
        whole_lists: Take a list of plain values for one value.
        name: The key of the node.
    """
    inner: Any = node
    if isinstance(node, list) and not (
        whole_lists and not any(isinstance(each, dict | list) for each in node)
    ):
        inner = dict(enumerate(node))
    if not isinstance(inner, Mapping) or (whole_lists and not inner):
        return {name: node}
    parts = (
        flat(part, whole_lists=whole_lists, name=f"{name}.{key}" if name else str(key))
        for key, part in inner.items()
    )
    return {path: value for part in parts for path, value in part.items()}

"""Which configurations are the same run: the settings that its numbers depend on, as a hash and by name."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from clickexp.runs.settings import GROUPS, NOT_HASHED, REPEATED


def config_hash(config: Mapping[str, Any]) -> str:
    """Returns the same for resolved configurations that differ at most in where runs report to and keep files."""
    return hashlib.sha256(json.dumps(hashed(config), sort_keys=True).encode()).hexdigest()[:16]


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings by name that are the same in the runs that one training consists of."""
    may_change = {f"{name}.{key}" for name, group in GROUPS.items() for key in group.changeable}
    may_change |= REPEATED - {"seed"}
    return {name: value for name, value in flat(hashed(config)).items() if name not in may_change}


def hashed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a resolved configuration that the numbers of a run depend on."""
    kept = {name: value for name, value in config.items() if name not in NOT_HASHED}
    for name, group in GROUPS.items():
        if isinstance(kept.get(name), dict):
            kept[name] = {
                key: value for key, value in kept[name].items() if key not in group.ignored
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

"""Where configurations are, and which groups, options and roles they have, without composing them."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clickexp.runs.settings import TOWERS
from clickexp.runs.store import read_document, read_object

_PACKAGE = Path(__file__).resolve().parents[1]
CONF = next(
    (folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if folder.is_dir()),
    _PACKAGE,
)
"""Our configurations: inside an installed package, or beside it in a checkout."""


def presets() -> list[str]:
    """The groups that a plus adds to the configuration, such as +experiment."""
    groups = {folder.name for folder in CONF.iterdir() if folder.is_dir()}
    return [f"+{group}" for group in sorted(groups - {"hydra", TOWERS} - {*default_groups()})]


@functools.cache
def default_options() -> dict[str, Any]:
    """The option of each of these groups that a configuration has by default."""
    entries = read_object(CONF / "config.yaml").get("defaults") or ()
    pairs = (pair for entry in entries if isinstance(entry, dict) for pair in entry.items())
    return {group: option for group, option in pairs if " " not in group}


@functools.cache
def default_groups() -> tuple[str, ...]:
    """The groups of which every configuration has an option, with the role of a tower: parameter@attraction."""
    return tuple(_chosen(CONF / "config.yaml"))


def metric_options(name: str) -> list[str]:
    """The options of the group `metric` that have a metric of this name."""
    files = sorted((CONF / "metric").glob("*.yaml"))
    return [
        file.stem
        for file in files
        if any(name in node for node in read_object(file).values() if isinstance(node, dict))
    ]


def options_with(key: str) -> list[str]:
    """The options of a group, always chosen, that have a key, such as launcher=slurm for hydra.launcher.nodes."""
    group, _, name = key.removeprefix("hydra.").partition(".")
    files = sorted((CONF / group).glob("*.yaml")) if name and group in default_groups() else []

    def has(file: Path) -> bool:
        node = read_object(file)
        for part in key.split(".") if key.startswith("hydra.") else name.split("."):
            if not isinstance(node, dict) or part not in node:
                return False
            node = node[part]
        return True

    return [f"{group}={file.stem}" for file in files if has(file)]


@functools.cache
def roles(*folders: Path) -> tuple[str, ...]:
    """The roles that towers play: those for which a defaults list chooses one, as `parameter@ROLE: TOWER`.

    Args:
        folders: Configurations of a user, besides ours.
    """
    files = [file for folder in folders for file in sorted(folder.rglob("*.yaml"))]
    chosen = [*default_groups(), *(choice for file in files for choice in _chosen(file))]
    names = (
        choice.removeprefix(f"{TOWERS}@") for choice in chosen if choice.startswith(f"{TOWERS}@")
    )
    return tuple(dict.fromkeys(name.removeprefix("_global_.") for name in names))


def _chosen(file: Path) -> Iterator[str]:
    """The groups in the defaults list of a file."""
    content = read_document(file)  # of a broken one Hydra reports where it is needed
    for entry in (content.get("defaults") or ()) if isinstance(content, dict) else ():
        yield from (key.split()[-1].lstrip("/") for key in entry) if isinstance(entry, dict) else ()

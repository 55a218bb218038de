"""The text of `clickexp --help`: the template of conf/config.yaml with a table of groups.

It is read from the files: composing a configuration would take longer than all the rest.
"""

import shutil
import string
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from clickexp.experiment.conf import CONF
from clickexp.experiment.overrides import CommandLine
from clickexp.runs.settings import GROUPS
from clickexp.runs.store import read_object
from clickexp.utils.exits import VERSION

_WIDEST = 100
_HIDDEN = ("hydra", "local")
"""Folders whose options nobody chooses."""


def prints(line: CommandLine) -> bool:
    """Prints the version or the help on request.

    Args:
        line: The words of the command.

    Returns:
        Whether it was one of them.
    """
    if line.version:
        sys.stdout.write(f"{VERSION}\n")
    elif line.options.help:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        sys.stdout.write(_help(line.folders, width))
    return line.version or line.options.help


def _help(user_folders: Sequence[Path], width: int) -> str:
    """The template with a table of groups.

    Args:
        user_folders: The folders of configurations of the user.
        width: Characters of a line.
    """
    folders = [folder for folder in (CONF, *user_folders) if folder.is_dir()]
    names = {place.name for folder in folders for place in folder.iterdir() if place.is_dir()}
    groups = {name: group.about for name, group in GROUPS.items() if group.about}
    groups |= dict.fromkeys(sorted(names - {*GROUPS, *_HIDDEN}), "")
    rows = []
    for name, about in groups.items():
        rows.append(_row(name, about, _options(name, folders), width))
    template = string.Template(read_object(CONF / "config.yaml")["hydra"]["help"]["template"])
    return template.substitute(APP_CONFIG_GROUPS="\n".join(rows))


def _options(group: str, folders: Sequence[Path]) -> str:
    options = {file.stem for folder in folders for file in (folder / group).glob("*.yaml")}
    return ", ".join(sorted(options))


def _row(name: str, about: str, options: str, width: int) -> str:
    """A group and its options."""
    return textwrap.fill(
        f"{about}: {options}" if about else options,
        width,
        initial_indent=f"  {name:<12}",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )

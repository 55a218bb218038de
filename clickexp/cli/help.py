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


def prints(given: CommandLine) -> bool:
    """Prints the version or the help on request.

    Args:
        given: The words of the command.

    Returns:
        Whether it was one of them.
    """
    if given.version:
        sys.stdout.write(f"{VERSION}\n")
    elif given.options.help:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        sys.stdout.write(_help(given.folders, width))
    return given.version or given.options.help


def _help(own: Sequence[Path], width: int) -> str:
    """The template with a table of groups.

    Args:
        own: The user's own folders of configurations.
        width: Characters of a line.
    """
    folders = [folder for folder in (CONF, *own) if folder.is_dir()]
    names = {place.name for folder in folders for place in folder.iterdir() if place.is_dir()}
    groups = {name: group.about for name, group in GROUPS.items() if group.about}
    groups |= dict.fromkeys(sorted(names - {*GROUPS, *_HIDDEN}), "")
    rows = []
    for name, about in groups.items():
        options = {file.stem for folder in folders for file in (folder / name).glob("*.yaml")}
        rows.append(_row(name, about, ", ".join(sorted(options)), width))
    template = string.Template(read_object(CONF / "config.yaml")["hydra"]["help"]["template"])
    return template.substitute(APP_CONFIG_GROUPS="\n".join(rows))


def _row(name: str, about: str, options: str, width: int) -> str:
    """A group and its options."""
    return textwrap.fill(
        f"{about}: {options}" if about else options,
        width,
        initial_indent=f"  {name:<12}",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )

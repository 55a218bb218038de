"""The text of `clickexp --help`: the template of conf/config.yaml with a table of groups, and a page for each of them.

It is read from the files: composing a configuration would take longer than all the rest.
"""

import shutil
import string
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clickexp.errors import ConfigError
from clickexp.experiment.conf import CONF, default_options
from clickexp.experiment.overrides import CommandLine, parsed
from clickexp.runs.settings import GROUPS, TOWERS, Group
from clickexp.runs.store import read_object
from clickexp.utils.exits import VERSION
from clickexp.utils.suggest import did_you_mean

_WIDEST = 100
_ROLES = (
    "Any role takes any tower: attraction=deep. The roles: attraction, satisfaction, examination, continuation, "
    "true_positive, false_positive."
)
_KEYS = "keys"
_MANY = 20
"""Options beyond which they are listed by `--help GROUP` alone."""
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
        sys.stdout.write("\n".join(_help(given, width)) + "\n")
    return given.version or given.options.help


def _help(given: CommandLine, width: int) -> Iterator[str]:
    """Examples and groups with their options; of a topic what there is to choose, and keys with comments.

    Args:
        given: The words of the command.
        width: Characters of a line.

    Raises:
        ConfigError: There is no such topic.
    """
    folders = [folder for folder in (CONF, *given.folders) if folder.is_dir()]
    names = {place.name for folder in folders for place in folder.iterdir() if place.is_dir()}
    groups = {name: group for name, group in GROUPS.items() if group.about}
    groups |= {name: Group() for name in sorted(names - {*GROUPS, *_HIDDEN})}
    if given.topic is None:
        template = string.Template(read_object(CONF / "config.yaml")["hydra"]["help"]["template"])
        lines = [
            _row(name, group.about, [*_options(name, folders)], width)
            for name, group in groups.items()
        ]
        yield template.substitute(APP_CONFIG_GROUPS="\n".join(lines)).rstrip()
    elif given.topic == _KEYS:
        yield from _keys()
    elif given.topic in groups:
        options = _options(given.topic, folders)
        yield from _topic(given.topic, groups[given.topic], options, width)
        yield from _keys_of(given, options)
    else:
        known = [*groups, _KEYS]
        of_groups = [name for name in groups if given.topic in _options(name, folders)]
        meant = did_you_mean(given.topic, known)
        if of_groups:
            meant = f" {given.topic} is one of {of_groups[0]}: clickexp --help {of_groups[0]}"
        raise ConfigError(f"--help {given.topic}: choose from {', '.join(known)}.{meant}")


def _options(group: str, folders: Sequence[Path]) -> dict[str, list[str]]:
    """The lines of each option's file by its name."""
    files = {file.stem: file for folder in folders for file in (folder / group).glob("*.yaml")}
    return {name: files[name].read_text().splitlines() for name in sorted(files)}


def _row(name: str, about: str, options: Sequence[str], width: int) -> str:
    """A group and its options."""
    listed = ", ".join(options)
    if len(options) > _MANY:
        listed = f"{len(options)}, see --help {name}"
    text = f"{about}: {listed}" if about else listed
    return textwrap.fill(
        text,
        width,
        initial_indent=f"  {name:<12}",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def _topic(
    name: str, group: Group, options: Mapping[str, Sequence[str]], width: int
) -> Iterator[str]:
    """What each option of a group is."""
    yield f"{name}: {group.about}".rstrip(": ")
    yield ""
    indent = max(map(len, options), default=0) + 4
    for option, lines in options.items():
        about = " ".join(_about(lines))
        start, below = f"  {option}".ljust(indent), " " * indent
        filled = textwrap.fill(about, width, initial_indent=start, subsequent_indent=below)
        yield filled or start.rstrip()
    if name == TOWERS:
        yield ""
        yield textwrap.fill(_ROLES, width)


def _about(lines: Sequence[str]) -> Iterator[str]:
    """What the head of a file says besides commands, up to the end of the first sentence."""
    for line in lines:
        if not line.startswith("#"):
            return
        text = line.lstrip("# ")
        if not text.startswith(("clickexp", "@package", "hydra", "dataset.")):
            yield text
            if text.endswith("."):
                return


def _keys_of(given: CommandLine, options: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Keys of the option that the configuration has, of all where models choose it, as the files have them."""
    group = str(given.topic)
    chosen = {each.key_or_group: each.value() for each in parsed(given.overrides)}
    option = str(chosen.get(group, default_options().get(group)))
    several = options if group in GROUPS and GROUPS[group].chosen else ()
    for name in [option] if option in options else several:
        keys = [line for line in options[name] if not line.startswith(("#", "_target_"))]
        if keys:
            yield "\n".join([f"\nKeys of {group}={name}:\n", *keys])


def _keys() -> Iterator[str]:
    """Keys at the root with their defaults and comments."""
    yield "Keys, set by key=value:\n"
    for line in (CONF / "config.yaml").read_text().splitlines():
        key, colon, rest = line.partition(": ")
        if colon and key.isidentifier() and " # " in rest:
            yield line
    yield "\nclickexp --help GROUP shows those of a group, clickexp --cfg job all of them."

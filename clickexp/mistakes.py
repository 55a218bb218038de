"""What Hydra says of a mistake, in one line with the remedy."""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

NO_OPTION = "Config group override must be a string or a list"
"""How the ValueError begins that Hydra raises for debug=null or model=5."""


def one_line(error: Exception, conf: str, arguments: Sequence[str]) -> str:
    """The error for a reader. conf: the folder of the configuration. arguments: those of the command."""
    said = str(error) or str(error.__cause__)
    text = " ".join(re.split(r"Config search path:|full_key:", said)[0].split())
    if text.startswith(NO_OPTION):
        return _no_option(conf, arguments) or text
    key = re.search(r"full_key: *(\S+)", said)
    if key and key[1] not in text:
        text += f" ({key[1]})"
    if listed := re.search(r"Could not load '(\w+)/\w+'", text):
        sources = re.findall(r"path=file://(.+)", said)
        options = sorted({option for source in sources for option in _options(Path(source, listed[1]))})
        text += f" Available options in '{listed[1]}': {' '.join(options)}"
    if name := re.match(r"Could not override '(\w+)'", text):
        groups = difflib.get_close_matches(name[1], os.listdir(conf), 1)
        text += f" Did you mean {groups[0]}?" if groups else ""
    return text


def _no_option(conf: str, arguments: Sequence[str]) -> str | None:
    for argument in arguments:
        key, _, value = argument.partition("=")
        options = _options(Path(conf, key.split("@")[0]))
        if options and not isinstance(yaml.safe_load(value), str | list):
            return f"{argument}: choose one of {', '.join(options)}, or leave it out"
    return None


def _options(group: Path) -> list[str]:
    return sorted(file.stem for file in group.glob("*.yaml"))

"""The text of `clickexp --help`.

Hydra's own would take twice as long: it copies all that it knows of the configuration for each group.
"""

import shutil
import string
import sys
import textwrap
from collections.abc import Iterator, Sequence

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigSource
from omegaconf import OmegaConf

from clickexp.experiment.conf import CONF, TOWERS
from clickexp.experiment.overrides import CommandLine
from clickexp.utils.exits import VERSION

_WIDEST = 100
_INDENT = 14
_GROUPS = {
    "dataset": "the log to learn from",
    "model": "the click model",
    TOWERS: "the tower behind a role, as attraction=OPTION (roles: see below)",
    "metric": "what is measured; several as metric=[click,ranking]",
    "optimizer": "how parameters are updated; lazy_...: only rows of the batch",
    "trainer": "how a model is fitted",
    "logger": "where results go; several as logger=[jsonl,wandb]",
    "launcher": "where the jobs of a sweep (-m) run",
    "search": "how hyperparameters are searched",
    "debug": "a quick trial",
    "experiment": "published and example experiments, as +experiment=OPTION",
    "sweep": "prepared sweeps, as +sweep=OPTION",
    "variant": "changes to an experiment, as +variant=OPTION",
}
"""The groups in the order of the help, each in a few words; others come after them."""
_HIDDEN = ("hydra", "reproduction", "local")
"""Groups that users do not choose from, or that other groups choose."""


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
        sys.stdout.write(f"{_help_text(given)}\n")
    return given.version or given.options.help


def _help_text(given: CommandLine) -> str:
    """Returns examples, groups with their options, and keys with their values.

    Args:
        given: The words of the command, whose overrides the keys follow.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*given.searchpath, *given.overrides], return_hydra_config=True)
        sources = [*GlobalHydra.instance().config_loader().get_sources()]
        sources += [FileConfigSource("command-line", f"file://{folder}") for folder in given.folders]
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        groups = "\n".join(_groups(sources, width))
        template = string.Template(config.hydra.help.template)
        keys = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        text = OmegaConf.to_yaml(keys, resolve=given.options.resolve)
        return template.substitute(APP_CONFIG_GROUPS=groups, CONFIG=text)


def _groups(sources: Sequence[ConfigSource], width: int) -> Iterator[str]:
    names = {name for source in sources for name in source.list("", ObjectType.GROUP)}
    for group in [*_GROUPS, *sorted(names - {*_GROUPS, *_HIDDEN})]:
        files = {
            name for source in sources if source.is_group(group) for name in source.list(group, ObjectType.CONFIG)
        }
        yield f"  {group:<{_INDENT - 2}}{_GROUPS.get(group, '')}".rstrip()
        indent = " " * _INDENT
        yield textwrap.fill(", ".join(sorted(files)), width, initial_indent=indent, subsequent_indent=indent)

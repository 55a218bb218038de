"""Errors of a configuration, in one line with the remedy."""

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from clickexp.errors import OF_SYSTEM, UserError, reason
from clickexp.experiment.conf import CONF, presets
from clickexp.experiment.overrides import CommandLine, line_of, parsed, values_of
from clickexp.experiment.values import plain, walk
from clickexp.runs.settings import TOWERS
from clickexp.utils.suggest import did_you_mean

MENDABLE = (HydraException, OmegaConfBaseException, UserError, YAMLError, *OF_SYSTEM)
"""Errors that the user can mend; all others are shown with their trace."""


def format_hydra_error(error: Exception, words: Sequence[str]) -> str:
    """Explains an error of a command in one line.

    Args:
        error: One of MENDABLE.
        words: Those of the command.
    """
    if isinstance(error, OF_SYSTEM) and not isinstance(error, HydraException):  # some are both
        return reason(error)
    # OmegaConf appends types and the key in separate lines
    text = " ".join((str(error) or str(error.__cause__)).partition("\n    full_key:")[0].split())
    if isinstance(error, UserError):
        return text
    try:
        line = CommandLine(words)
        if isinstance(error, MissingMandatoryValue) and error.full_key:
            return _unset(error.full_key, line)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return _no_such_option(error, line) or _no_such_key(line) or text
    except (*MENDABLE, ValueError):
        return text


def _options(group: str, line: CommandLine) -> list[str]:
    loader = GlobalHydra.instance().config_loader()
    return loader.get_group_options(group, config_name="config", overrides=line.searchpath)


def _no_such_option(error: Exception, line: CommandLine) -> str | None:
    """Of an option that its group does not have; None if the error is another."""
    group, slash, name = str(getattr(error, "missing_cfg_file", "")).rpartition("/")
    if not slash:
        return None
    options = _options(group, line)
    kind = "tower" if group == TOWERS else group
    return f"there is no {kind} {name}.{did_you_mean(name, options)} Options: {', '.join(options)}"


def _no_such_key(line: CommandLine) -> str | None:
    """Of the first override of a key that the configuration does not have; None if it has all of them."""
    overrides = parsed(line.overrides)
    choices = [override for override in overrides if _options(override.key_or_group, line)]
    chosen = [line_of(override) for override in choices if not override.is_sweep_override()]
    cfg = compose("config", [*line.searchpath, *chosen], return_hydra_config=True)
    keys = [key for key, _ in walk(plain(cfg, resolve=False))]
    for override in overrides:
        key = override.key_or_group
        if override in choices or key in keys or "/" in key:
            continue
        if override.type in (OverrideType.CHANGE, OverrideType.DEL):
            of_hydra = key.startswith("hydra.")
            places = [name for name in keys if name.startswith("hydra.") == of_hydra]
            meant = did_you_mean(key, [*places, *presets()]) or _beside(key, keys)
            return f"{override.input_line}: there is no key {key}.{meant}"
    return None


def _beside(key: str, keys: Sequence[str]) -> str:
    """The keys of the node that a key was looked for in, where there is one."""
    node = key.rpartition(".")[0]
    inside = [
        name.removeprefix(f"{node}.") for name in keys if node and name.startswith(f"{node}.")
    ]
    inside = [name for name in inside if "." not in name and name not in ("_target_", "_partial_")]
    return f" {node} has {', '.join(inside)}." if inside else " clickexp --help lists the keys."


def _unset(key: str, line: CommandLine) -> str:
    """Of a key that has to be given, with the example at the head of the option's file, if there is one."""
    group = key.partition(".")[0]
    chosen = [override for override in parsed(line.overrides) if override.key_or_group == group]
    files = [CONF / group / f"{name}.yaml" for override in chosen for name in values_of(override)]
    head = [
        line
        for file in files
        if file.is_file()
        for line in file.read_text().splitlines()
        if line[:1] == "#"
    ]
    examples = [word for line in head for word in line.split() if word.startswith(f"{key}=")]
    such_as = f", such as {examples[0]}" if examples else ""
    return f"{key} has no value and needs one: add {key}=...{such_as}"

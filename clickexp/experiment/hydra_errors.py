"""A mistake of the configuration, in one line with the remedy."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from clickexp.errors import UserError
from clickexp.experiment.overrides import ROLES, SEVERAL, TOWERS, CommandLine, option_names, parsed
from clickexp.utils.exits import OF_SYSTEM, reason
from clickexp.utils.suggest import did_you_mean

CONFIG = "config"
MENDABLE = (HydraException, OmegaConfBaseException, UserError, YAMLError, *OF_SYSTEM)
"""Errors that the user can mend; all others are shown with their trace."""


def one_line(error: Exception, conf: str, words: Sequence[str]) -> str:
    """The error for a reader. conf: the folder of the configuration. words: those of the command."""
    if isinstance(error, OF_SYSTEM) and not isinstance(error, HydraException):  # some are both
        return reason(error)
    text = " ".join((str(error) or str(error.__cause__)).split("full_key:")[0].split())
    if isinstance(error, UserError):
        return text
    if isinstance(error, MissingMandatoryValue) and error.full_key:
        return _unset(error.full_key, conf, words)
    try:
        return _explained(conf, CommandLine(words)) or text
    except (HydraException, OmegaConfBaseException, UserError, ValueError, YAMLError):
        return text


def keys_of(config: DictConfig) -> list[str]:
    """Dotted keys of a configuration, groups of keys included, as far as they are not interpolations."""
    return [*_keys(OmegaConf.to_container(config, resolve=False))]


def _keys(node: Any, above: str = "") -> Iterator[str]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in pairs:
        yield f"{above}{name}"
        yield from _keys(value, f"{above}{name}.")


def _explained(conf: str, given: CommandLine) -> str | None:
    """What is wrong with the first override that the configuration has no place for; None if each has one."""
    folder = given.options.config_dir
    search = [f"hydra.searchpath=['file://{Path(folder).absolute()}']"] if folder else []
    with initialize_config_dir(conf, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        default = compose(CONFIG, search, return_hydra_config=True)
        choices, keys = default.hydra.runtime.choices, []
        for override in parsed(given.overrides):
            options = loader.get_group_options(override.key_or_group, config_name=CONFIG, overrides=search)
            if not options:
                keys.append(override)
            elif wrong := _wrong_choice(override, options, choices):
                return wrong
            else:
                search.append(_first(override))
        known = keys_of(compose(CONFIG, search, return_hydra_config=True)) if keys else []
        places = [*(key for key in known if not key.startswith("hydra.")), *_presets(loader, choices)]
    for override in keys:
        key = override.key_or_group
        if override.type in (OverrideType.CHANGE, OverrideType.DEL) and key not in known:
            candidates = known if key.startswith("hydra.") else places
            meant = did_you_mean(key, candidates) or " clickexp --help lists the keys."
            return f"{override.input_line}: there is no key {key}.{meant}"
    return None


def _wrong_choice(override: Override, options: Sequence[str], choices: DictConfig) -> str | None:
    """What is wrong with the choice of a group's option."""
    group, chosen = override.key_or_group, override.get_key_element().lstrip("+~")
    if group == TOWERS and override.package is None:
        return f"{override.input_line}: which role? Give {', '.join(f'{role}=...' for role in ROLES)}"
    names, line = option_names(override), override.input_line
    if names is None:
        return f"{line}: choose one of {', '.join(options)}, or leave it out"
    for name in names:
        if name not in options:
            kind = "tower" if group == TOWERS else group
            return f"{line}: there is no {kind} {name}.{did_you_mean(name, options)} Options: {', '.join(options)}"
    if override.type is OverrideType.CHANGE and chosen not in (*choices, *SEVERAL):
        return f"{line}: this is a preset, which a plus adds to the configuration: +{line}"
    if override.type is OverrideType.ADD and chosen in choices:
        return f"{line}: the configuration has a {group}, write it without the plus: {line[1:]}"
    return None


def _first(override: Override) -> str:
    """The override, with the first of the values of a sweep."""
    if not override.is_sweep_override():
        return override.input_line
    return f"{override.get_key_element()}={next(iter(option_names(override) or ['null']))}"


def _presets(loader: ConfigLoader, choices: DictConfig) -> list[str]:
    """The groups that are not in the default configuration, as they are added."""
    return [f"+{group}" for group in loader.list_groups("") if group not in choices and group != TOWERS]


def _unset(key: str, conf: str, words: Sequence[str]) -> str:
    """Of a key that has to be given, with the example at the head of the option's file, if there is one."""
    group = key.partition(".")[0]
    chosen = [override for override in parsed(CommandLine(words).overrides) if override.key_or_group == group]
    files = [Path(conf, group, f"{name}.yaml") for each in chosen for name in option_names(each) or ()]
    head = [line for file in files if file.is_file() for line in file.read_text().splitlines() if line[:1] == "#"]
    examples = [word for line in head for word in line.split() if word.startswith(f"{key}=")]
    such_as = f", such as {examples[0]}" if examples else ""
    return f"{key} has no value and needs one: add {key}=...{such_as}"

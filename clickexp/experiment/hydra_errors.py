"""Errors of a configuration, in one line with the remedy."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from yaml import YAMLError

from clickexp.errors import OF_SYSTEM, DataError, FaultyLogError, UserError, lines_of, reason
from clickexp.experiment.conf import CONF, metric_options, options_with, presets
from clickexp.experiment.overrides import CommandLine, parsed, values_of
from clickexp.experiment.values import plain, walk
from clickexp.runs.settings import TOWERS
from clickexp.utils.exits import again
from clickexp.utils.signatures import of_dataset
from clickexp.utils.suggest import did_you_mean
from clickexp.utils.text import listed

_FORMATS = {
    **dict.fromkeys(("mslr", "mslr-web10k", "mslr-web30k", "yahoo", "istella"), "letor"),
    **dict.fromkeys(("svmlight", "libsvm", "lightgbm", "ltr"), "letor"),
    **dict.fromkeys(("parquet", "csv", "tsv", "json", "jsonl", "arrow"), "lists"),
}
"""The format that reads what others call so."""
_ACCELERATORS = ("device", "devices", "gpu", "gpus", "cuda", "accelerator")
"""Keys of other tools for what JAX decides."""
_AMBIGUOUS = re.compile(r"Ambiguous value for argument '(.*)' 1\. To use it as a list")
_ADDED = re.compile(r"No match in the defaults list\. To append to your default list use (\+\S+)")
MENDABLE = (HydraException, OmegaConfBaseException, UserError, YAMLError, *OF_SYSTEM)
"""Errors that the user can mend; all others are shown with their trace."""


def error_text(error: Exception, words: Sequence[str]) -> str:
    """Explains an error of `clickexp` in one line, or in those of a log's faults, with the command that mends it.

    Args:
        error: One of MENDABLE.
        words: Those of the command.
    """
    lines = [format_hydra_error(error, words)]
    if isinstance(error, FaultyLogError):
        lines = lines_of(error)
    if isinstance(error, DataError) and error.options:
        lines.append(f"next: {again('clickexp', words, of_dataset(error.options))}")
    return "\n".join(lines)


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
    return _of_sweep(text) or _without_plus(text) or _unknown(error, words) or text


def _of_sweep(text: str) -> str | None:
    """Of values with commas between, such as those of a sweep; None if the error is another."""
    several = _AMBIGUOUS.match(text)
    if several is None:
        return None
    is_one = "/" in several[1] or " " in several[1]
    remedy = f"quote it: {shlex.quote(_quoted(several[1]))}" if is_one else "add -m"
    return f"{several[1]}: values with commas between are those of a sweep; {remedy}"


def _without_plus(text: str) -> str | None:
    """Of a group that the configuration does not have yet; None if the error is another."""
    added = _ADDED.search(text)
    return added and f"{added[1].lstrip('+')}: write it with a plus, {added[1]}"


def _unknown(error: Exception, words: Sequence[str]) -> str | None:
    """Of a key without a value, or of an option or key that there is not; None if the error is another."""
    try:
        line = CommandLine(words)
        if isinstance(error, MissingMandatoryValue) and error.full_key:
            return _unset(error.full_key, line)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return _no_such_option(error, line) or _no_such_key(error)
    except (*MENDABLE, ValueError):
        return None


def _options(group: str, line: CommandLine) -> list[str]:
    loader = GlobalHydra.instance().config_loader()
    return loader.get_group_options(group, config_name="config", overrides=line.searchpath)


def _no_such_option(error: Exception, line: CommandLine) -> str | None:
    """Of an option that its group does not have; None if the error is another."""
    group, name = _group_and_name(str(getattr(error, "missing_cfg_file", "")), line)
    if not group:
        return None
    if group == "dataset" and ("/" in name or "." in name):
        return (
            f"dataset={name}: dataset chooses the format, and dataset.path the file. Write dataset=lists "
            f"dataset.path={name} where a row is a list, dataset=impressions where it is one document; "
            f"clickexp-data inspect {name} reports which"
        )
    if group == "metric" and (files := metric_options(name.partition("@")[0])):
        return f"there is no group of metrics {name}. It is among those of metric={files[-1]}"
    options = _options(group, line)
    kind = "tower" if group == TOWERS else group
    meant = did_you_mean(_FORMATS.get(name, name) if group == "dataset" else name, options)
    return f"there is no {kind} {name}.{meant} Options: {', '.join(options)}"


def _group_and_name(file: str, line: CommandLine) -> tuple[str, str]:
    """The longest group that begins the path of a missing file, by default its folder, and the rest of the path."""
    parts = file.split("/")
    for end in range(len(parts) - 1, 0, -1):
        group = "/".join(parts[:end])
        if _options(group, line):
            return group, "/".join(parts[end:])
    return "/".join(parts[:-1]), parts[-1]


def _quoted(override: str) -> str:
    """An override with its value in quotes."""
    key, _, value = override.partition("=")
    return f'{key}="{value}"'


def _no_such_key(error: Exception) -> str | None:
    """Of a key that the configuration does not have; None if the error is another."""
    cause = error.__cause__
    if not isinstance(cause, ConfigAttributeError | ConfigKeyError) or cause.full_key is None:
        return None
    key, node = str(cause.full_key), cause.parent_node
    if key in _ACCELERATORS:
        return (
            f"there is no key {key}: JAX takes the accelerators that it finds (pip install 'clickexp[cuda]'). "
            "JAX_PLATFORMS=cpu before the command leaves them out, trainer.devices=all takes several"
        )
    if options := options_with(key):
        sweeps = ", for sweeps (-m)" if key.startswith("hydra.launcher.") else ""
        return f"there is no key {key} with the options chosen. It belongs to {listed(options, 4)}{sweeps}."
    return f"there is no key {key}.{_keys_instead(key, node)}"


def _keys_instead(key: str, node: Any) -> str:
    """Keys that may be meant, or that there are beside one."""
    root = node._get_root()
    places = dict(walk(plain(root, resolve=False)))
    of_part = [name for name in places if name.startswith("hydra.") == key.startswith("hydra.")]
    if meant := did_you_mean(key, [*of_part, *presets()]):
        return meant
    beside = [name for name in node if not name.startswith("_")]
    if node is root or not beside:
        return " clickexp --cfg job lists the keys."
    return f" There are {', '.join(beside)}."


def _unset(key: str, line: CommandLine) -> str:
    """Of a key that has to be given, with the example at the head of the option's file, if there is one."""
    group = key.partition(".")[0]
    chosen = [override for override in parsed(line.overrides) if override.key_or_group == group]
    for name in (name for override in chosen for name in values_of(override)):
        example = _example(key, CONF / group / f"{name}.yaml")
        if example:
            return f"{key} has no value and needs one: add {key}=..., such as {example}"
    return f"{key} has no value and needs one: add {key}=..."


def _example(key: str, file: Path) -> str | None:
    """The value of a key in the comments of a file of options."""
    lines = file.read_text().splitlines() if file.is_file() else []
    words = (word for line in lines if line.startswith("#") for word in line.split())
    return next((word for word in words if word.startswith(f"{key}=")), None)

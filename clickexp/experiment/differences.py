"""Settings of a run that differ from the defaults, and the command that repeats it."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from clickexp.experiment.conf import default_options
from clickexp.experiment.overrides import line_of, parsed
from clickexp.runs.settings import LAUNCHING


def command_of(overrides: Sequence[str]) -> str:
    """Returns the command of a run with these overrides, but for those of how it is launched."""
    lines = [
        line_of(each) for each in parsed(overrides) if not each.key_or_group.startswith(LAUNCHING)
    ]
    return shlex.join(["clickexp", *lines])


def chosen_option(group: str, overrides: Sequence[str]) -> str:
    """Returns the option of a group: that which Hydra composed, or, without Hydra, that of the overrides.

    Args:
        group: Such as optimizer.
        overrides: Those of the run.
    """
    if HydraConfig.initialized():
        return str(HydraConfig.get().runtime.choices.get(group))
    given = {each.key_or_group: each.get_value_element_as_str() for each in parsed(overrides)}
    return given.get(group, str(default_options().get(group)))


def changed_settings(overrides: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yields key, value and default of each override that differs from it, but for those of how a run is launched.

    The default of a key is that of the options that the overrides choose; None where there is none.

    Args:
        overrides: Those of the run.
    """
    given = [each for each in parsed(overrides) if not each.key_or_group.startswith(LAUNCHING)]
    options = default_options()
    choices = [each for each in given if _chooses(each, options)]
    values = [each for each in given if not _chooses(each, options)]
    defaults = compose("config", [line_of(each) for each in choices]) if values else None
    for each in choices:
        if (option := each.get_value_element_as_str()) != (
            usual := options.get(each.get_key_element())
        ):
            yield each.get_key_element().lstrip("+"), option, usual
    for each in values:
        key = each.key_or_group
        default = OmegaConf.select(defaults, key, default=None) if defaults is not None else None
        if each.value() != default or default is None:
            yield key, each.get_value_element_as_str(), default


def _chooses(override: Any, options: dict[str, Any]) -> bool:
    """Whether an override chooses an option of a group rather than a value."""
    return override.get_key_element() in options or (
        override.is_add() and "." not in override.key_or_group
    )

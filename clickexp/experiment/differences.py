"""Settings of a run that differ from the defaults, and the command that repeats it."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from clickexp.experiment.conf import default_options
from clickexp.experiment.overrides import line_of, parsed, quoted
from clickexp.runs.claims import RUN_DIR
from clickexp.runs.settings import LAUNCHING
from clickexp.runs.store import CHECKPOINT
from clickexp.utils.paths import display_path

_CONTINUE = "continue_from"
"""The key that names the folder of an interrupted run."""


def command_of(overrides: Sequence[str]) -> str:
    """Returns the command of a run with these overrides, but for those of how it is launched."""
    return shlex.join(["clickexp", *map(line_of, _of_results(overrides))])


def finishing_command(folder: Path, overrides: Sequence[str]) -> str:
    """Returns the command that finishes an interrupted run in its folder, from its checkpoint where there is one.

    Args:
        folder: Of the run.
        overrides: Those of the run.
    """
    if (folder / CHECKPOINT).exists():  # which continue_from would go before
        overrides = [word for word in overrides if not word.startswith(f"{_CONTINUE}=")]
    place = f"{RUN_DIR}={quoted(display_path(folder))}"
    return f"{command_of(overrides)} {shlex.quote(place)}"


def changed_settings(overrides: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yields key, value and default of each override that differs from it, but for those of how a run is launched.

    The default of a key is that of the options that the overrides choose; None where there is none.

    Args:
        overrides: Those of the run.
    """
    options, choices, values = default_options(), [], []
    for override in _of_results(overrides):
        (choices if _chooses(override, options) else values).append(override)
    for override in choices:
        option, usual = (
            override.get_value_element_as_str(),
            options.get(override.get_key_element()),
        )
        if option != usual:
            yield override.get_key_element().lstrip("+"), option, usual
    if not values:
        return
    defaults = compose("config", list(map(line_of, choices)))
    for override in values:
        value = override.value()
        default = OmegaConf.select(defaults, override.key_or_group, default=None)
        if default is None or value != default:
            text = override.get_value_element_as_str()
            # True in a sweep, whatever was typed
            yield override.key_or_group, value if isinstance(value, bool) else text, default


def _of_results(overrides: Sequence[str]) -> list[Override]:
    """The overrides but for those of how a run is launched."""
    return [
        override
        for override in parsed(overrides)
        if not override.key_or_group.startswith(LAUNCHING)
    ]


def _chooses(override: Override, options: dict[str, Any]) -> bool:
    """Whether an override chooses an option of a group rather than a value."""
    return override.get_key_element() in options or (
        override.is_add() and "." not in override.key_or_group
    )

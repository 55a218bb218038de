"""Options of the form key=value, which the commands other than `clickexp` take."""

from collections.abc import Iterable
from typing import Any

import yaml

from clickexp.errors import ConfigError


def parsed(words: Iterable[str]) -> dict[str, Any]:
    """Parses options: a.b=1 is {a: {b: 1}}.

    Args:
        words: As they were typed.

    Returns:
        Values, read as YAML, by key.

    Raises:
        ConfigError: A word is not key=value, or a key comes twice.
    """
    options: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not key or not equals:
            raise ConfigError(f"{word!r} is not key=value. Options look like positions=10.")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{word}: not a value in YAML ({error})") from error
        *outer, last = key.split(".")
        node = options
        for name in outer:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{word}: {name} has a value already. Give it once.")
        node[last] = value
    return options

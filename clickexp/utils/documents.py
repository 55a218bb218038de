"""JSON and YAML that may come from anyone: what would never end is refused before it is built."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from clickexp.utils.text import byte_size

_DEEPEST = 100
"""Levels of nesting; what walks a document calls itself once or twice for each."""
_LARGEST, _LARGEST_YAML = 1 << 28, 1 << 20
"""Bytes of a file, and of YAML, which takes a thousand times as long as to read them."""
_DIGITS = 100
_LONG_NUMBER = re.compile(rf"[-+0-9_:.]{{{_DIGITS + 1},}}")
"""Of YAML: in base 60 it takes time in the square of its length."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_LONGEST = 80
"""Characters of a wrong value in a message."""
_KINDS_OF_NUMBER = ("int", "float")
"""Which of them a value should have been ends the places in messages of pydantic."""


def items_of(node: Any) -> Iterable[tuple[Any, Any]]:
    """Returns keys and values of a dict, places and items of a list, and nothing of a plain value."""
    if isinstance(node, dict):
        return node.items()
    return enumerate(node) if isinstance(node, list) else ()


class EndlessError(ValueError):
    """A document that may not end: nested too deep, written with aliases, too large, or with numbers that are."""


def read_file(file: Path) -> bytes:
    """Returns the content of a regular file; another, such as a named pipe, may never end.

    Raises:
        EndlessError: It has more than 256 MiB.
        OSError: It cannot be read, or is not regular.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} is no file")
    _check_size(file.stat().st_size, _LARGEST)
    return file.read_bytes()


def parse_json(text: str | bytes) -> Any:
    """Returns what JSON text holds; integers of more than 100 digits are floats.

    Raises:
        EndlessError: It is nested more than 100 levels deep.
        ValueError: It is no JSON.
    """
    try:
        content = json.loads(text, parse_int=_integer)
    except RecursionError as error:
        raise _too_deep() from error
    level = [content]
    for _ in range(_DEEPEST):
        level = [
            child for node in level for _, child in items_of(node) if isinstance(child, dict | list)
        ]
        if not level:
            return content
    raise _too_deep()


def parse_yaml(text: bytes) -> Any:
    """Returns what YAML text holds.

    Raises:
        EndlessError: It has more than a MiB or aliases, is nested more than 100 levels deep, or has a number of more
            than 100 digits.
        ValueError: It is no YAML.
    """
    _check_size(len(text), _LARGEST_YAML)
    try:
        # events, since the loader builds all levels before it returns
        depth = 0
        for event in yaml.parse(text, _LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            _check_event(event, depth)
        return yaml.load(text, _LOADER)  # noqa: S506  # both loaders are safe
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML: {error}") from error
    except (ArithmeticError, AttributeError, LookupError) as error:
        raise ValueError("it is no YAML: a value does not fit its tag") from error


def plain(value: Any) -> Any:
    """The value in JSON's types: scalars of NumPy or JAX as numbers, arrays as lists, NaN and inf as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def describe_fault(error: ValidationError, file: str, foreign: str) -> str:
    """Returns the first fault of a document in a line, which names the key.

    Args:
        error: Of pydantic.
        file: Name of the document's file.
        foreign: What a document without a needed key is.
    """
    first = error.errors(include_url=False)[0]
    place = "/".join(str(key) for key in first["loc"] if key not in _KINDS_OF_NUMBER)
    if first["type"] == "missing":
        return f"{file} is {foreign}: it names no {place}"
    if first["type"] == "value_error":
        return f"{file} is damaged: {place}: {first['msg'].removeprefix('Value error, ')}"
    text = repr(first["input"])
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{file} is damaged: {place} is {text}"


def _check_event(event: yaml.Event, depth: int) -> None:
    """Raises EndlessError for an alias, a number that is too long, or levels that are too many."""
    if depth > _DEEPEST:
        raise _too_deep()
    if isinstance(event, yaml.AliasEvent):
        raise EndlessError("written with aliases, which may multiply without end")
    if isinstance(event, yaml.ScalarEvent) and _LONG_NUMBER.fullmatch(event.value):
        raise EndlessError(f"too large: a number of more than {_DIGITS} digits")


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise EndlessError(f"too large: more than {byte_size(most)}")


def _too_deep() -> EndlessError:
    return EndlessError(f"nested more than {_DEEPEST} levels deep")


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _DIGITS else float(text)

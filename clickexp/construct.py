"""Constructors and their arguments: which ones they take, and whether values from a config fit them."""

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from clickexp.errors import ConfigError

SCALARS = (bool, int, float, str)


def accepted(constructor: Callable, known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the known arguments that the constructor has a name for and, as a partial, does not hold yet."""
    wanted = _signature(constructor).parameters
    bound = getattr(constructor, "keywords", {})
    return {name: value for name, value in known.items() if name in wanted and name not in bound}


def located(path: str) -> Callable:
    """What a dotted path such as clickexp.models.PositionBasedModel names; ConfigError if there is nothing."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path}: there is nothing of this name ({error})") from error


def check_arguments(constructor: Callable, arguments: Mapping[str, Any], where: str) -> None:
    """ConfigError for an argument that does not exist, or a plain value of another type than annotated."""
    parameters = _signature(constructor).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    hints = _hints(constructor)
    for name, value in arguments.items():
        key = f"{where}.{name}".lstrip(".")
        if name not in parameters:
            names = ", ".join(n for n in parameters if n not in ("self", "rngs"))
            taker = getattr(constructor, "func", constructor).__name__
            raise ConfigError(f"{key}: there is no such key. {taker} takes {names}.")
        if not _fits(value, hints.get(name, Any)):
            raise ConfigError(f"{key}={value!r} is not {_name(hints[name])}")


def _function(constructor: Callable) -> Callable:
    constructor = getattr(constructor, "func", constructor)
    # Flax and dataclasses hide a class's arguments behind its metaclass
    return constructor.__init__ if inspect.isclass(constructor) else constructor


def _signature(constructor: Callable) -> inspect.Signature:
    return inspect.signature(_function(constructor))


def _hints(constructor: Callable) -> dict[str, Any]:
    try:
        return typing.get_type_hints(_function(constructor))
    except NameError:  # names that exist for type checkers only
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Only plain values against plain annotations are judged; everything else passes."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    literals = [choice for option in options for choice in typing.get_args(option) if _is_literal(option)]
    if typing.get_origin(hint) is list:
        return isinstance(value, list)
    plain = [option for option in options if option in SCALARS or option is type(None)]
    if len(plain) + sum(map(_is_literal, options)) < len(options):
        return True
    if value is None or isinstance(value, SCALARS):
        return value in literals or any(_is_a(value, option) for option in plain)
    return False


def _is_a(value: Any, option: type) -> bool:
    if option is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, option)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Literal


def _name(hint: Any) -> str:
    """The types a value may have, for a reader."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    names = [
        " or ".join(map(repr, typing.get_args(option)))
        if _is_literal(option)
        else getattr(option, "__name__", str(option))
        for option in options
    ]
    return " or ".join("null" if name == "NoneType" else name for name in names)

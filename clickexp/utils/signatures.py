"""Constructors and their arguments: which ones they take, and whether values from a config fit them."""

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clickexp.errors import ConfigError
from clickexp.utils.bounds import check_values
from clickexp.utils.suggest import did_you_mean

SCALARS = (bool, int, float, str)
NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "Path": "a path",
    "NoneType": "null",
    "Mapping": "a group of keys",
    "dict": "a group of keys",
    "Callable": "a group of keys with _target_",
}
PACKAGE = __name__.split(".")[0]


def accepted(constructor: Callable, known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the known arguments that the constructor has a name for and, as a partial, does not hold yet."""
    wanted = _signature(constructor).parameters
    bound = getattr(constructor, "keywords", {})
    return {name: value for name, value in known.items() if name in wanted and name not in bound}


def located(path: str) -> Callable:
    """What a dotted path such as clickexp.models.PositionBasedModel names; ConfigError if there is nothing."""
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        cause = _import_error(path) or error
        raise ConfigError(f"{path}: there is nothing of this name ({cause})") from cause


def _import_error(path: str) -> ImportError | None:
    """Why the module that holds a name cannot be imported, where it is there: resolve_name swallows that error."""
    module = path.replace(":", ".").rpartition(".")[0]
    try:
        importlib.import_module(module)
    except ImportError as error:
        return None if f"{module}.".startswith(f"{error.name}.") else error
    except (ValueError, TypeError):  # no name of a module
        pass
    return None


def check_arguments(constructor: Callable, arguments: Mapping[str, Any], where: str) -> None:
    """ConfigError for an argument that does not exist, or a value that does not fit its annotation.

    Plain values are judged by their type, and numbers by their bounds; see clickexp.utils.bounds.
    """
    parameters = _signature(constructor).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return check_values(_function(constructor), arguments, where, inside=True)
    hints = _hints(constructor)
    for name, value in arguments.items():
        key = f"{where}.{name}".lstrip(".")
        if name not in parameters:
            names = [n for n in parameters if n not in ("self", "rngs")]
            taker = getattr(constructor, "func", constructor).__name__
            meant = did_you_mean(key, [f"{where}.{n}".lstrip(".") for n in names])
            raise ConfigError(f"{key}: there is no such key.{meant} {taker} takes {', '.join(names)}.")
        if not _fits(value, hints.get(name, Any)):
            raise ConfigError(f"{key}={value!r} is not {_name(hints[name])}")
    check_values(_function(constructor), arguments, where, inside=True)


def _function(constructor: Callable) -> Callable:
    constructor = getattr(constructor, "func", constructor)
    # Flax and dataclasses hide a class's arguments behind its metaclass
    return constructor.__init__ if inspect.isclass(constructor) else constructor


def _signature(constructor: Callable) -> inspect.Signature:
    return inspect.signature(_function(constructor))


def _hints(constructor: Callable) -> dict[str, Any]:
    try:
        return typing.get_type_hints(_function(constructor))
    except (NameError, TypeError):  # names that exist for type checkers only; callables that are no functions
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Only plain values, and annotations of nothing but plain ones or a list, are judged; everything else passes."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    literals = [choice for option in options for choice in typing.get_args(option) if _is_literal(option)]
    if typing.get_origin(hint) is list:
        return isinstance(value, list)
    plain = [option for option in options if option in (*SCALARS, Path, type(None))]
    only_plain = len(plain) + sum(map(_is_literal, options)) == len(options)
    if value is None or isinstance(value, SCALARS):
        judged = only_plain or any(map(_is_group, options))
        return not judged or value in literals or any(_is_a(value, option) for option in plain)
    return not only_plain


def _is_group(option: Any) -> bool:
    """Whether a configuration has a group of keys in place of the value: a mapping, or what _target_ calls."""
    kind = typing.get_origin(option) or option
    ours = inspect.isclass(kind) and kind.__module__.startswith(f"{PACKAGE}.")
    return kind in (Mapping, dict) or ours or kind is Callable


def _is_a(value: Any, option: type) -> bool:
    if option is Path:
        return isinstance(value, str)
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
        else NAMES.get(name := getattr(option, "__name__", str(option)), name)
        for option in options
    ]
    return " or ".join(dict.fromkeys(names))

"""Constructors and their arguments: which ones they take, and whether values of a configuration or command fit them."""

import functools
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import yaml

from clickexp.errors import ConfigError
from clickexp.utils.bounds import annotations_of, check_value
from clickexp.utils.documents import items_of
from clickexp.utils.suggest import did_you_mean

_MARKS = "*&!|>%@`,"
"""Signs that YAML has for other purposes at the beginning of a value, as in files=*.parquet or separator=|."""

_PLAIN = re.compile(r"[\w./:@%+-]+", re.ASCII)
"""Text that an override takes as it is."""
_KEY = re.compile(r"[\w ./-]+", re.ASCII)
"""A key of a mapping that an override takes as it is."""
_DECLARED = {"dtype", "per", "fill", "name"}
"""Keys of a declaration of a column."""
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
"""Kinds of parameters that have a name for callers."""
_WHOLE = ("grades",)
"""Options whose keys are words of a log."""


def accepted(constructor: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some arguments that the constructor has a name for and, as a partial, does not hold yet."""
    wanted = inspect.signature(function_of(constructor)).parameters
    bound = getattr(constructor, "keywords", {})
    return {
        name: value for name, value in arguments.items() if name in wanted and name not in bound
    }


def missing_arguments(constructor: Callable[..., Any], stated: Collection[str]) -> list[str]:
    """Arguments that the constructor cannot do without, and that are neither stated nor, as a partial, held."""
    parameters = inspect.signature(function_of(constructor)).parameters
    needed = {
        name: parameter.kind
        for name, parameter in parameters.items()
        if name != "self" and parameter.default is parameter.empty
    }
    names = [*needed][len(getattr(constructor, "args", ())) :]
    bound = {*getattr(constructor, "keywords", {}), *stated}
    return [name for name in names if needed[name] in _NAMED and name not in bound]


def located(path: str, key: str = "") -> Callable[..., Any]:
    """Finds what a dotted path names, such as clickexp.models.PositionBasedModel.

    Args:
        path: The dotted path.
        key: The key of a configuration that has it, for messages.

    Raises:
        ConfigError: There is nothing of this name; with the error of an import inside.
    """
    nothing = f"{f'{key}=' if key else ''}{path}: there is nothing of this name"
    module, _, name = path.rpartition(".")
    if not module:
        raise ConfigError(
            f"{nothing}; give a dotted path, such as clickexp.models.PositionBasedModel"
        )
    try:
        try:
            # without a colon it swallows errors of an import
            return pkgutil.resolve_name(f"{module}:{name}")
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            return pkgutil.resolve_name(path)  # it may be inside a class
    except ModuleNotFoundError as error:
        remedy = "install it, or name its folder in PYTHONPATH=FOLDER before the command"
        raise ConfigError(f"{nothing} ({error}); {remedy}") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{nothing} ({error})") from error


def check_arguments(
    constructor: Callable[..., Any], arguments: Mapping[str, Any], where: str
) -> None:
    """Checks values of a configuration against a signature.

    Args:
        constructor: What is to be called with them.
        arguments: Values by name. Those that contain a node with _target_ are checked where it is built.
        where: The dotted key of the node that they are in, for messages.

    Raises:
        ConfigError: An argument does not exist, or a value does not fit its annotation.
    """
    function = function_of(constructor)
    parameters = inspect.signature(function).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name, value in arguments.items():
        if name not in parameters and not open_ended:
            key = f"{where}.{name}".lstrip(".")
            names = [other for other in parameters if other not in ("self", "rngs")]
            taker = getattr(constructor, "func", constructor).__name__
            meant = did_you_mean(key, [f"{where}.{other}".lstrip(".") for other in names])
            raise ConfigError(
                f"{key}: there is no such key.{meant} {taker} takes {', '.join(names)}."
            )
        if not _holds_node(value):
            check_value(function, name, value, where)


def function_of(constructor: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose arguments a constructor takes, without those that a partial holds."""
    constructor = getattr(constructor, "func", constructor)
    # Flax and dataclasses hide the arguments of a class behind its metaclass
    return constructor.__init__ if inspect.isclass(constructor) else constructor


def with_flat_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with the fields of its arguments that are named tuples as keywords in their place.

    Args:
        function: Such an argument is one whose annotation is a subclass of NamedTuple.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    kinds = {p.name: p.annotation for p in parameters} | annotations_of(function)
    sets = {p.name: kinds[p.name] for p in parameters if _is_set(kinds[p.name])}

    @functools.wraps(function)
    def flat(*args: Any, **options: Any) -> Any:
        for name, kind in sets.items():
            fields = options.keys() & {*kind._fields}
            options[name] = kind(**{field: options.pop(field) for field in fields})
        return function(*args, **options)

    flat_parameters = []
    for parameter in parameters:
        kind = sets.get(parameter.name)
        flat_parameters += [parameter] if kind is None else _keywords_of(kind)
    flat.__signature__ = signature.replace(parameters=flat_parameters)  # pyright: ignore[reportAttributeAccessIssue]  # read by inspect
    return flat


def _is_set(annotation: Any) -> bool:
    """Whether an annotation is a subclass of NamedTuple."""
    return hasattr(annotation, "_fields")


def _keywords_of(kind: type) -> list[inspect.Parameter]:
    """The fields of a named tuple as keywords."""
    fields = inspect.signature(kind).parameters.values()
    return [field.replace(kind=field.KEYWORD_ONLY) for field in fields]


def parsed_options(words: Iterable[str]) -> dict[str, Any]:
    """Parses options of commands other than `clickexp`: a.b=1 is {a: {b: 1}}, and so is dataset.a.b=1 of `clickexp`.

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
        key = key.removeprefix("+").removeprefix("dataset.")  # pasted from a command of clickexp
        try:
            value = text if text[:1] in [*_MARKS] else _of_yaml(text)
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


def _of_yaml(text: str) -> Any:
    """A value in YAML; what it takes for a comment or blanks is the text, and so is ~, the mark or the home folder."""
    value = yaml.safe_load(text)
    return text if value is None and text.lower() not in ("", "null") else value


def merged(options: Mapping[str, str], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were found for a source, under those that somebody gave, which count.

    Args:
        options: Values by dotted key.
        chosen: As `parsed_options` returns them.
    """
    stated = dict(flat_options(chosen))
    words = [f"{key}={value}" for key, value in options.items() if key not in stated]
    together = parsed_options(words)
    for key, value in chosen.items():
        inner = isinstance(value, dict) and isinstance(together.get(key), dict)
        together[key] = {**together[key], **value} if inner else value
    return together


def flat_options(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields dotted keys and values in YAML of `parsed_options`; declarations and grades stay whole."""
    for key, value in options.items():
        is_declaration = isinstance(value, dict) and value.keys() & _DECLARED
        if isinstance(value, dict) and key not in _WHOLE and not is_declaration:
            yield from ((f"{key}.{inner}", text) for inner, text in flat_options(value))
        else:
            yield key, _in_yaml(value)


def _in_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def for_hydra(value: str) -> str:
    """Returns a value in YAML as an override takes it: text of other than plain characters is in quotes.

    So is a whole mapping that has such keys, since Hydra's grammar quotes none.
    """
    node = yaml.safe_load(value)
    if _PLAIN.fullmatch(value):
        return value
    if isinstance(node, list):
        return f"[{', '.join(for_hydra(_in_yaml(value)) for value in node)}]"
    if isinstance(node, dict) and all(_KEY.fullmatch(str(key)) for key in node):
        inner = [f"{key}: {for_hydra(_in_yaml(value))}" for key, value in node.items()]
        return f"{{{', '.join(inner)}}}"
    if not isinstance(node, str | dict):
        return value
    escaped = (node if isinstance(node, str) else value).replace('"', '\\"')
    return f'"{escaped}"'


def of_dataset(options: Mapping[str, str | None]) -> dict[str, str | None]:
    """Options of the reader of a log as overrides of `clickexp`; `format` is the choice of dataset."""
    overrides = {}
    for key, value in options.items():
        is_new = key.startswith("columns.") and value is not None and value.startswith("{")
        declares = "+" if is_new else ""  # a key that configurations lack
        name = "dataset" if key == "format" else f"{declares}dataset.{key}"
        overrides[name] = None if value is None else for_hydra(value)
    return overrides


def _holds_node(value: Any) -> bool:
    """Whether a node with _target_, or one inside, takes the place of an object."""
    is_node = isinstance(value, dict) and "_target_" in value
    return is_node or any(_holds_node(item) for _, item in items_of(value))

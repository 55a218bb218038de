"""Which values an argument takes, stated once, in its annotation, and checked wherever a value comes from.

    def simulate(*, sessions: PositiveInt = 300_000, policy_noise: NonNegativeFloat = 1.0): ...

Pydantic checks: without conversion, and numbers are finite unless an annotation allows infinity.
"""

import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from numbers import Number
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Interval
from pydantic import (
    ConfigDict,
    GetCoreSchemaHandler,
    InstanceOf,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)

from clickexp.errors import ConfigError
from clickexp.utils.documents import items_of

_Function = TypeVar("_Function", bound=Callable[..., Any])
MOST_IDS = 2**31 - 1

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Probability = Annotated[float, Interval(ge=0, le=1)]
PositiveProbability = Annotated[float, Interval(gt=0, le=1)]
Fraction = Annotated[float, Interval(gt=0, lt=1)]
Decay = Annotated[float, Interval(ge=0, lt=1)]
"""A rate of exponential decay, or of dropout."""
FirstRank = Annotated[int, Interval(ge=0, le=1)]
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]
Ids = Annotated[int, Interval(ge=1, le=MOST_IDS)]
"""A largest id, which is a 32-bit integer."""
Pairs = Annotated[int, Interval(ge=0, le=MOST_IDS)]
"""The largest id of query-document pairs, 0 where there is one pair or none."""
Ratio = Annotated[int | float, Ge(1)]
BatchSize = Annotated[int, Interval(ge=1, le=2**24)]
"""Sessions per step, up to which counts in float32 are exact."""
Samples = Annotated[int, Interval(ge=1, le=10_000)]
"""Draws, or bins, each of which takes memory."""


class OneOf:
    """Metadata of an annotation, as in Annotated[str, OneOf("all", "top")]: the value is one of the choices."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(Literal[self.choices])


class _OfOptax(typing.TypedDict):
    """Annotations of arguments, by name, of Optax's constructors, which state no bounds. Schedules are callable."""

    learning_rate: PositiveFloat | Callable
    weight_decay: NonNegativeFloat | Callable
    momentum: Probability | None
    b1: Decay | Callable
    b2: Decay | Callable
    eps: NonNegativeFloat | Callable
    eps_root: NonNegativeFloat | Callable
    initial_accumulator_value: NonNegativeFloat


OF_OPTAX = typing.get_type_hints(_OfOptax, include_extras=True)
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
_FLOAT = TypeAdapter(float, config=_STRICT)
_BOUNDS = {"gt": "a number above", "ge": "at least", "lt": "below", "le": "at most"}
_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",  # as configurations have them
    "dict_type": "a group of keys",
    "callable_type": "a group of keys with _target_",
    "is_instance_of": "{class}",
    "value_error": "{error}",
}
"""The values to give instead, by the type of Pydantic's error; its own words serve for others."""


def check_value(function: Callable[..., Any], name: str, value: Any, where: str = "") -> None:
    """Checks a value against the annotation of an argument.

    Args:
        function: A function, or the __init__ of a class.
        name: The argument.
        value: A plain value, or an object.
        where: The dotted key that the argument is below, for the message.

    Raises:
        ConfigError: The value does not fit. The message names the key, the value and what is allowed.
    """
    hint = annotations_of(function).get(name, Any)
    try:
        adapter = _adapter(function, name)
        if adapter is not None:
            adapter.validate_python(value)
        if isinstance(value, list | dict) or adapter is None:
            # annotations such as Mapping[str, Any] do not look at those inside
            for number in _floats(value):
                _FLOAT.validate_python(number)
    except ValidationError as error:
        expected = dict.fromkeys(
            _expected(hint, fault) for fault in error.errors(include_url=False)
        )
        if expected.keys() & {"a number", "a finite number"}:
            expected.pop("an integer", None)  # which goes without saying
        null = ", or null" if type(None) in _members(hint) else ""
        key = f"{where}.{name}".lstrip(".")
        raise ConfigError(f"{key}={value!r}: give {' or '.join(expected)}{null}") from error


def check_numbers(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Checks the values of arguments that are annotated as numbers or choices, as they come from Python.

    Arrays may replace numbers; a program that is being compiled does not know their values.

    Args:
        function: A function, the __init__ of a class, or a class whose attributes are annotated.
        values: By the name of the argument.

    Raises:
        ConfigError: A value is no number, out of its bounds, or none of the choices.
    """
    for name, value in values.items():
        hint = annotations_of(function).get(name)
        kinds = {getattr(member, "__origin__", member) for member in _members(hint)}
        if _has_choices(hint) or kinds <= {int, float, int | float, type(None)}:
            if not hasattr(value, "dtype"):
                check_value(function, name, value)
            elif isinstance(value, Number):  # NumPy's; its integers are no int
                check_value(function, name, value.item())  # pyright: ignore[reportAttributeAccessIssue]  # has a dtype


def bounded(function: _Function) -> _Function:
    """Lets a function check its numbers, as `check_numbers` does, before it is called."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            values = signature.bind(*args, **kwargs).arguments
        except TypeError:
            values = {}  # the call itself complains better
        check_numbers(function, values)
        return function(*args, **kwargs)

    return typing.cast(_Function, checked)


@functools.cache
def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations by argument, with their constraints; none where one cannot be resolved."""
    module = getattr(function, "__module__", None) or ""  # object.__init__ has none
    theirs = OF_OPTAX if module.partition(".")[0] == "optax" else {}
    # names that exist for type checkers only; callables that are no functions
    try:
        return typing.get_type_hints(function, include_extras=True) | theirs
    except (NameError, TypeError):
        return theirs


@functools.cache
def _adapter(function: Callable[..., Any], name: str) -> TypeAdapter[Any] | None:
    """The check of values of an argument; None where its annotation allows anything, or is beyond Pydantic."""
    hint = annotations_of(function).get(name, Any)
    if hint in (Any, object):
        return None
    # Pydantic would look inside dataclasses, whose objects have been checked when they were made
    members = [
        InstanceOf[member] if dataclasses.is_dataclass(member) else member
        for member in _members(hint)
    ]
    try:
        return TypeAdapter(functools.reduce(operator.or_, members), config=_STRICT)
    except PydanticUserError:
        return None


def _floats(value: Any) -> Iterator[float]:
    """Those in nested lists and dicts, or the value itself."""
    if isinstance(value, float):
        yield value
    for _, item in items_of(value):
        yield from _floats(item)


def _members(hint: Any) -> tuple[Any, ...]:
    """Those of a union, or the annotation itself."""
    return (
        typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType)
        else (hint,)
    )


def _metadata(hint: Any) -> list[Any]:
    """Metadata that Annotated adds to the members of a union, or to the annotation itself; intervals by their ends."""
    items = [item for member in _members(hint) for item in getattr(member, "__metadata__", ())]
    return [end for item in items for end in (item if isinstance(item, Interval) else [item])]


def _has_choices(hint: Any) -> bool:
    return any(isinstance(item, OneOf) for item in _metadata(hint))


def _expected(hint: Any, error: Mapping[str, Any]) -> str:
    """The values to give instead of one."""
    context = error.get("ctx") or {}
    if context.keys() & _BOUNDS.keys():
        stated = [
            (words, getattr(end, name, None))
            for end in _metadata(hint)
            for name, words in _BOUNDS.items()
        ]
        return " and ".join(f"{words} {limit}" for words, limit in stated if limit is not None)
    if error["type"] == "literal_error" and _has_choices(hint):
        return context["expected"].replace("'", "")
    if error["type"] in _EXPECTED:
        return _EXPECTED[error["type"]].format_map(context)
    return error["msg"].removeprefix("Input should be ")

"""Which numbers an argument takes, stated once, in its annotation, and checked wherever a value comes from.

    def simulate(*, sessions: PositiveInt = 300_000, policy_noise: NonNegativeFloat = 1.0): ...

Numbers without bounds are finite all the same: nan and inf are refused unless the bounds allow them.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Protocol, TypeVar

from clickexp.errors import ConfigError

Function = TypeVar("Function", bound=Callable)
MOST_IDS = 2**31 - 1


class Constraint(Protocol):
    """What an annotation may hold besides a type: Annotated[TYPE, CONSTRAINT]."""

    def complaint(self, value: Any) -> str | None:
        """What to give instead of the value, for a reader; None for a value that fits."""


@dataclass(frozen=True)
class Bounds:
    """The numbers from `least` to `most`, above `above` and below `below`; `infinite`: inf is one of them."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    infinite: bool = False

    def complaint(self, value: Any) -> str | None:
        if not isinstance(value, Real) or isinstance(value, bool):
            return None
        if not math.isfinite(value) and (math.isnan(value) or not self.infinite):
            return "give a finite number"
        fits = (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        return None if fits else f"give {self}"

    def __str__(self) -> str:
        words = {
            "a number above": self.above,
            "at least": self.least,
            "below": self.below,
            "at most": self.most,
        }
        given = [f"{word} {bound}" for word, bound in words.items() if bound is not None]
        return " and ".join(given)


PositiveInt = Annotated[int, Bounds(least=1)]
NonNegativeInt = Annotated[int, Bounds(least=0)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NonNegativeFloat = Annotated[float, Bounds(least=0)]
Probability = Annotated[float, Bounds(least=0, most=1)]
Fraction = Annotated[float, Bounds(above=0, below=1)]
Seed = Annotated[int, Bounds(least=0, most=2**32 - 1)]
Ids = Annotated[int, Bounds(least=1, most=MOST_IDS)]
"""A largest id, which is a 32-bit integer."""
Pairs = Annotated[int, Bounds(least=0, most=MOST_IDS)]
"""The largest id of query-document pairs, 0 where there is one pair or none."""
Ratio = Annotated[int | float, Bounds(least=1)]

OF_OPTAX = {
    "learning_rate": Bounds(above=0),
    "weight_decay": Bounds(least=0),
    "momentum": Bounds(least=0, most=1),
    "b1": Bounds(least=0, below=1),
    "b2": Bounds(least=0, below=1),
    "eps": Bounds(least=0),
    "eps_root": Bounds(least=0),
    "initial_accumulator_value": Bounds(least=0),
}
"""Bounds of arguments, by name, of Optax's constructors, which state none."""


def check_values(
    function: Callable, values: Mapping[str, Any], where: str = "", *, inside: bool = False
) -> None:
    """ConfigError for the first of the values, by argument, that does not fit what the function's annotations state.

    Args:
        where: The dotted key that the arguments stand below, for the message.
        inside: Whether to look into lists and groups, as those of a configuration. From Python they may hold anything.
    """
    hints = annotations(function)
    module = getattr(function, "__module__", None) or ""  # object.__init__ has none
    theirs = OF_OPTAX if module.split(".")[0] == "optax" else {}
    for name, value in values.items():
        constraints = _constraints(hints.get(name))
        if name in theirs and isinstance(value, str | bool):
            complaint = f"give {theirs[name]}"
        elif constraints or name in theirs:
            stated = constraints or [theirs[name]]
            complaint = _no_number(value, hints.get(name)) or next(
                filter(None, (each.complaint(value) for each in stated)), None
            )
        else:
            complaint = _not_finite(value, inside)
        if complaint is not None:
            null = ", or null" if _takes_none(hints.get(name)) else ""
            key = f"{where}.{name}".lstrip(".")
            raise ConfigError(f"{key}={value!r}: {complaint}{null}")


def bounded(function: Function) -> Function:
    """Checks the values that the function is called with, from Python, against its annotations."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            given = {}  # the call itself complains better
        check_values(function, given)
        return function(*args, **kwargs)

    return checked


@functools.cache
def annotations(function: Callable) -> dict[str, Any]:
    """Annotations by argument, with their constraints; none where one cannot be resolved."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # names that exist for type checkers only; callables that are no functions
        return {}


def _constraints(hint: Any) -> list[Constraint]:
    """Those of the annotation and, of a union, of its members."""
    own = [each for each in getattr(hint, "__metadata__", ()) if hasattr(each, "complaint")]
    inner = typing.get_args(hint) if not hasattr(hint, "__metadata__") and _is_union(hint) else ()
    return own + [constraint for each in inner for constraint in _constraints(each)]


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _takes_none(hint: Any) -> bool:
    return _is_union(hint) and type(None) in typing.get_args(hint)


def _no_number(value: Any, hint: Any) -> str | None:
    """Of values of another type, where the annotation is of numbers alone; arrays of JAX pass for numbers."""
    kinds = _types(hint)
    if not kinds <= {int, float, type(None)} or (value is None and type(None) in kinds):
        return None
    if float not in kinds and isinstance(value, Real) and not isinstance(value, Integral):
        return "give an integer"
    wrong = value is None or isinstance(value, bool | str | list | tuple | dict)
    return f"give {'a number' if float in kinds else 'an integer'}" if wrong else None


def _types(hint: Any) -> set[Any]:
    """Those that the annotation names, without constraints."""
    if typing.get_origin(hint) is Annotated:
        return _types(hint.__origin__)
    return set().union(*map(_types, typing.get_args(hint))) if _is_union(hint) else {hint}


def _not_finite(value: Any, into: bool = True) -> str | None:
    """Of numbers and, going into them, of those in lists and groups of keys that are no object's arguments."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return Bounds().complaint(value)
    if not into:
        return None
    inside = value if isinstance(value, list | tuple) else ()
    if isinstance(value, dict) and "_target_" not in value:
        inside = value.values()
    return next(filter(None, map(_not_finite, inside)), None)

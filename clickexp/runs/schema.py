"""What result.json of a run holds, checked where it is read: it may come from anyone."""

import math
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Len, Lt, MinLen
from pydantic import BaseModel, StringConstraints, ValidationError, field_validator, model_validator

from clickexp.errors import UserError
from clickexp.runs.store import RESULT

_LONGEST = 80
"""Characters of a wrong value in a message."""
_MOST_POSITIONS = 1_000_000
_Named = dict[str, float | None]
_Ranked = dict[str, list[float | None]]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Interval = Annotated[list[float | None], Len(2, 2)]


class _Ratio(BaseModel, strict=True, allow_inf_nan=False):
    """Examination at a position, relative to the first."""

    position: Annotated[int, Ge(1), Le(_MOST_POSITIONS)]
    relative: Annotated[float, Gt(0)]
    relative_low: float | None = None
    relative_high: float | None = None


class _Reliability(BaseModel, strict=True, allow_inf_nan=False):
    """Predicted P(click), click rate and documents, [bin, rank]."""

    predicted: list[list[float | None]]
    observed: list[list[float | None]]
    documents: list[list[float | None]]

    @model_validator(mode="after")
    def _same_shape(self) -> "_Reliability":
        tables = self.predicted, self.observed, self.documents
        if len({len(row) for table in tables for row in table}) > 1 or len({*map(len, tables)}) > 1:
            raise ValueError("the tables differ in shape")
        return self


class _Curves(BaseModel, strict=True, allow_inf_nan=False):
    """Those that pages of several runs draw."""

    ece: _Reliability | None = None


class _Result(BaseModel, strict=True, allow_inf_nan=False):
    """What makes result.json that of a run, and the types of its parts."""

    model: _Text
    dataset: _Text
    test: Annotated[_Named, MinLen(1)]
    seed: Annotated[int, Ge(-(2**63)), Lt(2**63)] | None = None
    val: _Named = {}
    train: _Named = {}
    higher_is_better: dict[str, bool | None] = {}
    per_rank: _Ranked = {}
    per_rank_val: _Ranked = {}
    curves: _Curves = _Curves()
    intervals: dict[str, _Interval | None] = {}
    test_draws: dict[str, _Named] = {}
    propensity: list[_Ratio] = []
    environment: dict[str, str | None] = {}


class _Learned(BaseModel, strict=True, allow_inf_nan=False):
    """The parts of a result that propensities are taken from."""

    model: _Text | None = None
    propensity: list[_Ratio] = []
    per_rank: _Ranked = {}
    false_positive: Annotated[list[float], MinLen(1)] | None = None
    true_positive: Annotated[list[float], MinLen(1)] | None = None

    @field_validator("propensity")
    @classmethod
    def _relative_to_the_first(cls, ratios: list[_Ratio]) -> list[_Ratio]:
        positions = [ratio.position for ratio in ratios]
        if twice := next(
            (position for position in positions if positions.count(position) > 1), None
        ):
            raise ValueError(f"position {twice} is given twice")
        first = next((ratio.relative for ratio in ratios if ratio.position == 1), 1.0)
        if not math.isclose(first, 1, rel_tol=1e-5):
            raise ValueError(f"position 1 is {first:g} relative to itself")
        return ratios


def checked_result(content: Any) -> dict[str, Any]:
    """Returns the result of a run without its keys of null.

    Args:
        content: That of result.json.

    Raises:
        UserError: It is not the result of a run, or damaged.
    """
    return _checked(_Result, content)


def learned_propensities(content: Any) -> dict[str, Any]:
    """Returns content of result.json without its keys of null, of which the parts that propensities need are checked.

    Raises:
        UserError: One of these is damaged.
    """
    return _checked(_Learned, content)


def _checked(kind: type[BaseModel], content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise UserError(f"{RESULT} holds no JSON object")
    result = {name: value for name, value in content.items() if value is not None}
    try:
        kind.model_validate(result)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(map(str, first["loc"]))
        if first["type"] == "missing" or place in ("model", "dataset", "test"):
            raise UserError(f"{RESULT} is not that of a run: it names no {place}") from error
        if first["type"] == "value_error":
            raise UserError(
                f"{RESULT} is damaged: {place}: {first['msg'].removeprefix('Value error, ')}"
            ) from error
        text = repr(first["input"])
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        raise UserError(f"{RESULT} is damaged: {place} is {text}") from error
    return result

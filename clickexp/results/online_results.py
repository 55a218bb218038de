"""Comparisons of rankers by users, found beside runs, as the comparison page shows them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from clickexp.results.loading import Skipped
from clickexp.runs.run import Run
from clickexp.runs.store import ONLINE, ONLINE_FILE, read_json
from clickexp.utils.escape import cleaned


class _Estimate(BaseModel):
    """A difference; bounds that are None are infinite, as where all units are alike."""

    value: float
    low: float | None
    high: float | None
    anytime_low: float | None
    anytime_high: float | None
    p_value: float
    minimum_detectable_effect: float | None
    units_needed: int | None
    significant: bool


class _Difference(BaseModel):
    a: float
    b: float
    difference: _Estimate
    higher_is_better: bool


class _ABTest(BaseModel):
    sessions: tuple[int, int]
    metrics: dict[str, _Difference]


class _Interleaving(BaseModel):
    wins_a: int
    wins_b: int
    preference: _Estimate


class _Day(BaseModel):
    day: int
    ab: _ABTest
    interleaving: _Interleaving


class _Online(BaseModel):
    """What online.json holds."""

    a: str
    b: str
    user: str
    models: tuple[str, str]
    lists: int
    same: float
    positions: int
    sessions: int
    users: int | None
    alpha: float
    power: float
    caveats: list[str] = []
    days: list[_Day]


def online_results(runs: Iterable[Run]) -> tuple[list[dict[str, Any]], list[Skipped]]:
    """Reads the comparisons by users in the folders of runs.

    Args:
        runs: The runs; a comparison lies in the folder of its second one.

    Returns:
        Their contents in the types of JSON, and files that are none.
    """
    found, skipped = [], []
    files = (
        file for run in runs for file in sorted((run.folder / ONLINE).glob(f"*/{ONLINE_FILE}"))
    )
    for file in files:
        try:
            found.append(_Online.model_validate(cleaned(read_json(file))).model_dump(mode="json"))
        except ValidationError:
            skipped.append(Skipped(Path(file), "is no comparison by users, or damaged"))
    return found, skipped

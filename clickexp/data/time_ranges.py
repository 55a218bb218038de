"""Parts of a log by time: days, months, and ranges of dates and times."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np

from clickexp.errors import DataError

YEAR = 365.2425 * 24 * 3600
UNITS = 4
"""Numbers may count seconds, milliseconds, microseconds or nanoseconds since 1970."""
EDGES = np.outer(1000.0 ** np.arange(UNITS), (20 * YEAR, 130 * YEAR)).ravel()
"""1990 and 2100 in each unit."""
DAY = 86_400_000_000
_MICROSECONDS = 1e6


class Span(NamedTuple):
    """Numbers from `start` to before `stop`; false where there are none."""

    start: float
    stop: float

    def __bool__(self) -> bool:
        return self.start < self.stop

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop}]"


class TimeRange(Span):
    """Times from `start` to before `stop`, in microseconds since 1970."""

    def __str__(self) -> str:
        return f"[{shown(self.start)}, {shown(self.stop)}]"


def time_range(part: Any) -> TimeRange | None:
    """Returns the range that a split names; None where it names none.

    Args:
        part: A date or month as text, or [start, stop] of these or of times, where one may be None.
    """
    if isinstance(part, str | date):
        return _bounds(part) or None
    if not isinstance(part, Sequence) or len(part) != 2:
        return None
    start, stop = _edge(part[0], -np.inf), _edge(part[1], np.inf)
    if start is None or stop is None or np.isinf([start, stop]).all():
        return None
    return TimeRange(start, stop)


def _edge(value: Any, endless: float) -> float | None:
    """Where a range begins or ends, `endless` for None; None of what is no time."""
    if value is None:
        return endless
    bounds = _bounds(value)
    return None if bounds is None else bounds.start


def _bounds(value: Any) -> TimeRange | None:
    """A day or month from its start to its end; a time has no length. None of what is neither."""
    text = value.isoformat() if isinstance(value, date) else value
    if not isinstance(text, str):
        return None
    try:
        if re.fullmatch(r"\d{4}-\d\d", text):
            year, month = map(int, text.split("-"))
            following = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
            return TimeRange(
                _since_1970(datetime(year, month, 1, tzinfo=UTC)), _since_1970(following)
            )
        start = datetime.fromisoformat(text)
    except ValueError:
        return None
    begun = _since_1970(start if start.tzinfo else start.replace(tzinfo=UTC))
    is_day = re.fullmatch(r"\d{4}-?\d\d-?\d\d", text) is not None
    return TimeRange(begun, begun + DAY if is_day else begun)


def _since_1970(moment: datetime) -> float:
    return moment.timestamp() * _MICROSECONDS


def as_microseconds(times: np.ndarray) -> np.ndarray:
    """Returns times of a log in microseconds since 1970.

    Args:
        times: As they are packed: dates in microseconds, numbers as the log has them.

    Raises:
        DataError: They are numbers that are no dates from 1990 to 2100 in one unit.
    """
    places = np.searchsorted(
        EDGES, [times.min(initial=np.inf), times.max(initial=-np.inf)], side="right"
    )
    if places[0] != places[1] or places[0] % 2 == 0:
        raise DataError(
            f"times go from {times.min():g} to {times.max():g}, which are no dates. Give the parts as fractions, or as "
            "ranges of sessions, or name a column of dates by columns.time=NAME."
        )
    return times * (_MICROSECONDS / 1000.0 ** (places[0] // 2))


def shown(microseconds: float) -> str:
    """A time as splits take it: a date where it is midnight; "null" without an end."""
    if not np.isfinite(microseconds):
        return "null"
    return in_utc(microseconds).removesuffix(" 00:00:00")


def in_utc(microseconds: float) -> str:
    """A date and time."""
    moment = datetime.fromtimestamp(microseconds / _MICROSECONDS, UTC).replace(tzinfo=None)
    return moment.isoformat(sep=" ", timespec="seconds")

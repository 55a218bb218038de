"""Times of lists: numbers, or dates and times, of which a log has one kind."""

from datetime import datetime
from typing import NamedTuple

import numpy as np
import polars as pl

from clickexp.data.schema import Remedy, SourceLocation
from clickexp.data.time_ranges import EDGES
from clickexp.errors import DataError

TEXT = (pl.String, pl.Categorical, pl.Enum)
_DATE = r"^\d{4}-\d\d-\d\d"
"""How a date begins; other orders of day and month cannot be distinguished."""
_DATES = {"": "", r" \d{1,2}:\d{2}": " %H:%M", r" \d{1,2}:\d{2}:\d{2}": " %H:%M:%S"}
"""What follows a date, and how strptime has it."""
_UTC = r"\s*(UTC|GMT)$"
"""How BigQuery and others end a time of Greenwich."""
_OFFSET = r"\d\d:\d\d.*([Zz]|UTC|GMT|[+-]\d\d(:?\d\d)?)$"
"""How a time ends that says how far it is from UTC."""
_DAY = rf"{_DATE}$"
_FORMS = (
    "",
    "numbers",
    "dates and times without an offset from UTC",
    "dates and times with an offset from UTC",
    "dates without a time of day",
)
_EDGES = np.concatenate([EDGES[:2] / 60, EDGES])
"""First and last times of each unit."""
_UNITS = (
    "",
    "minutes since 1970, or days such as 20140301",
    "seconds since 1970",
    "milliseconds since 1970",
    "microseconds since 1970",
    "nanoseconds since 1970",
)


class TimeForm(NamedTuple):
    """How times are written.

    Attributes:
        format: Of text, as strptime has it; None for numbers and ISO 8601.
        zone: That of times without an offset from UTC; None for UTC.
    """

    format: str | None = None
    zone: str | None = None

    def check(self) -> None:
        """DataError for a zone that there is not."""
        try:
            self._in_utc(pl.Series([datetime(2025, 1, 1)]))
        except pl.exceptions.PolarsError as error:
            raise DataError(
                f"time_zone is {self.zone!r}. Give a name such as Europe/Berlin, or an offset such as '+01:00'."
            ) from error

    def numbers(self, times: pl.Series) -> pl.Series:
        """Returns finite numbers as they are, dates and times in microseconds since 1970; null for other text."""
        if times.dtype.is_temporal():
            return self._in_utc(times).dt.epoch("us").cast(pl.Float64)
        if times.dtype not in TEXT:
            numbers = times.cast(pl.Float64, strict=False)
            return numbers.set(~numbers.is_finite(), None)
        words = times.cast(pl.String)
        if self.format is not None:
            dates = words.str.to_datetime(self.format, strict=False, time_unit="us")
            return self._in_utc(dates).dt.epoch("us").cast(pl.Float64)
        numbers = words.cast(pl.Float64, strict=False)
        if numbers.is_null().any():
            numbers = self._dates(words).dt.epoch("us").cast(pl.Float64)
        return numbers.set(~numbers.is_finite(), None)

    def _dates(self, words: pl.Series) -> pl.Series:
        """The times of ISO 8601 in some text; null elsewhere."""
        dates = words.set(~words.str.contains(_DATE), None).str.replace(_UTC, "Z")
        if self.zone is None:
            return dates.str.to_datetime(strict=False, time_unit="us", time_zone="UTC")
        # apart, since the first one of a series shows how the others are written
        has_offset = words.str.contains(_OFFSET).fill_null(False)
        stated = dates.set(~has_offset, None)
        stated = stated.str.to_datetime(strict=False, time_unit="us", time_zone="UTC")
        local = dates.set(has_offset, None).str.to_datetime(strict=False, time_unit="us")
        return stated.zip_with(has_offset, self._in_utc(local))

    def _in_utc(self, times: pl.Series) -> pl.Series:
        """Times of dates, which are those of `zone` where they have none; null where a clock was put forward."""
        times = times.cast(pl.Datetime("us")) if times.dtype == pl.Date else times
        if self.zone is None or getattr(times.dtype, "time_zone", None) is not None:
            return times
        return times.dt.replace_time_zone(
            self.zone, ambiguous="earliest", non_existent="null"
        ).dt.convert_time_zone("UTC")


def date_formats(words: pl.Series) -> list[str]:
    """Returns the formats that dates such as 24.12.2025 or 12/24/2025 may have; none where a word is no such date.

    With dots, days come first. With slashes, months may; one number above 12 tells.
    """
    if not len(words):
        return []
    for separator in (".", "/"):
        for pattern, ending in _DATES.items():
            date = rf"^(\d{{1,2}})\{separator}(\d{{1,2}})\{separator}\d{{4}}{pattern}$"
            if words.str.contains(date).all():
                orders = ["dm"] if separator == "." else _orders(words, date)
                return [separator.join([f"%{a}", f"%{b}", "%Y"]) + ending for a, b in orders]
    return []


def _orders(words: pl.Series, date: str) -> list[str]:
    """Returns "dm" where days may come first, and "md" where months may: no number of a month is above 12."""
    first, second = (
        int(words.str.extract(date, number).cast(pl.Int64).to_numpy().max()) for number in (1, 2)
    )
    return [order for order, month in {"dm": second, "md": first}.items() if month <= 12]


class TimeCheck:
    """Refuses times of two kinds, which have no order.

    Kinds are numbers in a unit, days, and moments with an offset from UTC and without.

    Columns of parquet have types, which `SourceTable.layout` distinguishes. Numbers have a unit where all of a log are
    of the years 1990 to 2100 in that unit, or 0.
    """

    def __init__(self):
        self._forms, self._units = _Alike(_FORMS), _Alike(_UNITS)
        self._unknown_unit = False

    def check(
        self,
        times: pl.Series,
        location: SourceLocation,
        lengths: np.ndarray | None = None,
        form: TimeForm | None = None,
    ) -> None:
        """Compares the times of the next rows with those before.

        Args:
            times: As the file has them.
            location: Where the rows are.
            lengths: How many times each row has, by default one.
            form: How times are written.

        Raises:
            DataError: They are of another kind; it names both places.
        """
        form = form or TimeForm()
        if times.dtype.is_temporal() or form.format is not None:
            return
        numbers = (
            times.cast(pl.String).cast(pl.Float64, strict=False) if times.dtype in TEXT else times
        )
        if times.dtype in TEXT:
            forms = _forms(times.cast(pl.String), numbers)
            if form.zone is not None:
                forms[forms == 3] = 2
            self._forms.check(forms, times, location, lengths)
        values = numbers.cast(pl.Float64).fill_null(0).to_numpy()
        places = np.searchsorted(_EDGES, values, side="right")
        units = np.where(places % 2 == 1, places // 2 + 1, 0)
        self._unknown_unit |= bool(((units == 0) & (values != 0)).any())
        if not self._unknown_unit:
            self._units.check(units, times, location, lengths)

    def join(self, later: "TimeCheck") -> None:
        """Compares the times of later files with those before.

        Raises:
            DataError: They are of another kind; it names both places.
        """
        self._unknown_unit |= later._unknown_unit
        self._forms.join(later._forms)
        if not self._unknown_unit:
            self._units.join(later._units)


class _Alike:
    """Refuses rows of another kind than the first one.

    Args:
        words: What each kind is called, by its number; 0 is none, which goes with all.
    """

    def __init__(self, words: tuple[str, ...]):
        self._words, self._kind, self._first = words, 0, ""

    def check(
        self,
        kinds: np.ndarray,
        values: pl.Series,
        location: SourceLocation,
        lengths: np.ndarray | None,
    ) -> None:
        has_kind = kinds > 0
        if not self._kind and has_kind.any():
            row = int(has_kind.argmax())
            self._kind, self._first = int(kinds[row]), location.of(row)
        other = has_kind & (kinds != self._kind)
        if other.any():
            location.reject(
                other, values, "times", self._remedy(int(kinds[other.argmax()])), lengths
            )

    def join(self, later: "_Alike") -> None:
        if not self._kind:
            self._kind, self._first = later._kind, later._first
        elif later._kind not in (0, self._kind):
            raise DataError(f"{later._first}: {self._remedy(later._kind)}.")

    def _remedy(self, kind: int) -> str:
        here, first = self._words[kind], self._words[self._kind]
        remedy = f"times here are {here}, those of {self._first} {first}: write all of them alike"
        if {here, first} == {*_FORMS[2:4]}:
            zone = "say of which zone those without are: time_zone=UTC, or such as Europe/Berlin"
            return Remedy(f"{remedy}, or {zone}", {"time_zone": "UTC"}, is_safe=True)
        return f"{remedy}, as SQL in docs/howto/messy-log.md does"


def _forms(words: pl.Series, numbers: pl.Series) -> np.ndarray:
    """Returns the kinds of `_FORMS` of text."""
    forms = numbers.is_not_null().to_numpy().astype(np.int32)
    for form, pattern in {2: _DATE, 4: _DAY}.items():
        forms[words.str.contains(pattern).fill_null(False).to_numpy()] = form
    has_offset = words.str.contains(_OFFSET).fill_null(False).to_numpy()
    forms[has_offset & (forms == 2)] = 3
    return forms

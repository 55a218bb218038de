"""Parts of a log by its times: past to future, search sessions whole, nothing twice and nothing empty."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from refusals import refuses

from clickexp.data import Sessions
from clickexp.data.dataset import split
from clickexp.errors import DataError

START = datetime(2025, 1, 1, tzinfo=UTC)


def log(hours, unit=1e6, sessions=None):
    """A list at each of these hours of 2025, whose document is its number."""
    times = [(START + timedelta(hours=float(hour))).timestamp() * unit for hour in hours]
    count = len(times)
    columns = {
        "query_doc_ids": np.arange(1, count + 1)[:, None],
        "clicks": np.zeros((count, 1), bool),
        "lengths": np.ones(count, np.int32),
        "times": np.array(times, float),
    }
    if sessions is not None:
        columns["session_ids"] = np.array(sessions)
    return Sessions.from_arrays(**columns)


def numbers(parts):
    return [(part.column("query_doc_ids")[:, 0] - 1).tolist() for part in parts]


@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9], ids=["s", "ms", "us", "ns"])
@pytest.mark.parametrize(
    "given",
    [
        (["2025-01-01", "2025-01-03"], "2025-01-03", ["2025-01-04", None]),
        ([None, date(2025, 1, 3)], date(2025, 1, 3), [date(2025, 1, 4), "2025-01-31"]),
        ([None, "2025-01-03"], ["2025-01-03 00:00", "2025-01-03T23:59:59"], "2025-01-04"),
    ],
    ids=["text", "dates", "times"],
)
def test_parts_have_the_lists_of_their_times_in_the_order_of_the_log(unit, given):
    hours = np.random.default_rng(0).permutation(4 * 24)
    days = hours // 24
    found = numbers(split(log(hours, unit), *given))
    assert found[0] == np.flatnonzero(days < 2).tolist()
    assert found[1] == np.flatnonzero(days == 2).tolist()
    assert found[2] == np.flatnonzero(days == 3).tolist()


def test_months_are_whole_and_end_with_the_year():
    hours = [24 * day for day in range(365)]
    parts = split(log(hours), "2025-01", "2025-02", "2025-12")
    assert [part.count for part in parts] == [31, 28, 31]


def test_a_search_session_is_of_the_time_of_its_first_list():
    """Else its later lists would be tested without what came before."""
    lists = log([1, 23, 25, 26, 50, 49], sessions=[7, 8, 7, 9, 9, 5])
    parts = split(lists, "2025-01-01", "2025-01-02", ["2025-01-03", None])
    assert numbers(parts) == [[0, 1, 2], [3, 4], [5]]


BAD = {
    "overlap": (
        ("2025-01-01", ["2025-01-01 12:00", None], "2024-01-01"),
        "train_sessions",
        "overlap",
    ),
    "empty": (
        ("2025-01-01", "2025-01-02", "2025-02-01"),
        "test_sessions",
        "2025-01-01 to 2025-01-03",
    ),
    "backwards": ((["2025-01-02", "2025-01-01"], "2025-01-02", "2025-01-03"), "before its stop"),
    "mixed": ((0.5, "2025-01-02", "2025-01-03"), "mix"),
    "no date": (
        ("2025-01-01", "2025-01-02", "tomorrow"),
        "test_sessions='tomorrow'",
        "[2025-01-01",
    ),
    "no day": (("2025-01-01", "2025-01-02", "2025-02-30"), "2025-02-30"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_parts_are_refused(case):
    given, *parts = BAD[case]
    with refuses(DataError, *parts):
        split(log([0, 24, 48]), *given)


def test_a_log_without_dates_is_refused():
    days = ("2025-01-01", "2025-01-02", "2025-01-03")
    seconds = log([0, 24, 48])
    columns = {name: seconds.column(name) for name in ("query_doc_ids", "clicks", "lengths")}
    with refuses(DataError, "no times", "columns.time=NAME"):
        split(Sessions.from_arrays(**columns), *days)
    with refuses(DataError, "no dates"):
        split(Sessions.from_arrays(**columns, times=np.array([1.0, 2, 3])), *days)

"""Times of one kind order a log; those of two are refused, across files, batches and rows."""

import datetime
import itertools

import numpy as np
import polars as pl
import pytest
from refusals import refuses

from clickexp.data import open_impressions, open_lists
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.ingest.times import TimeCheck, TimeForm
from clickexp.data.log_format import prepare
from clickexp.data.schema import SourceLocation
from clickexp.errors import DataError

# 2014-03-01 00:00:00, 00:01:00, a day later
SECONDS = np.array([1_393_632_000, 1_393_632_060, 1_393_718_400], float)
NAIVE = ["2014-03-01 00:00:00", "2014-03-01 00:01:00", "2014-03-02 00:00:00"]
UTC = [f"{time}+00:00" for time in NAIVE]
WALL = [datetime.datetime.fromisoformat(time) for time in NAIVE]
ZONED = [time.replace(tzinfo=datetime.UTC) for time in WALL]
KINDS = {
    "minutes": SECONDS / 60,
    "seconds": SECONDS,
    "milliseconds": SECONDS * 1000,
    "microseconds": SECONDS.astype(int) * 10**6,
    "nanoseconds": SECONDS.astype(int) * 10**9,
    "seconds as text": [f"{second:.0f}" for second in SECONDS],
    "milliseconds as text": [f"{second:.0f}000" for second in SECONDS],
    "text": NAIVE,
    "text with an offset": UTC,
    "text of 1 in the morning": [f"{time[:11]}01{time[13:]}+0100" for time in NAIVE],
    "text as BigQuery writes it": [f"{time} UTC" for time in NAIVE],
    "days as text": [time[:10] for time in NAIVE],
    "dates": [time.date() for time in WALL],
    "times": WALL,
    "times in a time zone": ZONED,
}
SAME = [
    {*pair}
    for pair in itertools.combinations(
        ("text with an offset", "text of 1 in the morning", "text as BigQuery writes it"), 2
    )
]


def log_of(times):
    rows = {"query_doc_ids": [[1, 2]] * len(times), "clicks": [[0, 1]] * len(times)}
    return pl.DataFrame(rows).with_columns(when=pl.Series(times))


def times_of(tmp_path, reader=open_lists):
    log = prepare(
        reader.read,
        reader.format,
        tmp_path / "log",
        tmp_path / "prepared",
        columns={"time": "when"},
    )
    return log.parts["sessions"].column("times")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


def test_times_of_greenwich_by_name_are_those_with_an_offset_of_0():
    """As BigQuery writes them; beside times without an offset they are another kind."""
    for zone in (" UTC", "UTC", " GMT"):
        named = pl.Series([f"{time}{zone}" for time in NAIVE])
        assert TimeForm().numbers(named).to_list() == TimeForm().numbers(pl.Series(UTC)).to_list()
        check = TimeCheck()
        check.check(named, SourceLocation("a"))
        check.check(pl.Series(UTC), SourceLocation("b"))
        with refuses(DataError, "c, row 0", "without an offset"):
            check.check(pl.Series(NAIVE), SourceLocation("c"))


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_two_files_with_times_of_two_kinds_are_refused(one, other, folder, tmp_path):
    for name, kind in {"a": one, "b": other}.items():
        log_of(KINDS[kind]).write_parquet(folder / f"{name}.parquet")
    if one == other or {one, other} in SAME:
        first, second = np.split(times_of(tmp_path), 2)
        np.testing.assert_array_equal(first, second)
    else:
        with refuses(DataError, "b.parquet", "a.parquet", "times"):
            times_of(tmp_path)


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize(
    "later", ["milliseconds as text", "text", "text with an offset", "days as text"]
)
def test_rows_of_two_kinds_are_refused_in_batches_of_any_size(
    later, rows, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(SourceTable, "batch_rows", rows)
    first = KINDS["text" if later in ("text with an offset", "days as text") else "seconds as text"]
    log_of([*first, *KINDS[later]]).write_parquet(folder / "log.parquet")
    with refuses(
        DataError,
        "log.parquet, row 3",
        "log.parquet, row 0",
        KINDS[later][0],
        "write all of them alike",
    ):
        times_of(tmp_path)


def test_columns_of_two_types_are_refused_with_the_option_that_leaves_them_out(folder, tmp_path):
    for name, kind in {"a": "times", "b": "times in a time zone"}.items():
        log_of(KINDS[kind]).write_parquet(folder / f"{name}.parquet")
    with refuses(DataError, "b.parquet: time holds times in a time zone, in", "columns.time=null"):
        times_of(tmp_path)


def test_lines_of_two_units_are_refused(folder, tmp_path):
    """Impressions, whose files are named with the line."""
    for name, times in {"a": SECONDS, "b": SECONDS * 1000}.items():
        pages = [f"{name}{page},q,u,{page},1,0,{time:.0f}" for page, time in enumerate(times)]
        lines = ["session,query,search_session,document,rank,click,when", *pages]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    with refuses(
        DataError, "b.csv, line 2", "milliseconds since 1970", "a.csv, line 2", "seconds since 1970"
    ):
        times_of(tmp_path, open_impressions)


NO_UNIT = {
    "counters": [[0, 5, 900], [10**9, 2 * 10**12, 5]],
    "days": [[20140301, 20140302], [20140303, 20140304]],
    "microseconds from the start": [[0, 7 * 10**8, 10**11], [10**12, 2 * 10**12]],
    "unknown times": [[0, *SECONDS], [*SECONDS, 0]],
}


@pytest.mark.parametrize("case", NO_UNIT)
def test_numbers_without_a_unit_are_taken_as_they_are(case, folder, tmp_path):
    for name, times in zip("ab", NO_UNIT[case], strict=True):
        log_of(np.array(times, float)).write_parquet(folder / f"{name}.parquet")
    assert times_of(tmp_path).tolist() == [*NO_UNIT[case][0], *NO_UNIT[case][1]]


def test_dates_are_microseconds_since_1970():
    """Of Python's datetime; text without an offset is taken for UTC."""
    expected = [time.timestamp() * 1e6 for time in ZONED]
    for kind in (
        "text",
        "text with an offset",
        "text of 1 in the morning",
        "times",
        "times in a time zone",
    ):
        assert TimeForm().numbers(pl.Series(KINDS[kind])).to_list() == expected, kind
    check = TimeCheck()
    for kind in ("times", "times in a time zone"):  # which the types of files distinguish
        check.check(pl.Series(KINDS[kind]), SourceLocation("a.parquet"))

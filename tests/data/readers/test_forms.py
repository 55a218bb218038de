"""How values are written: words for grades, truth and times, missing clicks, other encodings; each against Python."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from refusals import refuses
from stored_logs import write_table as write

from clickexp.data import open_counts, open_impressions, open_lists, prepare
from clickexp.data.ingest.times import date_formats
from clickexp.errors import DataError

WHOLE = dict(train_sessions=[0, 3], val_sessions=[3, 4], test_sessions=[4, 5])
CLICKS = [[1, None], [None, None], [0, 1], [None, 0], [1, 0]]
GRADES = [["good", "bad"], ["perfect", None], ["bad", "Bad "], ["", "good"], ["good", "good"]]


def rows(clicks=CLICKS, grades=GRADES):
    """A row per impression of five pages of two documents."""
    places = [(page, place) for page in range(5) for place in range(2)]
    return pl.DataFrame(
        {
            "session": [page for page, _ in places],
            "query": "q",
            "document": [f"d{place}" for _, place in places],
            "rank": [place + 1 for _, place in places],
            "click": [clicks[page][place] for page, place in places],
            "label": [grades[page][place] for page, place in places],
        }
    )


def pages(clicks=CLICKS, grades=GRADES):
    """The same as lists."""
    documents = [["d0", "d1"]] * 5
    return pl.DataFrame({"query_doc_ids": documents, "clicks": clicks, "labels": grades})


def values(dataset, name):
    parts = (dataset.train, dataset.val, dataset.test)
    return np.concatenate([part.column(name) for part in parts])


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_missing_clicks_are_none_and_words_are_grades_where_options_say_so(tmp_path, ending):
    log = write(rows(), tmp_path / f"log.{ending}")
    options = {"null_is_no_click": True, "grades": {"bad": 0, "good": 1, "perfect": 4.5}, **WHOLE}
    dataset = open_impressions(log, **options)
    expected = [[each or 0 for each in page] for page in CLICKS]
    np.testing.assert_array_equal(values(dataset, "clicks"), expected)
    nan = np.nan
    labels = [[1, 0], [4.5, nan], [0, 0], [nan, 1], [1, 1]]
    if ending != "csv":  # where cells have no blanks at their ends
        log = write(rows(grades=[["good", "bad"], *GRADES[1:2], ["bad", "BAD"], *GRADES[3:]]), log)
        dataset = open_impressions(log, **options)
    np.testing.assert_array_equal(values(dataset, "labels"), labels)


def test_lists_take_the_same_options_and_a_list_of_clicks_may_be_missing(tmp_path):
    clicks = [[1, None], None, [0, 1], [], [1, 0]]
    grades = [["good", "bad"], ["good", "good"], ["bad", "bad"], ["bad", "good"], None]
    write(pages(clicks, grades), tmp_path / "log.parquet")
    options = {"grades": {"bad": 0, "good": 1}, "pair_key": "document", **WHOLE}
    dataset = open_lists(tmp_path / "log.parquet", null_is_no_click=True, **options)
    np.testing.assert_array_equal(
        values(dataset, "clicks"), [[1, 0], [0, 0], [0, 1], [0, 0], [1, 0]]
    )
    nan = np.nan
    np.testing.assert_array_equal(
        values(dataset, "labels"), [[1, 0], [1, 1], [0, 0], [0, 1], [nan, nan]]
    )
    with refuses(DataError, "clicks holds null", "null_is_no_click=true"):
        open_lists(tmp_path / "log.parquet", **options)
    with refuses(DataError, "labels holds 'good'", "'grades={bad: 0, good: 1}'") as caught:
        options.pop("grades")
        open_lists(tmp_path / "log.parquet", null_is_no_click=True, **options)
    assert caught.value.options == {"columns.labels": "null"}


def test_counts_without_clicks_have_none(tmp_path):
    (tmp_path / "log.csv").write_text(
        "query,document,rank,impressions,clicks,label\nq,a,1,5,2,good\nq,b,2,5,,bad\n"
    )
    options = {"null_is_no_click": True, "grades": "{bad: 0, good: 3}"}  # in YAML
    dataset = open_counts(tmp_path / "log.csv", **options)
    assert values(dataset, "clicks").sum() == 2
    assert np.bincount(values(dataset, "labels").ravel().astype(int)).tolist() == [5, 0, 0, 5]


@pytest.mark.parametrize("grades", [{"bad": "low"}, {1: 0}, {"bad": float("nan")}, "good"])
def test_grades_are_numbers_of_words(tmp_path, grades):
    write(rows(), tmp_path / "log.csv")
    with refuses(DataError, "grades", "{bad: 0, good: 1}"):
        open_impressions(tmp_path / "log.csv", grades=grades)


TRUTH = [
    ("WAHR", "FALSCH"),
    ("t", "f"),
    ("Yes", "No"),
    ("ja", "Nein"),
    ("oui", "non"),
    ("S\xed", "no"),
]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("words", TRUTH)
def test_clicks_are_truth_values_in_words(tmp_path, words, ending):
    clicks = [[words[0], words[1]]] * 4 + [["1", "0"]]
    write(rows(clicks), tmp_path / f"log.{ending}")
    options = {"columns": {"label": None}, **WHOLE}
    dataset = open_impressions(tmp_path / f"log.{ending}", **options)
    np.testing.assert_array_equal(values(dataset, "clicks"), [[1, 0]] * 5)


def test_text_of_lists_in_parquet_is_parsed(tmp_path):
    clicks = [["1", "0"]] * 5
    table = pages(clicks).drop("labels").with_columns(positions=pl.lit(["1", "3"]))
    table.write_parquet(tmp_path / "log.parquet")
    dataset = open_lists(tmp_path / "log.parquet", pair_key="document", **WHOLE)
    np.testing.assert_array_equal(values(dataset, "clicks"), [[1, 0]] * 5)
    np.testing.assert_array_equal(values(dataset, "positions"), [[1, 3]] * 5)
    with refuses(DataError, "query_doc_ids holds lists of text", "pair_key=document") as caught:
        open_lists(tmp_path / "log.parquet")
    assert caught.value.options == {"pair_key": "document"}


def times_of(path, words, **options):
    """The times of pages whose first rows have these."""
    given = [words[page] for page in range(len(words)) for _ in range(2)]
    rows([[0, 0]] * 5).drop("label")[: len(given)].with_columns(when=pl.Series(given)).write_csv(
        path
    )
    target = path.with_suffix("")
    log = prepare(
        open_impressions.read, "impressions", path, target, columns={"time": "when"}, **options
    )
    return (log.parts["sessions"].column("times") / 1e6).tolist()


def test_times_have_a_format(tmp_path):
    words = ["11/14/2025 9:30:00 AM", "11/14/2025 12:05:00 PM"]
    form = "%m/%d/%Y %I:%M:%S %p"
    expected = [datetime.strptime(each, form).replace(tzinfo=UTC).timestamp() for each in words]
    assert times_of(tmp_path / "log.csv", words, time_format=form) == expected
    german = ["14.11.2025 09:30", "15.11.2025 09:30"]
    zone = {"time_format": "%d.%m.%Y %H:%M", "time_zone": "Europe/Berlin"}
    expected = [
        datetime(2025, 11, day, 9, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
        for day in (14, 15)
    ]
    assert times_of(tmp_path / "other.csv", german, **zone) == expected
    with refuses(DataError, " holds ", "time_format="):
        times_of(tmp_path / "another.csv", german)


@pytest.mark.parametrize(
    "words, forms",
    [
        (["03/01/2026 10:00:00", "13/01/2026 9:05:00"], ["%d/%m/%Y %H:%M:%S"]),
        (["01/03/2026", "1/13/2026"], ["%m/%d/%Y"]),
        (["03/01/2026", "04/01/2026"], ["%d/%m/%Y", "%m/%d/%Y"]),
        (["13/14/2026", "04/01/2026"], []),
        (["03.01.2026 10:00", "04.01.2026 10:00"], ["%d.%m.%Y %H:%M"]),
        (["03.01.2026", "13/01/2026"], []),
        ([], []),
    ],
)
def test_the_order_of_days_and_months_is_told_by_a_number_above_twelve(words, forms):
    """What is proposed is read by strptime; what is open is left to the user."""
    assert date_formats(pl.Series(words, dtype=pl.String)) == forms
    assert all(datetime.strptime(word, form) for word in words for form in forms)


def test_times_without_an_offset_are_those_of_a_zone(tmp_path):
    """Mixed with others; over the hour that a clock goes back, and without the hour that it leaves out."""
    words = ["2025-07-14 10:00:00", "2025-07-14T10:00:00Z", "2025-07-14 10:00:00+05:30"]
    utc = datetime(2025, 7, 14, 10, tzinfo=UTC)
    expected = [utc - timedelta(hours=2), utc, utc - timedelta(hours=5.5)]
    expected = [each.timestamp() for each in expected]
    assert times_of(tmp_path / "log.csv", words, time_zone="Europe/Berlin") == expected
    assert times_of(tmp_path / "b.csv", words[:1], time_zone="+02:00") == expected[:1]
    with refuses(DataError, "without an offset", "time_zone=UTC"):
        times_of(tmp_path / "c.csv", words)
    with refuses(DataError, "holds '2025-03-30 02:30:00'"):
        times_of(tmp_path / "d.csv", ["2025-03-30 02:30:00"], time_zone="Europe/Berlin")
    with refuses(DataError, "time_zone", "Europe/Berlin"):
        times_of(tmp_path / "e.csv", words, time_zone="Middle/Earth")


def test_a_column_of_times_that_an_option_names_is_there(tmp_path):
    write(rows([[0, 0]] * 5).drop("label"), tmp_path / "log.csv")
    with refuses(DataError, "no column 'time'"):
        open_impressions(tmp_path / "log.csv", columns={"time": "time"})
    write(pages([[0, 0]] * 5).drop("labels"), tmp_path / "log.parquet")
    with refuses(DataError, "no column 'time'"):
        open_lists(tmp_path / "log.parquet", columns={"time": "time"}, pair_key="document")


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16-le", "shift_jis"])
def test_text_has_an_encoding(tmp_path, encoding):
    word = "\u30e9\u30f3\u30d7" if encoding == "shift_jis" else "caf\xe9"
    table = rows([[1, 0]] * 5).drop("label").with_columns(query=pl.lit(word))
    (tmp_path / "log.csv").write_bytes(table.write_csv().encode(encoding))
    dataset = open_impressions(tmp_path / "log.csv", encoding=encoding)
    from clickexp.data.names import read_names

    assert {*read_names(dataset.names)["query"]} == {word}


def test_other_encodings_are_answered_with_the_option(tmp_path):
    table = rows([[1, 0]] * 5).drop("label").with_columns(query=pl.lit("caf\xe9"))
    (tmp_path / "log.csv").write_bytes(table.write_csv().encode("cp1252"))
    with refuses(DataError, "log.csv", "encoding=cp1252"):
        open_impressions(tmp_path / "log.csv")
    with refuses(DataError, "encoding is 'excel'", "cp1252"):
        open_impressions(tmp_path / "log.csv", encoding="excel")


def test_commas_of_fractions_may_be_stated(tmp_path):
    """Where three digits follow, they may be thousands."""
    prices = ["1,234", "0,5", "12,345", "7", "2,000", "3,5", "1,5", "9,125", "4", "1"]
    table = rows([[1, 0]] * 5).drop("label").with_columns(price=pl.Series(prices))
    table.write_csv(tmp_path / "log.csv", separator=";")
    options = {"columns": {"price": {"dtype": "float32"}}, **WHOLE}
    dataset = open_impressions(tmp_path / "log.csv", decimal=",", **options)
    expected = [float(each.replace(",", ".")) for each in prices]
    np.testing.assert_array_equal(values(dataset, "price").ravel(), np.float32(expected))
    with refuses(DataError, "price holds '1,234', '12,345', '2,000'", "decimal=','"):
        open_impressions(tmp_path / "log.csv", **options)
    with refuses(DataError, "price holds", "'0,5'"):
        open_impressions(tmp_path / "log.csv", decimal=".", **options)
    with refuses(DataError, "decimal is ';'", "',' or '.'"):
        open_impressions(tmp_path / "log.csv", decimal=";", **options)


def test_lists_of_numbers_may_have_decimal_commas(tmp_path):
    lines = ["[0,5 1,25]", "[0,5; 2]", "1,5 3", "[1,5, 2,5]", "[0,125]"]
    cells = (
        "".join(f"a b;1 0;{line.replace(';', ' ')}\n" for line in lines[:4]) + f"a;1;{lines[4]}\n"
    )
    (tmp_path / "log.csv").write_text("query_doc_ids;clicks;price\n" + cells)
    options = {"columns": {"price": {"dtype": "float32"}}, "pair_key": "document", **WHOLE}
    dataset = open_lists(tmp_path / "log.csv", decimal=",", **options)
    expected = [[0.5, 1.25], [0.5, 2], [1.5, 3], [1.5, 2.5], [0.125, 0]]
    np.testing.assert_array_equal(values(dataset, "price"), expected)


def test_words_of_truth_are_no_numbers(tmp_path):
    table = rows([["y", "n"]] * 5).with_columns(label=pl.lit("n"))
    table.write_csv(tmp_path / "log.csv")
    with refuses(DataError, "label holds 'n'") as caught:
        open_impressions(tmp_path / "log.csv")
    assert "click" not in str(caught.value)

"""Tables with one row an impression: sessions put together again, and what is refused."""

import contextlib
import csv
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from clickexp.data import open_impressions, prepare
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.ingest.text_table import TextTable
from clickexp.errors import DataError

NAMES = ("session", "query", "document", "rank", "click", "label")


def impressions(sessions=40, seed=0, text=True):
    """Rows of sessions whose ranks have gaps and stand in any order."""
    rng = np.random.default_rng(seed)
    rows = []
    for session in rng.permutation(sessions):
        query = int(rng.integers(5))
        for rank in rng.permutation(8)[: rng.integers(1, 6)]:
            document = int(rng.integers(6))
            values = f"s{session}", f"query {query}", f"http://d/{document}"
            if not text:
                values = int(session) - 3, query * 2**40, document - 2**62
            rows.append((*values, int(rank) + 1, int(rng.integers(2)), float(rng.integers(5))))
    return rows


def expected(rows, pair_key="query_document", positions=8):
    """Sessions, as lists of (id, rank, click, label), by dictionaries."""
    sessions, queries, ids = {}, {}, {}
    for session, query, document, *rest in rows:
        sessions.setdefault(session, (query, []))[1].append((*rest, document))
    found = []
    for query, shown in sessions.values():
        kept = [row for row in sorted(shown) if row[0] <= positions]
        if kept:
            number = queries.setdefault(query, len(queries) + 1)
            under = number if pair_key == "query_document" else None
            found.append(
                (number, [(ids.setdefault((under, d), len(ids) + 1), *rest) for *rest, d in kept])
            )
    return found


def arrived(dataset):
    found = []
    for part in (dataset.train, dataset.val, dataset.test):
        names = ("query_doc_ids", "positions", "clicks", "labels")
        columns = [part.column(name) for name in names]
        for row, length in enumerate(part.column("lengths")):
            assert not any(values[row, length:].any() for values in columns)
            found.append(list(zip(*(values[row, :length].tolist() for values in columns))))
    queries = [
        query
        for part in (dataset.train, dataset.val, dataset.test)
        for query in part.column("query_ids")
    ]
    return list(zip(queries, found))


def write(path, rows, names=NAMES):
    if path.suffix == ".parquet":
        pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows))))), path, row_group_size=7)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerow(names)
            writer.writerows(rows)
    return path


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Sessions straddle batches."""
    monkeypatch.setattr(SourceTable, "block_bytes", 120)
    monkeypatch.setattr(SourceTable, "batch_rows", 4)


@pytest.mark.parametrize("text", [True, False], ids=["text", "integers"])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("pair_key", ["query_document", "document"])
def test_sessions_are_put_together(tmp_path, suffix, text, pair_key):
    rows, calls = impressions(text=text), []
    path = write(tmp_path / f"log.{suffix}", rows)
    dataset = open_impressions(path, pair_key=pair_key, progress=lambda *call: calls.append(call))
    found = expected(rows, pair_key)
    assert arrived(dataset) == found and dataset.positions == 8
    assert dataset.query_doc_pairs == max(id for _, shown in found for id, *_ in shown)
    assert dataset.train.ranks == max(len(shown) for _, shown in found)
    assert calls == sorted(calls) and calls[-1][0] == calls[-1][1]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_session_may_straddle_files(tmp_path, suffix):
    rows = impressions()
    for at, name in ((0, "a"), (37, "b"), (38, "c")):
        part = rows[at : {0: 37, 37: 38, 38: None}[at]]
        write(tmp_path / f"{name}.{suffix}", part)
    assert arrived(open_impressions(tmp_path, files=f"*.{suffix}")) == expected(rows)


def test_what_is_shown_below_is_dropped_and_counted(tmp_path):
    rows = impressions()
    dataset = open_impressions(write(tmp_path / "log.csv", rows), positions=3)
    found = expected(rows, positions=3)
    assert arrived(dataset) == found and dataset.train.ranks == dataset.positions == 3
    below = {row[0] for row in rows if row[3] > 3}
    assert dataset.notes["cut_lists"] == len(below)
    assert dataset.notes["dropped_lists_without_documents"] == 40 - len(found) > 0


def test_names_and_what_may_be_missing(tmp_path):
    names = ("page", "q", "url", "pos", "c", "more")
    path = write(tmp_path / "log.csv", impressions(), names)
    columns = dict(session="page", document="url", rank="pos", click="c")
    dataset = open_impressions(path, columns=columns, pair_key="document")
    assert set(dataset.train.columns) == {"query_doc_ids", "clicks", "lengths", "positions"}
    with refuses(DataError, "no column 'query'"):
        open_impressions(path, columns=columns)


def changed(row, **changes):
    rows = [list(values) for values in impressions()]
    for name, value in changes.items():
        rows[row][NAMES.index(name)] = value
    return rows


BASE = impressions()
BAD = {
    "rank twice": (
        BASE[:9] + [(*BASE[8][:2], "other", *BASE[8][3:])] + BASE[9:],
        "log.csv, line 1",
        "another document at rank",
    ),
    "two queries": (
        BASE + [("z", "q", "d", 1, 0, 1), ("z", "r", "d", 2, 0, 1)],
        "its query differs",
    ),
    "rank 0": (changed(11, rank=0), "line 13", "rank holds 0", "integers from 1"),
    "rank word": (changed(11, rank="top"), "line 13", "rank holds 'top'"),
    "click": (changed(20, click=2), "line 22", "click holds 2"),
    "click word": (changed(20, click="x"), "line 22", "click holds 'x'"),
    "label": (changed(20, label="inf"), "line 22", "label holds inf"),
    "no session": (changed(20, session=" "), "line 22", "session holds ''", "integers or text"),
    "truncated": (BASE[:5] + [BASE[5][:3]], "cannot be read", "Row #7"),
    "no rows": ([], "no sessions"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_is_named_and_nothing_is_left(tmp_path, case):
    rows, *parts = BAD[case]
    with refuses(DataError, "log.csv", *parts):
        open_impressions(write(tmp_path / "log.csv", rows), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


BAD_PARQUET = {
    "null": (changed(30, click=None), "row 30", "click holds null"),
    "float ranks": (
        [(*row[:3], row[3] + 0.5, *row[4:]) for row in BASE],
        "row 0: rank holds",
        f"{len(BASE):,} rows",
        "Ranks are integers",
    ),
    "float sessions": ([(1.5, *row[1:]) for row in BASE], "session holds 1.5", "integers or"),
}


@pytest.mark.parametrize("case", BAD_PARQUET)
def test_bad_parquet_is_named(tmp_path, case):
    rows, *parts = BAD_PARQUET[case]
    with refuses(DataError, "log.parquet", *parts):
        open_impressions(write(tmp_path / "log.parquet", rows))


@pytest.mark.parametrize("word", ["nan", "inf", "-inf"])
def test_a_time_that_is_not_finite_is_named(word, tmp_path, monkeypatch):
    monkeypatch.setattr(SourceTable, "block_bytes", 300)
    lines = ["session,query,document,rank,click,search_session,time"]
    lines += [f"s{row // 3},q,d{row},{row % 3 + 1},0,u,{row // 3}" for row in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    lines[31] = f"s10,q,d30,1,0,u,{word}"
    (tmp_path / "b.csv").write_text("\n".join([lines[0], *(f"other {line}" for line in lines[1:])]))
    with refuses(DataError, "b.csv, line 32", "time holds", word):
        open_impressions(tmp_path, columns={"time": "time"})


def test_options_that_mean_nothing(tmp_path):
    path = write(tmp_path / "log.csv", BASE)
    for options, *parts in (
        (dict(positions=0), "positions is 0"),
        (dict(pair_key=None), "pair_key is None"),
        (dict(columns={"doc": "d"}), "columns", "['doc']"),
    ):
        with refuses(DataError, *parts):
            open_impressions(path, **options)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 3).map(str) | st.just(""),
        st.sampled_from("ab"),
        st.sampled_from("xyz"),
        st.integers(0, 4) | st.sampled_from(["", "x"]),
        st.sampled_from([0, 1, "true", "2"]),
    ),
    max_size=12,
)


def is_good(rows):
    """The rules, row by row."""
    queries, shown = {}, {}
    for session, query, document, rank, click in rows:
        if session == "" or not isinstance(rank, int) or rank < 1 or click == "2":
            return False
        if queries.setdefault(session, query) != query:
            return False
        if shown.setdefault((session, rank), document) != document:
            return False
    return len(queries) > 0


@pytest.mark.parametrize("examples", [30, pytest.param(150, marks=pytest.mark.nightly)])
def test_tables_are_read_or_refused_by_the_rules(examples, tmp_path):
    @settings(max_examples=examples, deadline=None)
    @given(rows=ROWS)
    def check(rows):
        path = write(tmp_path / "log.csv", rows, NAMES[:5])
        folder = tmp_path / "log"
        try:
            log = prepare(open_impressions.read, "impressions", path, folder)
        except DataError:
            assert not is_good(rows)
        else:
            assert is_good(rows)
            assert log.parts["sessions"].documents == len({(row[0], row[3]) for row in rows})
            shutil.rmtree(folder)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["log.csv"]

    check()


GOOD = ("session,query,document,rank,click\n" + "s1,q,d,1,0\ns1,q,e,2,1\ns2,q,d,1,0\n").encode()


@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.nightly)])
def test_broken_bytes_never_end_otherwise(examples, tmp_path):
    @settings(max_examples=examples, deadline=None)
    @given(at=st.integers(0, len(GOOD)), cut=st.integers(0, 20), put=st.binary(max_size=5))
    def check(at, cut, put):
        (tmp_path / "log.csv").write_bytes(GOOD[:at] + put + GOOD[at + cut :])
        with contextlib.suppress(DataError):
            open_impressions(tmp_path / "log.csv")

    check()


def test_a_query_of_several_lines_is_one_value_and_an_open_quote_is_refused(tmp_path, monkeypatch):
    """Also where a block of the file ends inside it; below it records are counted, not lines."""
    monkeypatch.setattr(TextTable, "block_bytes", 64)
    head = "session,query,document,rank,click\n"
    pages = [
        f'{page},"red\nshoes, {page % 2}",d{rank},{rank},0\n'
        for page in range(40)
        for rank in (1, 2)
    ]
    file = tmp_path / "log.csv"
    file.write_text(head + "".join(pages).replace(",0\n", ",1\n", 7))
    dataset = open_impressions(file)
    assert dataset.train.documents + dataset.val.documents + dataset.test.documents == 80
    assert dataset.query_doc_pairs == 4  # two queries, two documents
    file.write_text(head + "".join(pages[:10]) + "9,x,d,first,0\n")
    with refuses(DataError, "record 12", "rank holds 'first'"):
        open_impressions(file)
    file.write_text(head + '1,"red,d1,1,1\n1,shoes,d2,2,0\n2,"x",d1,1,0\n')
    with refuses(DataError, "log.csv", "quote"):
        open_impressions(file)


DEVICES = {
    "a": (("phone", None, "phone"), 1),  # what other rows of the page state
    "b": ((None, "desk", None), 2),
    "c": ((None, None, None), 0),
}


def of_devices(tmp_path, pages, **declared):
    rows = [
        (session, "q", f"d{rank}", rank, 0, device)
        for session, devices in {**pages, "d": ("desk",), "e": ("desk",)}.items()
        for rank, device in enumerate(devices, start=1)
    ]
    write(tmp_path / "rows.parquet", rows, (*NAMES[:5], "device"))
    device = {"dtype": "category", "per": "session", **declared}
    parts = {"train_sessions": [0, 3], "val_sessions": [3, 4], "test_sessions": [4, 5]}
    return open_impressions(tmp_path / "rows.parquet", columns={"device": device}, **parts)


def test_empty_cells_of_a_page_are_what_its_other_rows_state(tmp_path):
    dataset = of_devices(tmp_path, {page: cells for page, (cells, _) in DEVICES.items()}, fill=0)
    assert dataset.train.column("device").tolist() == [number for _, number in DEVICES.values()]
    assert dataset.notes["missing_device"] == 1
    contradicting = {"a": ("phone", None, "desk")}
    with refuses(DataError, "row 2", "device differs", "one result page"):
        of_devices(tmp_path, contradicting, fill=0)
    with refuses(DataError, "row 1", "device holds null", "fill: 0 in columns.device"):
        of_devices(tmp_path, contradicting)
    with refuses(DataError, "fill=3 is no category", "Choose 0"):
        of_devices(tmp_path, contradicting, fill=3)

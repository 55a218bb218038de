"""Logs with many faults at once: one message names all, and what is left without them is what dictionaries find."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from clickexp.data import Log, open_impressions, open_lists, prepare
from clickexp.data.ingest import pages
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.inspect.alike import alike_names
from clickexp.data.inspect.doubts import doubts
from clickexp.data.names import read_names
from clickexp.errors import DataError, FaultyLogError

NAMES = ("session", "query", "document", "rank", "click")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Sessions straddle batches, and the pieces in which they are gathered."""
    monkeypatch.setattr(SourceTable, "batch_rows", 4)
    monkeypatch.setattr(pages, "_GATHERED", 3)


def table(rows):
    kinds = [pl.String, pl.String, pl.String, pl.Float64, pl.Int64]
    return pl.DataFrame(rows, dict(zip(NAMES, kinds)), orient="row")


def kept(rows):
    """The pages that are left, as {session: {rank: (document, click)}}, and what was left out and merged."""
    known = [row for row in rows if row[0]]
    pages, counts = {row[0]: [] for row in known}, dict.fromkeys(("rows", "pages", "merged"), 0)
    counts["rows"] += len(rows) - len(known)
    for row in known:
        pages[row[0]].append(row)
    found = {}
    for session, shown in pages.items():
        sound = [r for r in shown if all(value not in ("", None) for value in r) and is_rank(r[3])]
        faulty = [r for r in shown if r not in sound]
        documents = {rank: {row[2] for row in sound if row[3] == rank} for *_, rank, _ in sound}
        if (
            not sound
            or any(row[4] != 0 for row in faulty)
            or len({row[1] for row in sound}) > 1
            or any(len(each) > 1 for each in documents.values())
        ):
            counts["pages"] += 1
            continue
        counts["rows"] += len(faulty)
        counts["merged"] += len(sound) - len(documents)
        clicks = {rank: max(row[4] for row in sound if row[3] == rank) for rank in documents}
        found[session] = {rank: (*documents[rank], clicks[rank]) for rank in sorted(documents)}
    return found, counts


def mostly_faulty(rows):
    """Whether half of the rows have one kind of fault: no value of a column, or a rank that is none."""
    empty = [sum(row[at] in ("", None) for row in rows) for at in range(5)]
    no_ranks = sum(row[3] is not None and not is_rank(row[3]) for row in rows)
    return 2 * max(*empty, no_ranks) >= len(rows)


def is_rank(value):
    return value is not None and value >= 1 and value == int(value)


def read(folder: Log):
    sessions = folder.parts["sessions"].chunk()
    names = pl.read_parquet(folder.names.filename)["document"].to_list()
    for row, length in enumerate(sessions["lengths"]):
        ids, clicks = sessions["query_doc_ids"][row, :length], sessions["clicks"][row, :length]
        ranks = sessions["positions"][row, :length].tolist()
        documents = [names[id - 1] for id in ids]
        yield dict(zip(ranks, zip(documents, clicks.astype(int).tolist())))


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["s", "t", "u", "v", "w", ""]),
        st.sampled_from(["a", "a", "a", "b", ""]),
        st.sampled_from(["x", "y", "z", None]),
        st.sampled_from([1.0, 2.0, 3.0, 2.5, None]),
        st.sampled_from([0, 0, 0, 1, None]),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("examples", [60, pytest.param(600, marks=pytest.mark.nightly)])
def test_what_is_left_and_counted_is_what_dictionaries_find(examples, tmp_path_factory):
    @settings(max_examples=examples, deadline=None)
    @given(rows=ROWS)
    def check(rows):
        folder = tmp_path_factory.mktemp("log")
        table(rows).write_parquet(folder / "log.parquet")
        found, counts = kept(rows)
        arguments = (open_impressions.read, "impressions", folder / "log.parquet", folder / "log")
        if not found or mostly_faulty(rows):
            with pytest.raises(
                DataError, match="no sessions|leaves nothing|Most rows|of these faults"
            ):
                prepare(*arguments, invalid="drop")
            return
        log = prepare(*arguments, invalid="drop")
        assert list(read(log)) == list(found.values())
        noted = [log.notes.get(f"dropped_{what}", 0) for what in ("rows", "pages")]
        assert [*noted, log.notes.get("merged_rows", 0)] == list(counts.values())

    check()


def messy():
    """Two sound pages, and one of each fault."""
    rows = [("p1", "q", f"d{rank}", rank, rank == 2) for rank in (1, 2, 3)]
    rows += [("p2", "q", None, 1, 0), ("p2", "q", "d2", 2, 1), ("p2", "q", "d3", 3, 0)]
    rows += [("no query", "", "d1", 1, 1), ("no click", "q", "d1", 1, None)]
    rows += [("", "q", "d1", 1, 1), ("rank", "q", "d1", 1.5, 1)]
    rows += [("two queries", "q", "d1", 1, 0), ("two queries", "r", "d2", 2, 0)]
    rows += [("two documents", "q", "d1", 1, 0), ("two documents", "q", "d2", 1, 0)]
    rows += [("p1", "q", "d3", 3, 0), ("p1", "q", "d1", 1, 1)]
    return rows


def test_one_message_names_all_kinds_with_first_rows_and_remedy(tmp_path):
    file = tmp_path / "log.parquet"
    table(messy()).write_parquet(file)
    with refuses(
        FaultyLogError,
        "7 kinds of faults",
        f"{file}, row 3: document holds null",
        "row 6: query holds ''",
        "row 7: click holds null",
        "row 8: session holds ''",
        "row 9: rank holds 1.5. Ranks are integers",
        "row 11: its query differs",
        "row 13: its session shows another document at rank 1",
        "invalid=drop",
    ) as caught:
        open_impressions(file)
    assert caught.value.options == {"invalid": "drop"}
    log = prepare(open_impressions.read, "impressions", file, tmp_path / "log", invalid="drop")
    assert list(read(log)) == [
        {1: ("d1", 1), 2: ("d2", 1), 3: ("d3", 0)},
        {2: ("d2", 1), 3: ("d3", 0)},
    ]
    assert log.parts["sessions"].ranks == 3
    assert log.notes == {
        "gathered_sessions": 1,
        "dropped_rows": 2,
        "dropped_pages": 5,
        "merged_rows": 2,
        "merged_rows_of_two_click_values": 1,
        "missing_document": 1,
        "missing_query": 1,
        "missing_click": 1,
        "missing_session": 1,
        "invalid_rank": 1,
        "pages_with_two_values_of_query": 1,
        "pages_with_two_documents_at_a_rank": 1,
        "share_of_rows_with_faults": "31%",
    }


def test_many_rows_of_a_kind_are_counted_and_the_first_named(tmp_path):
    lines = ["session,query,document,rank,click"]
    lines += [f"s{row},q,d,{'top' if row % 2 else 1},0" for row in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    with refuses(DataError, "line 3: rank holds 'top' (100 rows, next line 5, 7, ...)"):
        open_impressions(tmp_path / "log.csv")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_that_lie_apart_keep_the_order_in_which_pages_begin(tmp_path, suffix):
    """Sorting by session would put the pages of the end of a log into training."""
    rng = np.random.default_rng(0)
    started = rng.permutation(50)
    rows = [
        (start * 3 + 20 * rank + rng.random(), f"p{page}", "q", f"d{page}.{rank}", float(rank), 0)
        for start, page in enumerate(started)
        for rank in (1, 2, 3)
    ]
    log = pl.DataFrame(sorted(rows), ("when", *NAMES), orient="row")
    file = tmp_path / f"log.{suffix}"
    getattr(log, f"write_{suffix}")(file)
    log = prepare(open_impressions.read, "impressions", file, tmp_path / "log")
    documents = [[document for document, _ in page.values()] for page in read(log)]
    assert documents == [[f"d{page}.{rank}" for rank in (1, 2, 3)] for page in started]
    assert log.notes["gathered_sessions"] == 50


def test_pages_have_the_time_of_their_earliest_row(tmp_path):
    lines = ["session,query,document,rank,click,when", "s,q,d,1,0,8", "s,q,e,2,0,5", "t,q,d,1,1,9"]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    log = prepare(
        open_impressions.read,
        "impressions",
        tmp_path / "log.csv",
        tmp_path / "log",
        columns={"time": "when"},
    )
    assert log.parts["sessions"].column("times").tolist() == [5, 9]


LISTS = [
    {"query_doc_ids": [1, 2], "clicks": [0, 1], "positions": [1, 2]},
    {"query_doc_ids": [1, 2], "clicks": [0], "positions": [1, 2]},
    {"query_doc_ids": [], "clicks": [], "positions": []},
    {"query_doc_ids": [1, -2, -3], "clicks": [0, 1, 0], "positions": [1, 2, 3]},
    {"query_doc_ids": [1, None], "clicks": [0, 1], "positions": [1, 2]},
    {"query_doc_ids": [1, 2], "clicks": [0, 1], "positions": [2, 1]},
    {"query_doc_ids": None, "clicks": [0, 1], "positions": [2, 1]},
    {"query_doc_ids": [4, 2, 3], "clicks": [0, 1, 1], "positions": [1, 2, 4]},
]


def test_faults_of_lists_are_named_together_and_dropped_by_row(tmp_path):
    file = tmp_path / "log.parquet"
    pl.DataFrame(LISTS).write_parquet(file)
    with refuses(
        FaultyLogError,
        "5 kinds of faults",
        "row 1: clicks has length 1, query_doc_ids has 2",
        "row 2: the list is empty",
        "row 3: query_doc_ids holds -2. Ids are",
        "row 4: query_doc_ids holds null (2 rows, next row 6)",
        "row 5: positions has 1 after 2",
    ):
        open_lists(file)
    log = prepare(open_lists.read, "lists", file, tmp_path / "log", invalid="drop")
    sessions = log.parts["sessions"]
    assert sessions.column("query_doc_ids").tolist() == [[1, 2, 0], [4, 2, 3]]
    assert sessions.column("positions").tolist() == [[1, 2, 0], [1, 2, 4]]
    assert log.notes["dropped_rows"] == 6


def test_a_row_with_two_faults_is_one_row(tmp_path):
    """Of 40 rows three are faulty, in five cells: 8%, where the sum of the kinds would be 12%."""
    rows = [(f"s{at}", "q", "d", 1, at % 2) for at in range(37)]
    rows += [("a", None, None, 1, 0), ("b", None, "d", 1.5, 0), ("c", "q", None, 1, 0)]
    table(rows).write_parquet(tmp_path / "log.parquet")
    log = open_impressions(tmp_path / "log.parquet", invalid="drop")
    faults = [log.notes[kind] for kind in ("missing_query", "missing_document", "invalid_rank")]
    assert faults == [2, 2, 1] and log.notes["share_of_rows_with_faults"] == "8%"


WORDS = [
    ("Red Shoes", "A-1"),
    (" red  shoes ", "a-1"),
    ("red shoes", "A-1"),
    ("blue", "B"),
    ("BLUE", "b "),
]


@pytest.mark.parametrize("normalize, pairs", [(None, 5), ("query", 4), ("document", 5), ("all", 2)])
def test_names_that_differ_by_case_or_blanks_are_pointed_out_and_joined(tmp_path, normalize, pairs):
    rows = [(f"s{at}", *words, 1.0, at % 2) for at, words in enumerate(WORDS)]
    table(rows).write_parquet(tmp_path / "log.parquet")
    lists = [{"query_id": q, "query_doc_ids": [d], "clicks": [0]} for q, d in WORDS]
    pl.DataFrame(lists).write_parquet(tmp_path / "lists.parquet")
    for read, name, options in (
        (open_impressions.read, "log", {}),
        (open_lists.read, "lists", {"pair_key": "query_document"}),
    ):
        source, folder = tmp_path / f"{name}.parquet", tmp_path / name
        log = prepare(read, name, source, folder, normalize=normalize, **options)
        assert log.parts["sessions"].query_doc_pairs == pairs
        found = list(alike_names(log.names))
        assert [message.partition(" by name")[0] for message in found] == {
            None: ["5 queries", "4 documents"],
            "query": ["4 documents"],
            "document": ["5 queries"],
            "all": [],
        }[normalize]
        if normalize is None:
            assert "are 2 without" in found[0] and "'Red Shoes' = ' red  shoes '" in found[0]
            assert "normalize=query" in found[0] and "normalize=document" in found[1]


@pytest.mark.parametrize("invalid", ["error", "drop"])
def test_where_every_row_is_faulty_nothing_is_offered_to_drop(tmp_path, invalid):
    """Words that are no truth values: left out, they leave no log, and no command would say why."""
    log = tmp_path / "log.csv"
    log.write_text("session,query,document,rank,click\n1,q,a,1,long\n1,q,b,2,short\n")
    with refuses(DataError, "click holds 'long', 'short'", "leaves nothing") as caught:
        open_impressions(log, invalid=invalid)
    assert not caught.value.options


def test_ranks_with_decimal_commas_are_read(tmp_path):
    """As spreadsheets of most of Europe write whole numbers that they take for fractions."""
    log = tmp_path / "log.csv"
    rows = "".join(f"{s};q;d{r};{r},0;{int(r == 1)}\n" for s in range(10) for r in (1, 2, 3))
    log.write_text("session;query;document;rank;click\n" + rows)
    dataset = open_impressions(log)
    assert dataset.positions == 3
    assert dataset.train.column("clicks").sum(axis=0).tolist() == [8, 0, 0]


@pytest.mark.parametrize("share, option", [(0.4, "null_is_no_click=true"), (0.01, "invalid=drop")])
def test_many_missing_clicks_are_read_as_none(share, option, tmp_path):
    """Of an outer join with clicks; where few are missing, nobody knows why, and they can be left out."""
    rng = np.random.default_rng(0)
    missing = rng.random(2000) < share
    rows = [(f"p{n // 4}", "q", f"d{n % 4}", n % 4 + 1.0, None if missing[n] else n % 2)
            for n in range(2000)]  # fmt: skip
    table(rows).write_parquet(tmp_path / "log.parquet")
    with refuses(FaultyLogError, "click holds null", "invalid=drop leaves out") as caught:
        open_impressions(tmp_path / "log.parquet")
    assert caught.value.options == dict([option.split("=")])


def test_lists_of_what_was_clicked_are_no_clicks(tmp_path):
    log = pl.DataFrame({"query_doc_ids": [[4, 5, 6]] * 9, "clicks": [[1]] * 9})
    log.write_parquet(tmp_path / "log.parquet")
    with refuses(FaultyLogError, "clicks has length 1", "0 or 1 for each document"):
        open_lists(tmp_path / "log.parquet")


def test_faults_of_most_rows_are_no_rows_to_leave_out(tmp_path):
    """Words in a column that is taken for labels, and nulls that mean no click."""
    rows = [
        (f"p{page}", "q", f"d{rank}", rank, 1 if rank == 1 else None)
        for page in range(9)
        for rank in (1, 2, 3)
    ]
    rows.append(("q", "q", "d1", 1, 0))
    table(rows).write_parquet(tmp_path / "log.parquet")
    with refuses(
        FaultyLogError,
        "click holds null (18 rows",
        "null_is_no_click=true mends all of these faults, or most",
    ) as caught:
        open_impressions(tmp_path / "log.parquet", invalid="drop")
    assert caught.value.options == {"null_is_no_click": "true"}
    assert open_impressions(tmp_path / "log.parquet", null_is_no_click=True).train.count == 8
    halves = pl.when(pl.col("rank") > 1).then(0.5).otherwise("rank")
    table(rows).with_columns(rank=halves).write_parquet(tmp_path / "log.parquet")
    with refuses(FaultyLogError, "rank holds 0.5", "Most rows are faulty") as caught:
        open_impressions(tmp_path / "log.parquet", invalid="drop", null_is_no_click=True)
    assert caught.value.options == {}
    grades = table(rows).with_columns(click=0, grade=pl.lit("good"))
    grades.write_parquet(tmp_path / "log.parquet")
    with refuses(DataError, "grade holds 'good'", "'grades={bad: 0, good: 1}'"):
        open_impressions(tmp_path / "log.parquet", columns={"label": "grade"}, invalid="drop")


@pytest.fixture
def large_pieces(small_pieces, monkeypatch):
    """For logs of many rows."""
    monkeypatch.setattr(SourceTable, "batch_rows", 500)


def lists_of(file, count, **columns):
    """Writes a file of lists of two documents."""
    alike = {"query_doc_ids": [[1, 2]], "clicks": [[0, 1]]}
    rows = {name: values * count for name, values in {**alike, **columns}.items()}
    pl.DataFrame(rows).write_parquet(file)


@pytest.mark.usefixtures("large_pieces")
@pytest.mark.parametrize("of_second", [100, 900])
def test_times_without_an_offset_are_read_and_never_dropped(of_second, tmp_path):
    """Dropped, they would be a whole file, whatever its share of the rows."""
    lists_of(tmp_path / "a.parquet", 400, time=["2025-03-01T08:00:00+08:00"])
    lists_of(tmp_path / "b.parquet", of_second, time=["2025-03-01 15:00:00"])
    for invalid in ("error", "drop"):
        with refuses(
            FaultyLogError,
            f"{tmp_path}/b.parquet, row 0: time holds '2025-03-01 15:00:00'",
            f"{of_second} of the {of_second} rows of {tmp_path}/b.parquet",
            "time_zone=UTC",
        ) as caught:
            open_lists(tmp_path, columns={"time": "time"}, invalid=invalid)
        assert caught.value.options == {"time_zone": "UTC"}
    read = open_lists(tmp_path, columns={"time": "time"}, invalid="drop", time_zone="Europe/Moscow")
    assert sum(part.count for part in read.parts.values()) == 400 + of_second


@pytest.mark.usefixtures("large_pieces")
def test_a_file_of_faults_is_not_left_out(tmp_path):
    """A tenth of the log, which is all of the third of ten files."""
    for number in range(10):
        query = "" if number == 2 else "q"
        lists_of(tmp_path / f"{number}.parquet", 100, query_id=[query])
    with refuses(
        FaultyLogError, f"100 of the 100 rows of {tmp_path}/2.parquet", "Nearly all rows of a file"
    ) as caught:
        open_lists(tmp_path, pair_key="query_document", invalid="drop")
    assert caught.value.options == {}


@pytest.mark.usefixtures("large_pieces")
@pytest.mark.parametrize(("faulty", "is_doubted"), [(4, False), (10, True)])
def test_much_that_was_left_out_is_doubted(faulty, is_doubted, tmp_path):
    lists_of(tmp_path / "a.parquet", 100 - faulty, query_id=["q"])
    lists_of(tmp_path / "b.parquet", faulty, query_id=[""])
    dataset = open_lists(tmp_path, pair_key="query_document", invalid="drop")
    left_out = [doubt for doubt in doubts(dataset) if f"{faulty}% of the rows have faults" in doubt]
    assert bool(left_out) == is_doubted


@pytest.mark.usefixtures("large_pieces")
@pytest.mark.parametrize(("faulty", "is_doubted"), [(4, False), (10, True)])
def test_many_pages_that_were_left_out_are_doubted(faulty, is_doubted, tmp_path):
    rows = [(f"p{page}", "q", f"d{rank}", rank, 0) for page in range(100) for rank in range(1, 5)]
    rows += [(f"p{page}", "q", "another", 4, 1) for page in range(faulty)]
    table(rows).write_parquet(tmp_path / "log.parquet")
    dataset = open_impressions(tmp_path / "log.parquet", invalid="drop")
    left_out = [doubt for doubt in doubts(dataset) if f"{faulty} of 100 pages" in doubt]
    assert bool(left_out) == is_doubted


def test_lines_behind_one_that_is_cut_show_columns(tmp_path):
    row = {"query_doc_ids": [1, 2], "clicks": [1, 0]}
    lines = [json.dumps(row), "{", *[json.dumps(row | {"labels": [1, 0]})] * 8]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    dataset = open_lists(tmp_path / "log.jsonl", pair_key="document", invalid="drop")
    assert dataset.train.has_labels and dataset.notes["dropped_lines"] == 1


@pytest.mark.parametrize("cut", [0, 5, 19])
def test_a_line_of_json_that_is_cut_is_left_out_and_counted(cut, tmp_path, monkeypatch):
    """The first, one in the middle and the last, where the rows behind keep the numbers of their lines."""
    monkeypatch.setattr(SourceTable, "block_bytes", 300)
    rows = [{"query_doc_ids": [n + 1, n + 2], "clicks": [n % 2, 0]} for n in range(20)]
    lines = [json.dumps(row) for row in rows]
    lines[cut] = lines[cut][:-7]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(lines))
    options = {"pair_key": "document"}
    with refuses(FaultyLogError, f"log.jsonl, line {cut + 1}", "is no object", "invalid=drop"):
        prepare(open_lists.read, "lists", file, tmp_path / "log", **options)
    log = prepare(open_lists.read, "lists", file, tmp_path / "log", invalid="drop", **options)
    assert log.notes["dropped_lines"] == 1
    names = read_names(log.names)["document"].to_numpy()
    sessions = log.parts["sessions"]
    found = names[sessions.column("query_doc_ids") - 1].tolist()
    assert found == [row["query_doc_ids"] for at, row in enumerate(rows) if at != cut]
    wrong = (cut + 10) % 20
    lines[wrong] = json.dumps(rows[wrong] | {"clicks": [-1, 0]})
    file.write_text("\n".join(lines))
    with refuses(FaultyLogError, f"line {wrong + 1}", "clicks holds -1", "is no object"):
        prepare(open_lists.read, "lists", file, tmp_path / "other", **options)

"""Text with one row a session: cells, separators, ids of any kind, and what is refused."""

import csv
import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from clickexp.data import open_lists
from clickexp.data.ingest.source_table import SourceTable
from clickexp.errors import DataError

ROWS = [
    {"query_id": 4, "query_doc_ids": [3, 5, 8], "clicks": [0, 1, 0], "labels": [0.5, 2, -1]},
    {"query_id": 7, "query_doc_ids": [9], "clicks": [1], "labels": [1]},
    {"query_id": 4, "query_doc_ids": [5, 3], "clicks": [0, 0], "labels": [0, 0]},
] * 10
STYLES = {
    "commas": lambda values: ",".join(map(str, values)),
    "spaces": lambda values: "  ".join(map(str, values)),
    "list": lambda values: str(list(values)),
    "array": lambda values: f" [ {' '.join(map(str, values))} ] ",
    "quoted": lambda values: str([str(value) for value in values]),
    "semicolons": lambda values: ";".join(map(str, values)),
}


def write(path, rows, style="list", separator=","):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow(STYLES[style](v) if isinstance(v, list) else v for v in row.values())
    return path


def lists(dataset, name):
    """The column over all parts, as Python lists."""
    found = []
    for part in (dataset.train, dataset.val, dataset.test):
        rows = zip(part.column(name), part.column("lengths"))
        found += [values[:length].tolist() for values, length in rows]
    return found


def arrived(dataset, rows=ROWS):
    for name in ("query_doc_ids", "clicks", "labels"):
        assert lists(dataset, name) == [row[name] for row in rows]
    queries = [
        query
        for part in ("train", "val", "test")
        for query in getattr(dataset, part).column("query_ids")
    ]
    assert queries == [row["query_id"] for row in rows]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
def test_every_value_arrives(tmp_path, style, separator):
    calls = []
    path = write(tmp_path / "log.csv", ROWS, style, separator)
    arrived(open_lists(path, progress=lambda *call: calls.append(call)))
    assert calls[-1] == (path.stat().st_size,) * 2


def test_blocks_folders_and_gzip(tmp_path, monkeypatch):
    monkeypatch.setattr(SourceTable, "block_bytes", 90)
    write(tmp_path / "b.tsv", ROWS[11:], separator="\t")
    write(tmp_path / "a.csv.gz", ROWS[:11])
    (tmp_path / "readme.md").write_text("not a table")
    arrived(open_lists(tmp_path))
    arrived(open_lists(tmp_path, files="b*"), ROWS[11:])


@pytest.mark.parametrize(
    "ending, codec", [("gz", "gzip"), ("bz2", "bz2"), ("zst", "zstd"), ("lz4", "lz4")]
)
def test_compressed_files_are_read_alone_and_in_a_folder(tmp_path, ending, codec):
    plain = write(tmp_path / "plain.csv", ROWS).read_bytes()
    (tmp_path / "log").mkdir()
    file = tmp_path / f"log/a.csv.{ending}"
    with pa.CompressedOutputStream(str(file), codec) as stream:
        stream.write(plain)
    for path in (file, file.parent):
        arrived(open_lists(path))


@pytest.mark.parametrize(
    "content, parts",
    [(b'{"query_doc_ids": [1, 2], "clicks": [0, 1]}\n', ("holds JSON", "End its name in .jsonl")),
     (b'\xef\xbb\xbf[{"query_doc_ids": [1, 2]}]', ("holds JSON", "polars.read_json")),
     (b"PK\x03\x04 and more", ("an archive or a workbook", "as CSV")),
     (b"PAR1 and more", ("is parquet", "End its name in .parquet")),
     (b"\x1f\x8b and more", ("compressed by gzip", "End its name in .gz")),
     (b"session,query,document,rank,click\n1,1,1,1,0\n", ("query_doc_ids", "dataset=impressions"))],
)  # fmt: skip
def test_what_is_no_such_table_is_called_by_its_name(tmp_path, content, parts):
    file = tmp_path / "log.csv"
    file.write_bytes(content)
    with refuses(DataError, str(file), *parts):
        open_lists(file)


def test_files_in_folders_inside_are_found(tmp_path):
    """As in the folders date=... that Spark and polars write."""
    for number, rows in enumerate((ROWS[:14], ROWS[14:])):
        (tmp_path / f"date={number}").mkdir()
        write(tmp_path / f"date={number}/part.csv", rows)
    with refuses(DataError, "no *.csv", "files='**/*.csv'"):
        open_lists(tmp_path, files="*.csv")
    for files in (None, "**/*.csv", "date=*/part.csv"):
        arrived(open_lists(tmp_path, files=files))


def test_ids_of_other_types_are_refused(tmp_path):
    ids = pa.array([[b"1", b"2"]], pa.list_(pa.binary()))
    pq.write_table(pa.table({"query_doc_ids": ids, "clicks": [[0, 1]]}), tmp_path / "log.parquet")
    with refuses(DataError, "query_doc_ids holds lists of type", "binary", "integers or text"):
        open_lists(tmp_path / "log.parquet", pair_key="document")


def test_words_for_clicks_and_a_chosen_separator(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("\ufeffids|c\n" + "1 2|True FALSE\n\n3|1.0\n" * 5, encoding="utf-8")
    dataset = open_lists(path, separator="|", columns={"query_doc_ids": "ids", "clicks": "c"})
    assert lists(dataset, "clicks") == [[True, False], [True]] * 5


TEXT_ROWS = [
    {"query_id": q, "query_doc_ids": docs, "clicks": [0] * len(docs)}
    for q, docs in [("shoes", ["b", "a"]), ("ø", ["a", "http://c?x=1"]), ("shoes", ["a", "b", "d"])]
    * 4
]
LARGE = {"shoes": -7, "ø": 2**50, "a": 2**40, "b": -1, "http://c?x=1": 0, "d": 2**62}


def numbered(rows, pair_key, longest=9):
    """Ids by a dictionary."""
    ids, queries, found = {}, {}, []
    for row in rows:
        query = queries.setdefault(row["query_id"], len(queries) + 1)
        keys = [
            (query if pair_key == "query_document" else 0, doc)
            for doc in row["query_doc_ids"][:longest]
        ]
        found.append((query, [ids.setdefault(key, len(ids) + 1) for key in keys]))
    return found


@pytest.mark.parametrize("pair_key", ["document", "query_document"])
@pytest.mark.parametrize("kind", ["csv", "text parquet", "large integers"])
def test_ids_of_any_kind_are_numbered(tmp_path, pair_key, kind):
    rows = TEXT_ROWS
    if kind == "large integers":
        rows = [
            row
            | dict(
                query_id=LARGE[row["query_id"]],
                query_doc_ids=[LARGE[d] for d in row["query_doc_ids"]],
            )
            for row in rows
        ]
    if kind == "csv":
        dataset = open_lists(write(tmp_path / "log.csv", rows), pair_key=pair_key, positions=2)
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet", row_group_size=5)
        dataset = open_lists(tmp_path / "log.parquet", pair_key=pair_key, positions=2)
    expected = numbered(rows, pair_key, longest=2)
    assert lists(dataset, "query_doc_ids") == [ids for _, ids in expected]
    assert dataset.train.column("query_ids").tolist() == [query for query, _ in expected][:10]
    assert dataset.query_doc_pairs == max(max(ids) for _, ids in expected)
    assert dataset.notes["cut_lists"] == 4


BAD = {
    "word": (["1,2;x,0 0"], {}, "line 2", "query_doc_ids holds 'x'", "integers"),
    "fraction": (["1,2 3,0 0", "1,2 3.5,0 0"], {}, "line 3", "query_doc_ids holds '3.5'"),
    "large id": ([f"1,{2**40},0"], {}, "line 2", f"query_doc_ids holds {2**40}"),
    "huge id": ([f"1,{2**70},0"], {}, "line 2", f"query_doc_ids holds '{2**70}'"),
    "click": (["1,2 3,0 2"], {}, "line 2", "clicks holds 2"),
    "click word": (["1,2 3,0 maybe"], {}, "line 2", "clicks holds 'maybe'", "true or false"),
    "lengths": (
        ["1,2 3,0 0", "1,2 3,0"],
        {},
        "line 3",
        "clicks has length 1",
        "query_doc_ids has 2",
    ),
    "empty": (["1,2 3,0 0", "1,[],[]"], {}, "line 3", "the list is empty"),
    "bracket": (
        ['1,"[2, 3",0 0'],
        {},
        "line 2",
        "query_doc_ids holds '[2, 3'",
        "Close its bracket",
    ),
    "quote": (['1,"2 3,0 0', '2,3","0"'], {}, "two lines", "close its quote"),
    "query": (["shoes,2 3,0 0"], {}, "line 2", "query_id holds 'shoes'", "64-bit integers"),
    "truncated": (["1,2 3,0 0", "1,2"], {}, "cannot be read", "Row #3", "Mend it"),
    "longer": (["1,2,3,0,0"], {}, "Row #2"),
    "no rows": ([], {}, "no sessions"),
    "separator": (["1,2,0"], {"separator": "::"}, "separator is '::'"),
    "column": (
        ["1,2,0"],
        {"columns": {"clicks": "click"}},
        "no column 'click'",
        "perhaps to 'clicks'",
    ),
    "pair key": (["1,2,0"], {"pair_key": "url"}, "pair_key is 'url'"),
    "no query": (
        ["1,2,0"],
        {"pair_key": "query_document", "columns": {"query_id": None}},
        "columns.query_id=null leaves out what the format needs",
    ),
    "empty query": (
        [",2,0"],
        {"pair_key": "document"},
        "line 2",
        "query_id holds ''",
        "integers or text",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_is_named_and_nothing_is_left(tmp_path, case):
    lines, options, *parts = BAD[case]
    path, cache = tmp_path / "log.csv", tmp_path / "cache"
    path.write_text("\n".join(["query_id,query_doc_ids,clicks", *lines]) + "\n")
    with refuses(DataError, *parts):
        open_lists(path, cache=cache, **options)
    assert not cache.exists() or not any(cache.iterdir())


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe\n1\n", b"\x1f\x8b broken"])
def test_bytes_that_are_no_table(tmp_path, data):
    for name in ("log.csv", "log.csv.gz"):
        (tmp_path / name).write_bytes(data)
        with refuses(DataError, name):
            open_lists(tmp_path / name)


def test_files_of_a_folder_need_the_same_kind_of_ids(tmp_path):
    for name, ids in (("a", ["x"]), ("b", [1])):
        pq.write_table(
            pa.table({"query_doc_ids": [ids], "clicks": [[0]]}), tmp_path / f"{name}.parquet"
        )
    with refuses(DataError, "b.parquet", "holds numbers", "a.parquet text"):
        open_lists(tmp_path, pair_key="document")


GOOD = "query_id,query_doc_ids,clicks\n" + '1,"[2, 3]","[0, 1]"\n' * 12
SIGNS = st.sampled_from([b'"', b"\n", b",", b"[", b"\xff", b"\0", b"nan", b"-1"])
PUT = st.binary(max_size=6) | SIGNS
KEYS = st.sampled_from([None, "document", "query_document"])


@pytest.mark.parametrize("examples", [30, pytest.param(150, marks=pytest.mark.nightly)])
def test_broken_text_gives_a_data_error_or_a_whole_dataset(examples, tmp_path):
    @settings(max_examples=examples, deadline=None)
    @given(at=st.integers(0, len(GOOD)), cut=st.integers(0, 12), put=PUT, pair_key=KEYS)
    def check(at, cut, put, pair_key):
        text = GOOD.encode()
        (tmp_path / "log.csv").write_bytes(text[:at] + put + text[at + cut :])
        cache = tmp_path / "cache"
        try:
            dataset = open_lists(tmp_path / "log.csv", pair_key=pair_key, cache=cache)
        except DataError as error:
            assert "log.csv" in str(error) or "split" in str(error) or "no sessions" in str(error)
        else:
            for name in ("query_doc_ids", "clicks"):
                assert [len(values) for values in lists(dataset, name)] == [
                    n
                    for part in (dataset.train, dataset.val, dataset.test)
                    for n in part.column("lengths")
                ]
        assert not list(cache.glob(".*"))

    check()

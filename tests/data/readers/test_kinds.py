"""One log in every kind of file, compression, dialect and folder: the same sessions, or an error with the way out."""

import bz2
import csv
import gzip
import io
import json
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refuses
from stored_logs import write_table

from clickexp.data import open_impressions, open_lists
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.names import read_names
from clickexp.errors import DataError

PAGES = [(f"q{n % 5}", [f"d{(3 * n + k * k) % 11}" for k in range(1 + n % 4)]) for n in range(23)]
"""Query and documents of each page."""
CLICKS = [
    [int((n * 7 + k * 5) % 3 == 0) for k in range(len(docs))] for n, (_, docs) in enumerate(PAGES)
]
LISTS = [
    {"query_id": query, "query_doc_ids": docs, "clicks": clicks}
    for (query, docs), clicks in zip(PAGES, CLICKS, strict=True)
]
ROWS = [
    {"session": n, "query": query, "document": doc, "rank": rank, "click": click}
    for n, ((query, docs), clicks) in enumerate(zip(PAGES, CLICKS, strict=True))
    for rank, (doc, click) in enumerate(zip(docs, clicks, strict=True), 1)
]
NESTED = [
    {"page": {"id": n, "query": query},
     "shown": [{"document": d, "rank": r, "click": c} for r, (d, c) in enumerate(zip(docs, clicks), 1)][::-1]}
    for n, ((query, docs), clicks) in enumerate(zip(PAGES, CLICKS))
]  # fmt: skip
NAMES = {"session": "page.id", "query": "page.query", "document": "shown.document", "rank": "shown.rank",
         "click": "shown.click"}  # fmt: skip
KEYED = {"pair_key": "query_document"}


def sessions(dataset):
    """Query, ids of documents and clicks of each session."""
    found = []
    for part in (dataset.train, dataset.val, dataset.test):
        for query, ids, clicks, length in zip(
            *(part.column(name) for name in ("query_ids", "query_doc_ids", "clicks", "lengths"))
        ):
            found.append((int(query), ids[:length].tolist(), clicks[:length].astype(int).tolist()))
    return found


def expected():
    """Queries and pairs numbered in the order of appearance, by dictionaries."""
    queries, pairs = {}, {}
    return [
        (
            queries.setdefault(query, len(queries) + 1),
            [pairs.setdefault((query, doc), len(pairs) + 1) for doc in docs],
            clicks,
        )
        for (query, docs), clicks in zip(PAGES, CLICKS, strict=True)
    ]


def ndjson(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(rows, separator=",", end="\n"):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=separator, lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def parquet(rows):
    stored = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stored, row_group_size=7)
    return stored.getvalue()


def compressed(content, codec):
    stored = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stored, codec) as stream:
        stream.write(content)
    return stored.getvalue().to_pybytes()


FILES = {
    "lists.parquet": (open_lists, parquet(LISTS), KEYED),
    "lists.jsonl": (open_lists, ndjson(LISTS), KEYED),
    "flat.parquet": (open_impressions, parquet(ROWS), {}),
    "flat.ndjson": (open_impressions, ndjson(ROWS), {}),
    "flat.json": (open_impressions, ndjson(ROWS), {}),
    "flat.csv": (open_impressions, table(ROWS).encode(), {}),
    "nested.parquet": (open_impressions, parquet(NESTED), {"columns": NAMES}),
    "nested.jsonl": (open_impressions, ndjson(NESTED), {"columns": NAMES}),
}


@pytest.mark.parametrize("name", FILES)
def test_one_log_in_every_kind_of_file(name, tmp_path, monkeypatch):
    """Structs in lists stand in the opposite order of their ranks, as Spark's collect_list may leave them."""
    for size in ("batch_rows", "vector_rows", "block_bytes"):
        monkeypatch.setattr(SourceTable, size, 5 if "rows" in size else 300)
    opener, content, options = FILES[name]
    (tmp_path / name).write_bytes(content)
    assert sessions(opener(tmp_path / name, **options)) == expected()


def test_structs_of_a_list_are_columns_of_lists(tmp_path):
    rows = [{**row, "shown": row["shown"][::-1]} for row in NESTED]
    (tmp_path / "log.parquet").write_bytes(parquet(rows))
    columns = {"query_id": "page.query", "query_doc_ids": "shown.document", "clicks": "shown.click"}
    columns["positions"] = "shown.rank"
    assert sessions(open_lists(tmp_path, columns=columns, **KEYED)) == expected()
    (tmp_path / "log.parquet").write_bytes(parquet(NESTED))
    with refuses(DataError, "row 1", "shown.rank has 1 after 2"):
        open_lists(tmp_path, columns=columns, **KEYED)
    with refuses(DataError, "no column 'shown.id'", "'shown.document'"):
        open_lists(tmp_path, columns={**columns, "query_doc_ids": "shown.id"}, **KEYED)


PACKED = {
    "gz": lambda content: gzip.compress(content[:90]) + gzip.compress(content[90:]),
    "bz2": lambda content: bz2.compress(content[:90]) + bz2.compress(content[90:]),
    **{end: lambda content, codec=codec: compressed(content, codec)
       for end, codec in (("zst", "zstd"), ("lz4", "lz4"), ("br", "brotli"))},
}  # fmt: skip


@pytest.mark.parametrize("ending", PACKED)
def test_compressed_text_of_several_members(ending, tmp_path):
    for name, opener, content, options in (
        ("log.csv", open_impressions, table(ROWS).encode(), {}),
        ("log.jsonl", open_lists, ndjson(LISTS), KEYED),
    ):
        file = tmp_path / f"{name}.{ending}"
        file.write_bytes(PACKED[ending](content))
        assert sessions(opener(file, **options)) == expected()
        for other, remedy in (
            (PACKED[ending](content)[:-12], "end is missing"),
            (content, "out of its name"),
        ):
            file.write_bytes(other)
            with refuses(DataError, file.name, "cannot be read", remedy):
                opener(file, **options)
        file.unlink()


MARK = "\ufeff"
DIALECTS = {
    "comma": table(ROWS).encode(),
    "semicolons of Excel": (MARK + table(ROWS, ";", "\r\n")).encode(),
    "a line for Excel": (MARK + "sep=;\r\n" + table(ROWS, ";", "\r\n")).encode(),
    "bars": table(ROWS, "|").encode(),
    "Unicode text": (MARK + table(ROWS, "\t", "\r\n")).encode("utf-16-le"),
    "big-endian": (MARK + table(ROWS, ";")).encode("utf-16-be"),
    "commas in a name": table([{"a, b; c": 1, **row} for row in ROWS], "|").encode(),
    "blanks around names": table(ROWS).replace(",query,document", " , query, document ").encode(),
    "floats": table([{**row, "rank": f"{row['rank']}.0", "click": f"{row['click']}.0"} for row in ROWS]).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects_are_found_by_the_first_lines(name, tmp_path):
    (tmp_path / "log.txt").write_bytes(DIALECTS[name])
    assert sessions(open_impressions(tmp_path)) == expected()


def test_decimal_commas_where_columns_are_not_separated_by_them(tmp_path):
    rows = [{**row, "label": f"{row['rank']},5"} for row in ROWS]
    (tmp_path / "log.csv").write_text(table(rows, ";"))
    dataset = open_impressions(tmp_path)
    ranks = np.arange(1, dataset.train.ranks + 1) + 0.5
    shown = dataset.train.column("query_doc_ids") > 0
    assert (
        dataset.train.column("labels")[shown] == np.broadcast_to(ranks, shown.shape)[shown]
    ).all()
    rows[4]["label"] = "1,250"
    (tmp_path / "log.csv").write_text(table(rows, ";"))
    with refuses(DataError, "line 6", "label holds '1,250'", "thousands"):
        open_impressions(tmp_path)


def test_names_of_columns_by_option_and_by_number(tmp_path):
    header = list(ROWS[0])
    (tmp_path / "log.csv").write_text(table(ROWS).partition("\n")[2])
    with refuses(DataError, "no column 'session'", "header=["):
        open_impressions(tmp_path / "log.csv")
    assert sessions(open_impressions(tmp_path / "log.csv", header=header)) == expected()
    (tmp_path / "log.csv").write_text(table(ROWS).removeprefix("session"))
    found = open_impressions(tmp_path / "log.csv", columns={"session": "column_1"})
    assert sessions(found) == expected()


SPOILED = {
    "mixed ids": (ndjson([{**ROWS[0], "query": 5}, *ROWS[1:]] + ROWS[:0]), None),
    "no object": (ndjson(ROWS[:3]) + b"[1, 2]\n" + ndjson(ROWS[3:]), ("line 4", "is no object")),
    "nested without end": (ndjson(ROWS) + b"[" * 100_000 + b"\n", (f"line {len(ROWS) + 1}", "is no object")),
    "cut": (ndjson(ROWS)[:-9], ("is no object", "one whole JSON object")),
    "an array": (json.dumps(ROWS).encode(), ("one JSON array", "write_ndjson")),
    "empty": (b"\n\n", ("holds no line",)),
    "names": (ndjson([{**row, "rank": "top"} for row in ROWS]), ("rank holds 'top'", "integers from 1")),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, (_, parts) in SPOILED.items() if parts])
def test_json_that_is_no_table(name, tmp_path):
    content, parts = SPOILED[name]
    (tmp_path / "log.jsonl").write_bytes(content)
    with refuses(DataError, "log.jsonl", *parts):
        open_impressions(tmp_path)


def test_ids_of_two_kinds_in_json_are_refused_wherever_they_change(tmp_path, monkeypatch):
    """A number and its text would be two documents."""
    monkeypatch.setattr(SourceTable, "block_bytes", 300)
    rows = [{**row, "document": n} for n, row in enumerate(ROWS)]
    rows[-1]["document"] = "5"
    (tmp_path / "log.jsonl").write_bytes(ndjson(rows))
    with refuses(DataError, "document holds text from here on, and numbers above"):
        open_impressions(tmp_path)


def test_integers_beyond_64_bits_inside_of_objects_hinder_nobody(tmp_path):
    """Such as traces of requests that no column takes; as ids they are refused with a remedy."""
    request = {"trace": 10**30, "hops": [{"id": 10**30}]}
    (tmp_path / "log.jsonl").write_bytes(ndjson([{**row, "request": request} for row in ROWS]))
    assert sessions(open_impressions(tmp_path)) == expected()
    with refuses(DataError, "request.trace holds", "as text"):
        open_impressions(tmp_path, columns={"document": "request.trace"})


def test_keys_that_some_lines_lack_are_missing_values(tmp_path, monkeypatch):
    monkeypatch.setattr(SourceTable, "block_bytes", 150)
    rows = [dict(row) for row in ROWS]
    for n, row in enumerate(rows):
        if n > len(rows) // 2:
            row["label"] = 1.5
    (tmp_path / "log.jsonl").write_bytes(ndjson(rows))
    assert sessions(open_impressions(tmp_path)) == expected()
    del rows[-1]["click"]
    (tmp_path / "log.jsonl").write_bytes(ndjson(rows))
    with refuses(DataError, "click holds null"):
        open_impressions(tmp_path)


def write_days(folder, kind="parquet"):
    """The log in folders of three days, the last of them unknown, as Spark writes it."""
    for day, rows in enumerate((LISTS[:8], LISTS[8:15], LISTS[15:])):
        value = "__HIVE_DEFAULT_PARTITION__" if day == 2 else f"2025-11-0{day + 1} 10%3A00%3A00"
        inside = folder / f"date={value}"
        inside.mkdir(parents=True)
        (inside / f"part-0.{kind}").write_bytes(
            parquet(rows) if kind == "parquet" else ndjson(rows)
        )
        (inside / f".part-0.{kind}.crc").write_bytes(b"crc")
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    (folder / f"_temporary/part.{kind}").write_bytes(b"unfinished")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_folders_state_columns(kind, tmp_path):
    write_days(tmp_path, kind)
    assert sessions(open_lists(tmp_path, **KEYED)) == expected()
    (tmp_path / "day").mkdir()
    split = {"files": "date=2025*/*", "columns": {"time": "date"}}
    dataset = open_lists(tmp_path, **KEYED, **split)
    times = np.concatenate(
        [part.column("times") for part in (dataset.train, dataset.val, dataset.test)]
    )
    assert sessions(dataset) == expected()[:15]
    days = np.repeat(np.array(["2025-11-01T10", "2025-11-02T10"], "datetime64[us]"), [8, 7])
    assert (times == days.astype(np.int64)).all()
    with refuses(DataError, "PARTITION", "date holds null"):
        open_lists(tmp_path, **KEYED, columns={"time": "date"})


def test_a_cache_sees_files_in_folders_inside(tmp_path):
    """A partition that changes, and two that change places, are another log."""
    write_days(tmp_path / "log")
    options = {**KEYED, "cache": tmp_path / "cache"}
    assert sessions(open_lists(tmp_path / "log", **options)) == expected()
    first, second = sorted((tmp_path / "log").glob("date=2025*"))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    swapped = sessions(open_lists(tmp_path / "log", **options))
    assert [row[2] for row in swapped] == CLICKS[8:15] + CLICKS[:8] + CLICKS[15:]


def test_schemas_that_evolve_without_harm(tmp_path):
    """Ids of 32 and 64 bits, whole floats, clicks as integers and as truth values, and labels that come later."""
    numbered = [
        {"query_id": q, "query_doc_ids": ids, "clicks": clicks} for q, ids, clicks in expected()
    ]
    frame = pl.DataFrame(numbered)
    ids = pl.List(pl.Int32), pl.List(pl.Float64), pl.List(pl.Decimal(38, 0)), pl.List(pl.UInt16)
    for day, kind in enumerate(ids):
        rows = frame[6 * day : 6 * day + 6].cast({"query_doc_ids": kind})
        if day % 2:
            rows = rows.cast({"clicks": pl.List(pl.Boolean), "query_id": pl.Float64})
        if day == 3:
            rows = rows.with_columns(labels=pl.col("clicks").cast(pl.List(pl.Float32)))
        rows.write_parquet(tmp_path / f"day{day}.parquet")
    dataset = open_lists(tmp_path)
    assert sessions(dataset) == expected()
    frame.drop("query_id").write_parquet(tmp_path / "day4.parquet")
    with refuses(DataError, "day4.parquet", "'query_id'", "the same columns"):
        open_lists(tmp_path)


LARGE = 2**60 + 1
WHOLE = {
    "decimals": (pa.array([[Decimal(LARGE)]] * 9, pa.list_(pa.decimal128(38, 0))), [LARGE] * 9),
    "floats": (pa.array([[7.0]] * 9), [7] * 9),
    "cents": (pa.array([[Decimal("1.50")]] * 9, pa.list_(pa.decimal128(9, 2))), ("row 0", "holds 1.50")),
    "a fraction": (pa.array([[7.0]] * 8 + [[7.5]]), ("row 8", "query_doc_ids holds 7.5")),
    "beyond floats": (pa.array([[2.0**53]] * 9), ("row 0", "one so large is exact as text")),
    "beyond 64 bits": (pa.array([[Decimal(10**30)]] * 9, pa.list_(pa.decimal128(38, 0))), ("row 0", "as text")),
    "NaN": (pa.array([[7.0]] * 8 + [[float("nan")]]), ("row 8", "query_doc_ids holds")),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_of_other_types_are_ids(name, tmp_path):
    ids, right = WHOLE[name]
    pq.write_table(pa.table({"query_doc_ids": ids, "clicks": [[1]] * 9}), tmp_path / "log.parquet")
    if isinstance(right, tuple):
        with refuses(DataError, "log.parquet", *right):
            open_lists(tmp_path, pair_key="document")
    else:
        names = open_lists(tmp_path, pair_key="document").names
        assert read_names(names)["document"].to_list() == right[:1]


def test_a_folder_of_files_of_three_kinds_is_one_log(tmp_path):
    """Numbers that are ids are their digits, as they are in text; some documents are in files of all kinds."""
    numbered = [{**row, "document": int(row["document"][1:])} for row in ROWS]
    a, b, c = ([row for row in numbered if row["session"] % 3 == part] for part in range(3))
    (tmp_path / "a.parquet").write_bytes(parquet(a))
    (tmp_path / "b.jsonl").write_bytes(ndjson(b))
    (tmp_path / "c.csv").write_text(table(c))
    (tmp_path / "one").mkdir()
    (tmp_path / "one/all.csv").write_text(table([*a, *b, *c]))
    found, one = open_impressions(tmp_path, files="*.*"), open_impressions(tmp_path / "one")
    assert sessions(found) == sessions(one)
    assert read_names(found.names).equals(read_names(one.names))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_with_names_alone_have_no_rows(ending, tmp_path):
    names = ["session", "query", "document", "rank", "click"]
    empty = pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))
    write_table(empty, tmp_path / f"log.{ending}")
    with refuses(DataError, f"log.{ending}", "have no rows"):
        open_impressions(tmp_path / f"log.{ending}")


def test_files_of_no_kind_are_named(tmp_path):
    (tmp_path / "c.xlsx").write_bytes(b"PK\x03\x04")
    with refuses(DataError, "c.xlsx", "the ending", ".parquet, .csv", ".jsonl", ".gz"):
        open_impressions(tmp_path / "c.xlsx")


@pytest.mark.parametrize(
    "name, table", [("_delta_log", "Delta"), (".hoodie", "Hudi"), ("metadata", "Iceberg")]
)
def test_tables_that_keep_deleted_rows_are_refused(name, table, tmp_path):
    (tmp_path / "log.parquet").write_bytes(parquet(LISTS))
    (tmp_path / name).mkdir()
    if table == "Iceberg":
        assert sessions(open_lists(tmp_path, **KEYED)) == expected()
        (tmp_path / name / "v1.metadata.json").touch()
    with refuses(DataError, f"a {table} table", "deleted"):
        open_lists(tmp_path, **KEYED)


NEAR = {
    "taken": ("session,query,document,rank,click", {"session": "sessions", "query": "session"},
              ("no column 'sessions'", "to one of them")),
    "near": ("Session,query,document,rank,click", {}, ("no column 'session'", "perhaps to 'Session'")),
    "far": ("Impressions,query,document,rank,click", {}, ("no column 'session'", "to one of them")),
    "counts": ("Query,Page,Clicks,Impressions,CTR,Position", {}, ("a row per query, document", "dataset=counts")),
    "one column": ("session#query#document#rank#click", {}, ("separator=';'",)),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_names_that_are_proposed_are_near_and_free(name, tmp_path):
    header, columns, parts = NEAR[name]
    (tmp_path / "log.csv").write_text(f"{header}\n")
    with refuses(DataError, "log.csv", *parts):
        open_impressions(tmp_path, columns=columns)

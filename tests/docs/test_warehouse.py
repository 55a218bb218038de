"""The SQL of the guide, run by DuckDB, writes pages that are read as the tables have them."""

import gzip
import json
import re
from datetime import UTC, datetime

import duckdb
import numpy as np
import polars as pl
from places import ROOT

from clickexp.data import open_lists
from clickexp.data.names import read_names


def blocks(page="my-log"):
    """The SQL of a guide."""
    text = (ROOT / f"docs/howto/{page}.md").read_text()
    return re.findall(r"```sql\n(.*?)```", text, re.DOTALL)


def test_the_sql_of_the_guide_writes_what_is_read(tmp_path, monkeypatch):
    """Documents clicked twice and clicks on pages that are not there change nothing."""
    monkeypatch.chdir(tmp_path)
    sql, *_ = blocks()
    rng = np.random.default_rng(0)
    shown, clicked, pages = [], [(99, "d0")], {}
    for page in rng.permutation(40).tolist():
        urls = [f"d{number}" for number in rng.permutation(9)[: rng.integers(1, 5)]]
        clicks = rng.random(len(urls)) < 0.4
        pages[page] = f"q{page % 3}", urls, clicks.tolist()
        rows = [
            (page, f"v{page % 7}", page / 2, f"q{page % 3}", url, rank)
            for rank, url in enumerate(urls, 1)
        ]
        shown += [rows[at] for at in rng.permutation(len(rows))]
        clicked += [(page, url) for url, click in zip(urls, clicks, strict=True) if click] * 2
    names = ["page", "visitor", "time", "query", "url", "rank"]
    with duckdb.connect() as connection:
        connection.register("impressions", pl.DataFrame(shown, names, orient="row").to_arrow())
        connection.register(
            "clicks", pl.DataFrame(clicked, ["page", "url"], orient="row").to_arrow()
        )
        connection.execute(sql)
    columns = {"time": "time", "search_session": None}
    dataset = open_lists("pages.parquet", columns=columns, pair_key="query_document")
    known, read = read_names(dataset.names).rows(), []
    for part in (dataset.train, dataset.val, dataset.test):
        for ids, clicks, length in zip(
            *map(part.column, ("query_doc_ids", "clicks", "lengths")), strict=True
        ):
            pairs = [known[row - 1] for row in ids[:length]]
            read.append((pairs[0][0], [url for _, url in pairs], clicks[:length].tolist()))
    assert read == [pages[page] for page in sorted(pages)]


PAGES = [
    ("hat", ["a", "b"], [0, 1]),
    ("shoe", ["c", "a", "b"], [1, 0, 1]),
    ("hat", ["b", "a"], [0, 0]),
]


def events():
    for number, (query, items, clicks) in enumerate(PAGES):
        fields = [{"name": "query", "value": query}, {"name": "lang", "value": "en"}]
        shared = {"user": "u", "session": f"s{number // 2}"}
        shown = [{"id": item} for item in items]
        at = f"2025-11-14T18:3{number}:00+08:00"
        ranking = {"event": "ranking", "id": f"r{number}", "timestamp": at}
        yield {**ranking, **shared, "fields": fields, "items": shown}
        for item in [item for item, click in zip(items, clicks) if click] * 2:
            click = {"event": "interaction", "id": "c", "timestamp": at, "ranking": f"r{number}"}
            yield {**click, **shared, "type": "click", "item": item, "fields": []}
    yield {**click, **shared, "type": "purchase", "item": "b", "fields": []}


def queries():
    for query in ("hat", "shoe"):
        sessions = [
            {"session": [{"doc": d, "click": c, "purchase": 0} for d, c in zip(items, clicks)]}
            for of, items, clicks in PAGES
            if of == query
        ]
        yield {"search_keys": {"search_term": query, "region": "n"}, "judgment_keys": sessions}


def test_the_sql_of_events_writes_what_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["\n".join(map(json.dumps, rows)) for rows in (events(), queries())]
    (tmp_path / "events.jsonl").write_text(lines[0])
    (tmp_path / "part-0.gz").write_bytes(gzip.compress(lines[1].encode()))
    for sql, by in zip(blocks()[1:], ("time", None), strict=True):
        duckdb.sql(sql)
        pages = pl.read_parquet("pages.parquet")
        pages = pages if by is None else pages.sort(by)
        read = [
            (query, items, list(map(int, clicks)))
            for query, items, clicks in pages[["query_id", "query_doc_ids", "clicks"]].rows()
        ]
        assert sorted(read) == sorted(PAGES) if by is None else read == PAGES
        alone = {"search_session": None}
        dataset = open_lists("pages.parquet", columns=alone, pair_key="query_document")
        assert sum(part.clicks_total for part in dataset.parts.values()) == 3


def test_the_sql_for_mixed_times_writes_seconds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (sql,) = blocks("messy-log")
    at = datetime(2025, 11, 14, 9, 30, tzinfo=UTC).timestamp()
    words = [f"{at:.0f}", f"{at * 1000:.0f}", "2025-11-14 09:30:00", "2025-11-14T09:30:00.000"]
    lines = [f"{number},{word}" for number, word in enumerate(words)]
    (tmp_path / "mixed.csv").write_text("\n".join(["session,time", *lines]))
    with duckdb.connect() as connection:
        connection.execute(sql)
    assert pl.read_parquet("times.parquet")["time"].to_list() == [at] * 4

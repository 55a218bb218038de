"""The SQL of the guide, run by DuckDB, writes pages that are read as the tables have them."""

import duckdb
import numpy as np
import polars as pl
from places import ROOT

from clickexp.data import open_lists
from clickexp.data.names import read_names


def test_the_sql_of_the_guide_writes_what_is_read(tmp_path, monkeypatch):
    """Documents clicked twice and clicks on pages that are not there change nothing."""
    monkeypatch.chdir(tmp_path)
    sql = (ROOT / "docs/howto/my-log.md").read_text().partition("```sql\n")[2].partition("```")[0]
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

"""Counts become exactly their impressions, in an order that is random and does not need their memory."""

import numpy as np
import pytest
from refusals import refuses
from scipy import stats

from clickexp.data import open_counts, open_impressions, prepare
from clickexp.data.names import read_names
from clickexp.data.readers import counts
from clickexp.errors import DataError

ROWS = [("lathe", "/a", 1, 200, 90), ("lathe", "/b", 2, 100, 10), ("chisel", "/a", 1, 60, 0), ("chisel", "/c", 3, 0, 0),
        ("chisel", "/c", 5, 40, 40), ("lathe", "/a", 1, 7, 7)]  # fmt: skip


def write(folder, rows=ROWS, names="query,document,rank,impressions,clicks"):
    lines = [",".join(map(str, row)) for row in rows]
    (folder / "counts.csv").write_text("\n".join([names, *lines]))
    return folder / "counts.csv"


def counted(dataset):
    """Impressions and clicks of each query, document and position, over all parts."""
    names, found = read_names(dataset.names).rows(), {}
    for part in dataset.parts.values():
        columns = (
            part.column(name) for name in ("query_doc_ids", "positions", "clicks", "lengths")
        )
        for (row,), (position,), (click,), length in zip(*columns, strict=True):
            assert length == 1
            found.setdefault((*names[row - 1], position), np.zeros(2, int))
            found[*names[row - 1], position] += 1, click
    return {key: tuple(map(int, sums)) for key, sums in found.items()}


def test_every_impression_and_click_arrives(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "_CHUNK", 1)
    dataset = open_counts(write(tmp_path))
    sums = {}
    for query, document, rank, shown, clicked in ROWS:
        if shown:
            earlier = sums.get((query, document, rank), (0, 0))
            sums[query, document, rank] = earlier[0] + shown, earlier[1] + clicked
    assert counted(dataset) == sums
    assert dataset.notes["rows_without_impressions"] == 1
    assert open_counts(write(tmp_path), first_rank=0).positions == 6


def test_the_order_is_random_across_chunks(tmp_path, monkeypatch):
    """Of 407 places each has each kind of impression with its share: the exact test of a shuffle."""
    monkeypatch.setattr(counts, "_CHUNK", 1)
    split = {"train_sessions": [0, 100], "val_sessions": [100, 200], "test_sessions": [200, None]}
    first, clicks = [], []
    for seed in range(60):
        dataset = open_counts(write(tmp_path), seed=seed, **split)
        train = dataset.train.column("query_doc_ids")[:, 0]
        first.append(np.bincount(train, minlength=5)[1:5])
        clicks.append(dataset.train.column("clicks").sum())
    shares = np.array([207, 100, 60, 40]) / 407
    spread = (407 - 100) / (407 - 1)
    for kind, share in enumerate(shares):
        z = (np.mean([row[kind] for row in first]) - 100 * share) / np.sqrt(
            100 * share * (1 - share) * spread / 60
        )
        assert abs(z) < 4
    share = 147 / 407
    variance = np.var(clicks) / (100 * share * (1 - share) * spread)
    assert stats.chi2(59).ppf(1e-4) < 60 * variance < stats.chi2(59).ppf(1 - 1e-4)


BAD = {
    "a mean rank": ([("q", "d", 1.1, 9, 1)], "line 2", "rank holds '1.1'", "a mean over impressions"),
    "more clicks": ([("q", "d", 1, 9, 1), ("q", "d", 1, 9, 10)], "line 3", "clicks holds 10", "one click at most"),
    "negative": ([("q", "d", 1, -9, 0)], "line 2", "impressions holds -9"),
    "rank 0": ([("q", "d", 0, 9, 1)], "line 2", "rank holds 0", "first_rank=0"),
    "too many": ([("q", "d", 1, 10**9, 1)], "1,000,000,000 impressions", "alone"),
    "none": ([("q", "d", 1, 0, 0)], "no sessions"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_counts_that_make_no_sense(name, tmp_path):
    rows, *parts = BAD[name]
    with refuses(DataError, "counts.csv", *parts):
        open_counts(write(tmp_path, rows))


def test_all_faults_are_named_and_their_rows_left_out(tmp_path):
    faulty = [
        ("q", "d", "top", 9, 1),
        ("q", "d", 2, 9, 10),
        ("", "d", 1, 9, 1),
        ("q", "d", 3, -1, 0),
    ]
    file = write(tmp_path, [("q", "d", 1, 9, 4), *faulty, ("q", "e", 2, 3, 0), ("q", "d", 2, 1, 2)])
    kinds = "rank holds 'top'", "clicks holds 10, 2 (2 rows", "query holds ''", "impressions holds"
    with refuses(DataError, "4 kinds of faults", *kinds, "invalid=drop"):
        open_counts(file)
    log = prepare(open_counts.read, "counts", file, tmp_path / "log", invalid="drop")
    left = log.parts["sessions"]
    assert left.count == 9 + 3 and left.clicks_total == 4
    assert log.notes["dropped_rows"] == 5


def test_the_layout_of_impressions_says_who_reads_counts(tmp_path):
    file = write(tmp_path, names="Query,Page,Position,Impressions,Clicks")
    with refuses(DataError, "a row per query, document and rank", "dataset=counts"):
        open_impressions(file)

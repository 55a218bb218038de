"""What was seen of a list, ranks from 0, and rows without a session."""

import json

import numpy as np
import pytest
from compositions import composed
from hydra.utils import instantiate
from refusals import refuses

from clickexp.data import open_impressions, open_lists
from clickexp.errors import DataError

SPLIT = {"train_sessions": [0, 2], "val_sessions": [2, 3], "test_sessions": [3, None]}
PAGES = [([1, 2, 3, 4], [0, 1, 0, 0], [1, 1, 0, 1]), ([5, 6], [0, 0], [0, 0]), ([7], [1], [1]),
         ([8, 9], [0, 0], [0, 1]), ([3, 1], [1, 0], [1, 0]), ([2], [0], [1])]  # fmt: skip
SEEN = [
    ([1, 2, 4], [1, 2, 4], [0, 1, 0]),
    ([7], [1], [1]),
    ([9], [2], [0]),
    ([3], [1], [1]),
    ([2], [1], [0]),
]
"""Documents, positions and clicks of what was seen."""


def lists(pages, **more):
    rows = [{"query_doc_ids": d, "clicks": c, "seen": s, **more} for d, c, s in pages]
    return "".join(json.dumps(row) + "\n" for row in rows)


def impressions(pages, first=1):
    rows = [
        f"{page},q,{d},{rank},{c},{int(s)}"
        for page, listed in enumerate(pages)
        for rank, (d, c, s) in enumerate(zip(*listed, strict=True), first)
    ]
    return "\n".join(["session,query,document,rank,click,seen", *rows])


def found(dataset):
    rows = []
    for part in dataset.parts.values():
        columns = [part.column(name) for name in ("query_doc_ids", "positions", "clicks")]
        for row, length in enumerate(part.column("lengths")):
            ids, positions, clicks = (
                values[row, :length].astype(int).tolist() for values in columns
            )
            rows.append((ids, positions, clicks))
    return rows


def test_documents_below_the_fold_are_left_out_and_the_others_stay_where_they_were(tmp_path):
    (tmp_path / "log.jsonl").write_text(lists(PAGES))
    dataset = open_lists(tmp_path / "log.jsonl", **SPLIT)
    assert found(dataset) == SEEN
    assert (
        dataset.notes["documents_not_seen"],
        dataset.notes["lists_of_which_nothing_was_seen"],
    ) == (5, 1)
    (tmp_path / "log.csv").write_text(impressions(PAGES))
    flat = open_impressions(tmp_path / "log.csv", pair_key="document", **SPLIT)
    assert [row[1:] for row in found(flat)] == [row[1:] for row in SEEN]
    assert flat.notes["documents_not_seen"] == 5
    whole = open_lists(tmp_path / "log.jsonl", columns={"seen": None}, **SPLIT)
    assert whole.train.column("query_doc_ids").tolist()[1] == [5, 6, 0, 0]


def test_a_click_on_what_was_not_seen_is_refused(tmp_path):
    pages = [*PAGES[:3], ([8, 9], [0, 1], [1, 0])]
    (tmp_path / "log.jsonl").write_text(lists(pages))
    with refuses(DataError, "log.jsonl, line 4", "that was clicked was seen"):
        open_lists(tmp_path / "log.jsonl")
    (tmp_path / "log.csv").write_text(impressions(pages))
    with refuses(DataError, "log.csv, line 10", "that was clicked was seen"):
        open_impressions(tmp_path / "log.csv")


def test_ranks_from_0(tmp_path):
    (tmp_path / "log.csv").write_text(impressions(PAGES, first=0))
    with refuses(DataError, "log.csv, line 2", "rank holds 0", "first_rank=0"):
        open_impressions(tmp_path / "log.csv")
    dataset = open_impressions(tmp_path / "log.csv", first_rank=0, pair_key="document", **SPLIT)
    assert [row[1:] for row in found(dataset)] == [row[1:] for row in SEEN]
    for positions, parts in (([0, 3], ()), ([-1, 3], ("positions holds -1", "from 0"))):
        rows = [{"query_doc_ids": [1, 2], "clicks": [0, 1], "positions": positions}] * 5
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with refuses(DataError, "line 1", f"positions holds {positions[0]}"):
            open_lists(tmp_path / "log.jsonl")
        if parts:
            with refuses(DataError, "line 1", *parts):
                open_lists(tmp_path / "log.jsonl", first_rank=0)
        else:
            read = open_lists(tmp_path / "log.jsonl", first_rank=0, **SPLIT)
            assert found(read)[0] == ([1, 2], [1, 4], [0, 1])


@pytest.mark.parametrize("files", [1, 2])
def test_open_bandit_rows_are_lists_of_one(files, tmp_path):
    """Neighbouring rows of one item and position stay two lists; the unnamed first column is left alone."""
    names = ",timestamp,item_id,position,click,propensity_score,user_feature_0,user-item_affinity_0"
    rng = np.random.default_rng(0)
    rows = list(
        zip(rng.integers(0, 3, 60), rng.integers(1, 4, 60), rng.integers(0, 2, 60), strict=True)
    )
    for number in range(files):
        chosen = (
            list(enumerate(rows))[number::files]
            if files == 1
            else list(enumerate(rows))[30 * number :][:30]
        )
        lines = [
            f"{n},2019-11-24 00:00:00+00:00,{d},{p},{c},0.0125,x,0.0" for n, (d, p, c) in chosen
        ]
        (tmp_path / f"all{number}.csv").write_text("\n".join([names, *lines]))
    given = ["dataset=open_bandit", f"dataset.path={tmp_path}", f"cache_dir={tmp_path / 'cache'}"]
    dataset = instantiate(composed(*given)["dataset"])
    items = {}
    assert found(dataset) == [([items.setdefault(d, len(items) + 1)], [p], [c]) for d, p, c in rows]
    assert (dataset.train.column("propensity_score") == np.float32(0.0125)).all()

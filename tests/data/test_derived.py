"""Columns that are derived of packed ones, against dictionaries, in every view and way to read them."""

import numpy as np
import pytest
from refusals import refuses
from stored_logs import stored

from clickexp.data import Column, Sessions, open_impressions, open_lists
from clickexp.data.batches import at_step, batch_like, with_mask
from clickexp.data.derived import LookedUp
from clickexp.data.feed import feed
from clickexp.data.log_format import prepare
from clickexp.data.prepared import Log
from clickexp.errors import DataError
from clickexp.models import DocumentCTRModel
from clickexp.simulation import simulate

DOUBLE = Column("doubled", np.int32)


@pytest.fixture
def sessions():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 5, 40)
    shown = np.arange(4) < lengths[:, None]
    ids = np.where(shown, rng.integers(1, 30, (40, 4)), 0).astype(np.int32)
    log = Sessions.from_arrays(
        query_doc_ids=ids, clicks=np.zeros(ids.shape, bool), lengths=lengths.astype(np.int32)
    )
    return log.with_pairs(30).deriving(LookedUp(DOUBLE, lambda: 2 * np.arange(31)))


@pytest.mark.parametrize(
    "view",
    [
        lambda log: log,
        lambda log: log.slice(7, 31),
        lambda log: log.select(np.array([30, 2, 2, 17])),
        lambda log: log.slice(5, 40).select(np.arange(20)[::-1]).slice(3, 9),
    ],
)
def test_a_derived_column_follows_its_view(sessions, view):
    seen = view(sessions)
    expected = 2 * seen.column("query_doc_ids")
    np.testing.assert_array_equal(seen.column("doubled"), expected)
    np.testing.assert_array_equal(seen.rows(slice(1, 3), ["doubled"])["doubled"], expected[1:3])
    np.testing.assert_array_equal(
        seen.rows(np.array([2, 0]), ["doubled"])["doubled"], expected[[2, 0]]
    )
    read = np.concatenate([chunk["doubled"] for chunk in seen.chunks()])
    np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize("seed", [None, 3])
def test_batches_carry_it_where_it_is_chosen(sessions, seed):
    assert all("doubled" not in batch.arrays for batch in feed(sessions, 8, 2))
    for batch in feed(sessions.with_batch_columns(["doubled"]), 8, 2, seed):
        np.testing.assert_array_equal(batch.arrays["doubled"], 2 * batch.arrays["query_doc_ids"])


def test_models_see_that_it_is_there(sessions):
    like = batch_like(sessions)["doubled"]
    batch = at_step(
        with_mask(next(feed(sessions.with_batch_columns(["doubled"]), 1, 1)).arrays), 0
    )["doubled"]
    assert (like.shape, like.dtype) == (batch.shape, batch.dtype)
    assert sessions.bounds("doubled") == (0, 60)


def test_it_is_not_packed_and_tells_no_logs_apart(sessions, tmp_path):
    alone = Sessions(sessions.columns, sessions.query_doc_pairs, sessions.positions)
    assert (alone.digest(), alone.fingerprint) == (sessions.digest(), sessions.fingerprint)
    assert stored(sessions, tmp_path / "log").columns.keys() == alone.columns.keys()


def test_a_column_that_sessions_have_is_not_replaced(sessions):
    ids = sessions.column("query_doc_ids")
    lengths, extra = sessions.column("lengths"), {DOUBLE: 0 * ids}
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=ids > 40, lengths=lengths, extra=extra)
    assert not log.deriving(LookedUp(DOUBLE, lambda: 2 * np.arange(31))).column("doubled").any()


def test_the_table_is_made_when_it_is_first_read(sessions):
    made = []
    log = sessions.deriving(
        LookedUp(Column("late", np.int32), lambda: made.append(1) or np.arange(31))
    )
    log.slice(0, 9).column("doubled")
    assert not made
    log.slice(0, 9).column("late"), log.column("late")
    assert made == [1]


IMPRESSIONS = """session,query,document,rank,click,search_session
a,shoes,d1,1,0,u1
a,shoes,d2,2,1,u1
b,boots,d2,1,0,u2
b,boots,d3,2,0,u2
c,shoes,d3,1,1,u1
c,shoes,d1,2,0,u1
d,boots,d1,1,0,u3
e,shoes,d1,1,0,u4
"""


@pytest.fixture
def impressions(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text(IMPRESSIONS)
    return file


def split(log):
    return log.dataset(train_sessions=[0, 3], val_sessions=[3, 4], test_sessions=[4, 5])


def test_pairs_tell_their_document_and_their_query(impressions, tmp_path):
    prepare(open_impressions.read, "impressions", impressions, tmp_path / "prepared")
    dataset = split(Log.open(tmp_path / "prepared"))
    assert dataset.train.column("document_ids").tolist() == [[1, 2], [2, 3], [3, 1]]
    assert dataset.train.column("query_numbers").tolist() == [[1, 1], [2, 2], [1, 1]]
    assert dataset.val.column("document_ids").tolist() == [[1, 0]]
    assert dataset.columns["document_ids"] == 3 and dataset.columns["query_numbers"] == 2


def test_a_log_without_queries_in_its_rows_says_so(impressions, tmp_path):
    prepare(
        open_impressions.read,
        "impressions",
        impressions,
        tmp_path / "prepared",
        pair_key="document",
    )
    train = split(Log.open(tmp_path / "prepared")).train
    np.testing.assert_array_equal(train.column("document_ids"), train.column("query_doc_ids"))
    with refuses(DataError, "pair_key=query_document"):
        train.column("query_numbers")


def test_search_sessions_of_text_have_one_number_each(impressions, tmp_path):
    prepare(open_impressions.read, "impressions", impressions, tmp_path / "prepared")
    one, two, three, *_ = Log.open(tmp_path / "prepared").parts["sessions"].column("session_ids")
    assert one == three != two


def test_search_sessions_of_parquet_keep_their_integers(tmp_path):
    import polars as pl

    lists = {"query_doc_ids": [[1, 2]] * 4, "clicks": [[0, 1]] * 4, "user": [7, 7, -3, 9]}
    pl.DataFrame(lists).write_parquet(tmp_path / "log.parquet")
    parts = {"train_sessions": [0, 2], "val_sessions": [2, 3], "test_sessions": [3, 4]}
    dataset = open_lists(tmp_path / "log.parquet", columns={"search_session": "user"}, **parts)
    assert [part.column("session_ids").tolist() for part in dataset.parts.values()] == [
        [7, 7],
        [-3],
        [9],
    ]


def test_simulated_documents_are_of_one_query_each():
    dataset = simulate(DocumentCTRModel, sessions=60, queries=4, documents_per_query=5, positions=3)
    for part in dataset.parts.values():
        np.testing.assert_array_equal(part.column("document_ids"), part.column("query_doc_ids"))
        shown = part.column("query_doc_ids") > 0
        expected = np.where(shown, part.column("query_ids")[:, None] + 1, 0)
        np.testing.assert_array_equal(part.column("query_numbers"), expected)
    assert dataset.columns["query_numbers"] == 4

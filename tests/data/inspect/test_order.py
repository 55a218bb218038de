"""Logs whose rows are in no order, against logs in the order of time."""

import numpy as np
import pytest

from clickexp.data import Dataset, Sessions
from clickexp.data.dataset import split
from clickexp.data.inspect import doubts as module
from clickexp.data.inspect.doubts import doubts

DAY = 24 * 3600


def log_of(session_ids, times=None):
    """Lists of one document each, none twice; every third is clicked."""
    ids = np.arange(1, len(session_ids) + 1, dtype=np.int32)[:, None]
    given = {} if times is None else {"times": np.asarray(times, float)}
    return Sessions.from_arrays(
        query_doc_ids=ids, clicks=ids % 3 == 0, session_ids=np.asarray(session_ids), **given
    )


def dataset_of(sessions):
    parts = split(sessions, 0.8, 0.1, 0.1)
    return Dataset("log", *parts, sessions.query_doc_pairs, sessions.positions)


def shuffled(sessions=2000):
    """Ids of sessions of 1 to 4 lists in any order, and their places in time: side by side there."""
    rng = np.random.default_rng(0)
    ids = np.repeat(rng.permutation(sessions), rng.integers(1, 5, sessions))
    order = rng.permutation(len(ids))
    return ids[order], order


def test_rows_in_any_order_are_doubted_where_nothing_orders_them():
    ids, places = shuffled()
    (doubt,) = doubts(dataset_of(log_of(ids)))
    assert (
        "as if its rows were shuffled" in doubt
        and "dataset.columns.time=NAME, or sort the log" in doubt
    )
    assert not [*doubts(dataset_of(log_of(ids, places)))]


def test_rows_in_order_are_not_doubted():
    """Two users at a time have their lists in turns."""
    ids, places = shuffled()
    in_order = ids[np.argsort(places)]
    turns = in_order[: len(ids) // 2 * 2].reshape(-1, 2)[:, ::-1].ravel()
    assert not [*doubts(dataset_of(log_of(turns)))]
    assert not [*doubts(dataset_of(log_of(turns, np.zeros(len(turns)))))]


@pytest.mark.parametrize("sessions", [2000, 100])
@pytest.mark.parametrize("times", ["constant", "of a few days"])
def test_times_that_do_not_order_rows_are_doubted(times, sessions):
    """The share is that of lists after the first of their session and time, counted session by session."""
    ids, places = shuffled(sessions)
    when = np.zeros(len(ids)) if times == "constant" else places // (len(ids) / 3) * DAY
    dataset = dataset_of(log_of(ids, when))
    (doubt,) = doubts(dataset)
    train = [
        *zip(dataset.train.column("session_ids").tolist(), dataset.train.column("times").tolist())
    ]
    sessions = {session for session, _ in train}
    tied = (len(train) - len(set(train))) / (len(train) - len(sessions))
    assert f"{tied:.0%} have the same time" in doubt and "finer times" in doubt


def test_small_logs_without_times_are_no_doubt():
    """Users who search in the same hour have their lists in any order."""
    assert not [*doubts(dataset_of(log_of(shuffled(100)[0])))]


def test_a_few_lists_of_one_time_are_no_doubt():
    """As clicks on two tabs within a second: a quarter of the lists have the time of the one before."""
    ids, places = shuffled()
    assert not [*doubts(dataset_of(log_of(ids, places - places % 4 // 3)))]


def test_of_large_logs_some_sessions_are_looked_at(monkeypatch):
    monkeypatch.setattr(module, "_ENOUGH", 10_000)
    ids, places = shuffled(20_000)
    (doubt,) = doubts(dataset_of(log_of(ids)))
    assert "as if its rows were shuffled" in doubt
    assert not [*doubts(dataset_of(log_of(ids[np.argsort(places)])))]


def test_parts_that_come_apart_are_looked_at_each():
    ids, places = shuffled()
    train, other = log_of(ids[np.argsort(places)]), log_of(ids + 10**6)
    dataset = Dataset("log", train, other, other, train.query_doc_pairs, 1)
    assert any("as if its rows were shuffled" in doubt for doubt in doubts(dataset))

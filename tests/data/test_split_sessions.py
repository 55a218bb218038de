"""Splits keep search sessions whole."""

from itertools import pairwise

import numpy as np
import pytest
from refusals import refuses

from clickexp.data import Sessions
from clickexp.data.dataset import split
from clickexp.errors import DataError


def log_of(session_ids, **columns):
    count = len(session_ids)
    ids = np.arange(1, count + 1, dtype=np.int32)[:, None]
    return Sessions.from_arrays(
        query_doc_ids=ids, clicks=ids > 10**6, session_ids=np.asarray(session_ids), **columns
    )


def rows(parts):
    return [(part.column("query_doc_ids")[:, 0] - 1).tolist() for part in parts]


def test_fractions_move_to_the_next_edge_between_sessions():
    parts = split(log_of([7, 7, 7, 3, 3, 3, 9, 9, 4, 4]), 0.5, 0.3, 0.2)
    assert rows(parts) == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("seed", range(5))
def test_sessions_that_stand_apart_are_whole_and_parts_have_their_shares(seed):
    ids = np.random.default_rng(seed).integers(0, 150, 200)
    parts = split(log_of(ids), 0.5, 0.25, 0.25)
    found = rows(parts)
    assert sorted(sum(found, [])) == list(range(200))
    sessions = [set(ids[part]) for part in found]
    assert all(one.isdisjoint(other) for at, one in enumerate(sessions) for other in sessions[:at])
    begun = 0
    for session in dict.fromkeys(ids.tolist()):  # in the order of their first lists
        assert session in sessions[int(begun >= 100) + int(begun >= 150)]
        begun += (ids == session).sum()
    longest = np.bincount(ids).max()
    assert all(
        abs(len(part) - share) < longest for part, share in zip(found, (100, 50, 50), strict=True)
    )
    assert all(part == sorted(part) for part in found)


def test_without_search_sessions_parts_are_as_asked_for():
    ids = np.arange(1, 11, dtype=np.int32)[:, None]
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=ids > 10**6)
    assert [part.count for part in split(log, 0.5, 0.2, 0.3)] == [5, 2, 3]


def test_a_part_within_one_session_is_an_error():
    with refuses(DataError, "val_sessions [5, 7]", "within one search session"):
        split(log_of([1, 1, 2, 2, 2, 2, 2, 2, 3, 3]), 0.5, 0.2, 0.3)


SESSIONS = [8, 8, 9, 9, 9, 9, 5, 5]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (([0, 3], [3, 7], [7, 8]), None),
        (([0, 1], [1, 6], [6, 8]), [[0, 1], [2, 3, 4, 5], [6, 7]]),
        (([1, 2], [2, 6], [6, 8]), None),
        (([0, 2], [2, 4], [6, 8]), [[0, 1], [2, 3, 4, 5], [6, 7]]),
        (([0, 2], [2, 6], [6, 7]), [[0, 1], [2, 3, 4, 5], [6, 7]]),
    ],
)
def test_a_session_that_a_range_cuts_goes_where_it_begins(ranges, expected):
    if expected is None:
        with refuses(DataError, "is within one search session", "columns.search_session=null"):
            split(log_of(SESSIONS), *ranges)
    else:
        assert rows(split(log_of(SESSIONS), *ranges)) == expected


def test_sessions_that_stand_apart_go_where_their_first_row_is():
    times = [5, 1, 2, 3, 0, 4]
    parts = split(log_of([8, 9, 8, 7, 9, 7], times=times), [0, 1], [1, 2], [2, 6])
    assert rows(parts) == [[0, 2], [1, 4], [3, 5]]


def test_ranges_may_leave_whole_sessions_to_no_part():
    assert rows(split(log_of([8, 8, 9, 7, 7, 9, 5, 5]), [0, 2], [2, 6], [6, 8])) == [
        [0, 1],
        [2, 3, 4, 5],
        [6, 7],
    ]
    assert rows(split(log_of([1, 2, 2, 3, 4, 4, 5, 5]), [0, 1], [3, 4], [6, 8])) == [
        [0],
        [3],
        [6, 7],
    ]


def shuffled(sessions=1000):
    """Sessions of 1 to 4 lists, side by side in time, in any order; ids tell nothing of it."""
    rng = np.random.default_rng(0)
    ids = np.repeat(rng.permutation(sessions), rng.integers(1, 5, sessions))
    order = rng.permutation(len(ids))
    return ids[order], order.astype(float)


def test_times_split_a_log_whose_rows_are_shuffled():
    """By the start of each session: parts have sessions of the same length, and the later ones come later."""
    ids, times = shuffled()
    parts = split(log_of(ids, times=times), 0.5, 0.25, 0.25)
    lists = [
        np.mean(np.unique(part.column("session_ids"), return_counts=True)[1]) for part in parts
    ]
    np.testing.assert_allclose(lists, 2.5, atol=0.25)
    for one, other in pairwise(parts):
        assert one.column("times").max() < other.column("times").min()


def test_sessions_of_one_time_are_split_by_their_first_rows():
    """Such as those of a day; the ids of sessions say nothing."""
    parts = split(log_of([9, 8, 9, 8, 1, 7, 1, 7], times=[0] * 8), 0.5, 0.25, 0.25)
    assert rows(parts) == [[0, 1, 2, 3], [4, 6], [5, 7]]

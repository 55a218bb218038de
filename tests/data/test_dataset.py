"""Splits, the filter by training queries, and the counts of a dataset."""

import math
from collections import Counter

import numpy as np
import pytest
from refusals import refuses

from clickexp.data import Dataset, Sessions, keep_queries_seen, split
from clickexp.errors import DataError


def sessions_of(query_ids) -> Sessions:
    query_ids = np.asarray(query_ids)
    ids = np.stack([np.arange(len(query_ids)), np.arange(len(query_ids))], 1)
    return Sessions.from_arrays(query_doc_ids=ids, clicks=ids % 2, query_ids=query_ids)


def numbers(parts) -> list[list[int]]:
    return [part.column("query_ids").tolist() for part in parts]


def test_fractions_follow_one_another():
    parts = split(sessions_of(range(10)), 0.5, 0.2, 0.3)
    assert numbers(parts) == [[0, 1, 2, 3, 4], [5, 6], [7, 8, 9]]
    assert numbers(split(sessions_of(range(10)), 0.3, 0.1, 0.2)) == [[0, 1, 2], [3], [4, 5]]
    assert sum(part.count for part in split(sessions_of(range(9999)), 0.7, 0.2, 0.1)) == 9999


def test_ranges_are_half_open_and_may_end_at_the_end():
    parts = split(sessions_of(range(10)), [4, 8], (0, 2), [9, None])
    assert numbers(parts) == [[4, 5, 6, 7], [0, 1], [9]]


BAD = {
    "overlap": (
        ([0, 5], [5, 8], [4, 9]),
        "train_sessions [0, 5]",
        "test_sessions [4, 9]",
        "overlap",
    ),
    "same": (([0, 5], [0, 5], [6, 9]), "train_sessions", "val_sessions", "overlap"),
    "empty": (([0, 5], [5, 5], [6, 9]), "val_sessions [5, 5]", "10 sessions", "empty"),
    "backwards": (([5, 0], [6, 7], [8, 9]), "train_sessions [5, 0]", "10 sessions", "empty"),
    "beyond": (([0, 5], [5, 8], [8, 11]), "test_sessions [8, 11]", "beyond the 10 sessions"),
    "negative": (([-5, 5], [5, 8], [8, 9]), "train_sessions [-5, 5]", "beyond"),
    "mixed": ((0.5, [5, 8], [8, 9]), "fractions and ranges"),
    "sum": (
        (0.5, 0.4, 0.2),
        "train_sessions=0.5, val_sessions=0.4, test_sessions=0.2",
        "sum to 1.1",
    ),
    "no number": ((math.nan, 0.1, 0.1), "train_sessions=nan", "a fraction above 0"),
    "text": ((0.5, "abc", 0.1), "val_sessions='abc'", "a fraction", "a range"),
    "nothing": ((0.5, 0.1, None), "test_sessions=None", "a fraction", "a range"),
    "one number": (([1], [2, 3], [3, 4]), "train_sessions=[1]", "a fraction"),
    "three numbers": (([1, 2, 3], [3, 4], [4, 5]), "train_sessions=[1, 2, 3]", "a fraction"),
    "fractions in a range": (
        ([0.1, 0.2], [2, 3], [3, 4]),
        "train_sessions=[0.1, 0.2]",
        "a fraction",
    ),
    "words in a range": ((["a", "b"], [2, 3], [3, 4]), "train_sessions=['a', 'b']", "a fraction"),
    "zero": ((0.5, 0.0, 0.2), "above 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_splits(case):
    given, *parts = BAD[case]
    with refuses(DataError, *parts):
        split(sessions_of(range(10)), *given)


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.1), (0.9, 0.01, 0.09), (0.5, 0.1, 0.1)])
def test_parts_of_short_logs_have_a_session(fractions):
    for count in range(3, 40):
        sizes = [part.count for part in split(sessions_of(range(count)), *fractions)]
        ends = [round(sum(fractions[:stop]) * count) for stop in (1, 2, 3)]
        rounded = [ends[0], ends[1] - ends[0], ends[2] - ends[1]]
        assert min(sizes) >= 1 and sum(sizes) <= count
        assert sizes == rounded or 0 in rounded
    for count in (1, 2):
        with refuses(DataError, f"of {count} sessions is empty", "three sessions at least"):
            split(sessions_of(range(count)), *fractions)


@pytest.mark.parametrize("at_least", [0, 1, 2, 5, 100])
def test_keep_queries_seen_counts_training_sessions(at_least):
    rng = np.random.default_rng(at_least)
    train, other = rng.integers(-20, 20, 90), rng.integers(-30, 30, 70)
    seen = Counter(train.tolist())
    expected = [query for query in other.tolist() if seen[query] >= at_least]
    kept = keep_queries_seen(sessions_of(train), sessions_of(other), at_least)
    assert kept.column("query_ids").tolist() == expected


def test_keep_queries_seen_needs_query_ids():
    bare = Sessions.from_arrays(query_doc_ids=np.array([[1]]), clicks=np.array([[1]]))
    with refuses(DataError, "no query_ids"):
        keep_queries_seen(bare, bare, 1)


def test_dataset_describes_its_counts():
    train, val, test = split(sessions_of(range(10)), 0.5, 0.2, 0.3)
    dataset = Dataset(
        "toy",
        train,
        val,
        test,
        query_doc_pairs=9,
        positions=2,
        notes={"cut_lists": 3, "dropped": 0},
    )
    assert dataset.click_rate == 4 / 10
    assert dataset.describe() == (
        "toy: 5 train, 2 val, 3 test sessions, query-document ids up to 9, 2 positions, click rate 0.4000, cut lists 3"
    )

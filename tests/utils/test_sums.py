"""Sums by place are those of `np.add.at`, of any type that callers have, and no place lies outside."""

import numpy as np
import pytest

from clickexp.utils.sums import add_at, add_runs_at

DRAWN = np.random.default_rng(0)


@pytest.mark.parametrize("of_places", [np.int32, np.int64])
@pytest.mark.parametrize("of_sums", [np.int32, np.float32, np.float64])
def test_sums_are_those_of_numpy(of_sums, of_places):
    places = DRAWN.integers(0, 50, (1000, 2)).astype(of_places)[:, 0]
    values = DRAWN.integers(-9, 9, 1000)
    sums = np.arange(50).astype(of_sums)
    expected = sums.copy()
    np.add.at(expected, places, values.astype(of_sums))
    add_at(sums, places, values)
    np.testing.assert_array_equal(sums, expected)


def test_one_value_counts_places():
    counts = np.zeros(5, np.int32)
    add_at(counts, np.array([4, 0, 4]), 1)
    add_at(counts, np.zeros(0, np.int32), 1)
    assert counts.tolist() == [1, 0, 0, 0, 2]


@pytest.mark.parametrize("of_places", [np.int32, np.int64])
@pytest.mark.parametrize("of_sums", [np.float32, np.float64])
def test_sums_of_vectors_are_those_of_numpy(of_sums, of_places):
    """The second run is empty."""
    places = DRAWN.integers(0, 50, 1000).astype(of_places)
    ends, vectors = np.array([0, 300, 300, 1000]), DRAWN.integers(-9, 9, (3, 2))
    sums = np.arange(100).reshape(50, 2).astype(of_sums)
    expected = sums.copy()
    np.add.at(expected, places, np.repeat(vectors, np.diff(ends), axis=0).astype(of_sums))
    add_runs_at(sums, places, ends, vectors)
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("place", [-1, 5])
def test_no_place_lies_outside(place):
    """Where memory of others would change."""
    with pytest.raises(IndexError, match=str(place)):
        add_at(np.zeros(5), np.array([0, place]), 1.0)
    with pytest.raises(IndexError, match=str(place)):
        add_runs_at(np.zeros((5, 1)), np.array([0, place]), np.array([0, 2]), np.ones((1, 1)))

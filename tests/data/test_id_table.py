"""Dense ids against a dict."""

import numpy as np
import pytest
from refusals import refuses

from clickexp.data import id_table as ids
from clickexp.data.id_table import IdTable, pair_keys
from clickexp.errors import DataError

MASK = (1 << 64) - 1


def unmixed(value):
    """The key whose hash is `value`: SplitMix64's finalizer backwards, in Python integers."""
    value = (value ^ (value >> 31) ^ (value >> 62)) & MASK
    value = value * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK
    value = (value ^ (value >> 27) ^ (value >> 54)) & MASK
    value = value * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK
    return (value ^ (value >> 30) ^ (value >> 60)) & MASK


RNG = np.random.default_rng(0)
KEYS = {
    "random": RNG.integers(0, MASK, 60_000, np.uint64, endpoint=True),
    "many duplicates": RNG.integers(0, 100, 60_000).astype(np.uint64),
    "in a row": np.arange(60_000, dtype=np.uint64),
    "high bits only": RNG.integers(0, 20_000, 60_000).astype(np.uint64) << np.uint64(44),
    "the ends": np.array([0, MASK, 1, MASK, 0, 1 << 63, 1], np.uint64),
    "one slot": np.array([unmixed(n % 700) for n in range(1_000)], np.uint64),
    "round the end": np.array([unmixed(MASK - n % 700) for n in range(1_000)], np.uint64),
    "none": np.array([], np.uint64),
}


@pytest.mark.parametrize("block", [7, ids._BLOCK])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_ids_are_numbered_by_first_appearance(keys, block, monkeypatch):
    monkeypatch.setattr(ids, "_BLOCK", block)
    keys = keys if block > 1_000 else keys[:5_000]
    table, numbers = IdTable(), {}
    for part in np.array_split(keys, [1, 2, len(keys) // 5, len(keys) // 2]):
        expected = [numbers.setdefault(key, len(numbers) + 1) for key in part.tolist()]
        np.testing.assert_array_equal(table.ids(part), np.array(expected, np.int64))
        assert len(table) == len(numbers)
    np.testing.assert_array_equal(table.ids(keys), [numbers[key] for key in keys.tolist()])


def test_ids_keep_the_shape_of_the_keys():
    found = IdTable().ids(np.array([[5, 6], [6, 5], [9, 6]], np.uint64))
    assert found.tolist() == [[1, 2], [2, 1], [3, 2]] and found.dtype == np.int64


def test_pairs_of_32_bits_have_keys_of_their_own():
    edge = np.array([0, 1, 2, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1], np.int64)
    first, second = (values.ravel() for values in np.meshgrid(edge, edge))
    keys = pair_keys(first, second)
    assert keys.tolist() == [
        a << 32 | b for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]


def test_wider_integers_have_keys_of_their_own():
    edge = np.array([-(1 << 63), -2, -1, 0, 1, 1 << 31, 1 << 32, 1 << 33, (1 << 63) - 1], np.int64)
    first, second = (values.ravel() for values in np.meshgrid(edge, edge))
    assert len(np.unique(pair_keys(first, second))) == edge.size**2


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_keys_are_given_back_in_the_order_of_their_ids(keys):
    table = IdTable()
    for part in np.array_split(keys, 3):
        table.ids(part, part + np.uint64(3))
    distinct = [*dict.fromkeys(keys.tolist())]
    np.testing.assert_array_equal(table.keys(), np.array(distinct, np.uint64))
    second = table.second_keys()
    np.testing.assert_array_equal(second, np.array(distinct, np.uint64) + np.uint64(3))


@pytest.mark.parametrize("at", [0, 1], ids=["in one call", "in a later one"])
def test_second_keys_show_two_things_of_one_key(at):
    keys, second = np.array([4, 5, 4], np.uint64), np.array([1, 2, 3], np.uint64)
    table = IdTable()
    assert table.ids(keys[:2], second[:2]).tolist() == [1, 2]
    with refuses(DataError, "one 64-bit key", "2^32"):
        table.ids(keys[2 * at :], second[2 * at :])
    assert table.ids(keys[:2], second[:2]).tolist() == [1, 2]


def test_second_keys_of_pairs_are_others():
    first, second = (each.ravel() for each in np.meshgrid(np.arange(300), np.arange(300)))
    keys = ids.second_pair_keys(first, second)
    assert len(np.unique(keys)) == keys.size
    assert not np.isin(keys, pair_keys(first, second)).any()

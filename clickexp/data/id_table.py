"""Dense ids for the keys that logs name documents by."""

from collections.abc import Callable

import numpy as np

from clickexp.errors import DataError
from clickexp.utils.blocks import blocks

_BLOCK = 1 << 16
_MAX_LOAD = 0.7
_ODD = np.uint64(0x9E3779B97F4A7C15)
_COLLISION = (
    "two queries or documents have one 64-bit key, by chance. Name them by integers below 2^32."
)


class IdTable:
    """Ids 1, 2, ... of 64-bit keys, in the order in which the keys first appear.

        table.ids(np.array([7, 9, 7], np.uint64))  ->  [1, 2, 1]

    A hash table with open addressing and linear probing (Knuth, The Art of Computer Programming 3, 6.4) in two
    arrays, 12 bytes per slot, at most 70% of them full. All keys of a block probe at the same time, so that no key
    costs any Python. Holds up to 2^31 - 1 ids. Numbering 20 million Zipf keys, 0.8 million distinct, takes 1.8 s and
    31 MB in blocks; joins of polars take 10 s, and 127 MB in blocks or 280 MB at once.
    """

    def __init__(self):
        self._count = 0
        self._second: np.ndarray | None = None
        self._allocate(1 << 10)

    def __len__(self) -> int:
        return self._count

    def ids(self, keys: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """Returns ids; keys not seen before get the next ones.

        Args:
            keys: uint64 keys of any shape.
            second: Other uint64 keys of the same things, which must be equal where keys are. Either all calls have
                them, or none.

        Returns:
            int64 ids of the same shape.

        Raises:
            DataError: Two things have one key, as their second keys show.
        """
        flat, count = np.ascontiguousarray(keys, np.uint64).ravel(), self._count
        ids = np.empty(flat.size, np.int64)
        for block in blocks(flat.size, _BLOCK):
            ids[block] = self._ids_of_block(flat[block])
        if second is not None:
            self._compare(ids, second, count)
        return ids.reshape(np.shape(keys))

    def keys(self) -> np.ndarray:
        """Returns the uint64 keys in the order of their ids."""
        full = self._ids > 0
        keys = np.empty(self._count, np.uint64)
        keys[self._ids[full] - 1] = self._keys[full]
        return keys

    def second_keys(self) -> np.ndarray | None:
        """Returns the second keys in the order of the ids; None where there are none."""
        return None if self._second is None else self._second[1 : self._count + 1]

    def _compare(self, ids: np.ndarray, second: np.ndarray, count: int) -> None:
        """Keeps the second keys of new ids, and compares all of them."""
        if self._second is None:
            self._second = np.zeros(self._keys.size, np.uint64)
        if self._second.size <= self._count:
            self._second = np.append(self._second, np.zeros(self._keys.size, np.uint64))
        is_new = ids > count
        self._second[ids[is_new]] = second[is_new]
        if (self._second[ids] != second).any():
            raise DataError(_COLLISION)

    def _ids_of_block(self, keys: np.ndarray) -> np.ndarray:
        self._make_room(keys.size)
        slots = self._slots(keys)
        ids = self._ids[slots]
        new = np.flatnonzero(ids == ~np.arange(keys.size))
        if new.size:
            self._ids[slots[new]] = np.arange(self._count + 1, self._count + new.size + 1)
            self._count += new.size
            ids = self._ids[slots]
        return ids

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        """The slot of each key. Slots taken by new keys hold ~i instead of an id, i the key's first index."""
        slots = (mixed(keys) >> self._shift).astype(np.int64)
        probing = np.arange(keys.size)
        at, wanted = slots, keys
        while probing.size:
            empty = self._ids[at] == 0
            if empty.any():
                # Equal keys reach a slot in the same round. The last assignment to an element is the one that
                # stays: backwards, that is the first of those who want the slot.
                free = at[empty]
                self._ids[free[::-1]] = ~probing[empty][::-1]
                self._keys[free] = keys[~self._ids[free]]
            taken = self._keys[at] != wanted
            probing, at, wanted = probing[taken], at[taken] + 1, wanted[taken]
            at &= self._keys.size - 1
            slots[probing] = at
        return slots

    def _make_room(self, keys: int) -> None:
        capacity = self._keys.size
        while self._count + keys > _MAX_LOAD * capacity:
            capacity *= 2
        if capacity == self._keys.size:
            return
        old_keys, old_ids = self._keys, self._ids
        self._allocate(capacity)
        for block in blocks(old_keys.size, _BLOCK):
            full = old_ids[block] != 0
            self._ids[self._slots(old_keys[block][full])] = old_ids[block][full]

    def _allocate(self, capacity: int) -> None:
        """An empty table; the slot is the hash's leading bits, which keeps growing a walk in order."""
        self._keys, self._ids = np.zeros(capacity, np.uint64), np.zeros(capacity, np.int32)
        self._shift = np.uint64(64 - (capacity.bit_length() - 1))


def dense_rows(largest: int, documents: int) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """A function from ids to rows of an array, and how many rows there are: dense ones where ids are sparse.

    Args:
        largest: Largest id.
        documents: Ids there are at most.
    """
    if largest <= documents:
        return np.asarray, largest + 1
    table = IdTable()
    return lambda ids: table.ids(ids.astype(np.uint64)), documents + 1


def pair_keys(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """uint64 keys of pairs of integers: first * 2^32 + second, one key per pair where both lie in 0 to 2^32 - 1.

    What does not fit 32 bits is mixed in: two of n such pairs share a key with probability about n^2 / 2^65.
    """
    first, second = (np.asarray(values).astype(np.uint64) for values in (first, second))
    half = np.uint64(32)
    keys = (first << half) | (second & np.uint64(0xFFFFFFFF))
    beyond = ((first >> half) << half) | (second >> half)
    return keys ^ mixed(beyond) if beyond.any() else keys


def second_pair_keys(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """uint64 keys of pairs of integers that have nothing in common with those of `pair_keys`."""
    return mixed(np.asarray(first).astype(np.uint64) + _ODD) + np.asarray(second).astype(np.uint64)


def mixed(keys: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), a permutation of 64 bits that leaves 0 alone."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))

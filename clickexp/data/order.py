"""The order of the sessions of an epoch, as a function of (seed, epoch, place)."""

from typing import Any, TypeVar

import numpy as np
from jaxtyping import Integer

_Numbers = TypeVar("_Numbers", bound=Any)
"""Unsigned integers of NumPy or JAX."""

_MOST_IN_MEMORY = 1 << 18
"""Sessions of which a permutation is drawn; that of more takes several times as long as to compute the places that are
needed, since it leaves the caches."""
_ROUNDS = 5


class ShuffledOrder:
    """A random order, the same for the same seed and epoch.

    Of few sessions, every order is equally likely. Of many, no permutation is kept: each round of a hash maps 2^b
    numbers one to one, adding, multiplying by an odd number, and folding high bits onto low ones. Results beyond the
    last session are mapped again until they are within (cycle walking; Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains").

    Args:
        count: Number of sessions.
        seed: What the order follows from.
        epoch: The same.

    Attributes:
        permutation: The numbers of the sessions in this order; None of many sessions.
        bits: b, of many sessions.
        keys: What each round adds, and what it multiplies by with the lowest bit set, of many sessions.
    """

    def __init__(self, count: int, seed: int, epoch: int):
        self._count = count
        rng = np.random.default_rng((seed, epoch))
        self.permutation = None
        if count <= _MOST_IN_MEMORY:
            # 64-bit numbers have the same order and take more than twice as long
            self.permutation = rng.permutation(np.arange(count, dtype=np.int32))
            return
        self.bits = (count - 1).bit_length()
        kind = np.uint32 if self.bits <= 32 else np.uint64
        self.keys = rng.integers(1 << self.bits, size=(_ROUNDS, 2), dtype=np.uint64).astype(kind)

    def rows(self, places: Integer[np.ndarray, " places"]) -> Integer[np.ndarray, " places"]:
        """Returns the numbers of the sessions at some places of the order."""
        if self.permutation is not None:
            return self.permutation[places]
        rows = mapped(places.astype(self.keys.dtype), self.keys, self.bits)
        beyond = np.flatnonzero(rows >= self._count)
        while len(beyond):
            again = mapped(rows[beyond], self.keys, self.bits)
            rows[beyond] = again
            beyond = beyond[again >= self._count]
        return rows.astype(np.int64)


def mapped(numbers: _Numbers, keys: _Numbers, bits: int) -> _Numbers:
    """Maps numbers below 2^b one to one, those of NumPy in place.

    Args:
        numbers: Unsigned integers.
        keys: Two for each round, of the same type.
        bits: b.
    """
    mask = numbers.dtype.type((1 << bits) - 1)
    fold = numbers.dtype.type((bits + 1) // 2)
    for added, factor in keys:
        numbers += added
        numbers *= factor | numbers.dtype.type(1)
        numbers &= mask
        numbers ^= numbers >> fold
    return numbers

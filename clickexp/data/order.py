"""The order of the sessions of an epoch, as a function of (seed, epoch, place)."""

import numpy as np
from jaxtyping import Integer

_MOST_IN_MEMORY = 1 << 22
"""Sessions of which a permutation is drawn; that of more takes longer than to compute the places that are needed."""
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
    """

    def __init__(self, count: int, seed: int, epoch: int):
        self._count = count
        rng = np.random.default_rng((seed, epoch))
        self._permutation = None
        if count <= _MOST_IN_MEMORY:
            # 64-bit numbers have the same order and take more than twice as long
            self._permutation = rng.permutation(np.arange(count, dtype=np.int32))
            return
        self._bits = (count - 1).bit_length()
        self._type = np.dtype(np.uint32 if self._bits <= 32 else np.uint64)
        self._keys = rng.integers(1 << self._bits, size=(_ROUNDS, 2), dtype=np.uint64)

    def rows(self, places: Integer[np.ndarray, " places"]) -> Integer[np.ndarray, " places"]:
        """Returns the numbers of the sessions at some places of the order."""
        if self._permutation is not None:
            return self._permutation[places]
        rows = self._mapped(places.astype(self._type))
        while len(beyond := np.flatnonzero(rows >= self._count)):
            rows[beyond] = self._mapped(rows[beyond])
        return rows.astype(np.int64)

    def _mapped(self, numbers: Integer[np.ndarray, " places"]) -> Integer[np.ndarray, " places"]:
        """Maps the numbers below 2^b one to one, in place."""
        mask = self._type.type((1 << self._bits) - 1)
        fold = self._type.type((self._bits + 1) // 2)
        folded = np.empty_like(numbers)
        for added, factor in self._keys.astype(self._type):
            numbers += added
            numbers *= factor | self._type.type(1)
            numbers &= mask
            np.right_shift(numbers, fold, out=folded)
            numbers ^= folded
        return numbers

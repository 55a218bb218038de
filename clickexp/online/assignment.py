"""Which of two rankers a session or user sees: by a hash of its id, so that it always sees the same."""

import hashlib

import numpy as np

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_BITS = 53
"""Of a float64's fraction."""


def assign(ids: np.ndarray, salt: str = "", share: float = 0.5) -> np.ndarray:
    """Assigns units to the second of two rankers.

    An id is B where its hash, a number from 0 to 1, is below the share. Integers are hashed by splitmix64 (Steele, Lea
    and Flood 2014, "Fast splittable pseudorandom number generators") after the salt is added, text by BLAKE2b first.

    Args:
        ids: Integers or text, `[units]`; equal ids are assigned alike.
        salt: Name of the experiment: another one is another assignment.
        share: Share of units that see B.

    Returns:
        `[units]`, whether each sees B.
    """
    start = np.uint64(_hash_number(salt))
    values, at = np.unique(np.asarray(ids), return_inverse=True)
    if values.dtype.kind in "biu":
        numbers = values.astype(np.uint64)
    else:
        numbers = np.array([_hash_number(str(value)) for value in values], np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mixed(_mixed(numbers + _GOLDEN) ^ start)
    return ((mixed >> np.uint64(64 - _BITS)) * 2.0**-_BITS < share)[at]


def _mixed(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def _hash_number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

"""Hashes of 32-bit integers in 32-bit arithmetic, for tables that hold fewer rows than there are ids."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer, UInt32

from clickexp.types import Array
from clickexp.utils.rounding import ceil_div

_BITS = 32
_ROUNDS = 3


def murmur3(*words: Integer[Array, "..."], seed: int = 0) -> UInt32[Array, "..."]:
    """Returns MurmurHash3_x86_32 of the words, each 4 little-endian bytes, broadcast. Every seed makes another hash.

    Appleby 2011, "MurmurHash3".
    """
    state: Any = np.uint32(seed % 2**32)
    for word in words:
        word = _rotated(jnp.asarray(word).astype(jnp.uint32) * np.uint32(0xCC9E2D51), 15)
        word = word * np.uint32(0x1B873593)
        state = _rotated(state ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state = state ^ np.uint32(4 * len(words))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return state ^ (state >> np.uint32(16))


def _rotated(x: UInt32[Array, "*words"], bits: int) -> UInt32[Array, "*words"]:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def buckets(*words: Integer[Array, "..."], count: int, seed: int = 0) -> UInt32[Array, "..."]:
    """Returns a bucket from 0 to count - 1 for the words, broadcast."""
    return murmur3(*words, seed=seed) % np.uint32(count)


def signs(ids: Integer[Array, "*ids"], count: int, seed: int = 0) -> Float[Array, "*ids {count}"]:
    """Returns 1.0 or -1.0 for each id and each of `count` numbers: the bits of one hash after the other."""
    words = jnp.stack(
        [murmur3(ids, seed=seed + word) for word in range(ceil_div(count, _BITS))], axis=-1
    )
    bits = (words[..., None] >> jnp.arange(_BITS, dtype=jnp.uint32)) & np.uint32(1)
    bits = bits.reshape(*words.shape[:-1], -1)[..., :count]
    return 1.0 - 2.0 * bits.astype(jnp.float32)


_Cells = tuple[UInt32[Array, "*ids"], UInt32[Array, "*ids"]]


def shuffled_cells(ids: Integer[Array, "*ids"], rows: int, columns: int, seed: int = 0) -> _Cells:
    """Returns the row and column of each id in a grid: a permutation of the rows * columns ids from 0 to its cells.

    An alternating Feistel network: a round shifts one coordinate by a hash of the other, which can be undone, so that
    no two ids ever meet (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    row, column = cells(ids.reshape(-1), columns)  # XLA vectorises over one long axis best
    for key in range(seed, seed + 2 * _ROUNDS, 2):
        column = (column + buckets(row, count=columns, seed=key)) % np.uint32(columns)
        row = (row + buckets(column, count=rows, seed=key + 1)) % np.uint32(rows)
    return row.reshape(ids.shape), column.reshape(ids.shape)


def cells(ids: Integer[Array, "*ids"], columns: int) -> _Cells:
    """Returns the row and column of each id in a grid that ids fill row by row."""
    ids = jnp.asarray(ids).astype(jnp.uint32)
    return ids // np.uint32(columns), ids % np.uint32(columns)

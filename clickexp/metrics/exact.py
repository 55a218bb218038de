"""Sums that come out the same to the last bit, in whatever order and portions they are taken."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from clickexp.types import Array

UNITS = (2.0**1, 2.0**-20, 2.0**-41)
"""What the integers of an exact sum count, the coarsest first."""

LIMIT = 2.0**21
"""Values of at least this magnitude, infinite ones and NaN are added up as they are."""

GROUP = 1024
"""Values that one int32 adds up: each integer is at most 2**20, so their sum is at most 2**30."""

LANES = 8
"""Fewest sums that are taken side by side."""


class ExactSum(NamedTuple):
    """A sum as integers, which add up alike in any order: value = sum over units of unit * integer, plus beyond.

    integers: [..., unit, n, part], the sum over parts in multiples of each of `UNITS`.
    beyond: [..., n] float, the sum of what is too large for them, in general 0.
    """

    integers: Array
    beyond: Array


def exact_sum(values: Float[Array, "*lists n"]) -> ExactSum:
    """Sums over all axes but the last, [n]; pure, for use under jit.

    Each value is cut into three integers of 21 bits, which loses at most 2**-42: nothing of a float32 above 2**-17.
    (Demmel and Nguyen 2015, "Parallel reproducible summation".)
    """
    n = values.shape[-1]
    rows = values.reshape(-1, n).T
    parts = max(-(-rows.shape[1] // GROUP), LANES)
    size = -(-rows.shape[1] // parts)
    rows = jnp.pad(rows, ((0, 0), (0, parts * size - rows.shape[1]))).reshape(n, size, parts)
    large = ~(jnp.abs(rows) < LIMIT)
    rest, pieces = jnp.where(large, 0, rows), []
    for unit in UNITS:
        piece = jnp.round(rest * (1 / unit))
        rest = rest - piece * unit
        pieces.append(piece.astype(jnp.int32))
    zeros = (*(np.int32(0) for _ in UNITS), np.zeros((), values.dtype))
    # one reduction of all four along a leading axis: XLA on the CPU makes one vectorised loop of it
    *integers, beyond = jax.lax.reduce((*pieces, jnp.where(large, rows, 0)), zeros, _added, (1,))
    return ExactSum(jnp.stack(integers), jnp.sum(beyond, axis=1))


def _added(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


class Total:
    """An exact sum on the host: int64 integers, a vector [n] that grows with what is added."""

    def __init__(self) -> None:
        self.integers = np.zeros((len(UNITS), 0), np.int64)
        self.beyond = np.zeros(0)

    def add(self, other: "ExactSum | Total", *, stacked: bool = False) -> None:
        """Adds a sum from the device, or several stacked along a leading axis, or another total."""
        integers, beyond = other.integers, other.beyond
        if isinstance(other, ExactSum):
            integers = np.asarray(integers).sum(axis=-1, dtype=np.int64)
            beyond = np.asarray(beyond, np.float64)
            if stacked:
                integers, beyond = integers.sum(axis=0), beyond.sum(axis=0)
        self.integers = add_aligned(self.integers, integers)
        self.beyond = add_aligned(self.beyond, beyond)

    def value(self) -> Float[np.ndarray, " n"]:
        """The sums in float64."""
        fine = self.integers[1] + self.integers[2] * (UNITS[2] / UNITS[1])
        return self.integers[0] * UNITS[0] + fine * UNITS[1] + self.beyond


def add_aligned(a: Array, b: Array) -> np.ndarray:
    """Sum of two arrays [..., n], aligned at the first entry; the shorter one counts as zero beyond its end."""
    short, long = (a, b) if a.shape[-1] <= b.shape[-1] else (b, a)
    total = np.array(long)
    total[..., : short.shape[-1]] += short
    return total

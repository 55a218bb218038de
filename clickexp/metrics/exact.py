"""Sums that come out the same to the last bit, in whatever order and portions they are taken."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

from clickexp.types import Array

UNITS = (2.0**1, 2.0**-20, 2.0**-41)
"""What the integers of an exact sum count, the coarsest first."""

FRACTIONS = UNITS[1:]
"""The units that numbers from 0 to 1 need."""

LARGEST = 1.5 * 2**20
"""What an integer counts at most, with room for rounding above 1. Larger values and NaN are added up as they are."""

GROUP = 1024
"""Values that one int32 adds up, to 1.5 * 2**30 at most."""

LANES = 8
"""Sums that are taken side by side."""

ROUNDER = np.float32(1.5 * 2**23)
"""Added to a number of magnitude at most 2**22, it leaves the nearest integer in the last bits of the float32."""


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
    return sum_and_count(ranks_first(values))[0]


def ranks_first(values: Shaped[Array, "*lists n"]) -> Shaped[Array, "n list"]:
    """The same in the order in which models make them: XLA vectorises over lists better than over ranks."""
    return values.reshape(-1, values.shape[-1]).T


def sum_and_count(
    values: Float[Array, "n list"],
    *events: Bool[Array, "n list"],
    units: tuple[float, ...] = UNITS,
) -> tuple[ExactSum, *tuple[Integer[Array, " n"], ...]]:
    """The exact sum over lists, and how often each event is true: all in one pass."""

    def grouped(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (0, padding))).reshape(n, groups, size, LANES)

    n, lists = values.shape
    groups = max(-(-lists // (GROUP * LANES)), 1)
    size = -(-lists // (groups * LANES))
    padding = groups * size * LANES - lists
    values = grouped(values.astype(jnp.float32))
    large = ~(jnp.abs(values) <= LARGEST * units[0])
    rest, pieces = jnp.where(large, 0, values), []
    for unit in units:
        pieces.append(_nearest(rest * (1 / unit)))
        rest = rest - pieces[-1].astype(jnp.float32) * unit
    counted = (*pieces, *(grouped(event).astype(jnp.int32) for event in events))
    # one reduction of all along a leading axis: XLA on the CPU makes one vectorised loop of it
    zeros = (*(np.int32(0) for _ in counted), np.float32(0))
    *sums, beyond = jax.lax.reduce((*counted, jnp.where(large, values, 0)), zeros, _added, (2,))
    sums = [x.reshape(n, -1) for x in sums]
    coarser = [jnp.zeros_like(sums[0])] * (len(UNITS) - len(units))
    total = ExactSum(jnp.stack([*coarser, *sums[: len(units)]]), jnp.sum(beyond, axis=(1, 2)))
    return total, *(jnp.sum(count, axis=1) for count in sums[len(units) :])


def _nearest(values: Float[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """As `round` and a cast, which XLA secures against numbers beyond int32: a quarter of the time of a sum."""
    return jax.lax.bitcast_convert_type(values + ROUNDER, jnp.int32) - ROUNDER.view(np.int32)


def _added(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


class Total:
    """An exact sum on the host: int64 integers, a vector [n] that grows with what is added."""

    def __init__(self) -> None:
        self.integers = np.zeros((len(UNITS), 0), np.int64)
        self.beyond = np.zeros(0)

    @classmethod
    def of(cls, values: Float[np.ndarray, " n"]) -> "Total":
        """A sum that is given."""
        total = cls()
        total.beyond = np.atleast_1d(np.asarray(values, np.float64))
        total.integers = np.zeros((len(UNITS), total.beyond.size), np.int64)
        return total

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

"""Random numbers of a step: draws from posteriors, and changes that are rounded by chance."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt32

from clickexp.parameters.hashing import murmur3
from clickexp.training.sparse.row_optimizers import RowVectors
from clickexp.types import Array

Numbers = UInt32[Array, " rows"]
"""By which lookups are told apart."""

TINY = np.float32(1e-30)


def draw(mean: RowVectors, sd: RowVectors, noise: RowVectors) -> RowVectors:
    """Draws mean + sd * noise, by a division.

    XLA on the CPU computes quotients and exponentials once, but sums and products, noise included, again wherever they
    are read, here seven times. `TINY` keeps it from turning quotients of exponentials back into products.
    """
    per_deviation = jnp.maximum(1 / sd, TINY)
    return (mean * per_deviation + noise) / per_deviation


def normal(lookups: Numbers, dim: int, key: Array, table: int) -> RowVectors:
    """Numbers whose first five moments are those of a standard normal variable, from hashes of their index.

    The sum x of the four bytes of a hash, standardised, is nearly normal; c x + d x^3 has the fourth moment too. Its
    distribution function is off by .002 at most, and E[s(z)] by .1 % up to a deviation of 2. JAX's normal numbers take
    ten times as long, and half of a step.
    """
    bits = _bits(lookups, dim, key, table)
    pairs = (bits & np.uint32(0x00FF00FF)) + ((bits >> np.uint32(8)) & np.uint32(0x00FF00FF))
    total = (pairs & np.uint32(0xFFFF)) + (pairs >> np.uint32(16))
    x = (total.astype(jnp.float32) - 510) * np.float32(21845**-0.5)
    return x * (np.float32(0.94903328) + np.float32(0.01864238) * x * x)


def uniform_pairs(lookups: Numbers, dim: int, key: Array, seed: int) -> RowVectors:
    """Uniform numbers from -1/2 to 1/2 in steps of 2^-16, [rows, 2 * dim], from the halves of hashes of their index."""
    bits = _bits(lookups, dim, key, seed)
    halves = jnp.concatenate([bits >> np.uint32(16), bits & np.uint32(0xFFFF)], axis=1)
    return (halves.astype(jnp.float32) + np.float32(0.5)) * np.float32(2**-16) - np.float32(0.5)


def _bits(lookups: Numbers, dim: int, key: Array, seed: int) -> UInt32[Array, "rows {dim}"]:
    """Returns hashes of `dim` indices of each lookup. Words that all share come first: their rounds are done once."""
    indices = lookups[:, None] * np.uint32(dim) + jax.lax.iota(jnp.uint32, dim)
    return murmur3(*key, indices, seed=seed)


def rounded(numbers: RowVectors, changes: RowVectors, uniform: RowVectors) -> RowVectors:
    """Changes that leave numbers of float32, rounded up or down by chance with the right mean.

    Those by single documents of frequent rows are smaller than the last digit of the row. Rounded to the nearest
    number, most would be lost, others doubled. The mean is right to 2^-17 of that digit, as the uniform numbers are.
    """
    exponents = jax.lax.bitcast_convert_type(numbers, jnp.uint32) & np.uint32(0x7F800000)
    last_digit = jax.lax.bitcast_convert_type(exponents, jnp.float32) * np.float32(2**-23)
    return (numbers + (changes + uniform * last_digit)) - numbers

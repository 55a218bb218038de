"""Stores of embeddings that keep fewer numbers than a full table, and are read as it is: by `take(ids)`.

Each is built as `Store(num_embeddings, features, prior_precision, posterior, compression_ratio=...)`. The compression
ratio is the numbers of the full table, num_embeddings * features, over the numbers kept, each of them with a mean and
a spread where posterior is "normal". Everything starts at zero, the mean of its prior, whose precision holds for every
number kept; `variance(ids)` is that of the embeddings. A seed chooses the hashes; a fitted store is
of use only with the seed that it was fitted with. Hashes take any id; a grid takes those up to its `largest_id`.
"""

import dataclasses
import enum
import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Integer

from clickexp.errors import ConfigError
from clickexp.parameters.hashing import buckets, cells, shuffled_cells, signs
from clickexp.parameters.table import Posterior, Table, new_table
from clickexp.types import Array
from clickexp.utils.bounds import (
    MOST_IDS,
    NonNegativeFloat,
    PositiveInt,
    Ratio,
    Seed,
    check_numbers,
)
from clickexp.utils.rounding import ceil_div


def _budget(numbers: int, compression_ratio: int | float, least: int) -> int:
    """The share of `numbers` that is kept; ConfigError where that is less than `least`."""
    kept = int(numbers / compression_ratio)
    if kept < least:
        largest = math.floor(100 * numbers / least) / 100
        raise ConfigError(
            f"compression_ratio={compression_ratio:g} leaves {kept:,} of {numbers:,} numbers, and at least {least:,} "
            f"are needed: give at most {largest:g}"
        )
    return kept


@dataclasses.dataclass(eq=False, repr=False)
class CompressedEmbedding(nnx.Module):
    """A store of fewer numbers than a full table; `build` makes its tables.

    Attributes:
        num_embeddings: Number of ids.
        features: Numbers per embedding.
        prior_precision: Precision of the Gaussian prior of every number that is stored; where it is learned, its start.
        posterior: "normal" keeps a mean and a spread of each number.
        compression_ratio: Numbers of the full table over numbers stored.
        seed: Seed of the hashes.
    """

    num_embeddings: PositiveInt
    features: PositiveInt
    prior_precision: NonNegativeFloat = 0.0
    posterior: Posterior = "none"
    compression_ratio: Ratio = dataclasses.field(default=10, kw_only=True)
    seed: Seed = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_numbers(type(self).__init__, vars(self))
        self.build()

    def build(self) -> None:
        """Makes the tables."""
        raise NotImplementedError

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Float[Array, "*ids"] | None = None
    ) -> Float[Array, "*ids {self.features}"]:
        """Returns the embeddings of the ids, or the means of their posteriors; see `clickexp.parameters.Rows.take`."""
        raise NotImplementedError

    def variance(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids {self.features}"] | None:
        """Returns the variances of the embeddings' posteriors; None where there are none."""
        raise NotImplementedError

    def _table(self, rows: int, dim: int) -> Table:
        return new_table(rows, dim, self.prior_precision, self.posterior)


@dataclasses.dataclass(eq=False, repr=False)
class HashEmbedding(CompressedEmbedding):
    """Feature hashing: e(id) = s(id) * rows[h(id)], with a sign s of -1 or 1 for each number of the row.

    Signs make what ids in one row do to each other cancel on average.

    Weinberger, Dasgupta, Langford, Smola and Attenberg 2009, "Feature hashing for large scale multitask learning".
    """

    def build(self) -> None:
        """Makes one table."""
        self.rows = _budget(self.num_embeddings, self.compression_ratio, least=1)
        self.table = self._table(self.rows, self.features)

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Float[Array, "*ids"] | None = None
    ) -> Float[Array, "*ids {self.features}"]:
        """Returns the embeddings of the ids."""
        return signs(ids, self.features, seed=self.seed + 1) * self.table.take(
            self._rows(ids), log_ranks
        )

    def variance(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids {self.features}"] | None:
        """Returns those of the rows."""
        return self.table.variance(self._rows(ids))

    def _rows(self, ids: Integer[Array, "*ids"]) -> Integer[Array, "*ids"]:
        return buckets(ids, count=self.rows, seed=self.seed).astype(jnp.int32)


class QRCombination(enum.StrEnum):
    """How the two rows of an id become its embedding."""

    ADDITION = "addition"
    MULTIPLICATION = "multiplication"
    CONCATENATION = "concatenation"


@dataclasses.dataclass(eq=False, repr=False)
class QREmbedding(CompressedEmbedding):
    """Quotient-remainder trick: an id's row in each of two tables, which no other id has both of.

    e(id) = R[r] + Q[q], R[r] * (1 + Q[q]), or R[r] beside Q[q], each with half of the numbers, where (q, r) is a cell
    of a grid: the quotient and remainder of id by the rows of R, moved by a permutation of all cells unless
    `shuffle_indices` is False. Q has as few rows as the compression ratio allows. A factor is stored as its offset
    from 1: of two factors at zero neither would have a gradient.

    Shi, Mudigere, Naumov and Yang 2020, "Compositional embeddings using complementary partitions for
    memory-efficient recommendation systems".
    """

    qr_combination: QRCombination | str = dataclasses.field(
        default=QRCombination.MULTIPLICATION, kw_only=True
    )
    shuffle_indices: bool = dataclasses.field(default=True, kw_only=True)

    def build(self) -> None:
        """Makes a table of quotients and one of remainders; ConfigError where the budget does not allow them."""
        if self.qr_combination not in list(QRCombination):
            raise ConfigError(
                f"qr_combination={self.qr_combination!r}: give one of {', '.join(QRCombination)}"
            )
        self.largest_id = self.num_embeddings - 1
        first = second = self.features
        if self.qr_combination == QRCombination.CONCATENATION:
            first, second = self.features // 2, self.features - self.features // 2
        if not first:
            raise ConfigError(
                "qr_combination=concatenation shares the numbers of an embedding between two tables: "
                "set embedding_features to 2 or more"
            )
        numbers = self.num_embeddings * self.features
        self.rows = _grid(self.num_embeddings, numbers, self.compression_ratio, (first, second))
        self.quotients = self._table(self.rows[0], first)
        self.remainders = self._table(self.rows[1], second)

    def cells(
        self, ids: Integer[Array, "*ids"]
    ) -> tuple[Integer[Array, "*ids"], Integer[Array, "*ids"]]:
        """Returns the rows of the ids in the tables of quotients and of remainders."""
        if self.shuffle_indices:
            quotients, remainders = shuffled_cells(ids, *self.rows, seed=self.seed)
        else:
            quotients, remainders = cells(ids, self.rows[1])
        return quotients.astype(jnp.int32), remainders.astype(jnp.int32)

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Float[Array, "*ids"] | None = None
    ) -> Float[Array, "*ids {self.features}"]:
        """Returns the embeddings of the ids."""
        quotients, remainders = self.cells(ids)
        quotient = self.quotients.take(quotients, log_ranks)
        remainder = self.remainders.take(remainders, log_ranks)
        match self.qr_combination:
            case QRCombination.ADDITION:
                return remainder + quotient
            case QRCombination.MULTIPLICATION:
                return remainder * (1 + quotient)
        return jnp.concatenate([remainder, quotient], axis=-1)

    def variance(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids {self.features}"] | None:
        """Returns that of the sum or product of independent rows, or those of the rows beside each other."""
        quotients, remainders = self.cells(ids)
        quotient, remainder = (
            self.quotients.variance(quotients),
            self.remainders.variance(remainders),
        )
        if quotient is None or remainder is None:
            return None
        match self.qr_combination:
            case QRCombination.ADDITION:
                return remainder + quotient
            case QRCombination.MULTIPLICATION:
                factor = 1 + self.quotients.take(quotients)
                return (
                    remainder * (factor**2 + quotient)
                    + self.remainders.take(remainders) ** 2 * quotient
                )
        return jnp.concatenate([remainder, quotient], axis=-1)


def _grid(
    ids: int, numbers: int, compression_ratio: int | float, widths: tuple[int, int]
) -> tuple[int, int]:
    """Fewest quotients, and as many remainders as the ratio then allows, for one cell per id, or ConfigError."""
    quotients = np.arange(1, 2 * math.isqrt(ids * widths[1] // widths[0]) + 3)
    least = widths[0] * quotients + widths[1] * -(-ids // quotients)
    kept = _budget(numbers, compression_ratio, least=int(least.min()))
    fewest = int(quotients[np.argmax(least <= kept)])
    return fewest, (kept - widths[0] * fewest) // widths[1]


@dataclasses.dataclass(eq=False, repr=False)
class RobeDEmbedding(CompressedEmbedding):
    """Random offset block embedding: chunks of consecutive numbers of one circular array, which ids overlap in.

    e(id)_i = s(id, i) * array[(h(id, i // Z) + i mod Z) mod size], with a sign s of -1 or 1. The size Z of a chunk is
    the number of features (ROBE-D) unless `chunk_size` is given.

    Desai, Chou and Shrivastava 2022, "Random offset block embedding (ROBE) for compressed embedding tables in deep
    learning recommendation systems".
    """

    chunk_size: int | None = dataclasses.field(default=None, kw_only=True)

    def build(self) -> None:
        """Makes the array; ConfigError where a chunk is longer than an embedding, or the array than an index."""
        self.chunk = self.features if self.chunk_size is None else self.chunk_size
        if not 1 <= self.chunk <= self.features:
            raise ConfigError(
                f"chunk_size={self.chunk}: give 1 to {self.features}, the embedding_features, or null for all of them"
            )
        self.size = _budget(
            self.num_embeddings * self.features, self.compression_ratio, least=self.chunk
        )
        if self.size > MOST_IDS:
            raise ConfigError(
                f"an array holds at most {MOST_IDS:,} numbers, not {self.size:,}: raise compression_ratio"
            )
        self.array = self._table(self.size, 1)

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Float[Array, "*ids"] | None = None
    ) -> Float[Array, "*ids {self.features}"]:
        """Returns the embeddings of the ids."""
        places = self._places(ids)
        log_ranks = (
            None if log_ranks is None else jnp.broadcast_to(log_ranks[..., None], places.shape)
        )
        return (
            signs(ids, self.features, seed=self.seed + 1)
            * self.array.take(places, log_ranks)[..., 0]
        )

    def variance(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids {self.features}"] | None:
        """Returns those of the numbers of the array."""
        variance = self.array.variance(self._places(ids))
        return None if variance is None else variance[..., 0]

    def _places(self, ids: Integer[Array, "*ids"]) -> Integer[Array, "*ids {self.features}"]:
        chunks = jnp.arange(ceil_div(self.features, self.chunk))
        starts = buckets(ids[..., None], chunks, count=self.size, seed=self.seed)[..., None]
        places = (starts + jnp.arange(self.chunk, dtype=jnp.uint32)) % np.uint32(self.size)
        return places.reshape(*ids.shape, -1)[..., : self.features].astype(jnp.int32)

"""Lists ranked once, with their ties, for all ranking metrics."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer

from clickexp.types import Array

Values = Float[Array, "list n"]
"""One value for each list and cutoff."""

PerRank = Float[Array, "list rank"]
_Ranks = Integer[Array, "list rank"]


class RankedLists(NamedTuple):
    """Lists by decreasing score; tied documents by decreasing label, so that nothing is left of the input's order.

    Attributes:
        scores: Scores in that order, [list, rank].
        labels: Labels in that order, [list, rank]; 0 for labels below 0, and beyond a list's end.
        where: True up to the list's end, [list, rank].
        start: The first position, from 0, of the documents tied with this one, [list, rank].
        size: The number of documents tied with this one, itself included, [list, rank].
        ideal: Labels in decreasing order, [list, rank].
    """

    scores: PerRank
    labels: PerRank
    where: Bool[Array, "list rank"]
    start: _Ranks
    size: _Ranks
    ideal: PerRank

    @property
    def lengths(self) -> Integer[Array, "list"]:
        """Documents of each list, [list]."""
        return jnp.sum(self.where, axis=-1, dtype=jnp.int32)

    def over_ties(self, values: PerRank) -> tuple[PerRank, PerRank]:
        """Averages values over tied documents.

        Args:
            values: One value per document, [list, rank].

        Returns:
            The sum of the values of the documents above all that are tied with this one, and the mean value of those
            tied, [list, rank] each.
        """
        through = jnp.cumsum(values, axis=1)
        above = jnp.take_along_axis(through - values, self.start, axis=1)
        last = self.start + self.size - 1
        mean = (jnp.take_along_axis(through, last, axis=1) - above) / self.size.astype(values.dtype)
        return above, jnp.where(self.size == 1, values, mean)


@jax.jit
def rank_lists(
    scores: Float[Array, "list rank"],
    labels: Float[Array, "list rank"],
    where: Bool[Array, "list rank"],
) -> RankedLists:
    """Ranks lists by score.

    Args:
        scores: Scores, [list, rank]; -inf comes last, and no NaN may stand where a document is.
        labels: Relevance labels, [list, rank]; below 0 they count as 0.
        where: Whether there is a document, [list, rank].
    """
    # Integers in the order of the floats, which XLA sorts in 60 % of the time. Padding comes after -inf.
    keys = jnp.where(where, -1 - _ordered(scores), np.iinfo(np.int32).max)
    falling = -1 - _ordered(jnp.where(where, jnp.maximum(labels, 0), 0))
    keys, ranked = jax.lax.sort((keys, falling), num_keys=2, is_stable=False)
    ranked_where = jnp.arange(where.shape[1]) < jnp.sum(where, axis=1, keepdims=True)
    start, size = _tie_groups((keys[:, 1:] != keys[:, :-1]) | ~ranked_where[:, 1:])
    ideal = jnp.sort(falling, stable=False)
    return RankedLists(
        _as_float32(-1 - keys),
        _as_float32(-1 - ranked),
        ranked_where,
        start,
        size,
        _as_float32(-1 - ideal),
    )


def _tie_groups(differs: Bool[Array, "list pairs"]) -> tuple[_Ranks, _Ranks]:
    """Start and size of runs of equal entries in sorted rows, from where one differs from the one before."""
    ranks = differs.shape[1] + 1
    position = jnp.arange(ranks, dtype=jnp.int32)
    first = jnp.pad(differs, ((0, 0), (1, 0)), constant_values=True)
    last = jnp.pad(differs, ((0, 0), (0, 1)), constant_values=True)
    start = jax.lax.cummax(jnp.where(first, position, 0), axis=1)
    return start, jax.lax.cummin(jnp.where(last, position, ranks), axis=1, reverse=True) - start + 1


def _ordered(x: PerRank) -> Integer[jax.Array, "list rank"]:
    """Integers (int32) that compare as the floats do; both zeros are one."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.int32)
    return jnp.where(bits < 0, bits ^ np.iinfo(np.int32).max, bits)


def _as_float32(ordered: _Ranks) -> PerRank:
    bits = jnp.where(ordered < 0, ordered ^ np.iinfo(np.int32).max, ordered)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)

"""Outputs of a model with a row per position, so that sums of metrics by rank are those by position."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from clickexp.data import Sessions
from clickexp.data.view import most_at_a_position
from clickexp.metrics import PerList
from clickexp.types import Array, ByRank
from clickexp.utils.lengths import from_lengths


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class PositionLayout:
    """Where the documents of lists stand, of lists whose positions are not their places in the list.

    Attributes:
        largest: Largest position.
        most: Most documents of one list at one position: 1 unless positions were merged.
    """

    largest: int
    most: int = 1

    @classmethod
    def of_sessions(cls, sessions: Sessions) -> Self | None:
        """Returns that of packed sessions; None where each document's position is its place in the list."""
        if sessions.positions_are_ranks:
            return None
        return cls(sessions.positions, sessions.most_at_a_position)

    @classmethod
    def of_batch(cls, arrays: Mapping[str, Array], known: Self | None) -> Self | None:
        """Returns that of batches so far: of the ones before and of a superbatch, `[step, list, rank]`."""
        if "positions" not in arrays:
            return known
        positions = np.asarray(arrays["positions"])
        ranks = positions.shape[-1]
        shown = np.asarray(
            arrays["mask"] if "mask" in arrays else from_lengths(arrays["lengths"], ranks), bool
        )
        positions = np.broadcast_to(positions, shown.shape).reshape(-1, ranks)
        shown = shown.reshape(-1, ranks)
        if known is None and ((positions == np.arange(1, ranks + 1)) | ~shown).all():
            return None
        found = int(positions.max(where=shown, initial=1)), most_at_a_position(positions, shown)
        return cls(*found) if known is None else cls(*map(max, found, (known.largest, known.most)))

    def arranged(self, outputs: Mapping[str, Any], batch: ByRank) -> dict[str, Any]:
        """Returns outputs `[position, list]` of those `[rank, list]`, which are 0 where a list shows nothing.

        Further documents of a list at one position become lists of their own, behind all others.
        """
        ranks, lists = batch.shape
        where = batch["mask"].astype(bool)
        positions = jnp.broadcast_to(batch["positions"], where.shape).astype(jnp.int32)
        same = (positions[:, None] == positions) & where & (jnp.tri(ranks, k=-1) > 0)[..., None]
        copy = jnp.sum(same, axis=1) if self.most > 1 else 0
        column = jnp.broadcast_to(jnp.arange(lists) + lists * copy, where.shape)
        row = jnp.where(where, positions - 1, self.largest)
        place = jnp.full((self.largest, self.most * lists), ranks, jnp.int32)
        place = place.at[row, column].set(jnp.arange(ranks)[:, None], mode="drop")
        done: dict[int, Array] = {}  # what outputs name twice stays one array

        def moved(values: Array) -> Array:
            if id(values) in done:
                return done[id(values)]
            found = jnp.concatenate([values] * self.most, axis=1)
            if len(values) == ranks:  # others are those of lists
                padded = jnp.pad(found, [(0, 1), *[(0, 0)] * (found.ndim - 1)])
                at = place.reshape(*place.shape, *[1] * (found.ndim - 2))
                found = jnp.take_along_axis(padded, at, axis=0)
            done[id(values)] = found
            return found

        return jax.tree.map(moved, dict(outputs))

    def of_lists(self, statistics: Any) -> Any:
        """Returns statistics whose values per list are `[list, position and copy]`, for lists of `arranged`."""

        def joined(each: Any) -> Any:
            if self.most == 1 or not isinstance(each, PerList):
                return each
            copies = jnp.stack(jnp.split(each.values, self.most), axis=-1)
            return PerList(copies.reshape(len(copies), -1))

        return jax.tree.map(joined, statistics, is_leaf=lambda each: isinstance(each, PerList))

"""Reads of rows by a loss, which is computed twice: to learn the ids that it reads, and with the rows of these.

A step needs the ids of all reads before it can gather their rows, and the rows before it can differentiate the loss.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.extend.core import get_opaque_trace_state
from jaxtyping import Float, Integer

from clickexp.errors import ConfigError
from clickexp.training.sparse.packing import Path, Taken
from clickexp.types import Array

_trace = functools.partial(get_opaque_trace_state, convention="nnx")


class RowReads:
    """Stands in for the rows of a table while a model computes.

    Args:
        dim: Numbers per row.
        rows: Those of each read in turn, `[*ids, dim]`; None for zeros, while ids are recorded.

    Attributes:
        ids: Those of each read so far.
    """

    def __init__(self, dim: int, rows: Sequence[Array] | None = None):
        self.dim, self.ids = dim, []
        self._rows, self._trace = rows, _trace()
        self._read: dict[int, Array] = {}

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Array | None = None
    ) -> Float[Array, "*ids {self.dim}"]:
        """Returns rows; the same array of ids, such as that of a batch, gets the same draw of their posteriors.

        Raises:
            ConfigError: The call is inside a loop or a function that JAX traces apart.
        """
        if _trace() != self._trace:
            raise ConfigError(
                "a table is read inside a loop or a compiled function; read the rows of all documents before"
            )
        if id(ids) not in self._read:
            place = len(self.ids)
            self.ids.append(ids)  # which keeps it alive, so that no other array has its identity
            zeros = jnp.zeros((*ids.shape, self.dim))
            self._read[id(ids)] = zeros if self._rows is None else self._rows[place]
        return self._read[id(ids)]

    def variance(self, ids: Integer[Array, "*ids"]) -> None:
        """None: a step draws rows from their posteriors."""


def with_rows(tables: nnx.State, taken: Taken) -> nnx.State:
    """The tables as a model reads them that gets rows for each of its `ids_read`."""
    return nnx.map_state(
        lambda path, table: table.copy(RowReads(table.get_value().dim, taken.get(path, ()))), tables
    )


def ids_read(tables: nnx.State, loss: Callable[[nnx.State], Any]) -> Taken:
    """The ids of each read, by table, with their axes reversed; ids that depend on rows see rows of zeros.

    The compiler drops what the ids do not depend on.

    Args:
        tables: The tables.
        loss: Computes with tables.
    """
    return {
        path: [of_read.T for of_read in ids] for path, ids in _ids_by_table(tables, loss) if ids
    }


def tables_read_at(
    ids: Array, tables: nnx.State, loss: Callable[[nnx.State], Any]
) -> dict[Path, bool]:
    """Whether a loss reads each table at one array of ids, such as that of the documents of a batch, and nowhere else.

    Args:
        ids: The array.
        tables: The tables.
        loss: Computes with tables.
    """
    by_table = _ids_by_table(tables, loss)
    return {path: len(reads) == 1 and reads[0] is ids for path, reads in by_table}


def read_together(tables: nnx.State, loss: Callable[[nnx.State], Any]) -> list[list[Path]]:
    """Groups of tables that a loss reads at the same arrays of ids."""
    groups: dict[tuple[int, ...], list[Path]] = {}
    for path, ids in _ids_by_table(tables, loss):
        groups.setdefault(tuple(map(id, ids)), []).append(path)
    return [paths for ids, paths in groups.items() if ids]


def _ids_by_table(
    tables: nnx.State, loss: Callable[[nnx.State], Any]
) -> list[tuple[Path, list[Array]]]:
    """The ids of each read, by table."""
    reads = {path: RowReads(table.get_value().dim) for path, table in nnx.to_flat_state(tables)}
    loss(nnx.map_state(lambda path, table: table.copy(reads[path]), tables))
    return [(path, read.ids) for path, read in reads.items()]

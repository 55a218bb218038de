"""Table steps whose cost does not grow with the table: rows in, rows out.

While a model trains, each row holds side by side its parameters, the optimizer's state, a gradient
accumulator that is zero between steps, and the share of the prior that falls on one of the row's
training documents. A step gathers the batch's rows, differentiates the loss with respect to them,
adds the gradients into the accumulators, where duplicates sum, reads the sums back, and scatters whole
new rows. XLA does all of it in place because everything lives in one donated array.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Integer

from clickexp.parameters.table import Rows, Table
from clickexp.training.optimizers import RowOptimizer, RowVectors
from clickexp.training.sparse.lookups import OpenRows, Traced
from clickexp.types import Array, Count, Flag, Observed

Ids = Integer[Array, "*ids"]
FlatIds = Integer[Array, " rows"]
Packed = Float[Array, "rows width"]
WholeTable = Float[jax.Array, "table width"]

Path = tuple
Taken = dict[Path, list[Array]]
"""For each table the ids, or the rows, of each `take` in the order in which the model takes them."""


def opened(tables: nnx.State) -> nnx.State:
    """The tables as a model is traced with: lookups of their rows stay open."""
    return nnx.map_state(lambda path, table: table.copy(OpenRows(path, table.get_value().dim)), tables)


def ids_taken(
    tables: nnx.State, traced: Traced, mask: Observed, active: Flag | bool, *arguments: object
) -> Taken:
    """The ids of the lookups in each table that is read.

    Those of masked documents, and all ids of a batch that is not active, point past the table's end.
    """
    rows = {path: table.get_value().values.shape[0] for path, table in nnx.to_flat_state(tables)}
    ids: Taken = {}
    for lookup, each in zip(traced.lookups, traced.ids(*arguments), strict=True):
        shown = mask.T if lookup.loops else mask  # a loop over ranks stacks these first
        ids.setdefault(lookup.table, []).append(_without_masked(each, shown, active, rows[lookup.table]))
    return jax.lax.optimization_barrier(ids)  # else XLA computes them once more wherever they are used


def in_order(traced: Traced, taken: Taken) -> list[Array]:
    """The rows of all tables in the order of the trace."""
    served = {path: iter(rows) for path, rows in taken.items()}
    return [next(served[lookup.table]) for lookup in traced.lookups]


def _without_masked(ids: Ids, mask: Observed, active: Flag | bool, end: int) -> Ids:
    if ids.shape[: mask.ndim] == mask.shape:
        ids = jnp.where(mask.reshape(mask.shape + (1,) * (ids.ndim - mask.ndim)), ids, end)
    return jnp.where(active, ids, end)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Columns of the packed rows of one table: [parameters | state | accumulator | share].

    Attributes:
        dim: Numbers per row.
        slots: State vectors of the optimizer.
        prior_precision: Of the Gaussian prior; 0 for no prior, and no share.
    """

    dim: int
    slots: int
    prior_precision: float

    @property
    def accumulator(self) -> slice:
        """Columns that gradients are added up in."""
        return slice((1 + self.slots) * self.dim, (2 + self.slots) * self.dim)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.accumulator.stop + (self.prior_precision > 0)


def _layout_of(table: Table, optimizer: RowOptimizer) -> _Layout:
    return _Layout(table.get_value().dim, optimizer.slots, _prior_precision(table))


def pack(tables: nnx.State, optimizer: RowOptimizer) -> nnx.State:
    """The tables with room for the optimizer in every row; the shares of the prior still hold counts of 0."""

    def widened(path: Path, table: Table) -> WholeTable:
        rows = table.get_value()
        return jnp.pad(rows.values, ((0, 0), (0, _layout_of(table, optimizer).width - rows.dim)))

    return _map_values(widened, tables)


def parameters(tables: nnx.State) -> nnx.State:
    """The tables with parameters only."""
    return _map_values(lambda path, table: table.get_value().values[:, : table.get_value().dim], tables)


def has_prior(table: Table) -> bool:
    """Whether the rows have a prior."""
    return _prior_precision(table) > 0


def _prior_precision(table: Table) -> float:
    return table.get_metadata().get("prior_precision", 0.0)


def count(tables: nnx.State, ids: Taken) -> nnx.State:
    """Adds one to the last column of a row for each of its documents, in tables with a prior."""

    def counted(path: Path, table: Table) -> WholeTable:
        values = table.get_value().values
        if path not in ids or not has_prior(table):
            return values
        return values.at[_flat(ids[path]), -1].add(1.0, mode="drop")

    return _map_values(counted, tables)


def shares(tables: nnx.State) -> nnx.State:
    """Turns the counts of the last column into the prior's share of one document, precision / count."""

    def shared(path: Path, table: Table) -> WholeTable:
        values = table.get_value().values
        if not has_prior(table):
            return values
        return values.at[:, -1].set(_prior_precision(table) / jnp.maximum(values[:, -1], 1.0))

    return _map_values(shared, tables)


def _map_values(change: Callable[[Path, Table], WholeTable], tables: nnx.State) -> nnx.State:
    def changed(path: Path, table: Table) -> nnx.Variable[Rows]:
        return table.copy(Rows(change(path, table), table.get_value().dim))

    return nnx.map_state(changed, tables)


def gather(tables: nnx.State, ids: Taken) -> dict[Path, Packed]:
    """Whole packed rows of each table, all its takes one after the other."""
    values = {path: table.get_value().values for path, table in nnx.to_flat_state(tables)}
    return {path: values[path].at[_flat(taken)].get(mode="clip") for path, taken in ids.items()}


def parameters_of(tables: nnx.State, ids: Taken, rows: dict[Path, Packed]) -> Taken:
    """The parameters of gathered rows, in the shapes in which the model takes them."""
    dims = {path: table.get_value().dim for path, table in nnx.to_flat_state(tables)}
    found = {}
    for path, taken in ids.items():
        ends = np.cumsum([each.size for each in taken])
        parts = jnp.split(rows[path][:, : dims[path]], ends[:-1])
        found[path] = [part.reshape(*i.shape, dims[path]) for part, i in zip(parts, taken, strict=True)]
    return found


def update(
    tables: nnx.State,
    ids: Taken,
    rows: dict[Path, Packed],
    grads: Taken,
    optimizer: RowOptimizer,
    step: Count,
) -> nnx.State:
    """The tables after one step on the batch's rows, whose gradients are those of the summed loss."""

    def updated(path: Path, table: Table) -> WholeTable:
        layout, values = _layout_of(table, optimizer), table.get_value().values
        if path not in ids:  # the loss reads no row of it
            return values
        grad = jnp.concatenate([g.reshape(-1, layout.dim) for g in grads[path]])
        return _update(values, layout, _flat(ids[path]), rows[path], grad, optimizer, step)

    return _map_values(updated, tables)


def _update(
    packed: WholeTable,
    layout: _Layout,
    ids: FlatIds,
    rows: Packed,
    grad: RowVectors,
    optimizer: RowOptimizer,
    step: Count,
) -> WholeTable:
    dim, accumulator = layout.dim, layout.accumulator
    if layout.prior_precision > 0:
        grad = grad + rows[:, -1:] * rows[:, :dim]
    packed = packed.at[ids, accumulator].add(grad, mode="drop")
    total = packed.at[ids, accumulator].get(mode="clip")
    state = [rows[:, start : start + dim] for start in range(dim, accumulator.start, dim)]
    row, state = optimizer.update(rows[:, :dim], state, total, step)
    columns = [row, *state, jnp.zeros_like(row), rows[:, accumulator.stop :]]
    return packed.at[ids].set(jnp.concatenate(columns, axis=1), mode="drop")


def _flat(taken: list[Integer[Array, "..."]]) -> FlatIds:
    return jnp.concatenate([ids.reshape(-1) for ids in taken])

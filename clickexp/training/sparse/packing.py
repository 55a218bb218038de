"""Columns of table rows while a model trains: learned numbers, and state of the optimizer and the prior."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from clickexp.parameters.table import Prior, Rows, Table
from clickexp.training.sparse import sites
from clickexp.training.sparse.row_optimizers import RowOptimizer
from clickexp.types import Array, Count
from clickexp.utils.rounding import round_up

_ALIGNED = 4
"""Rows are a multiple of so many columns wide, 16 bytes.

In a table of 24 bytes per row every third row lies in two cache lines, and XLA on the CPU moves single numbers where it
could move four: a step takes a tenth longer.
"""

WholeTable = Float[jax.Array, "table width"]
Block = Float[Array, "some _"]

Path = tuple
Runs = tuple[tuple[int, int], ...]
"""(first, end) of runs of columns."""
Taken = dict[Path, list[Array]]
"""For each table the ids, or the rows, of each `take` in the order in which the model takes them.

Axes of ids are reversed, `[rank, batch]`: models compute with ranks first, and rows that come in that order need not be
turned.
"""


_LINE = 16
"""Columns of a cache line of 64 bytes."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Columns of packed rows: [accumulators | state | learned numbers | the rest of rows | unused | shares].

    The rows of several tables that a loss reads at the same ids lie side by side, each of these parts in the order of
    the tables: one gather and one scatter serve all. Of a table alone, a row is as `Rows` has it.

    Rows with sites are [accumulator | state | row under its own prior | unused]; see `sites`.

    A rule whose changes are sums over documents adds these to the row itself: it has no accumulator.

    What a step changes is in front, since a gather or scatter of the first columns takes ids alone. XLA would have to
    make pairs of ids and columns for others, which costs a twentieth of a step.

    Attributes:
        numbers: Learned numbers per row: parameters, or offsets and spreads.
        row: Columns of a row.
        vectors: Accumulator and state vectors of the optimizer.
        shares: One for each table with a prior.
    """

    numbers: int
    row: int
    vectors: int
    shares: int

    @classmethod
    def of(cls, table: Table, optimizer: RowOptimizer) -> "Layout":
        """Returns that of a table alone."""
        rows = table.get_value()
        adds = rows.prior is not None and optimizer.adds_to_posteriors
        vectors = 0 if adds else 1 + optimizer.slots
        if rows.has_sites:  # with the share in the last column
            return cls(rows.numbers, rows.numbers + 2 * rows.dim, vectors, 0)
        return cls(rows.numbers, rows.width, vectors, int(has_prior(table)))

    @classmethod
    def beside(cls, layouts: Sequence["Layout"]) -> "Layout":
        """Returns that of tables side by side, whose optimizer keeps equally many vectors of each."""
        numbers, rows, vectors, shares = zip(*map(dataclasses.astuple, layouts), strict=True)
        return cls(sum(numbers), sum(rows), vectors[0], sum(shares))

    @property
    def state(self) -> list[slice]:
        """Columns of each state vector."""
        starts = [vector * self.numbers for vector in range(1, self.vectors)]
        return [slice(start, start + self.numbers) for start in starts]

    @property
    def learned(self) -> slice:
        """Columns of the learned numbers."""
        start = self.vectors * self.numbers
        return slice(start, start + self.numbers)

    @property
    def width(self) -> int:
        """Number of columns."""
        needed = self.learned.start + self.row + self.shares
        return round_up(needed, _ALIGNED)

    def columns(self, layouts: Sequence["Layout"]) -> list[Runs]:
        """Returns the columns of the row and the share of each of the tables that lie side by side."""
        starts = [self.learned.start, self.learned.stop, self.width - self.shares]
        by_table = []
        for each in layouts:
            sizes = each.numbers, each.row - each.numbers, each.shares
            runs: list[tuple[int, int]] = []
            for part, size in enumerate(sizes):
                first, starts[part] = starts[part], starts[part] + size
                if runs and runs[-1][1] == first:
                    first = runs.pop()[0]
                if starts[part] > first:
                    runs.append((first, starts[part]))
            by_table.append(tuple(runs))
        return by_table


def pack(
    tables: nnx.State, optimizer: RowOptimizer, together: Sequence[Sequence[Path]] = ()
) -> nnx.State:
    """The tables with room for the optimizer, and for the prior's share of a document, in every row.

    Args:
        tables: The tables.
        optimizer: Rule of rows.
        together: Groups of tables that are read at the same ids, and may lie side by side.
    """
    alone = {path: table.get_value() for path, table in nnx.to_flat_state(tables)}
    layouts = {path: Layout.of(table, optimizer) for path, table in nnx.to_flat_state(tables)}
    packed: dict[Path, Rows] = {}
    for paths in _side_by_side(alone, layouts, together):
        of_paths = [layouts[path] for path in paths]
        beside = Layout.beside(of_paths)
        columns = beside.columns(of_paths)
        rows = [_set_aside(alone[path]) for path in paths]
        array = _laid([of_table.values for of_table in rows], tuple(columns), beside.width)
        first = paths[0]
        for path, of_table, own in zip(paths, rows, columns, strict=True):
            has_array = path == first
            packed[path] = dataclasses.replace(
                of_table,
                values=array if has_array else None,
                log_ranks=jax.tree.map(jnp.copy, of_table.log_ranks),
                columns=own,
                beside=None if has_array else first,
            )
    tables = nnx.map_state(lambda path, table: table.copy(packed[path]), tables)
    return with_priors(tables, jax.tree.map(jnp.copy, priors(tables)))


def _set_aside(rows: Rows) -> Rows:
    return sites.set_aside(rows) if rows.has_sites else rows


def _side_by_side(
    rows: Mapping[Path, Rows], layouts: Mapping[Path, Layout], together: Sequence[Sequence[Path]]
) -> list[list[Path]]:
    """Groups of tables that lie in one array, most of them alone.

    Those of equally many rows, of which the optimizer keeps as many vectors, where whole rows fit into a cache line.
    """
    place = {path: number for number, paths in enumerate(together) for path in paths}
    groups: list[tuple[Any, list[Path]]] = []
    for path, of_table in rows.items():
        kind = place.get(path, path), len(of_table.values), layouts[path].vectors
        beside = next(
            (
                paths
                for other, paths in groups
                if other == kind
                and Layout.beside([layouts[each] for each in (*paths, path)]).width <= _LINE
            ),
            None,
        )
        if beside is None:
            groups.append((kind, [path]))
        else:
            beside.append(path)
    return [paths for _, paths in groups]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _laid(values: list[Block], columns: tuple[Runs, ...], width: int) -> WholeTable:
    """Returns the rows of tables side by side, beside zeros."""
    array = jnp.zeros((len(values[0]), width))
    for own, runs in zip(values, columns, strict=True):
        array = put(array, runs, own)
    return array


def put(
    array: WholeTable,
    columns: Runs | None,
    values: Block,
    start: int = 0,
    row: Count | int = 0,
) -> WholeTable:
    """Returns the array of a table with some of its values replaced.

    Args:
        array: Where the table lies.
        columns: Of the table in it, as `Rows` has them.
        values: Columns of some rows of the table.
        start: The first of these columns among those of the table.
        row: The first of these rows.
    """
    before = 0
    for first, end in columns or ((0, array.shape[1]),):
        inside = slice(max(start - before, 0), min(start + values.shape[1] - before, end - first))
        if inside.start < inside.stop:
            shift = before - start
            part = values[:, inside.start + shift : inside.stop + shift]
            array = jax.lax.dynamic_update_slice(array, part, (row, first + inside.start))
        before += end - first
    return array


def arrays(tables: nnx.State) -> dict[Path, WholeTable]:
    """The array that each table lies in."""
    rows = {path: table.get_value() for path, table in nnx.to_flat_state(tables)}
    return {path: rows[of_table.beside or path].values for path, of_table in rows.items()}


def with_arrays(tables: nnx.State) -> nnx.State:
    """The tables with the arrays that they lie in, also those beside another."""
    by_table = arrays(tables)
    return map_values(lambda path, table: by_table[path], tables)


def changed(change: Callable[[Path, Table], Rows], tables: nnx.State) -> nnx.State:
    """The tables after each has changed its part of the array that it lies in, one after the other.

    Args:
        change: Returns the rows of a table that comes with its array, both changed.
        tables: The tables.
    """
    by_path, by_array = {}, arrays(tables)
    for path, table in nnx.to_flat_state(tables):
        rows = table.get_value()
        place = rows.beside or path
        rows = dataclasses.replace(rows, values=by_array[place])
        by_path[path] = change(path, table.copy(rows))
        by_array[place] = by_path[path].values

    def after(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = by_path[path]
        return table.copy(dataclasses.replace(rows, values=None if rows.beside else by_array[path]))

    return nnx.map_state(after, tables)


def groups(tables: nnx.State) -> dict[Path, list[tuple[Path, Table]]]:
    """The tables in each array, by the path of the one that has it."""
    by_array: dict[Path, list[tuple[Path, Table]]] = {}
    for path, table in nnx.to_flat_state(tables):
        by_array.setdefault(table.get_value().beside or path, []).append((path, table))
    return by_array


def points(tables: nnx.State) -> nnx.State:
    """The tables with the means of their posteriors for parameters."""
    return nnx.map_state(lambda path, table: table.copy(table.get_value().point()), tables)


def learned(tables: nnx.State) -> nnx.State:
    """The tables without what the optimizer and the prior keep in their rows, each in an array of its own."""

    def rows(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        values = rows.own(rows.values)[:, : rows.width]
        values = values if rows.aside is None else sites.together(rows)
        alone = dataclasses.replace(rows, values=values, columns=None, beside=None, aside=None)
        return table.copy(alone)

    return nnx.map_state(rows, with_arrays(tables))


def has_prior(table: Table) -> bool:
    """Whether the rows have a prior."""
    return _has_posterior(table) or prior_precision(table) > 0


def _has_posterior(table: Table) -> bool:
    return table.get_value().prior is not None


def prior_precision(table: Table) -> float:
    """That of a prior that is not learned; 0 for none."""
    return table.get_metadata().get("prior_precision", 0.0)


def learns_prior(table: Table) -> bool:
    """Whether training learns the prior of posteriors."""
    return _has_posterior(table) and table.get_metadata().get("learns_prior", True)


def priors(tables: nnx.State) -> dict[Path, Prior]:
    """The learned priors by table."""
    rows = {path: table.get_value() for path, table in nnx.to_flat_state(tables)}
    return {path: of_table.prior for path, of_table in rows.items() if of_table.prior is not None}


def with_priors(tables: nnx.State, priors: Mapping[Path, Prior]) -> nnx.State:
    """The tables with these priors."""

    def changed(path: Path, table: Table) -> nnx.Variable[Rows]:
        return table.copy(dataclasses.replace(table.get_value(), prior=priors.get(path)))

    return nnx.map_state(changed, tables)


def map_values(change: Callable[[Path, Table], WholeTable | None], tables: nnx.State) -> nnx.State:
    """The tables with changed values; None for those beside another."""

    def changed(path: Path, table: Table) -> nnx.Variable[Rows]:
        return table.copy(dataclasses.replace(table.get_value(), values=change(path, table)))

    return nnx.map_state(changed, tables)


def flat(taken: list[Array]) -> Array:
    """Ids that all takes of a table read, one after the other."""
    return jnp.concatenate([ids.reshape(-1) for ids in taken])


def flat_rows(taken: list[Array]) -> Float[Array, "rows dim"]:
    """Rows in the shapes in which the model takes them, in the order of the ids that are `flat`."""

    def flattened(rows: Array) -> Array:
        if rows.shape[-1] == 1:  # this way XLA sees that the model turns them, too
            return rows[..., 0].T.reshape(-1, 1)
        return rows.transpose(_backwards(rows.ndim - 1)).reshape(-1, rows.shape[-1])

    return jnp.concatenate([flattened(rows) for rows in taken])


def in_shapes(rows: Float[Array, "rows dim"], ids: list[Array]) -> list[Array]:
    """The inverse of `flat_rows`."""

    def shaped(part: Array, shape: tuple[int, ...]) -> Array:
        if part.shape[-1] == 1:
            return part.reshape(shape).T[..., None]
        return part.reshape(*shape, part.shape[-1]).transpose(_backwards(len(shape)))

    parts = jnp.split(rows, np.cumsum([of_take.size for of_take in ids])[:-1])
    return [shaped(part, of_take.shape) for part, of_take in zip(parts, ids, strict=True)]


def _backwards(axes: int) -> tuple[int, ...]:
    return (*reversed(range(axes)), axes)

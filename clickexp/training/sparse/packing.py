"""Columns of table rows while a model trains: learned numbers, and state of the optimizer and the prior."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from clickexp.parameters.table import Prior, Rows, Table
from clickexp.training.sparse import sites
from clickexp.training.sparse.row_optimizers import RowOptimizer
from clickexp.types import Array
from clickexp.utils.rounding import round_up

_ALIGNED = 4
"""Rows are a multiple of so many columns wide, 16 bytes.

In a table of 24 bytes per row every third row lies in two cache lines, and XLA on the CPU moves single numbers where it
could move four: a step takes a tenth longer.
"""

WholeTable = Float[jax.Array, "table width"]

Path = tuple
Taken = dict[Path, list[Array]]
"""For each table the ids, or the rows, of each `take` in the order in which the model takes them.

Axes of ids are reversed, `[rank, batch]`: models compute with ranks first, and rows that come in that order need not be
turned.
"""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Columns of the packed rows of one table: [accumulator | state | row as `Rows` has it | unused | share].

    Rows with sites are [accumulator | state | row under its own prior | unused]; see `sites`.

    A rule whose changes are sums over documents adds these to the row itself: it has no accumulator.

    What a step changes is in front, since a gather or scatter of the first columns takes ids alone. XLA would have to
    make pairs of ids and columns for others, which costs a twentieth of a step.

    Attributes:
        numbers: Learned numbers per row: parameters, or offsets and spreads.
        row: Columns of a row.
        vectors: Accumulator and state vectors of the optimizer.
        has_share: Whether there is a prior.
    """

    numbers: int
    row: int
    vectors: int
    has_share: bool

    @property
    def state(self) -> list[slice]:
        """Columns of each state vector."""
        starts = [vector * self.numbers for vector in range(1, self.vectors)]
        return [slice(start, start + self.numbers) for start in starts]

    @property
    def learned(self) -> slice:
        """Columns of the learned numbers, where the row starts."""
        start = self.vectors * self.numbers
        return slice(start, start + self.numbers)

    @property
    def width(self) -> int:
        """Number of columns."""
        needed = self.learned.start + self.row + self.has_share
        return round_up(needed, _ALIGNED)


def layout_of(table: Table, optimizer: RowOptimizer) -> Layout:
    """The columns of a table."""
    rows = table.get_value()
    adds = rows.prior is not None and optimizer.adds_to_posteriors
    vectors = 0 if adds else 1 + optimizer.slots
    if rows.has_sites:  # with the share in the last column
        return Layout(rows.numbers, rows.numbers + 2 * rows.dim, vectors, False)
    return Layout(rows.numbers, rows.width, vectors, has_prior(table))


def pack(tables: nnx.State, optimizer: RowOptimizer) -> nnx.State:
    """The tables with room for the optimizer, and for the prior's share of a document, in every row."""

    def widened(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        layout = layout_of(table, optimizer)
        start, behind = layout.learned.start, layout.width - layout.learned.start - layout.row
        rows = sites.set_aside(rows) if rows.has_sites else rows
        values = jnp.pad(rows.values, ((0, 0), (start, behind)))
        log_ranks = jax.tree.map(jnp.copy, rows.log_ranks)
        return table.copy(
            dataclasses.replace(rows, values=values, log_ranks=log_ranks, start=start)
        )

    return with_priors(nnx.map_state(widened, tables), jax.tree.map(jnp.copy, priors(tables)))


def points(tables: nnx.State) -> nnx.State:
    """The tables with the means of their posteriors for parameters."""
    return nnx.map_state(lambda path, table: table.copy(table.get_value().point()), tables)


def learned(tables: nnx.State) -> nnx.State:
    """The tables without what the optimizer and the prior keep in their rows."""

    def rows(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        values = rows.values[:, rows.start : rows.start + rows.width]
        values = values if rows.aside is None else sites.together(rows)
        return table.copy(dataclasses.replace(rows, values=values, start=0, aside=None))

    return nnx.map_state(rows, tables)


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


def map_values(change: Callable[[Path, Table], WholeTable], tables: nnx.State) -> nnx.State:
    """The tables with changed values."""

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

"""What the rows of a table hold while a model trains: learned numbers, and what the optimizer and the prior keep."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float

from clickexp.parameters.table import NEVER_SHOWN, Prior, Rows, Table
from clickexp.training.optimizers import RowOptimizer
from clickexp.types import Array, Scalar

LEAST_DEVIATION = 1e-3
"""Of mean log ranks, below which rows are taken to be shown at the same ranks."""

ALIGNED = 4
"""Rows are a multiple of so many columns wide, 16 bytes.

In a table of 24 bytes per row every third row lies in two cache lines, and XLA on the CPU moves single numbers where it
could move four: a step takes a tenth longer.
"""

_LOG_RANKS = 0
"""Column in which logarithms of ranks are counted; gradients are added up there later."""

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

    What a step changes is in front, since a gather or scatter of the first columns takes ids alone. XLA would have to
    make pairs of ids and columns for others, which costs a twentieth of a step.

    Attributes:
        numbers: Learned numbers per row: parameters, or offsets and spreads.
        row: Columns of a row outside training.
        slots: State vectors of the optimizer.
        has_share: Whether there is a prior.
    """

    numbers: int
    row: int
    slots: int
    has_share: bool

    @property
    def state(self) -> list[slice]:
        """Columns of each state vector."""
        starts = [(1 + slot) * self.numbers for slot in range(self.slots)]
        return [slice(start, start + self.numbers) for start in starts]

    @property
    def learned(self) -> slice:
        """Columns of the learned numbers, where the row starts."""
        start = (1 + self.slots) * self.numbers
        return slice(start, start + self.numbers)

    @property
    def width(self) -> int:
        """Number of columns."""
        needed = self.learned.start + self.row + self.has_share
        return -(-needed // ALIGNED) * ALIGNED


def layout_of(table: Table, optimizer: RowOptimizer) -> Layout:
    """The columns of a table."""
    rows = table.get_value()
    slots = optimizer.slots if rows.prior is None else optimizer.posterior_slots
    return Layout(rows.numbers, rows.width, slots, has_prior(table))


def pack(tables: nnx.State, optimizer: RowOptimizer) -> nnx.State:
    """The tables with room for the optimizer in every row; counts, and sums of log ranks, start from 0."""

    def widened(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        layout = layout_of(table, optimizer)
        start, behind = layout.learned.start, layout.width - layout.learned.start - rows.width
        values = jnp.pad(rows.values, ((0, 0), (start, behind)))
        log_ranks = jnp.zeros(2) if rows.by_rank else None
        return table.copy(dataclasses.replace(rows, values=values, log_ranks=log_ranks, start=start))

    return with_priors(nnx.map_state(widened, tables), jax.tree.map(jnp.copy, priors(tables)))


def points(tables: nnx.State) -> nnx.State:
    """The tables with the means of their posteriors for parameters."""
    return nnx.map_state(lambda path, table: table.copy(table.get_value().point()), tables)


def learned(tables: nnx.State) -> nnx.State:
    """The tables without what the optimizer and the prior keep in their rows."""

    def rows(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        values = rows.values[:, rows.start : rows.start + rows.width]
        return table.copy(dataclasses.replace(rows, values=values, start=0))

    return nnx.map_state(rows, tables)


def has_prior(table: Table) -> bool:
    """Whether the rows have a prior."""
    return _has_posterior(table) or prior_precision(table) > 0


def _has_posterior(table: Table) -> bool:
    return table.get_value().prior is not None


def prior_precision(table: Table) -> float:
    """That of a prior that is not learned; 0 for none."""
    return table.get_metadata().get("prior_precision", 0.0)


def priors(tables: nnx.State) -> dict[Path, Prior]:
    """The learned priors by table."""
    rows = {path: table.get_value() for path, table in nnx.to_flat_state(tables)}
    return {path: each.prior for path, each in rows.items() if each.prior is not None}


def with_priors(tables: nnx.State, priors: Mapping[Path, Prior]) -> nnx.State:
    """The tables with these priors."""

    def changed(path: Path, table: Table) -> nnx.Variable[Rows]:
        return table.copy(dataclasses.replace(table.get_value(), prior=priors.get(path)))

    return nnx.map_state(changed, tables)


def count(tables: nnx.State, ids: Taken, log_ranks: Taken) -> nnx.State:
    """Adds one to the last column of a row for each of its documents; in tables with a prior.

    Where its mean follows ranks, log ranks are added to the first column, which is free between steps, and their
    squares to those of the table.
    """

    def counted(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        if path not in ids or not has_prior(table):
            return table
        rows_read = flat(ids[path])
        counted = rows.values.at[rows_read, -1].add(1.0, mode="drop")
        if not rows.by_rank:
            return table.copy(dataclasses.replace(rows, values=counted))
        ranks = flat(log_ranks[path])
        counted = counted.at[rows_read, _LOG_RANKS].add(ranks, mode="drop")
        squares = jnp.sum(jnp.where(rows_read < len(rows.values), ranks**2, 0.0))
        return table.copy(dataclasses.replace(rows, values=counted, log_ranks=rows.log_ranks.at[1].add(squares)))

    return nnx.map_state(counted, tables)


def shares(tables: nnx.State) -> nnx.State:
    """Turns the counts of the last column into the prior's share of one document, 1 / count; 0 for rows without any.

    Sums of log ranks become x, standardised means. Rows that an earlier training has left keep their means, whatever x
    they get, and their x where this log does not show them.
    """

    def shared(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        if not has_prior(table):
            return table
        values, log_ranks = rows.values, rows.log_ranks
        counts = values[:, -1]
        share = jnp.where(counts > 0, 1 / jnp.maximum(counts, 1.0), 0.0)
        if rows.prior is not None and rows.by_rank:
            before = jnp.where(_are_prior(rows), NEVER_SHOWN, values[:, _x(rows)])
            x, log_ranks = _standardised(values[:, _LOG_RANKS] * share, counts, rows.log_ranks[1])
            x = jnp.where(counts > 0, x, before)
            moved = jnp.where(jnp.isfinite(before), before - x, 0.0)
            values = values.at[:, rows.start : rows.start + rows.dim].add(moved[:, None] * rows.prior.slope)
            values = values.at[:, _x(rows)].set(x).at[:, _LOG_RANKS].set(0.0)
        values = values.at[:, -1].set(share)
        return table.copy(dataclasses.replace(rows, values=values, log_ranks=log_ranks))

    return nnx.map_state(shared, tables)


def refit_priors(tables: nnx.State) -> nnx.State:
    """The tables with the means of their priors where those of the posteriors lie: the regression of these on x.

    Of rows that the log shows. Posteriors stay, so that the evidence lower bound rises, also those that an earlier
    training has left; rows that are their prior follow it. Gradients alone take many passes to get there where rows
    have many documents.
    """

    def refitted(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        if rows.prior is None:
            return table
        values = rows.values
        means = slice(rows.start, rows.start + rows.dim)
        offsets = values[:, means]
        shown = values[:, -1:] > 0
        number = jnp.maximum(jnp.sum(shown, dtype=jnp.float32), 1.0)
        mean = jnp.sum(jnp.where(shown, offsets, 0.0), axis=0) / number
        prior = dataclasses.replace(rows.prior, mean=rows.prior.mean + mean)
        change = jnp.broadcast_to(mean, offsets.shape)
        if rows.by_rank:
            x = values[:, _x(rows), None]
            x, of_shown = (jnp.where(where, x, 0.0) for where in (jnp.isfinite(x), shown))
            slope = jnp.sum(offsets * of_shown, axis=0) / jnp.maximum(jnp.sum(of_shown * of_shown), 1.0)
            prior, change = dataclasses.replace(prior, slope=rows.prior.slope + slope), change + slope * x
        values = values.at[:, means].add(-jnp.where(_are_prior(rows)[:, None] & ~shown, 0.0, change))
        return table.copy(dataclasses.replace(rows, values=values, prior=prior))

    return nnx.map_state(refitted, tables)


def _are_prior(rows: Rows) -> Bool[Array, " rows"]:
    """Whether rows are as they start; no step has changed them."""
    return jnp.all(rows.values[:, rows.start : rows.start + rows.numbers] == 0, axis=1)


def _x(rows: Rows) -> int:
    """Its column in packed rows."""
    return rows.start + rows.numbers


def _standardised(
    log_ranks: Float[Array, " rows"], counts: Float[Array, " rows"], squares: Scalar
) -> tuple[Float[Array, " rows"], Float[Array, "2"]]:
    """Returns x of each row, and the line that predicts it from one log rank.

    The mean over many lists deviates less from that of all rows than the rank in one list does: by the fraction of the
    variance of log ranks, over documents of lists, that lies between rows.

    Args:
        log_ranks: Means by row.
        counts: Documents by row.
        squares: Sum of the squared log ranks of all documents.
    """
    shown, documents = counts > 0, jnp.maximum(jnp.sum(counts), 1.0)
    number = jnp.maximum(jnp.sum(shown, dtype=jnp.float32), 1.0)
    mean = jnp.sum(jnp.where(shown, log_ranks, 0.0)) / number
    centred = jnp.where(shown, log_ranks - mean, 0.0)
    deviation = jnp.sqrt(jnp.sum(centred**2) / number)
    x = jnp.where(shown, centred / jnp.maximum(deviation, LEAST_DEVIATION), NEVER_SHOWN)
    of_documents = jnp.sum(counts * centred) / documents
    between = jnp.sum(counts * centred**2) / documents - of_documents**2
    total = squares / documents - (mean + of_documents) ** 2
    fraction = jnp.clip(between / jnp.maximum(total, LEAST_DEVIATION**2), 0.0, 1.0)
    line = jnp.stack([of_documents - fraction * (mean + of_documents), fraction])
    return x, jnp.where(deviation < LEAST_DEVIATION, 0.0, line / jnp.maximum(deviation, LEAST_DEVIATION))


def map_values(change: Callable[[Path, Table], WholeTable], tables: nnx.State) -> nnx.State:
    """The tables with changed values."""

    def changed(path: Path, table: Table) -> nnx.Variable[Rows]:
        return table.copy(dataclasses.replace(table.get_value(), values=change(path, table)))

    return nnx.map_state(changed, tables)


def flat(taken: list[Array]) -> Array:
    """What all takes of a table read, one after the other."""
    return jnp.concatenate([ids.reshape(-1) for ids in taken])


def flat_rows(taken: list[Array]) -> Float[Array, "rows dim"]:
    """Rows in the shapes in which the model takes them, in the order of the ids that are `flat`."""

    def turned(rows: Array) -> Array:
        if rows.shape[-1] == 1:  # this way XLA sees that the model turns them as well
            return rows[..., 0].T.reshape(-1, 1)
        return rows.transpose(_backwards(rows.ndim - 1)).reshape(-1, rows.shape[-1])

    return jnp.concatenate([turned(rows) for rows in taken])


def in_shapes(rows: Float[Array, "rows dim"], ids: list[Array]) -> list[Array]:
    """The inverse of `flat_rows`."""

    def turned(part: Array, shape: tuple[int, ...]) -> Array:
        if part.shape[-1] == 1:
            return part.reshape(shape).T[..., None]
        return part.reshape(*shape, part.shape[-1]).transpose(_backwards(len(shape)))

    parts = jnp.split(rows, np.cumsum([each.size for each in ids])[:-1])
    return [turned(part, each.shape) for part, each in zip(parts, ids, strict=True)]


def _backwards(axes: int) -> tuple[int, ...]:
    return (*reversed(range(axes)), axes)

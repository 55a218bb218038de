"""What the rows of a table hold while a model trains: learned numbers, and what the optimizer and the prior keep."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from clickexp.parameters.table import NEVER_SHOWN, Prior, Rows, Table
from clickexp.training.optimizers import RowOptimizer
from clickexp.types import Array, Scalar

LEAST_DEVIATION = 1e-3
"""Of mean log ranks, below which rows are taken to be shown at the same ranks."""

WholeTable = Float[jax.Array, "table width"]

Path = tuple
Taken = dict[Path, list[Array]]
"""For each table the ids, or the rows, of each `take` in the order in which the model takes them."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Columns of the packed rows of one table: [parameters, or a posterior | state | accumulator | share].

    Attributes:
        numbers: Learned numbers per row: parameters, or offsets and spreads.
        start: Columns of a parameter or a posterior.
        slots: State vectors of the optimizer.
        has_share: Whether there is a prior.
    """

    numbers: int
    start: int
    slots: int
    has_share: bool

    @property
    def state(self) -> list[slice]:
        """Columns of each state vector."""
        starts = [self.start + slot * self.numbers for slot in range(self.slots)]
        return [slice(start, start + self.numbers) for start in starts]

    @property
    def accumulator(self) -> slice:
        """Columns that gradients are added up in."""
        start = self.start + self.slots * self.numbers
        return slice(start, start + self.numbers)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.accumulator.stop + self.has_share


def layout_of(table: Table, optimizer: RowOptimizer) -> Layout:
    """The columns of a table."""
    rows = table.get_value()
    slots = optimizer.slots if rows.prior is None else optimizer.posterior_slots
    return Layout(rows.numbers, rows.width, slots, has_prior(table))


def pack(tables: nnx.State, optimizer: RowOptimizer) -> nnx.State:
    """The tables with room for the optimizer in every row; counts, and what is known of ranks, start from 0."""

    def widened(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        values = jnp.pad(rows.values, ((0, 0), (0, layout_of(table, optimizer).width - rows.width)))
        if rows.by_rank:
            rows = dataclasses.replace(rows, log_ranks=jnp.zeros(2))
            values = values.at[:, rows.numbers].set(0.0)
        return table.copy(dataclasses.replace(rows, values=values))

    return with_priors(nnx.map_state(widened, tables), jax.tree.map(jnp.copy, priors(tables)))


def points(tables: nnx.State) -> nnx.State:
    """The tables with the means of their posteriors for parameters."""
    return nnx.map_state(lambda path, table: table.copy(table.get_value().point()), tables)


def learned(tables: nnx.State) -> nnx.State:
    """The tables without what the optimizer and the prior keep in their rows."""
    return map_values(lambda path, table: table.get_value().values[:, : table.get_value().width], tables)


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
    """Adds one to the last column of a row for each of its documents, and log ranks to x; in tables with a prior.

    Only those have x whose priors have means that follow ranks. They also sum the squares of log ranks.
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
        counted = counted.at[rows_read, rows.numbers].add(ranks, mode="drop")
        squares = jnp.sum(jnp.where(rows_read < len(rows.values), ranks**2, 0.0))
        return table.copy(dataclasses.replace(rows, values=counted, log_ranks=rows.log_ranks.at[1].add(squares)))

    return nnx.map_state(counted, tables)


def shares(tables: nnx.State) -> nnx.State:
    """Turns the counts of the last column into the prior's share of one document, 1 / count; 0 for rows without any.

    Sums x of log ranks become standardised means.
    """

    def shared(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        if not has_prior(table):
            return table
        values, log_ranks = rows.values, rows.log_ranks
        counts = values[:, -1]
        share = jnp.where(counts > 0, 1 / jnp.maximum(counts, 1.0), 0.0)
        if rows.by_rank:
            x = rows.numbers
            standardised, log_ranks = _standardised(values[:, x] * share, counts, rows.log_ranks[1])
            values = values.at[:, x].set(standardised)
        values = values.at[:, -1].set(share)
        return table.copy(dataclasses.replace(rows, values=values, log_ranks=log_ranks))

    return nnx.map_state(shared, tables)


def refit_priors(tables: nnx.State) -> nnx.State:
    """The tables with the means of their priors where those of the posteriors lie: the regression of these on x.

    The posteriors stay, so that the evidence lower bound rises. Gradients alone take many passes to get there where
    rows have many documents.
    """

    def refitted(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        if rows.prior is None:
            return table
        values, dim = rows.values, rows.dim
        offsets = values[:, :dim]
        shown = values[:, -1:] > 0
        number = jnp.maximum(jnp.sum(shown, dtype=jnp.float32), 1.0)
        mean = jnp.sum(jnp.where(shown, offsets, 0.0), axis=0) / number
        prior = dataclasses.replace(rows.prior, mean=rows.prior.mean + mean)
        change = jnp.broadcast_to(mean, offsets.shape)
        if rows.by_rank:
            x = jnp.where(shown, values[:, rows.numbers : rows.width], 0.0)
            slope = jnp.sum(offsets * x, axis=0) / jnp.maximum(jnp.sum(x * x), 1.0)
            prior, change = dataclasses.replace(prior, slope=rows.prior.slope + slope), change + slope * x
        values = values.at[:, :dim].add(-jnp.where(shown, change, 0.0))
        return table.copy(dataclasses.replace(rows, values=values, prior=prior))

    return nnx.map_state(refitted, tables)


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

"""The priors of tables while a model trains: what a row has of them, and how their means are learned."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from clickexp.parameters.table import NEVER_SHOWN, Prior, Rows, Table
from clickexp.training.sparse.packing import Path, Taken, WholeTable, flat, has_prior, learns_prior
from clickexp.types import Array, Count, Leaf, Scalar

Block = Float[jax.Array, "rows width"]
Flags = Bool[jax.Array, " rows"]

LEAST_DEVIATION = 1e-3
"""Of mean log ranks, below which rows are taken to be shown at the same ranks."""

_BLOCK = 1 << 12
"""Rows that a pass over a table takes at a time."""

_ENOUGH = 1 << 20
"""Rows that tell the mean of a prior to a thousandth of its deviation. Of larger tables, blocks of about so many do."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["sums", "squares"], meta_fields=[]
)
@dataclasses.dataclass
class Documents:
    """What a pass over the data finds of the documents of a table.

    Attributes:
        sums: [rows, 1 or 2], how many each row serves, then the sum of the logarithms of their ranks, where the mean of
            the prior follows ranks.
        squares: Sum over all documents of the squares of these logarithms.
    """

    sums: Leaf
    squares: Leaf


def no_documents(tables: nnx.State) -> dict[Path, Documents]:
    """Documents before the pass, of the tables with a prior."""
    found = {path: table for path, table in nnx.to_flat_state(tables) if has_prior(table)}
    rows = {path: table.get_value() for path, table in found.items()}
    return {
        path: Documents(jnp.zeros((len(each.values), 1 + each.by_rank)), jnp.zeros(()))
        for path, each in rows.items()
    }


def count(found: Mapping[Path, Documents], ids: Taken, log_ranks: Taken) -> dict[Path, Documents]:
    """The documents so far with those of a batch."""

    def counted(path: Path, before: Documents) -> Documents:
        if path not in ids:
            return before
        rows, ranks = flat(ids[path]), flat(log_ranks[path])
        columns = jnp.stack([jnp.ones(rows.shape), ranks], axis=1)[:, : before.sums.shape[1]]
        squares = jnp.sum(jnp.where(rows < len(before.sums), ranks**2, 0.0))
        return Documents(before.sums.at[rows].add(columns, mode="drop"), before.squares + squares)

    return {path: counted(path, before) for path, before in found.items()}


def shares(tables: nnx.State, found: Mapping[Path, Documents]) -> nnx.State:
    """Writes the prior's share of one document, 1 / count, into each row; 0 into rows without any.

    Sums of log ranks become x, standardised means. Rows that an earlier training has left keep their means, whatever x
    they get, and their x where this log does not show them.
    """

    def shared(path: Path, table: Table) -> nnx.Variable[Rows]:
        rows = table.get_value()
        if path not in found:
            return table
        values, log_ranks, documents = rows.values, rows.log_ranks, found[path]
        counts = documents.sums[:, 0]
        share = jnp.where(counts > 0, 1 / jnp.maximum(counts, 1.0), 0.0)
        if rows.prior is not None and rows.by_rank:
            before = jnp.where(_are_prior(rows, values), NEVER_SHOWN, values[:, _x(rows)])
            x, log_ranks = _standardised(documents.sums[:, 1] * share, counts, documents.squares)
            x = jnp.where(counts > 0, x, before)
            moved = jnp.where(jnp.isfinite(before), before - x, 0.0)
            values = values.at[:, rows.start : rows.start + rows.dim].add(
                moved[:, None] * rows.prior.slope
            )
            values = values.at[:, _x(rows)].set(x)
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
        if rows.prior is None or not learns_prior(table):
            return table
        return table.copy(_refitted(rows, rows.prior))

    return nnx.map_state(refitted, tables)


def _refitted(rows: Rows, prior: Prior) -> Rows:
    # Block by block, which the cache holds: XLA passes over the table once for every sum otherwise, and at ten million
    # rows takes four times as long.
    number, width = rows.values.shape
    size, means = min(_BLOCK, number), slice(rows.start, rows.start + rows.dim)
    blocks, stride = -(-number // size), max(1, number // _ENOUGH)

    def block_at(values: WholeTable, index: Count) -> tuple[Count, Block, Flags]:
        """First row, rows, and which of them are not in earlier blocks: the last block ends with the table."""
        start = jnp.minimum(index * size, number - size)
        rows = jax.lax.dynamic_slice(values, (start, 0), (size, width))
        return start, rows, jnp.arange(size) >= index * size - start

    def x_of(block: Block) -> Float[Array, "rows 1"]:
        x = block[:, _x(rows), None]
        return jnp.where(jnp.isfinite(x), x, 0.0)

    def add(index: Count, sums: list[Array]) -> list[Array]:
        _, block, new = block_at(rows.values, index * stride)
        shown = jnp.where((block[:, -1:] > 0) & new[:, None], 1.0, 0.0)
        found = [jnp.sum(shown), jnp.sum(shown * block[:, means], axis=0)]
        if rows.by_rank:
            x = shown * x_of(block)
            found += [jnp.sum(x * x), jnp.sum(x * block[:, means], axis=0)]
        return jax.tree.map(jnp.add, sums, found)

    nothing = [jnp.zeros(()), jnp.zeros(rows.dim)] * (1 + rows.by_rank)
    sums = jax.lax.fori_loop(0, -(-blocks // stride), add, nothing)
    mean, *slope = (sums[i + 1] / jnp.maximum(sums[i], 1.0) for i in range(0, len(sums), 2))

    def change(index: Count, values: WholeTable) -> WholeTable:
        start, block, new = block_at(values, index)
        changes = mean + slope[0] * x_of(block) if rows.by_rank else mean
        moved = new & ((block[:, -1] > 0) | ~_are_prior(rows, block))
        changed = block[:, means] - jnp.where(moved[:, None], changes, 0.0)
        return jax.lax.dynamic_update_slice(values, changed, (start, rows.start))

    values = jax.lax.fori_loop(0, blocks, change, rows.values)
    new_slope = prior.slope + slope[0] if rows.by_rank else None
    return dataclasses.replace(
        rows,
        values=values,
        prior=dataclasses.replace(prior, mean=prior.mean + mean, slope=new_slope),
    )


def _are_prior(rows: Rows, block: Block) -> Bool[Array, " rows"]:
    """Whether rows of a block are as they start; no step has changed them."""
    return jnp.all(block[:, rows.start : rows.start + rows.numbers] == 0, axis=1)


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
    return x, jnp.where(
        deviation < LEAST_DEVIATION, 0.0, line / jnp.maximum(deviation, LEAST_DEVIATION)
    )

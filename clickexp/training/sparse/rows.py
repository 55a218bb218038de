"""Table steps whose cost does not grow with the table: rows in, rows out.

While a model trains, each row holds side by side what is learned of its parameters, the optimizer's state, a gradient
accumulator that is zero between steps, and the share of the prior that falls on one of the row's training documents. A
step gathers the batch's rows, differentiates the loss with respect to them, adds the gradients into the accumulators,
where duplicates sum, reads the sums back, and scatters whole new rows. XLA does all of it in place because everything
lives in one donated array.

What is learned of a parameter is its value, or mean m and spread l of a normal posterior, whose standard deviation is
s = exp(l) / sqrt(precision of the prior). Then a step draws z = m + s e for each lookup and descends on the negative
evidence lower bound, loss(z) + KL(posterior | prior), of which every step has an unbiased estimate (Kingma and Welling
2014, "Auto-encoding variational Bayes"; Blundell et al. 2015, "Weight uncertainty in neural networks").
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Integer

from clickexp.parameters.hashing import murmur3
from clickexp.parameters.table import Prior, Rows, Table
from clickexp.training.optimizers import RowOptimizer, RowVectors, Slots, Updated
from clickexp.training.sparse.lookups import OpenRows, Traced
from clickexp.types import Array, Count, Flag, Observed

Ids = Integer[Array, "*ids"]
FlatIds = Integer[Array, " rows"]
Packed = Float[Array, "rows width"]
WholeTable = Float[jax.Array, "table width"]

LEAST_DEVIATION = 1e-3
"""Of mean log ranks, below which rows are taken to be shown at the same ranks."""

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


def _layout_of(table: Table, optimizer: RowOptimizer) -> _Layout:
    rows = table.get_value()
    slots = optimizer.slots if rows.prior is None else optimizer.posterior_slots
    return _Layout(rows.numbers, rows.width, slots, has_prior(table))


def pack(tables: nnx.State, optimizer: RowOptimizer) -> nnx.State:
    """The tables with room for the optimizer in every row; the shares of the prior still hold counts of 0."""

    def widened(path: Path, table: Table) -> WholeTable:
        rows = table.get_value()
        return jnp.pad(rows.values, ((0, 0), (0, _layout_of(table, optimizer).width - rows.width)))

    return with_priors(_map_values(widened, tables), jax.tree.map(jnp.copy, priors(tables)))


def points(tables: nnx.State) -> nnx.State:
    """The tables with the means of their posteriors for parameters."""
    return nnx.map_state(lambda path, table: table.copy(table.get_value().point()), tables)


def learned(tables: nnx.State) -> nnx.State:
    """The tables without what the optimizer and the prior keep in their rows."""
    return _map_values(lambda path, table: table.get_value().values[:, : table.get_value().width], tables)


def has_prior(table: Table) -> bool:
    """Whether the rows have a prior."""
    return _has_posterior(table) or _prior_precision(table) > 0


def _has_posterior(table: Table) -> bool:
    return table.get_value().prior is not None


def _prior_precision(table: Table) -> float:
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


def log_ranks(traced: Traced, ids: Taken, mask: Observed) -> Taken:
    """Logarithms of the ranks that ids stand for, in their shapes; 0 where they do not stand for documents of lists."""
    ids_left = {path: iter(each) for path, each in ids.items()}
    found: Taken = {}
    for lookup in traced.lookups:
        each, shape = next(ids_left[lookup.table]), mask.T.shape if lookup.loops else mask.shape
        log_rank = jnp.zeros(each.shape)
        if each.shape[:2] == shape:
            log_rank = jnp.log(jax.lax.broadcasted_iota(jnp.float32, each.shape, 0 if lookup.loops else 1) + 1)
        found.setdefault(lookup.table, []).append(log_rank)
    return found


def count(tables: nnx.State, ids: Taken, log_ranks: Taken) -> nnx.State:
    """Adds one to the last column of a row for each of its documents, and log ranks to x where priors are learned.

    Only in tables with a prior.
    """

    def counted(path: Path, table: Table) -> WholeTable:
        rows = table.get_value()
        if path not in ids or not has_prior(table):
            return rows.values
        flat = _flat(ids[path])
        counted = rows.values.at[flat, -1].add(1.0, mode="drop")
        if rows.prior is None:
            return counted
        return counted.at[flat, rows.width - 1].add(_flat(log_ranks[path]), mode="drop")

    return _map_values(counted, tables)


def shares(tables: nnx.State) -> nnx.State:
    """Turns the counts of the last column into the prior's share of one document, 1 / count.

    Sums x of log ranks become standardised means; 0 for rows that no document has.
    """

    def shared(path: Path, table: Table) -> WholeTable:
        rows = table.get_value()
        values = rows.values
        if not has_prior(table):
            return values
        counts = values[:, -1]
        share = 1 / jnp.maximum(counts, 1.0)
        if rows.prior is not None:
            x = rows.width - 1
            values = values.at[:, x].set(_standardised(values[:, x] * share, counts > 0))
        return values.at[:, -1].set(share)

    return _map_values(shared, tables)


def _standardised(x: Float[Array, " rows"], known: Bool[Array, " rows"]) -> Float[Array, " rows"]:
    number = jnp.maximum(jnp.sum(known, dtype=jnp.float32), 1.0)
    centred = jnp.where(known, x - jnp.sum(jnp.where(known, x, 0.0)) / number, 0.0)
    return centred / jnp.maximum(jnp.sqrt(jnp.sum(centred**2) / number), LEAST_DEVIATION)


def _map_values(change: Callable[[Path, Table], WholeTable], tables: nnx.State) -> nnx.State:
    def changed(path: Path, table: Table) -> nnx.Variable[Rows]:
        return table.copy(dataclasses.replace(table.get_value(), values=change(path, table)))

    return nnx.map_state(changed, tables)


@dataclasses.dataclass
class Lookup:
    """Rows of one table that a batch reads, all its takes one after the other.

    Attributes:
        ids: [rows]
        packed: Whole rows.
        noise: What draws from posteriors deviate by, in standard deviations; None where there are none.
    """

    ids: FlatIds
    packed: Packed
    noise: RowVectors | None


def gather(tables: nnx.State, ids: Taken, key: Array) -> dict[Path, Lookup]:
    """The rows that a batch reads, by table.

    Args:
        tables: The tables.
        ids: What the batch reads.
        key: Fixes the noise, [words] uint32; none twice.
    """
    found = {}
    for index, (path, table) in enumerate(nnx.to_flat_state(tables)):
        if path in ids:
            flat, rows = _flat(ids[path]), table.get_value()
            noise = _noise((*flat.shape, rows.dim), key, index) if _has_posterior(table) else None
            found[path] = Lookup(flat, rows.values.at[flat].get(mode="clip"), noise)
    return found


def _noise(shape: tuple[int, int], key: Array, table: int) -> RowVectors:
    """Standard normal numbers from hashes of their index, in a quarter of the time that JAX's generator takes."""
    index = jax.lax.iota(jnp.uint32, math.prod(shape))
    bits = murmur3(index, *key, seed=table) >> np.uint32(9)
    uniform = (bits.astype(jnp.float32) + 0.5) * np.float32(2.0**-22) - 1
    return (np.float32(2**0.5) * jax.lax.erf_inv(uniform)).reshape(shape)


def drawn(tables: nnx.State, ids: Taken, lookups: dict[Path, Lookup]) -> Taken:
    """The parameters of the rows, or draws from their posteriors, in the shapes in which the model takes them."""
    found = {}
    for path, table in nnx.to_flat_state(tables):
        if path in ids:
            rows, lookup, taken = table.get_value(), lookups[path], ids[path]
            values = rows.means(lookup.packed)
            if lookup.noise is not None:
                values += rows.deviations(lookup.packed) * lookup.noise
            parts = jnp.split(values, np.cumsum([each.size for each in taken])[:-1])
            found[path] = [part.reshape(*i.shape, rows.dim) for part, i in zip(parts, taken, strict=True)]
    return found


def update(
    tables: nnx.State,
    ids: Taken,
    lookups: dict[Path, Lookup],
    grads: Taken,
    optimizer: RowOptimizer,
    step: Count,
) -> tuple[nnx.State, dict[Path, Prior]]:
    """The tables after one step on the batch's rows.

    Args:
        tables: The tables.
        ids: What the batch reads.
        lookups: The rows that it reads.
        grads: Gradients of the summed loss with respect to what was `drawn`.
        optimizer: Rule of rows.
        step: Number of the step.

    Returns:
        The tables, and the gradients of the bound with respect to the `priors`.
    """
    prior_grads = jax.tree.map(jnp.zeros_like, priors(tables))

    def updated(path: Path, table: Table) -> WholeTable:
        rows = table.get_value()
        if path not in ids:  # the loss reads no row of it
            return rows.values
        lookup, layout = lookups[path], _layout_of(table, optimizer)
        grad = jnp.concatenate([g.reshape(-1, rows.dim) for g in grads[path]])
        share, offset = lookup.packed[:, -1:], lookup.packed[:, : rows.dim]
        if lookup.noise is None:
            grad = grad + share * _prior_precision(table) * offset if has_prior(table) else grad
            return _update(rows.values, layout, lookup, grad, lambda *given: optimizer.update(*given, step))
        sd, precision = rows.deviations(lookup.packed), jnp.exp(rows.prior.log_precision)
        real = (lookup.ids < len(rows.values))[:, None]
        of_precision = share * (precision * (sd * sd + offset * offset) - 1) / 2
        prior_grads[path] = Prior(
            jnp.sum(jnp.where(real, of_precision, 0.0)),
            jnp.sum(jnp.where(real, grad * lookup.packed[:, rows.width - 1 : rows.width], 0.0), axis=0),
        )
        of_prior = share * precision * jnp.concatenate([offset, sd * sd], axis=1)
        grad = jnp.concatenate([grad, grad * lookup.noise * sd - share], axis=1) + of_prior
        scale = np.repeat(np.float32([0, 0.5]), rows.dim) * rows.prior.log_precision

        def rule(row: RowVectors, state: Slots, grad: RowVectors) -> Updated:
            posterior, state = optimizer.update_posterior(row - scale, state, grad, step)
            return posterior + scale, state

        return _update(rows.values, layout, lookup, grad, rule)

    return _map_values(updated, tables), prior_grads


def _update(
    packed: WholeTable, layout: _Layout, lookup: Lookup, grad: RowVectors, rule: Callable[..., Updated]
) -> WholeTable:
    ids, rows, accumulator = lookup.ids, lookup.packed, layout.accumulator
    packed = packed.at[ids, accumulator].add(grad, mode="drop")
    total = packed.at[ids, accumulator].get(mode="clip")
    learned, state = rows[:, : layout.numbers], [rows[:, columns] for columns in layout.state]
    row, state = rule(learned, state, total)
    known = rows[:, layout.numbers : layout.start]
    columns = [row, known, *state, jnp.zeros_like(row), rows[:, layout.accumulator.stop :]]
    return packed.at[ids].set(jnp.concatenate(columns, axis=1), mode="drop")


def _flat(taken: list[Array]) -> Array:
    return jnp.concatenate([ids.reshape(-1) for ids in taken])

"""Table steps whose cost does not grow with the table: rows in, rows out.

While a model trains, each row holds side by side what is learned of its parameters, what the optimizer keeps, and the
share of the prior that falls on one of the row's training documents. Rows of several tables that the loss reads at the
same ids lie in one array. A step gathers the batch's rows and
differentiates the loss with respect to them. The changes of posteriors by natural gradients are sums over documents,
which the step adds to the rows. Other rules need the sum of a row's gradients first: the step adds these into an
accumulator in the row, zero between steps, reads the sums back, and scatters whole new rows. XLA does all of it in
place because everything lives in one donated array.

What is learned of a parameter is its value, or mean m and spread l of a normal posterior, whose standard deviation is
s = exp(l) / sqrt(precision of the prior). Then a step draws z = m + s e for each lookup and descends on the negative
evidence lower bound, loss(z) + KL(posterior | prior), of which every step has an unbiased estimate (Kingma and Welling
2014, "Auto-encoding variational Bayes"; Blundell et al. 2015, "Weight uncertainty in neural networks").
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Integer

from clickexp import types
from clickexp.parameters.table import Prior, Rows, Table
from clickexp.training.sparse import noise, sites
from clickexp.training.sparse.packing import (
    Layout,
    Path,
    Taken,
    WholeTable,
    arrays,
    flat,
    flat_rows,
    groups,
    has_prior,
    in_shapes,
    learns_prior,
    map_values,
    prior_precision,
    priors,
)
from clickexp.training.sparse.placement import ONE_DEVICE, Whole
from clickexp.training.sparse.row_optimizers import RowOptimizer, RowVectors, Slots, Updated
from clickexp.types import Array, Count, Flag, Observed, Scalar
from clickexp.utils.rounding import ceil_div

Ids = Integer[Array, "*ids"]
FlatIds = Integer[Array, " rows"]
Packed = Float[Array, "rows width"]
Flags = Bool[Array, "rows 1"]
Rule = Callable[[RowVectors, Slots, RowVectors], Updated]
Axes = dict[Path, list[int | None]]
"""For each table the axis of sessions in each of its `Taken` ids."""


def shown_ids(
    tables: nnx.State,
    ids: Taken,
    mask: Observed,
    active: Flag | bool,
    placement: Whole = ONE_DEVICE,
) -> Taken:
    """The ids that a batch reads in each table, or places where tables are spread.

    Those of masked documents, and all ids of a batch that is not active, point past the table's end.
    """
    values = arrays(tables)

    def shown(path: Path, read: Ids) -> Ids:
        places, end = placement.places(read, values[path]), placement.end(values[path])
        if places.shape[-2:] == mask.T.shape:
            places = jnp.where(mask.T, places, end)
        return jnp.where(active, places, end)

    return {path: [shown(path, read) for read in reads] for path, reads in ids.items()}


def session_axes(ids: Taken, sessions: int) -> Axes:
    """The axis of the batch's sessions in the ids of each read; None where all sessions share what it reads."""
    return {
        path: [-1 if read.shape[-1:] == (sessions,) else None for read in reads]
        for path, reads in ids.items()
    }


def log_ranks(ids: Taken, mask: Observed) -> Taken:
    """Logarithms of the ranks that ids stand for, in their shapes; 0 where they do not stand for documents of lists."""
    of_lists = types.log_ranks(mask).T

    def of_ids(read: Ids) -> Array:
        is_of_lists = read.shape[-2:] == of_lists.shape
        return jnp.broadcast_to(of_lists if is_of_lists else jnp.zeros(()), read.shape)

    return {path: [of_ids(read) for read in reads] for path, reads in ids.items()}


class Draws(NamedTuple):
    """Draws from the posteriors of rows.

    Attributes:
        sd: Standard deviations of the posteriors.
        values: The draws.
        rounding: Uniform numbers from -1/2 to 1/2, for each number that is learned.
    """

    sd: RowVectors
    values: RowVectors
    rounding: Float[Array, "rows learned"]


@dataclasses.dataclass
class Lookup:
    """Rows of one array that a batch reads, all its takes one after the other.

    Attributes:
        changed: [rows], the ids of rows that this device changes; behind the end where another one does.
        real: Which of these are not behind the end.
        packed: Whole rows.
        numbers: Of the lookups among those of all devices, [rows].
        lookups: How many these have.
        draws: From their posteriors, by table that has some.
    """

    changed: FlatIds
    real: Flags
    packed: Packed
    numbers: noise.Numbers
    lookups: int
    draws: dict[Path, Draws]


def gather(
    tables: nnx.State, ids: Taken, axes: Axes, key: Array, placement: Whole = ONE_DEVICE
) -> dict[Path, Lookup]:
    """The rows that a batch reads, by the table that has their array.

    Args:
        tables: The tables.
        ids: What the batch reads.
        axes: Of sessions in these.
        key: Fixes the noise, [words] uint32; none twice.
        placement: Where rows lie.
    """
    index_of = {path: index for index, (path, _) in enumerate(nnx.to_flat_state(tables))}
    by_table, by_array = arrays(tables), {}
    for path, members in groups(tables).items():
        if path in ids:
            values = by_table[path]
            packed = placement.take(values, flat(ids[path]), values.shape[1])
            numbers = placement.numbers(ids[path], axes[path])
            draws = {
                member: _draws(table.get_value(), packed, numbers, key, index_of[member])
                for member, table in members
                if table.get_value().prior is not None
            }
            changed = changed_by(placement, ids[path], axes[path], values)
            lookups = placement.lookups(ids[path], axes[path])
            real = (changed < placement.end(values))[:, None]
            by_array[path] = Lookup(changed, real, packed, numbers, lookups, draws)
    return by_array


def _draws(rows: Rows, packed: Packed, numbers: noise.Numbers, key: Array, index: int) -> Draws:
    """Draws from the posteriors of a table."""
    sd = jnp.maximum(rows.deviations(packed), noise.TINY)
    normal = noise.normal(numbers, rows.dim, key, index)
    rounding = noise.uniform_pairs(numbers, rows.dim, key, ~index)
    return Draws(sd, noise.draw(rows.means(packed), sd, normal), rounding)


def changed_by(
    placement: Whole, ids: list[Array], axes: list[int | None], values: WholeTable
) -> FlatIds:
    """The ids of rows that this device counts or changes, one after the other; those of others are behind the end."""
    own = [placement.once(of_take, values, axis) for of_take, axis in zip(ids, axes, strict=True)]
    return flat(own)


def drawn(tables: nnx.State, ids: Taken, lookups: dict[Path, Lookup]) -> Taken:
    """The parameters of the rows, or draws from their posteriors, in the shapes in which the model takes them."""
    by_table = {}
    for path, table in nnx.to_flat_state(tables):
        if path in ids:
            rows = table.get_value()
            lookup = lookups[rows.beside or path]
            draws = lookup.draws.get(path)
            values = rows.means(lookup.packed) if draws is None else draws.values
            by_table[path] = in_shapes(values, ids[path])
    return by_table


def step_rows(
    tables: nnx.State,
    axes: Axes,
    lookups: dict[Path, Lookup],
    grads: Taken,
    optimizer: RowOptimizer,
    step: Count,
    steps_per_pass: Scalar,
    placement: Whole = ONE_DEVICE,
) -> tuple[nnx.State, dict[Path, Prior]]:
    """The tables after one step on the batch's rows.

    Args:
        tables: The tables.
        axes: Of sessions in the lookups of the batch.
        lookups: The rows that it reads.
        grads: Gradients of the summed loss with respect to what was `drawn`.
        optimizer: Rule of rows.
        step: Number of the step.
        steps_per_pass: Number of batches over which a pass spreads the documents of a row.
        placement: Where rows lie.

    Returns:
        The tables, and the gradients of the bound with respect to the `priors`, for fixed means and deviations.
    """
    prior_grads = jax.tree.map(jnp.zeros_like, priors(tables))

    def of_documents(path: Path, table: Table, lookup: Lookup) -> RowVectors:
        """What each document adds to its row of a table: a change, or a gradient where a rule needs the sum."""
        rows, draws = table.get_value(), lookup.draws.get(path)
        parts = zip(grads[path], axes[path], strict=True)
        grad = flat_rows([placement.summed_once(part, axis) for part, axis in parts])
        row = rows.own(lookup.packed)
        share, offset = row[:, -1:], row[:, : rows.dim]
        if draws is None or rows.prior is None:
            return grad + share * prior_precision(table) * offset if has_prior(table) else grad
        sd, precision = draws.sd, jnp.exp(rows.prior.log_precision)
        if rows.has_sites:
            # `refit_priors` learns all of the prior, since steps see no rows that only earlier logs have
            precision, share = sites.own_precision_and_share(rows, lookup.packed)
        else:
            learned = 1.0 if learns_prior(table) else 0.0
            of_precision = learned * share * (precision * (sd * sd + offset * offset) - 1) / 2
            prior_grads[path] = Prior(
                jnp.sum(jnp.where(lookup.real, of_precision, 0.0)),
                jnp.zeros(rows.dim),  # see `learned_priors.refit_priors`
                _of_slopes(row[:, rows.numbers], grad, lookup.real) if rows.by_rank else None,
            )
        mean_grad = grad + share * precision * offset
        log_sd_grad = grad * (draws.values - rows.means(lookup.packed))
        log_sd_grad += share * (precision * sd * sd - 1)
        if not optimizer.adds_to_posteriors:
            return jnp.concatenate([mean_grad, log_sd_grad], axis=1)
        # one over the documents that a batch has of the row on average
        fraction = share * steps_per_pass
        documents = jnp.where((fraction > 0) & (fraction < 1), 1 / fraction, 1.0)
        of_loss = _curvature(placement, lookup, jnp.where(lookup.real, grad, 0.0))
        curvature = documents * (of_loss + share * precision)
        changes = optimizer.posterior_changes(sd, mean_grad, log_sd_grad, curvature)
        before = row[:, : rows.numbers]
        return noise.rounded(before, jnp.concatenate(changes, axis=1), draws.rounding)

    members = groups(tables)

    def after_step(path: Path, table: Table) -> WholeTable | None:
        values = table.get_value().values
        if path not in lookups:  # it lies beside another, or the loss reads no row of it
            return values
        lookup, layouts = lookups[path], [Layout.of(each, optimizer) for _, each in members[path]]
        added = [of_documents(*member, lookup) for member in members[path]]
        if not layouts[0].vectors:
            columns = jnp.concatenate(added, axis=1)
            return placement.scattered(jax.lax.scatter_add, values, lookup.changed, columns)
        rules = [_rule(each.get_value(), optimizer, step) for _, each in members[path]]
        return _by_sums(placement, values, layouts, lookup, added, rules)

    return map_values(after_step, tables), placement.summed(prior_grads)


def _of_slopes(x: Float[Array, " rows"], grad: RowVectors, real: Flags) -> Float[Array, "2 dim"]:
    """The gradient with respect to the slopes of a prior."""
    is_known = real[:, 0] & jnp.isfinite(x)
    # products with a vector each, in place of sums over an array of both: a seventh of a step on a CPU
    of_x = (jnp.where(is_known, power, 0.0) for power in (x, x * x - 1))
    return jnp.stack([jnp.matmul(power, grad, precision="highest") for power in of_x])


def _rule(rows: Rows, optimizer: RowOptimizer, step: Count) -> Rule:
    """The rule of the rows of a table, for the sums of their gradients."""
    if rows.prior is None:
        return functools.partial(optimizer.update, step=step)
    half = rows.prior.log_precision / 2  # of the deviation of the prior, in logarithms

    def rule(row: RowVectors, state: Slots, grad: RowVectors) -> Updated:
        offsets, spreads = jnp.split(row, 2, axis=1)
        posterior = jnp.concatenate([offsets, spreads - half], axis=1)
        posterior, state = optimizer.update_posterior(posterior, state, grad, step)
        offsets, log_sd = jnp.split(posterior, 2, axis=1)
        return jnp.concatenate([offsets, log_sd + half], axis=1), state

    return rule


_SAMPLE = 1024
"""Lookups that gradients are squared of; to look at all takes a third of a step."""


def _curvature(placement: Whole, lookup: Lookup, grad: RowVectors) -> Scalar:
    """About the largest second derivative of the loss of a document: 1/4 of log odds, more where gradients are large.

    The mean square of the gradient is its expectation (Fisher information); numbers of one row add up.
    """
    stride = max(1, lookup.lookups // _SAMPLE)
    stride |= 1  # odd, so that it meets all ranks of batches of a power of two
    some = placement.every(lookup.numbers, stride, grad)
    squares = placement.summed(jnp.sum(some * some, axis=0)) / ceil_div(lookup.lookups, stride)
    return jnp.maximum(jnp.sum(squares), 0.25)


def _by_sums(
    placement: Whole,
    values: WholeTable,
    layouts: Sequence[Layout],
    lookup: Lookup,
    grads: Sequence[RowVectors],
    rules: Sequence[Rule],
) -> WholeTable:
    """An array after rows of its tables have changed by rules for the sums of their gradients."""
    ids, layout = lookup.changed, Layout.beside(layouts)
    values = placement.scattered(jax.lax.scatter_add, values, ids, jnp.concatenate(grads, axis=1))
    total = placement.take(values, ids, layout.numbers)
    state = [lookup.packed[:, columns] for columns in layout.state]
    vectors = lookup.packed[:, layout.learned], *state, total
    ends = np.cumsum([each.numbers for each in layouts])[:-1]
    by_table = zip(*(jnp.split(vector, ends, axis=1) for vector in vectors), strict=True)
    after = [
        rule(row, state, grad) for rule, (row, *state, grad) in zip(rules, by_table, strict=True)
    ]
    rows, states = zip(*after, strict=True)
    vectors = [part for slot in (*zip(*states, strict=True), rows) for part in slot]
    columns = jnp.concatenate([jnp.zeros_like(total), *vectors], axis=1)
    return placement.scattered(jax.lax.scatter, values, ids, columns)

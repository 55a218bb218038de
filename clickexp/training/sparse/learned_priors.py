"""The priors of tables while a model trains: what a row has of them, and how their means are learned."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float

from clickexp.data import Sessions
from clickexp.data.by_document import ByDocument
from clickexp.parameters.table import NEVER_SHOWN, Prior, Rows, Table, powers
from clickexp.training.sparse import sites
from clickexp.training.sparse.packing import (
    Path,
    Taken,
    WholeTable,
    arrays,
    changed,
    flat,
    has_prior,
    learns_prior,
    put,
)
from clickexp.training.sparse.placement import ONE_DEVICE, Whole
from clickexp.training.sparse.rows import Axes, changed_by
from clickexp.types import Array, Count, Leaf, Scalar
from clickexp.utils.rounding import ceil_div

Block = Float[jax.Array, "rows width"]
Flags = Bool[jax.Array, " rows"]

LEAST_DEVIATION = 1e-3
"""Of mean log ranks, below which rows are taken to be shown at the same ranks."""

_MOST_LISTS = 100.0
"""That the average of all rows counts for, where mean log ranks hardly differ."""

_BLOCK, _BLOCK_OF_ACCELERATORS = 1 << 12, 1 << 22
"""Rows that a pass over a table takes at a time: as many as the cache of a core holds; elsewhere every block costs the
launch of several kernels."""

_TINY = 1e-6
"""Rows in whose place none are shown."""

_ENOUGH = 1 << 20
"""Rows that tell the mean of a prior to a thousandth of its deviation. Of larger tables, blocks of about so many do."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Documents:
    """Sums of a pass over the documents of a table.

    Attributes:
        sums: [rows, 1 or 2], how many each row serves, then the sum of the logarithms of their ranks, where the mean of
            the prior follows ranks.
        squares: Sum over all documents of the squares of these logarithms.
    """

    sums: Leaf
    squares: Leaf


def no_documents(tables: nnx.State) -> dict[Path, Documents]:
    """Documents before the pass, of the tables with a prior."""
    with_priors = {path: table for path, table in nnx.to_flat_state(tables) if has_prior(table)}
    by_table = arrays(tables)
    return {
        path: Documents(
            jnp.zeros((len(by_table[path]), 1 + table.get_value().by_rank)), jnp.zeros(())
        )
        for path, table in with_priors.items()
    }


def documents_of(sessions: Sessions, like: Mapping[Path, Documents]) -> dict[Path, Documents]:
    """Documents of tables with a row for each id of the sessions.

    Args:
        sessions: The training sessions.
        like: Shapes, by table.
    """
    counts = ByDocument.of(sessions)
    squares = jnp.float32(counts.squares)

    def of_table(shape: tuple[int, int]) -> Documents:
        by_id = counts.dense(shape[0])
        columns = [by_id.shown, by_id.log_ranks][: shape[1]]
        return Documents(jnp.asarray(np.stack(columns, axis=1, dtype=np.float32)), squares)

    return {path: of_table(documents.sums.shape) for path, documents in like.items()}


def count(
    documents: Mapping[Path, Documents], ids: Taken, axes: Axes, log_ranks: Taken, placement: Whole
) -> dict[Path, Documents]:
    """The documents so far with those of a batch.

    Args:
        documents: Those so far.
        ids: What the batch reads.
        axes: Of sessions in these.
        log_ranks: Logarithms of ranks that the ids stand for.
        placement: Where rows lie.
    """

    def counted(path: Path, before: Documents) -> Documents:
        if path not in ids:
            return before
        rows = changed_by(placement, ids[path], axes[path], before.sums)
        ranks = flat(log_ranks[path])
        columns = jnp.stack([jnp.ones(rows.shape), ranks], axis=1)[:, : before.sums.shape[1]]
        shown = rows < placement.end(before.sums)
        squares = placement.summed(jnp.sum(jnp.where(shown, ranks**2, 0.0)))
        sums = placement.scattered(jax.lax.scatter_add, before.sums, rows, columns)
        return Documents(sums, before.squares + squares)

    return {path: counted(path, before) for path, before in documents.items()}


def shares(
    tables: nnx.State, documents: Mapping[Path, Documents], earlier: Mapping[Path, Documents]
) -> nnx.State:
    """Writes the prior's share of one document, 1 / count, into each row; 0 into rows without any.

    Sums of log ranks become x, standardised means. Rows that an earlier training has left keep their means, whatever x
    they get, and their x where no log shows them. Rows with sites start as prior times site.

    Args:
        tables: The tables.
        documents: The documents of this log.
        earlier: Those of earlier logs, which count for x.
    """

    def shared(path: Path, table: Table) -> Rows:
        rows = table.get_value()
        if path not in documents:
            return rows
        log_ranks, of_table = rows.log_ranks, documents[path]
        counts = of_table.sums[:, 0]
        share = jnp.where(counts > 0, 1 / jnp.maximum(counts, 1.0), 0.0)
        if rows.by_rank:
            if path in earlier:
                of_table = jax.tree.map(jnp.add, of_table, earlier[path])
            total = of_table.sums[:, 0]
            means = of_table.sums[:, 1] / jnp.where(total > 0, total, 1.0)
            x, log_ranks = _standardised(means, total, of_table.squares)
            rows = _with_x(rows, jnp.where(total > 0, x, _trained_x(rows)))
        if rows.has_sites:
            values = put(rows.values, rows.columns, sites.own_rows(rows, share[:, None]))
        else:
            values = put(rows.values, rows.columns, share[:, None], rows.width)
        return dataclasses.replace(rows, values=values, log_ranks=log_ranks)

    return changed(shared, tables)


def _trained_x(rows: Rows) -> Float[Array, " rows"]:
    """Returns x of rows that an earlier training has left; that of others is unknown."""
    return jnp.where(_are_prior(rows), NEVER_SHOWN, _x(rows))


def _with_x(rows: Rows, x: Float[Array, " rows"]) -> Rows:
    """Rows with another x, and the means that they had."""
    if rows.has_sites or rows.prior is None:
        return dataclasses.replace(rows, aside=rows.aside.at[:, 0].set(x))
    before, values = _trained_x(rows), rows.values
    # without an array of powers, which would be half as large as the table
    both = zip((before, before * before - 1), (x, x * x - 1), strict=True)
    line, bend = (jnp.where(jnp.isfinite(before), old - new, 0.0)[:, None] for old, new in both)
    offsets = rows.own(values)[:, : rows.dim]
    offsets = offsets + line * rows.prior.slopes[0] + bend * rows.prior.slopes[1]
    values = put(values, rows.columns, offsets)
    values = put(values, rows.columns, x[:, None], rows.numbers)
    return dataclasses.replace(rows, values=values)


def refit_priors(tables: nnx.State, placement: Whole = ONE_DEVICE) -> nnx.State:
    """The tables with the means of their priors where those of the posteriors lie: the regression of these on `powers`.

    Of rows that the log shows, or an earlier one. Posteriors stay, so that the evidence lower bound rises, also those
    that an earlier training has left; rows that are their prior follow it. Gradients alone take many passes to get
    there where rows have many documents.

    Where rows have sites, the precision becomes that at which the bound is highest, the inverse of the mean squared
    offset, since steps see only the rows of this log. Rows that only earlier logs show become prior times site.
    """

    def refitted(path: Path, table: Table) -> Rows:
        rows = table.get_value()
        if rows.prior is None or not learns_prior(table):
            return rows
        return _refitted(rows, rows.prior, placement)

    return changed(refitted, tables)


def _refitted(rows: Rows, prior: Prior, placement: Whole = ONE_DEVICE) -> Rows:
    # Block by block, which the cache holds: XLA passes over the table once for every sum otherwise, and at ten million
    # rows takes four times as long.
    number = len(rows.values)
    block = _BLOCK if jax.default_backend() == "cpu" else _BLOCK_OF_ACCELERATORS
    size = min(block, number)
    blocks, stride = ceil_div(number, size), max(1, number // _ENOUGH)

    def block_at(values: WholeTable, index: Count) -> tuple[Count, Rows, Flags]:
        """First row, rows, and which of them are not in earlier blocks: the last block ends with the table."""
        start = jnp.minimum(index * size, number - size)

        def part(whole: WholeTable) -> Block:
            return jax.lax.dynamic_slice(whole, (start, 0), (size, whole.shape[1]))

        aside = None if rows.aside is None else part(rows.aside)
        own = rows.own(part(values))
        block = dataclasses.replace(rows, values=own, columns=None, aside=aside)
        return start, block, jnp.arange(size) >= index * size - start

    def regressors(block: Rows) -> Float[Array, "rows regressors"]:
        ones = jnp.ones((size, 1))
        if not rows.by_rank:
            return ones
        x = _x(block)
        return jnp.concatenate([ones, jnp.where(jnp.isfinite(x)[:, None], powers(x), 0.0)], axis=1)

    def add(index: Count, sums: Float[Array, "regressors sums"]) -> Float[Array, "regressors sums"]:
        _, block, new = block_at(rows.values, index * stride)
        shown = jnp.where(_are_shown(block) & new, regressors(block).T, 0.0)
        both = [regressors(block), _offsets(block)]
        if rows.has_sites:
            both.append(_offsets(block) ** 2 + block.deviations(block.values) ** 2)
        return sums + jnp.matmul(shown, jnp.concatenate(both, axis=1), precision="highest")

    number_of = 1 + 2 * rows.by_rank
    nothing = jnp.zeros((number_of, number_of + (1 + rows.has_sites) * rows.dim))
    sums = placement.summed(jax.lax.fori_loop(0, ceil_div(blocks, stride), add, nothing))
    squares, products = sums[:, :number_of], sums[:, number_of : number_of + rows.dim]
    # one row holds slopes at 0 where all rows are shown at the same ranks
    ridge = jnp.where(jnp.arange(number_of) > 0, 1.0, _TINY)
    changes = jnp.linalg.solve(squares + jnp.diag(ridge), products)
    slopes = prior.slopes + changes[1:] if rows.by_rank else None
    prior = dataclasses.replace(prior, mean=prior.mean + changes[0], slopes=slopes)
    if rows.has_sites:
        offsets = sums[0, number_of + rows.dim :]
        offsets += jnp.sum(changes * (squares @ changes - 2 * products), axis=0)
        log_precision = jnp.log(jnp.maximum(squares[0, 0], 1.0) / jnp.mean(offsets))
        has_rows = squares[0, 0] > 0
        prior.log_precision = jnp.where(has_rows, log_precision, prior.log_precision)

    def change(index: Count, values: WholeTable) -> WholeTable:
        start, block, new = block_at(values, index)
        if rows.has_sites:
            columns = sites.under(block, prior)
            columns = jnp.where(new[:, None], columns, block.values[:, : columns.shape[1]])
        else:
            moved = new & (_are_shown(block) | ~_are_prior(block))
            # a product of matrices with so few columns takes longer
            of_regressors = zip(regressors(block).T, changes, strict=True)
            of_prior = sum(column[:, None] * change for column, change in of_regressors)
            columns = _offsets(block) - jnp.where(moved[:, None], of_prior, 0.0)
        return put(values, rows.columns, columns, row=start)

    values = jax.lax.fori_loop(0, blocks, change, rows.values)
    return dataclasses.replace(rows, values=values, prior=prior)


def _are_shown(rows: Rows) -> Flags:
    """Whether this log shows rows, or an earlier one did."""
    if rows.has_sites:
        _, share = sites.own_precision_and_share(rows, rows.values)
        return jnp.logical_or(share[:, 0] > 0, ~_are_prior(rows))
    return jnp.greater(rows.own(rows.values)[:, rows.width], 0)


def _are_prior(rows: Rows) -> Flags:
    """Whether no earlier training has changed rows, and no step of this one those without sites."""
    if rows.has_sites:
        return jnp.all(rows.aside[:, rows.by_rank :] == 0, axis=1)
    return jnp.all(rows.own(rows.values)[:, : rows.numbers] == 0, axis=1)


def _x(rows: Rows) -> Float[Array, " rows"]:
    """Returns x of packed rows."""
    return rows.aside[:, 0] if rows.has_sites else rows.own(rows.values)[:, rows.numbers]


def _offsets(rows: Rows) -> Float[Array, "rows dim"]:
    """Offsets of packed rows from the mean of the learned prior."""
    if rows.has_sites:
        return rows.means(rows.values) - sites.of_learned_prior(rows)
    return rows.own(rows.values)[:, : rows.dim]


def _standardised(
    log_ranks: Float[Array, " rows"], counts: Float[Array, " rows"], squares: Scalar
) -> tuple[Float[Array, " rows"], Float[Array, "3"]]:
    """Returns x of each row, the line that predicts it from one log rank, and the variance around that line.

    Args:
        log_ranks: Means by row.
        counts: Documents by row.
        squares: Sum of the squared log ranks of all documents.
    """
    shown, documents = counts > 0, jnp.maximum(jnp.sum(counts), 1.0)
    number = jnp.maximum(jnp.sum(shown, dtype=jnp.float32), 1.0)

    def over_documents(values: Float[Array, " rows"]) -> Scalar:
        return jnp.sum(counts * values) / documents

    def over_rows(values: Float[Array, " rows"]) -> Scalar:
        return jnp.sum(jnp.where(shown, values, 0.0)) / number

    mean = over_documents(log_ranks)
    centred = jnp.where(shown, log_ranks - mean, 0.0)
    between, total = over_documents(centred**2), squares / documents - mean**2
    few = _lists_of_chance(counts, number, documents, between, total)
    reliable = (log_ranks - over_rows(log_ranks)) * counts / jnp.maximum(counts + few, 1.0)
    reliable = reliable - over_rows(reliable)
    deviation = jnp.sqrt(over_rows(reliable**2))
    x = jnp.where(shown, reliable / jnp.maximum(deviation, LEAST_DEVIATION), NEVER_SHOWN)
    from_middle = jnp.where(shown, x, 0.0)
    middle = over_documents(from_middle)
    slope = over_documents(from_middle * centred) / jnp.maximum(total, LEAST_DEVIATION**2)
    around = over_documents((from_middle - middle) ** 2) - slope**2 * total
    line = jnp.stack([middle - slope * mean, slope, around])
    return x, jnp.where(deviation < LEAST_DEVIATION, jnp.array([0.0, 0.0, 1.0]), line)


def _lists_of_chance(
    counts: Float[Array, " rows"],
    number: Scalar,
    documents: Scalar,
    between: Scalar,
    total: Scalar,
) -> Scalar:
    """Returns how many lists the average of all rows counts for beside the log ranks of one.

    The mean of few log ranks is off by chance. Best predicts what more lists would show, where log ranks vary by w
    within rows and by b over rows, the mean of n of them with weight n and the average with weight w / b. Both are
    estimated by analysis of variance (Searle, Casella and McCulloch 1992, "Variance components").

    Args:
        counts: Documents by row.
        number: Rows that are shown.
        documents: All documents.
        between: Variance over documents of the means of their rows.
        total: Of their log ranks.
    """
    others = jnp.maximum(number - 1, 1.0)
    within = jnp.maximum(total - between, 0.0) * documents / jnp.maximum(documents - number, 1.0)
    lists = (documents - jnp.sum(counts**2) / documents) / others
    over_rows = (between * documents / others - within) / jnp.maximum(lists, 1.0)
    return jnp.minimum(within / jnp.maximum(over_rows, LEAST_DEVIATION**2), _MOST_LISTS)

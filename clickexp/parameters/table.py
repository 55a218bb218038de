"""Embedding tables: a variable whose rows can be looked up, counted and updated one batch at a time."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Float, Integer

from clickexp.errors import ConfigError
from clickexp.types import Array, Count, Leaf
from clickexp.utils.blocks import blocks
from clickexp.utils.bounds import NonNegativeFloat, OneOf, PositiveInt, bounded

Posterior = Annotated[str, OneOf("none", "normal", "normal_by_rank")]
"""Form in which a row keeps each parameter: one number, or mean and spread of a normal distribution.

The prior of the last has a mean that follows the ranks at which training shows documents; see `Prior`.
"""

LEAST_SITE = -0.25
"""Precision of a site over that of the prior. A skip of an attractive document leaves less than the prior has."""
NEVER_SHOWN = np.inf
"""x of rows that no document of the training log has."""


_BLOCK = 1 << 16
"""Rows that are recomputed at a time."""
_STATIC = {"static": True}
"""Metadata of fields that are no arrays."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Prior:
    """The learned prior of a parameter in a row: normal with a mean that follows x and precision exp(log_precision).

        mean + slopes[0] * x + slopes[1] * (x^2 - 1)

    x is the mean logarithm of the ranks that the training log shows the row's documents at, drawn to the average where
    these are few, and standardised over rows.
    Where a policy orders lists, ranks carry what it knows of the documents. A prior that ignores ranks takes documents
    on top for average ones, which biases both attraction and examination (Mundlak 1978, "On the pooling of time series
    and cross section data"). The mean bends, since neighbours in the order of a policy differ more at its ends. A row
    that training has not shown has the average mean, or that of the rank of its document in a list that the same policy
    has ordered.

    Attributes:
        log_precision: Logarithm of the precision.
        mean: [dim], average over rows whose documents are shown.
        slopes: [2, dim]; None for a prior with the same mean for all rows.
    """

    log_precision: Leaf
    mean: Leaf
    slopes: Leaf = None


def powers(x: Float[Array, "*rows"]) -> Float[Array, "*rows 2"]:
    """Returns x and x^2 - 1, which the mean of a prior is linear in; their averages over rows are 0."""
    return jnp.stack([x, x * x - 1], axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Rows:
    """A whole table.

    Attributes:
        values: [rows, width]. Without a prior, the `dim` parameters. With one, the posteriors, [offsets | spreads],
            then x where the mean of the prior follows ranks: a mean is an offset from that of the prior, and a spread
            is the logarithm of the standard deviation over that of the prior, so that rows without data follow the
            prior. What earlier logs say comes last, [precisions | tilts]; see `site`.
        dim: Parameters per row.
        prior: The prior that is learned; None where rows hold numbers and not posteriors.
        log_ranks: [3], intercept and slope of the expectation of x given the logarithm of the rank of one document, and
            the variance around it.
        drawn: Whether rows hold draws from posteriors, offsets without spreads.
        columns: (first, end) of runs of columns of `values` that hold the row while a model trains, and behind it the
            share of the prior, since what the optimizer keeps and other tables lie in the same array; None for all.
        beside: Path of the table that has the array in which these rows lie, too; None where it is their own.
        has_sites: Whether rows hold what earlier logs say.
        aside: [rows, x and sites] while a model trains with these: rows then hold priors of their own in that place,
            [centers | precisions and shares]; see `clickexp.training.sparse.sites`.
        devices: Over how many devices rows lie: that of an id on device `id % devices`, at place `id // devices`.
    """

    values: Leaf
    dim: int = dataclasses.field(metadata=_STATIC)
    prior: Prior | None = None
    log_ranks: Leaf = None
    drawn: bool = dataclasses.field(default=False, metadata=_STATIC)
    columns: tuple[tuple[int, int], ...] | None = dataclasses.field(default=None, metadata=_STATIC)
    beside: tuple | None = dataclasses.field(default=None, metadata=_STATIC)
    has_sites: bool = dataclasses.field(default=False, metadata=_STATIC)
    aside: Leaf = None
    devices: int = dataclasses.field(default=1, metadata=_STATIC)

    def recomputed(self, change: Callable[[np.ndarray, slice], np.ndarray]) -> "Rows":
        """Returns the table with other values, in one copy: large tables take much memory.

        Args:
            change: Returns the new values of some rows, given those before and their place.
        """
        before, values = np.asarray(self.values), jnp.array(self.values)
        for part in blocks(len(before), _BLOCK):
            block = np.asarray(change(before[part], part), before.dtype)
            values = _written(values, block, part.start)
        return dataclasses.replace(self, values=values)

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Float[Array, "*ids"] | None = None
    ) -> Float[Array, "*ids {self.dim}"]:
        """Returns the parameters of the rows `ids`, or the means of their posteriors.

        Args:
            ids: Rows.
            log_ranks: Logarithms of the ranks that the policy of the training log shows them at, for rows that training
                has not shown; None where ranks say nothing about documents.
        """
        return self.means(self.whole(ids), log_ranks)

    def variance(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids {self.dim}"] | None:
        """Returns the variances of the posteriors of the rows `ids`; None where they hold numbers."""
        return self.deviations(self.whole(ids)) ** 2 if self.has_posteriors else None

    def whole(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids width"]:
        """Returns the rows `ids` of the array where the table lies, with all columns."""
        if self.devices > 1:
            ids = ids % self.devices * (len(self.values) // self.devices) + ids // self.devices
        return self.values[ids]

    def own(self, rows: Float[Array, "*ids width"]) -> Float[Array, "*ids own"]:
        """Returns the columns of this table in whole rows of the array where it lies."""
        if self.columns is None:
            return rows
        return jnp.concatenate([rows[..., first:end] for first, end in self.columns], axis=-1)

    def means(
        self, rows: Float[Array, "*ids width"], log_ranks: Float[Array, "*ids"] | None = None
    ) -> Float[Array, "*ids {self.dim}"]:
        """Returns the parameters in whole rows, or the means of their posteriors; see `take`."""
        rows = self.own(rows)
        first = rows[..., : self.dim]
        if self.aside is None:
            x = rows[..., self.numbers] if self.by_rank else None
            return self.from_prior(first, x, log_ranks)
        center = rows[..., self.numbers : self.numbers + self.dim]
        never_shown = self.from_prior(first, center[..., 0], log_ranks)
        return jnp.where(jnp.isinf(center), never_shown, first + center)

    def from_prior(
        self,
        offsets: Float[Array, "*ids {self.dim}"],
        x: Float[Array, "*ids"] | None,
        log_ranks: Float[Array, "*ids"] | None = None,
    ) -> Float[Array, "*ids {self.dim}"]:
        """Returns the parameters of rows with offsets from the mean of the prior; see `take`.

        Args:
            offsets: From that mean.
            x: Of the rows; None where it does not follow ranks.
            log_ranks: See `take`.
        """
        if self.prior is None:
            return offsets
        if self.prior.slopes is None or x is None:
            return offsets + self.prior.mean
        pairs = zip(self._powers_now(log_ranks), (x, x * x - 1), strict=True)
        line, bend = (jnp.where(jnp.isinf(x), now, trained)[..., None] for now, trained in pairs)
        return offsets + self.prior.mean + line * self.prior.slopes[0] + bend * self.prior.slopes[1]

    def _powers_now(
        self, log_ranks: Float[Array, "*ids"] | None
    ) -> tuple[Float[Array, "*ids"], Float[Array, "*ids"]] | tuple[float, float]:
        """Expectations of x and x^2 - 1 for rows that training has not shown."""
        if log_ranks is None or self.log_ranks is None:
            return 0.0, 0.0
        intercept, slope, variance = self.log_ranks
        expected = intercept + slope * log_ranks
        return expected, expected * expected - 1 + variance

    def deviations(self, rows: Float[Array, "*ids width"]) -> Float[Array, "*ids {self.dim}"]:
        """Returns the standard deviations of the posteriors in whole rows."""
        log_precision = 0.0 if self.prior is None else self.prior.log_precision
        spreads = self.own(rows)[..., self.dim : 2 * self.dim]
        return jnp.exp(spreads - log_precision / 2)

    def site(self, rows: Float[Array, "*ids width"]) -> tuple[Array, Array] | tuple[float, float]:
        """Returns what earlier logs say of the parameters z in whole rows: S and h of exp(h z - S z^2 / 2).

        Times the prior, it is the posterior of the earlier logs (Broderick et al. 2013, "Streaming variational Bayes").
        """
        if not self.has_sites or self.prior is None:
            return 0.0, 0.0
        least = LEAST_SITE * jnp.exp(self.prior.log_precision)  # the prior may have become wide
        first = self.numbers + self.by_rank
        precisions, tilts = first + self.dim, first + 2 * self.dim
        return jnp.maximum(rows[..., first:precisions], least), rows[..., precisions:tilts]

    def with_sites(self) -> "Rows":
        """Returns the table with room for sites, which say nothing."""
        if self.has_sites or not self.has_posteriors:
            return self
        values = jnp.pad(self.values, ((0, 0), (0, 2 * self.dim)))
        return dataclasses.replace(self, values=values, has_sites=True)

    def point(self) -> "Rows":
        """Returns the table without posteriors: the parameters are their means."""
        return Rows(self.means(self.values), self.dim)

    def sample(self, key: Array) -> "Rows":
        """Returns the table with each parameter drawn from its posterior; without posteriors the table itself.

        Args:
            key: A JAX key.
        """
        if not self.has_posteriors:
            return self
        offsets = self.values[:, : self.dim]
        offsets += self.deviations(self.values) * jax.random.normal(key, offsets.shape)
        values = jnp.concatenate([offsets, self.values[:, self.numbers : self.width]], axis=1)
        return dataclasses.replace(self, values=values, drawn=True)

    @property
    def has_posteriors(self) -> bool:
        """Whether rows keep means and spreads."""
        return self.prior is not None and not self.drawn

    @property
    def numbers(self) -> int:
        """Numbers per row that are learned: parameters, or offsets and spreads."""
        return 2 * self.dim if self.has_posteriors else self.dim

    @property
    def width(self) -> int:
        """Numbers per row without what the optimizer keeps."""
        return self.numbers + self.by_rank + 2 * self.dim * self.has_sites

    @property
    def by_rank(self) -> bool:
        """Whether the mean of the prior follows ranks, so that rows hold x."""
        return self.prior is not None and self.prior.slopes is not None


def path_name(path: tuple) -> str:
    """Returns how files call what is at a path in a model, such as attraction/table."""
    return "/".join(map(str, path))


class Table(nnx.Variable):
    """Variable that holds `Rows`; a tower reads it by `table.take(ids)` and `table.variance(ids)` only.

    While a model trains, it has no access to the whole table: the training step first runs the model
    to learn which ids it takes, then gives it those rows only, or a draw of their posteriors (see
    clickexp.training.sparse.rows). The metadata `prior_precision` is the precision of the Gaussian prior on every
    parameter of a row that has no posterior; `learns_prior` says whether training learns that of posteriors.
    """

    @property
    def largest_id(self) -> int:
        """The id of the last row."""
        return self.get_value().values.shape[0] - 1

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Float[Array, "*ids"] | None = None
    ) -> Float[Array, "*ids dim"]:
        """Returns the parameters of the rows `ids`, or the means of their posteriors; see `Rows.take`."""
        return self.get_value().take(ids, log_ranks)

    def variance(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids dim"] | None:
        """Returns the variances of the posteriors of the rows `ids`; None where `take` returns all there is."""
        return self.get_value().variance(ids)


@jax.custom_jvp
def with_tables(loss: Float[Array, "*shape"], tables: Sequence[Array]) -> Float[Array, "*shape"]:
    """Returns a loss, whose gradient has to be with respect to tables, too.

    Args:
        loss: That of a model, a number or several.
        tables: Arrays of its tables.

    Raises:
        ConfigError: Other parameters get a gradient and no table does, as where `nnx.Optimizer` has `wrt=nnx.Param`.
    """
    return loss


@functools.partial(with_tables.defjvp, symbolic_zeros=True)
def _jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    fixed = [isinstance(tangent, SymbolicZero) for tangent in tangents[1]]
    if fixed and all(fixed):
        raise ConfigError(
            "the tables of the model get no gradient, so that this loop trains everything but the documents. "
            "Differentiate both: nnx.split(model, nnx.Any(nnx.Param, Table), ...), as in docs/howto/python.md (A loop "
            "of your own); or take clickexp.Trainer."
        )
    return primals[0], tangents[0]


@functools.partial(jax.jit, donate_argnums=0)
def _written(
    values: Float[Array, "rows width"], block: Float[Array, "block width"], start: Count
) -> Float[Array, "rows width"]:
    """Returns values with a block of rows replaced, in place."""
    return jax.lax.dynamic_update_slice_in_dim(jnp.asarray(values), block, start, axis=0)


@bounded
def new_table(
    rows: PositiveInt,
    dim: PositiveInt,
    prior_precision: NonNegativeFloat = 0.0,
    posterior: Posterior = "none",
    *,
    learns_prior: bool = True,
) -> Table:
    """Returns a table of zeros: every row starts at the mean of its prior, or as its prior.

    Args:
        rows: Rows of the table.
        dim: Parameters per row.
        prior_precision: Precision of the Gaussian prior on every parameter; where it is learned, its start.
        posterior: "normal" keeps a mean and a spread of each parameter; "normal_by_rank" has a prior that knows ranks.
        learns_prior: Whether training learns the prior of posteriors, which otherwise stays N(0, 1 / prior_precision).

    Raises:
        ConfigError: A posterior without a prior.
    """
    if posterior == "none":
        return Table(
            Rows(jnp.zeros((rows, dim), jnp.float32), dim), prior_precision=prior_precision
        )
    if prior_precision == 0:
        raise ConfigError(
            f"posterior={posterior} needs a prior: give prior_precision above 0, or posterior=none"
        )
    by_rank = posterior == "normal_by_rank"
    slopes, log_ranks = (jnp.zeros((2, dim)), jnp.zeros(3)) if by_rank else (None, None)
    prior = Prior(jnp.log(jnp.float32(prior_precision)), jnp.zeros(dim), slopes)
    values = jnp.zeros((rows, 2 * dim + by_rank), jnp.float32)
    return Table(
        Rows(values, dim, prior, log_ranks),
        prior_precision=prior_precision,
        learns_prior=learns_prior,
    )

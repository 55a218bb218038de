"""Embedding tables: a variable whose rows can be looked up, counted and updated one batch at a time."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Integer

from clickexp.types import Array, Leaf
from clickexp.utils.bounds import NonNegativeFloat, PositiveInt, bounded


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["dim"])
@dataclasses.dataclass
class Rows:
    """A whole table.

    Attributes:
        values: [rows, width]; the first `dim` columns are parameters, the rest belongs to the optimizer.
        dim: Parameters per row.
    """

    values: Leaf
    dim: int

    def take(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids {self.dim}"]:
        """Returns the parameters of the rows `ids`."""
        return self.values[ids][..., : self.dim]


class Table(nnx.Variable):
    """Variable that holds `Rows`; a tower reads it by `table.take(ids)` only.

    While a model trains, it has no access to the whole table: the training step first runs the model
    to learn which ids it takes, then gives it those rows only (see clickexp.training.sparse.rows).
    The metadata `prior_precision` is the precision of the Gaussian prior on every parameter of a row.
    """

    @property
    def largest_id(self) -> int:
        """The id of the last row."""
        return self.get_value().values.shape[0] - 1

    def take(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids dim"]:
        """Returns the parameters of the rows `ids`."""
        return self.get_value().take(ids)


@bounded
def new_table(rows: PositiveInt, dim: PositiveInt, prior_precision: NonNegativeFloat = 0.0) -> Table:
    """Returns a table of zeros: every row starts at the mean of its prior.

    Args:
        rows: Rows of the table.
        dim: Parameters per row.
        prior_precision: Precision of the Gaussian prior on every parameter.
    """
    return Table(Rows(jnp.zeros((rows, dim), jnp.float32), dim), prior_precision=prior_precision)

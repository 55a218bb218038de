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
    """A whole table [rows, width]; the first `dim` columns are parameters, the rest belongs to the optimizer."""

    values: Leaf
    dim: int

    def take(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids {self.dim}"]:
        """Parameters of the rows `ids`."""
        return self.values[ids][..., : self.dim]


class Table(nnx.Variable):
    """Variable that holds `Rows`. A tower reads it by `table.take(ids)` and by nothing else.

    While a model trains, the whole table is out of its sight: the training step first runs the model
    to learn which ids it takes, then hands it those rows only (see clickexp.training.sparse.rows).
    `prior_precision` is the precision of the Gaussian prior on every parameter of a row.
    """

    @property
    def largest_id(self) -> int:
        """The id of the last row."""
        return self.get_value().values.shape[0] - 1

    def take(self, ids: Integer[Array, "*ids"]) -> Float[Array, "*ids dim"]:
        return self.get_value().take(ids)


@bounded
def new_table(rows: PositiveInt, dim: PositiveInt, prior_precision: NonNegativeFloat = 0.0) -> Table:
    """A table of zeros: every row starts at the mean of its prior."""
    return Table(Rows(jnp.zeros((rows, dim), jnp.float32), dim), prior_precision=prior_precision)

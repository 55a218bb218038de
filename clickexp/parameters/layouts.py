"""Towers of examination that differ between layouts, such as devices, as far as data tells, and share a curve."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from clickexp.data.cells import Cells
from clickexp.data.encoding import Names
from clickexp.parameters.base import Parameter, ParameterConfig, PosteriorParameter, Sizes
from clickexp.parameters.sum import SumParameter
from clickexp.parameters.table import Posterior, new_table
from clickexp.types import Array, Batch, Logits
from clickexp.utils.bounds import NonNegativeFloat

_Module = TypeVar("_Module", bound=nnx.Module)


@dataclasses.dataclass(frozen=True)
class LayoutParameterConfig(ParameterConfig):
    """Settings of a LayoutParameter.

    Attributes:
        tower: Settings of the tower that all layouts share.
        columns: Columns of whole numbers of which each combination of values is a layout.
        posterior: "normal" keeps mean and spread of each difference and learns how much layouts differ; "none" keeps
            the most probable number under a prior that is given.
        prior_precision: Precision of the prior of a difference, in logits; where it is learned, its start.
    """

    tower: ParameterConfig
    columns: Sequence[str]
    posterior: Posterior = "normal"
    prior_precision: NonNegativeFloat = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "columns", tuple(self.columns))

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "LayoutParameter":
        """Builds the tower; ConfigError where the data has no such columns."""
        positions = sizes.largest("positions", "positions", "tower of layouts")
        cells = Cells.of_sizes(self.columns, sizes.columns or {}, positions)
        differences = CellParameter(cells, self.prior_precision, self.posterior)
        return LayoutParameter(self.tower.build(sizes, rngs=rngs), differences)


class LayoutParameter(SumParameter):
    """z = shared(position) + difference(layout, position).

    Differences have a common prior: layouts with few data follow the shared curve, those with many have their own, and
    those that training has not shown have the shared curve (partial pooling: Gelman and Hill 2007, "Data analysis using
    regression and multilevel/hierarchical models").

    Attributes:
        cells: The positions of the layouts.
    """

    def __init__(self, shared: Parameter, differences: "CellParameter | PointCellParameter"):
        super().__init__({"shared": shared, "differences": differences})
        self.cells = differences.cells

    def of_cells(self, cells: Sequence[int] | np.ndarray) -> Logits:
        """Returns the logits of cells, `[1, cells]`, of a shared curve of positions alone."""
        return self.logit(self.cells.batch(cells))


class CellParameter(PosteriorParameter):
    """z = row(cell): a row per position of each layout.

    Args:
        cells: The cells.
        prior_precision: As a LayoutParameterConfig has it.
        posterior: The same.
    """

    def __init__(self, cells: Cells, prior_precision: float, posterior: Posterior):
        self.cells = cells
        self.table = new_table(cells.count, 1, prior_precision, posterior)

    def posterior(self, batch: Batch) -> tuple[Logits, Logits | None]:
        """Returns mean and variance of the difference of each document's cell."""
        ids = self.cells.of(batch)
        variance = self.table.variance(ids)
        return self.table.take(ids)[..., 0], None if variance is None else variance[..., 0]

    def limits(self) -> dict[str, int]:
        """Returns the largest position."""
        return {"positions": self.cells.positions}

    def as_shared(self) -> "PointCellParameter":
        """Returns the tower whose differences are shared parameters: the means of the posteriors."""
        rows = self.table.get_value()
        if rows.prior is None:
            precision, mean = float(self.table.get_metadata()["prior_precision"]), 0.0
        else:
            precision, mean = float(jnp.exp(rows.prior.log_precision)), float(rows.prior.mean[0])
        return PointCellParameter(self.cells, rows.means(rows.values)[:, 0], precision, mean)


class PointCellParameter(Parameter):
    """The same with a number per cell, which has a covariance with other shared parameters: see `clickexp.posteriors`.

    Args:
        cells: The cells.
        values: By cell.
        precision: Of their normal prior.
        mean: Of their prior.
    """

    def __init__(self, cells: Cells, values: Float[Array, " cells"], precision: float, mean: float):
        self.cells = cells
        self.weight = nnx.Param(values, prior_precision=precision, prior_mean=mean)

    def logit(self, batch: Batch) -> Logits:
        """Returns the difference of each document's cell."""
        return self.weight[...][self.cells.of(batch)]

    def limits(self) -> dict[str, int]:
        """Returns the largest position."""
        return {"positions": self.cells.positions}


def with_shared_cells(model: _Module) -> _Module:
    """Returns the model with differences of layouts as shared parameters; the model itself where it has none."""
    if not any(isinstance(node, CellParameter) for _, node in nnx.iter_graph(model)):
        return model
    copy = nnx.clone(model)
    for _, node in [*nnx.iter_graph(copy)]:
        if isinstance(node, LayoutParameter):
            differences = node.terms["differences"]
            if isinstance(differences, CellParameter):
                node.terms["differences"] = differences.as_shared()
    return copy


def name_layouts(model: nnx.Module, categories: Mapping[str, Names]) -> None:
    """Lets the layouts of a model have the names of categories, by column, which sizes do not have."""
    for _, node in nnx.iter_graph(model):
        if isinstance(node, LayoutParameter | CellParameter):
            node.cells = node.cells.called(categories)


def layouts_of(model: nnx.Module) -> Cells | None:
    """Returns the positions of the layouts that examination of a model differs between; None where it does not."""
    towers = (node for _, node in nnx.iter_graph(model) if isinstance(node, LayoutParameter))
    return next((tower.cells for tower in towers), None)

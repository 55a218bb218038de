"""Towers of examination that differ between layouts, such as devices, as far as data tells, and share a curve."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from clickexp.data import Sessions
from clickexp.data.cells import Cells
from clickexp.data.encoding import Names
from clickexp.parameters.base import Parameter, ParameterConfig, PosteriorParameter, Sizes
from clickexp.parameters.simple import PositionParameter
from clickexp.parameters.sum import SumParameter
from clickexp.parameters.table import Posterior, Prior, Rows, new_table
from clickexp.types import Array, Batch, Logits
from clickexp.utils.bounds import NonNegativeFloat

_Module = TypeVar("_Module", bound=nnx.Module)
_LEAST_KNOWN = 1e-3
"""Precision of data over that of the prior, below which a cell counts as one without data."""
_POOLING_STEPS = 500


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

    def pool(self) -> None:
        """Moves the shared curve, and the spread of differences, to where their posteriors have both.

        Gradients alone take many passes to get there, since differences explain the data without the curve. Posteriors
        are taken for those of normal observations of each cell. A random-effects model of these has a free mean at each
        position, and a spread, by restricted maximum likelihood (Patterson and Thompson 1971, "Recovery of inter-block
        information when block sizes are unequal"). Cells with many documents keep their logits, others follow the new
        curve.
        """
        differences, shared = self.terms["differences"], self.terms["shared"]
        if not isinstance(differences, CellParameter) or not isinstance(shared, PositionParameter):
            return
        rows = differences.table.get_value()
        if rows.prior is None or shared.weight.size % (self.cells.positions + 1):
            return
        pooled = _pooled(_Observed.of(rows, rows.prior, self.cells.positions + 1))
        weight = shared.weight[...].reshape(self.cells.positions + 1, -1)
        shared.weight[...] = (weight + pooled.center[:, None]).reshape(shared.weight.shape)
        values = jnp.stack([pooled.offsets.ravel(), pooled.spreads.ravel()], axis=1)
        prior = dataclasses.replace(
            rows.prior,
            log_precision=jnp.asarray(-np.log(pooled.variance), jnp.float32),
            mean=jnp.zeros_like(rows.prior.mean),
        )
        packed = jnp.asarray(rows.values).at[:, :2].set(values)
        differences.table.set_value(dataclasses.replace(rows, values=packed, prior=prior))

    def of_cells(self, cells: Sequence[int] | np.ndarray) -> Logits:
        """Returns the logits of cells, `[1, cells]`, of a shared curve of positions alone."""
        return self.logit(self.cells.batch(cells))


class _Observed(NamedTuple):
    """The difference in each cell as data have it, `[layout, position]`.

    Attributes:
        values: Observations.
        precisions: Of the observations; 0 where there are none.
        variance: Of the prior of differences.
        mean: Of that prior.
    """

    values: Float[np.ndarray, "layouts positions"]
    precisions: Float[np.ndarray, "layouts positions"]
    variance: float
    mean: float

    @classmethod
    def of(cls, rows: Rows, prior: Prior, positions: int) -> "_Observed":
        """Returns what posteriors have beyond their prior."""
        variance, mean = float(jnp.exp(-prior.log_precision)), float(prior.mean[0])
        numbers = np.asarray(rows.values, np.float64)[:, :2]
        offsets, spreads = (numbers[:, at].reshape(-1, positions) for at in (0, 1))
        ratios = np.exp(-2 * spreads)  # precision of the posterior over that of the prior
        is_seen = ratios > 1 + _LEAST_KNOWN
        precisions = np.where(is_seen, ratios - 1, 0.0) / variance
        moved = offsets * ratios / variance
        values = mean + np.where(is_seen, moved / np.where(is_seen, precisions, 1.0), 0.0)
        return cls(values, precisions, variance, mean)


class _Pooled(NamedTuple):
    """A random-effects model of observed differences.

    Attributes:
        center: Mean by position.
        variance: Of differences around it.
        offsets: Means of the posteriors of differences, less the center, `[layout, position]`.
        spreads: Logarithms of their deviations over that of the prior.
    """

    center: Float[np.ndarray, " positions"]
    variance: float
    offsets: Float[np.ndarray, "layouts positions"]
    spreads: Float[np.ndarray, "layouts positions"]


def _pooled(observed: _Observed) -> _Pooled:
    """Fits the model by expectation-maximisation."""
    variance, is_seen = observed.variance, observed.precisions > 0
    for _ in range(_POOLING_STEPS if is_seen.any() else 0):
        _, _, squares = _effects(observed, variance)
        variance = float(squares[is_seen].mean())
    center, offsets, _ = _effects(observed, variance)
    return _Pooled(center, variance, offsets, -np.log1p(observed.precisions * variance) / 2)


def _effects(
    observed: _Observed, variance: float
) -> tuple[
    Float[np.ndarray, " positions"],
    Float[np.ndarray, "layouts positions"],
    Float[np.ndarray, "layouts positions"],
]:
    """Returns centers, and expectations of differences from them and of their squares, given a variance."""
    precisions = observed.precisions
    weights = precisions / (1 + precisions * variance)
    total = weights.sum(axis=0)
    is_known = total > 0
    total = np.where(is_known, total, 1.0)
    means = (weights * observed.values).sum(axis=0) / total
    center = np.where(is_known, means, observed.mean)
    posterior = 1 / (precisions + 1 / variance)
    shrunk = precisions * posterior
    offsets = shrunk * (observed.values - center)
    return center, offsets, offsets**2 + shrunk**2 / total + posterior


def pool_layouts(model: nnx.Module) -> None:
    """Pools the towers of layouts of a fitted model; see `LayoutParameter.pool`."""
    for _, node in nnx.iter_graph(model):
        if isinstance(node, LayoutParameter):
            node.pool()


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


def describe_layouts(model: nnx.Module, categories: Mapping[str, Names], train: Sessions) -> None:
    """Gives the layouts of a model what sizes do not have.

    Args:
        model: The model.
        categories: Names of categories, by column.
        train: The training sessions: examination is relative to the layout that most of their documents have.
    """
    cells = layouts_of(model)
    if cells is None:
        return
    cells = cells.called(categories).relative_to_largest(train)
    for _, node in nnx.iter_graph(model):
        if isinstance(node, LayoutParameter | CellParameter):
            node.cells = cells


def layouts_of(model: nnx.Module) -> Cells | None:
    """Returns the positions of the layouts that examination of a model differs between; None where it does not."""
    towers = (node for _, node in nnx.iter_graph(model) if isinstance(node, LayoutParameter))
    return next((tower.cells for tower in towers), None)

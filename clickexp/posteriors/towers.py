"""Towers of examination whose numbers move to the largest marginal likelihood: of positions, or of layouts.

A cell is a place that has an examination: a position, within a layout or not, for UBM with that of the last click
above. Its logit is a number of its own, or the sum of one that layouts share and of the difference of its layout.
"""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer
from scipy.special import expit, log_expit

from clickexp.data import Sessions
from clickexp.data.view import Chunk
from clickexp.models import Model, PositionBasedModel, TrustBiasModel, UserBrowsingModel
from clickexp.parameters import PositionParameter
from clickexp.parameters.layouts import CellParameter, LayoutParameter
from clickexp.parameters.table import Prior
from clickexp.posteriors.click_rates import ClickRates, Mixtures, Products
from clickexp.posteriors.shared import MOST_SHARED
from clickexp.posteriors.smoothing import Points
from clickexp.training.earlier import SharedPrior

_PRECISION_OF_LOGITS = 0.1
"""Of logits of examination around those of training: clicks leave the scale open, and tell little of rare cells.

Of small logs, training leaves examination far from where it would end: more than this draws ratios there.
"""
LEAST_PRECISION = 1e-3
"""Of numbers that nothing else holds."""
_LARGEST_LOGIT = 14.0

Numbers = Float[np.ndarray, " numbers"]
Places = Integer[np.ndarray, " places"]


class Sums(NamedTuple):
    """Logits of some cells as sums of numbers, which priors hold.

    Attributes:
        design: 1 where a cell adds a number, else 0.
        start: The numbers that training has found.
        centers: Of priors that hold them in a search.
        precisions: Of the same, those of earlier logs included.
        own: Precisions without earlier logs, and without those around what training has found: it has seen the same
            clicks.
        rates: What clicks are of these logits.
        in_logs: Whether a number is the logit of an examination, of which logarithms tell, up to one scale of all.
    """

    design: Float[np.ndarray, "cells numbers"]
    start: Numbers
    centers: Numbers
    precisions: Float[np.ndarray, "numbers numbers"]
    own: Numbers
    rates: type[ClickRates] = Products
    in_logs: bool = False

    @classmethod
    def of_cells(cls, logits: Float[np.ndarray, " cells"]) -> "Sums":
        """Returns those of cells with a number each."""
        design = np.eye(len(logits))
        own = np.full(len(logits), LEAST_PRECISION)
        return cls(design, logits, logits, _PRECISION_OF_LOGITS * design, own, in_logs=True)

    def stepped(
        self, numbers: Numbers, step: Numbers, covariance: Float[np.ndarray, "numbers numbers"]
    ) -> tuple[Numbers, Float[np.ndarray, "numbers numbers"]]:
        """Returns numbers after a step, and their covariance, which is known where the step begins.

        Steps of logits near 1 are no lines in logarithms, and clicks hardly tell how far the scale moves.
        """
        if not self.in_logs:
            return numbers + step, covariance
        found = logits_of(log_expit(numbers) + expit(-numbers) * step)
        slopes = expit(-numbers) / expit(-found)
        return found, covariance * np.outer(slopes, slopes)


@dataclasses.dataclass(frozen=True)
class Tower(abc.ABC):
    """A tower of examination.

    Attributes:
        shared: Has a number per position, or one per position and that of the last click.
        radix: How many numbers a position has.
    """

    shared: PositionParameter
    radix: int
    holds_scale: ClassVar[bool] = False
    """Whether a search has to leave the geometric mean of examination."""
    learns_scale: ClassVar[bool] = False
    """Whether the scale of examination is found with the prior of documents, after the search."""
    has_updates: ClassVar[bool] = True
    """Whether it moves where logs go on."""
    kind: ClassVar[type[ClickRates]] = Products
    """What clicks are of the rates of cells."""
    least_impressions: ClassVar[float] = 0.0
    """Per document, below which it stays."""

    def may_move(self, prior: SharedPrior | None, goes_on: bool) -> bool:
        """Whether there is a search, by what earlier logs say, None for nothing, and whether there are any."""
        return self.has_updates or not goes_on

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of cells."""

    @abc.abstractmethod
    def logits(self) -> Float[np.ndarray, " rates"]:
        """Returns those of the rates of all cells."""

    def rates(self, cells: Places) -> Integer[np.ndarray, " rates"]:
        """Returns the places of the rates of some cells."""
        return cells

    @abc.abstractmethod
    def view(self, sessions: Sessions) -> Sessions:
        """Returns sessions whose positions are those within layouts."""

    @abc.abstractmethod
    def sums(self, cells: Places, prior: SharedPrior | None) -> Sums:
        """Returns the logits of some cells as sums of numbers.

        Args:
            cells: The cells.
            prior: What earlier logs say of numbers that are no logarithms of examination; None for nothing.
        """

    @abc.abstractmethod
    def names(self, cells: Places) -> tuple[str, ...]:
        """Returns how posteriors call the numbers of `sums`."""

    def points(self, cells: Places) -> Points | None:
        """Returns what the rates of some cells are as points of smooth curves; None where they are left as they are."""
        return None

    @abc.abstractmethod
    def move(self, cells: Places, numbers: Numbers) -> None:
        """Sets the numbers of some cells."""

    def cells_of(self, chunk: Chunk) -> Integer[np.ndarray, "session rank"]:
        """Returns the cells that a chunk of a view shows: positions, for UBM with the last click, `examination_idx`."""
        if self.radix == 1:
            return chunk.positions
        clicks = chunk["clicks"]
        by_rank = np.zeros(clicks.shape[::-1], np.int32)  # ranks apart, which takes half the time
        for rank in range(1, len(by_rank)):
            by_rank[rank] = np.where(clicks[:, rank - 1], np.int32(rank), by_rank[rank - 1])
        last, positions = by_rank.T, chunk.positions.astype(np.int32)
        if "positions" in chunk:  # others are the ranks
            last = np.take_along_axis(np.pad(positions, ((0, 0), (1, 0))), last, axis=1)
            # a layout has as many positions as a position has numbers
            last %= np.int32(self.radix)
        return positions * np.int32(self.radix) + last


class _OfPositions(Tower):
    """A number per cell."""

    learns_scale: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return self.shared.weight.size

    def logits(self) -> Float[np.ndarray, " cells"]:
        return np.asarray(self.shared.weight[...], np.float64)

    def view(self, sessions: Sessions) -> Sessions:
        return sessions

    def sums(self, cells: Places, prior: SharedPrior | None) -> Sums:
        return Sums.of_cells(self.logits()[cells])

    def names(self, cells: Places) -> tuple[str, ...]:
        return names_of_positions(cells)

    def points(self, cells: Places) -> Points | None:
        positions, last = np.divmod(cells, self.radix)
        if self.radix == 1:
            return Points(positions, last)
        # where a page ends its first view, examination leaps at a position, whatever was clicked last
        return Points(np.where(last > 0, positions - last, 0), positions)

    def move(self, cells: Places, numbers: Numbers) -> None:
        _set(self.shared, cells, numbers)


def _set(tower: PositionParameter, cells: Places, numbers: Numbers) -> None:
    weight = np.array(tower.weight[...])
    weight[cells] = numbers
    tower.weight[...] = jnp.asarray(weight)


def names_of_positions(cells: Places, role: str = "examination") -> tuple[str, ...]:
    """Returns how posteriors call the numbers of a tower of positions."""
    return tuple(f"{role}/weight[{cell}]" for cell in cells)


def scaled(
    found: Float[np.ndarray, " cells"],
    before: Float[np.ndarray, " cells"],
    clicks: Float[np.ndarray, " cells"],
) -> Float[np.ndarray, " cells"]:
    """Returns logits of examination with the ratios that were found, and the geometric mean over clicks from before.

    The mean is below that where an examination would be above 1: ratios are what the log tells.

    Args:
        found: Logits with the ratios.
        before: Logits with the mean.
        clicks: Of cells.
    """
    logs = log_expit(found)
    shift = np.average(log_expit(before) - logs, weights=clicks)
    return logits_of(logs + shift)


def logits_of(logs: Numbers) -> Numbers:
    """Returns logits of rates with these logarithms; where one is above 1, all are lower by its factor."""
    logs = logs - max(logs.max() - log_expit(_LARGEST_LOGIT), 0.0)
    return logs - np.log(-np.expm1(logs))


@dataclasses.dataclass(frozen=True)
class _OfLayouts(Tower):
    """A number that layouts share, and the difference of a layout at a position, whose prior training has learned.

    Attributes:
        layouts: The tower of both.
        differences: Has the differences.
        prior: Of these.
    """

    holds_scale: ClassVar[bool] = True
    layouts: LayoutParameter
    differences: CellParameter
    prior: Prior

    def may_move(self, prior: SharedPrior | None, goes_on: bool) -> bool:
        return prior is not None or not goes_on

    @property
    def size(self) -> int:
        return self.layouts.cells.count * self.radix

    def logits(self) -> Float[np.ndarray, " cells"]:
        shared, differences = self._places(np.arange(self.size))
        return self._of_shared()[shared] + self._of_differences()[differences]

    def view(self, sessions: Sessions) -> Sessions:
        return self.layouts.cells.view(sessions)

    def sums(self, cells: Places, prior: SharedPrior | None) -> Sums:
        places = self._places(cells)
        used = [np.unique(each) for each in places]
        design = [
            np.eye(len(numbers))[np.searchsorted(numbers, each)]
            for numbers, each in zip(used, places, strict=True)
        ]
        shared, differences = Sums.of_cells(self._of_shared()[used[0]]), used[1]
        pooling = np.full(len(differences), float(jnp.exp(self.prior.log_precision)))
        centers = np.concatenate([shared.centers, np.full(len(differences), self._mean)])
        precisions = np.diag(np.concatenate([np.diag(shared.precisions), pooling]))
        if prior is not None:
            known = prior.some(np.isin(prior.names, self.names(cells)))
            at = known.among(self.names(cells))
            pull = precisions @ centers
            precisions[np.ix_(at, at)] += known.information
            pull[at] += known.information @ known.center
            centers = np.linalg.solve(precisions, pull)
        return Sums(
            np.concatenate(design, axis=1),
            np.concatenate([shared.start, self._of_differences()[differences]]),
            centers,
            precisions,
            np.concatenate([shared.own, pooling]),
        )

    def names(self, cells: Places) -> tuple[str, ...]:
        shared, differences = map(np.unique, self._places(cells))
        return (
            *(f"examination/terms/shared/weight[{place}]" for place in shared),
            *(f"examination/terms/differences/weight[{place}]" for place in differences),
        )

    def move(self, cells: Places, numbers: Numbers) -> None:
        shared, differences = map(np.unique, self._places(cells))
        of_shared, of_differences = np.split(numbers, [len(shared)])
        _set(self.shared, shared, of_shared)
        rows = self.differences.table.get_value()
        offsets = np.float32(of_differences - self._mean)
        values = jnp.asarray(rows.values).at[differences, 0].set(offsets)
        self.differences.table.set_value(dataclasses.replace(rows, values=values))

    @property
    def _mean(self) -> float:
        return float(self.prior.mean[0])

    def _of_shared(self) -> Numbers:
        return np.asarray(self.shared.weight[...], np.float64)

    def _of_differences(self) -> Numbers:
        rows = self.differences.table.get_value()
        return np.asarray(rows.means(rows.values)[:, 0], np.float64)

    def _places(self, cells: Places) -> tuple[Places, Places]:
        """Returns the places of the shared numbers and of the differences of cells."""
        return cells % self.shared.weight.size, cells // self.radix


@dataclasses.dataclass(frozen=True)
class _OfTrust(_OfPositions):
    """True- and false-positive rates of positions, t and f: `shared` has t.

    Attributes:
        false: Has f.
    """

    false: PositionParameter
    kind: ClassVar[type[ClickRates]] = Mixtures
    learns_scale: ClassVar[bool] = False
    has_updates: ClassVar[bool] = False
    least_impressions: ClassVar[float] = 4.0
    """Clicks hardly tell the level of rates.

    With two, in random order, slopes were 68% wrong, where training leaves 11%; with five they are 10.5% wrong for
    11.2%.
    """

    def logits(self) -> Float[np.ndarray, " rates"]:
        return np.asarray([self.shared.weight[...], self.false.weight[...]], np.float64).ravel()

    def rates(self, cells: Places) -> Integer[np.ndarray, " rates"]:
        return np.concatenate([cells, self.size + cells])

    def sums(self, cells: Places, prior: SharedPrior | None) -> Sums:
        return Sums.of_cells(self.logits()[self.rates(cells)])._replace(
            rates=self.kind, in_logs=False
        )

    def names(self, cells: Places) -> tuple[str, ...]:
        return (
            *names_of_positions(cells, "true_positive"),
            *names_of_positions(cells, "false_positive"),
        )

    def points(self, cells: Places) -> None:
        return None  # their covariance is too small, and would make smooth curves too sure

    def move(self, cells: Places, numbers: Numbers) -> None:
        for tower, of_tower in zip((self.shared, self.false), np.split(numbers, 2), strict=True):
            _set(tower, cells, of_tower)


_FEATURES: dict[type[Model], str] = {
    PositionBasedModel: "positions",
    UserBrowsingModel: "examination_idx",
}
"""By model, the column of the batch that its tower of positions reads."""


def tower_of_examination(model: Model) -> Tower | None:
    """Returns that of PBM, UBM or trust bias whose numbers are all of positions; None of others.

    Those of PBM and UBM may be of layouts with posteriors, too.

    Of very many layouts there is none: the time of a search grows with the square of the numbers, and its memory.
    """
    if type(model) is TrustBiasModel:
        return _tower_of_trust(model)
    feature, tower = _FEATURES.get(type(model)), getattr(model, "examination", None)
    layouts = tower if isinstance(tower, LayoutParameter) else None
    shared = tower if layouts is None else layouts.terms["shared"]
    if not isinstance(shared, PositionParameter) or shared.config.use_feature != feature:
        return None
    radix = 1 if feature == "positions" else round(shared.weight.size**0.5)
    if layouts is None:
        return _OfPositions(shared, radix)
    return _tower_of_layouts(shared, radix, layouts)


def _tower_of_trust(model: TrustBiasModel) -> Tower | None:
    true, false = model.true_positive, model.false_positive
    if not (isinstance(true, PositionParameter) and isinstance(false, PositionParameter)):
        return None
    reads_positions = {true.config.use_feature, false.config.use_feature} == {"positions"}
    is_apart = true is not false and true.weight.size == false.weight.size
    return _OfTrust(true, 1, false) if reads_positions and is_apart else None


def _tower_of_layouts(
    shared: PositionParameter, radix: int, layouts: LayoutParameter
) -> Tower | None:
    """Returns that of layouts; None where differences have no posteriors, or are very many."""
    differences = layouts.terms["differences"]
    if not isinstance(differences, CellParameter):
        return None
    rows, fits = (
        differences.table.get_value(),
        shared.weight.size == (layouts.cells.positions + 1) * radix,
    )
    numbers = shared.weight.size // (1 if radix == 1 else 2)  # the last click is above
    is_large = numbers + layouts.cells.count > MOST_SHARED
    if rows.prior is None or not fits or is_large:
        return None
    return _OfLayouts(shared, radix, layouts, differences, rows.prior)

"""Intervention harvesting: examination from documents that the log shows at several positions."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from jaxtyping import Float

from clickexp.data import Dataset
from clickexp.data.cells import Cells, cells_of
from clickexp.errors import ConfigError
from clickexp.propensities.base import Propensities, PropensitySource
from clickexp.utils.bounds import OneOf
from clickexp.utils.statistics.means import ratio_bounds

_STEPS, _CLOSE = 10_000, 1e-10
_MOST_CELLS = 400
"""Positions of layouts, of which all pairs are compared 21 times."""

_Square = Float[np.ndarray, "... position position"]


@dataclasses.dataclass(frozen=True)
class HarvestedPropensities(PropensitySource):
    """Click rates of the same documents at different positions, which differ by examination alone.

    S(k, l) are the documents shown at both positions. Their clicks at k are A(k, l) = sum_d c_dk n_dl / (n_dk + n_dl),
    where n_dk is how often d was shown at k and c_dk how often it was clicked there: the weights of Mantel and
    Haenszel, which make up for unequal exposure at least variance. A(k, l) / A(l, k) estimates e_k / e_l.

        pivot      e_k / e_1 = A(k, 1) / A(1, k)
        chain      e_k / e_1 = product of A(i + 1, i) / A(i, i + 1) over adjacent positions
        all_pairs  the most likely e, where each click on S(k, l) is at k with probability e_k / (e_k + e_l)

    Agarwal, Zaitsev, Wang, Li, Najork and Joachims 2019, "Estimating position bias without intrusive interventions",
    where all documents weigh alike and all_pairs maximises a Bernoulli likelihood; ours is its Poisson form, in which
    the relevance of the pairs cancels. Intervals: jackknife over 20 groups of documents.

    Layouts, such as devices, have positions of their own: documents that two layouts show compare these, too. All are
    relative to the first position of the layout with most documents.

    Attributes:
        estimator: `pivot`, `chain` or `all_pairs`.
        examination_by: Columns of which each combination of values is a layout; None for one.

    Raises:
        ConfigError: Another estimator than all_pairs for layouts.
    """

    estimator: Annotated[str, OneOf("pivot", "chain", "all_pairs")] = "all_pairs"
    examination_by: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.examination_by is not None:
            object.__setattr__(self, "examination_by", tuple(self.examination_by))
        if self.examination_by and self.estimator != "all_pairs":
            raise ConfigError(
                f"propensity.estimator={self.estimator} takes positions in one order, which layouts do not have: "
                "choose all_pairs, or leave propensity.examination_by out"
            )

    @property
    def may_have_offsets(self) -> bool:
        """Whether it can know the click rates of irrelevant documents."""
        return False

    def __call__(self, dataset: Dataset) -> Propensities:
        """Estimates from the training sessions; ConfigError where no document links another position to the first."""
        from clickexp.propensities.exposure import harvest  # polars, which other runs do not need

        cells = self._cells(dataset)
        first = 0 if cells is None else cells.first - 1
        clicks = harvest(dataset.train if cells is None else cells.view(dataset.train))
        groups = len(clicks)
        methods = {"pivot": _pivot, "chain": _chain, "all_pairs": partial(_all_pairs, first=first)}
        estimate = methods[self.estimator]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = estimate(clicks.sum(axis=0))
            others = np.stack(
                [
                    np.log(estimate(np.delete(clicks, group, axis=0).sum(axis=0)))
                    for group in range(groups)
                ]
            )
            variance = (groups - 1) / groups * ((others - others.mean(axis=0)) ** 2).sum(axis=0)
            low, high = ratio_bounds(ratios, variance)
        if not np.isfinite(np.delete(ratios, first)).any():
            of_layout = "" if cells is None else " of the most frequent layout"
            raise ConfigError(
                f"propensity=harvest: no document was shown and clicked at the first position{of_layout} and at "
                "another, so that the log cannot distinguish examination from relevance; give others, or randomise "
                "some sessions"
            )
        source = f"harvested, {self.estimator.replace('_', ' ')}"
        return Propensities.relative(ratios, first, low=low, high=high, source=source, cells=cells)

    def _cells(self, dataset: Dataset) -> Cells | None:
        """Returns the positions of layouts; None for those of one."""
        if not self.examination_by:
            return None
        cells = cells_of(dataset, self.examination_by)
        if cells.count > _MOST_CELLS:
            raise ConfigError(
                f"propensity.examination_by={list(self.examination_by)} has {cells.count:,} combinations of values and "
                f"positions, more than {_MOST_CELLS}: give columns with few values, or take propensities of a run of "
                "model=pbm with examination_by"
            )
        return cells.relative_to_largest(dataset.train)


def _pivot(clicks: _Square) -> Float[np.ndarray, " position"]:
    ratios = clicks[:, 0] / clicks[0]
    ratios[0] = 1
    return np.where(ratios > 0, ratios, np.nan)


def _chain(clicks: _Square) -> Float[np.ndarray, " position"]:
    steps = np.diagonal(clicks, -1) / np.diagonal(clicks, 1)
    ratios = np.append(1.0, np.cumprod(steps))
    return np.where(ratios > 0, ratios, np.nan)


def _all_pairs(clicks: _Square, first: int) -> Float[np.ndarray, " position"]:
    """Bradley-Terry strengths by minorisation-maximisation (Hunter 2004) of positions that clicks link to the first."""
    linked = (clicks > 0) & (clicks.T > 0) | np.eye(len(clicks), dtype=bool)
    for _ in range(len(clicks).bit_length()):
        linked = linked @ linked
    positions = np.flatnonzero(linked[first])
    reference = np.searchsorted(positions, first)
    won = clicks[np.ix_(positions, positions)]
    games, strengths = won + won.T, np.ones(len(positions))
    for _ in range(_STEPS if len(positions) > 1 else 0):
        new = won.sum(axis=1) / (games / (strengths[:, None] + strengths)).sum(axis=1)
        new /= new[reference]
        done = np.abs(np.log(new / strengths)).max() < _CLOSE
        strengths = new
        if done:
            break
    ratios = np.full(len(clicks), np.nan)
    ratios[positions] = strengths / strengths[reference]
    return ratios

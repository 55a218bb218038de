"""Propensities that are given, or come from a fitted run or from click rates by position."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.data import Dataset, Sessions
from clickexp.data.cells import Cells, cells_of
from clickexp.errors import ConfigError, UserError
from clickexp.propensities.base import (
    Propensities,
    PropensitySource,
    documents,
)
from clickexp.runs.run import RelativeExamination, Run
from clickexp.runs.store import CONFIG, read_object
from clickexp.utils.statistics.means import ratio_bounds
from clickexp.utils.text import layout_name


@dataclasses.dataclass(frozen=True)
class GivenPropensities(PropensitySource):
    """Propensities from the configuration.

    Attributes:
        values: One per position, from the first; without offsets only their ratios matter.
        offsets: Click rates of irrelevant documents by position, which debias=affine subtracts, where those of relevant
            documents are offset + value; None for 0.
    """

    values: list[float] | tuple[float, ...]
    offsets: list[float] | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("values", "offsets"):
            curve = getattr(self, name)
            if curve is not None:
                object.__setattr__(self, name, _numbers(curve, name))
        if not self.values or not self.values[0] > 0 or min(self.values) < 0:
            raise ConfigError(
                f"propensity.values={list(self.values)}: give numbers of at least 0, the first above 0"
            )

    @property
    def may_have_offsets(self) -> bool:
        """Whether it can know the click rates of irrelevant documents."""
        return self.offsets is not None

    def __call__(self, dataset: Dataset) -> Propensities:
        """Returns them relative to the first; ConfigError where clicks show that one cannot be 0."""
        if self.offsets is None and 0 in self.values:
            clicks = dataset.train.by_position.clicks
            for position, value in enumerate(self.values[: len(clicks) - 1], 1):
                if value == 0 and clicks[position]:
                    raise ConfigError(
                        f"propensity.values has 0 for position {position}, where training sessions have "
                        f"{clicks[position]:,} clicks: nobody clicks what is not examined. Give a number above 0"
                    )
        return Propensities.relative(self.values, offsets=self.offsets, source="given")


def _numbers(curve: Sequence[Any], name: str) -> tuple[float, ...]:
    """Returns the numbers of a setting; ConfigError where one is none."""
    numbers = []
    for value in curve:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise ConfigError(f"propensity.{name} has {value}: give a finite number per position")
        numbers.append(value)
    return tuple(numbers)


@dataclasses.dataclass(frozen=True)
class RunPropensities(PropensitySource):
    """Propensities that a finished run has learned, with their intervals.

    Of a click model that separates examination from attraction, such as PBM and UBM, or of a ranker that learns
    examination; of the trust-bias model also the click rates of irrelevant documents.

    Attributes:
        run: Folder of the run.
    """

    run: str

    def __call__(self, dataset: Dataset) -> Propensities:
        """Reads result.json; ConfigError where it has none, or one that cannot be."""
        try:
            result = Run.read(Path(self.run).expanduser())
        except UserError as error:
            raise self._refused(
                f"{error}; give the folder of another run, or repeat this one"
            ) from error
        if any(ratio.layout for ratio in result.propensity):
            return self._by_layout(result, dataset)
        if self._names_layouts():
            raise self._refused(
                "the run has examination_by, and no propensities of its layouts. Repeat it with shared_intervals=true, "
                "and at most 400 positions of layouts"
            )
        return self._by_position(result)

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(f"propensity.run={self.run}: {reason}")

    def _names_layouts(self) -> bool:
        config = Path(self.run).expanduser() / CONFIG
        return bool(read_object(config).get("examination_by"))

    def _by_position(self, result: Run) -> Propensities:
        """Returns propensities of the positions that a run has any of."""
        ratios = {ratio.position: ratio for ratio in result.propensity or _by_rank(result)}
        if 1 not in ratios:
            raise self._refused(
                f"the run of {result.model} has no propensities; give one of a model with examination by position, "
                "such as pbm, evaluated with metric=all"
            )
        largest, offsets, first = max(ratios), None, 1.0
        if result.false_positive:
            offsets = (*result.false_positive, *[0.0] * largest)[:largest]
            first = self._slope(result)
        by_position = [ratios.get(position) for position in range(1, largest + 1)]
        return Propensities(
            tuple(ratio and ratio.relative for ratio in by_position),
            offsets=offsets,
            source=f"{result.model} in {self.run}",
            first=first,
            **_intervals(by_position),
        )

    def _by_layout(self, result: Run, dataset: Dataset) -> Propensities:
        """Returns propensities of the cells of this dataset, of a run with examination_by."""
        if result.false_positive or any(one.parameter == "slope" for one in result.shared):
            raise self._refused(
                f"propensities of {result.model} by layout have no offsets; give a run of pbm or ubm, or one without "
                "examination_by"
            )
        cells = cells_of(dataset, tuple(result.propensity[0].layout))
        ratios = self._by_cell(result, cells)
        source = f"{result.model} in {self.run}"
        if new := self._new_layouts(result, dataset, cells):
            source += f"; {', '.join(new)} with the curve that its layouts share"
        shared = {ratio.position: ratio.relative for ratio in result.shared_propensity}
        values = [
            shared.get(cells.position(cell)) if ratio is None else ratio.relative
            for cell, ratio in enumerate(ratios, 1)
        ]
        return Propensities(tuple(values), source=source, cells=cells, **_intervals(ratios))

    def _by_cell(self, result: Run, cells: Cells) -> list[RelativeExamination | None]:
        """Returns the ratios of a run by cell from 1, of layouts and positions that this log has, too."""
        ratios: list[RelativeExamination | None] = [None] * (cells.count - 1)
        for ratio in result.propensity:
            cell = cells.cell(ratio.layout, ratio.position)
            if ratio.position <= cells.positions and cells.knows(cell):
                ratios[cell - 1] = ratio
        return ratios

    def _new_layouts(self, result: Run, dataset: Dataset, cells: Cells) -> list[str]:
        """Returns the layouts of the training sessions that the run has not shown, where it has a curve for them."""
        if not result.shared_propensity:
            return []
        shown = np.flatnonzero(cells.view(dataset.train).by_position.shown).tolist()
        learned = {layout_name(ratio.layout) for ratio in result.propensity}
        return [name for name in dict.fromkeys(map(cells.words, shown)) if name not in learned]

    def _slope(self, result: Run) -> float:
        """How much higher the click rate of relevant documents is than that of others, at the first position."""
        rates = result.true_positive or result.per_rank.get("examination")
        if not rates or rates[0] is None:
            raise self._refused(
                "the run does not have the click rates of relevant documents; repeat it with metric=all"
            )
        return rates[0] - result.false_positive[0]


def _intervals(
    ratios: Sequence[RelativeExamination | None],
) -> dict[str, Any]:
    """Returns the bounds of ratios, as `Propensities` takes them."""
    return {
        "low": tuple(ratio and ratio.relative_low for ratio in ratios),
        "high": tuple(ratio and ratio.relative_high for ratio in ratios),
    }


def _by_rank(result: Run) -> list[RelativeExamination]:
    """Relative examination by rank, less the click rates of irrelevant documents, where a run has no intervals.

    None where it is 1 at all ranks, as models have it that know no examination apart from the document.
    """
    curve = result.per_rank.get("examination", [])
    if len(curve) > 1 and set(curve) == {1.0}:
        return []
    slopes = [
        (value or 0.0) - offset
        for value, offset in zip_longest(curve, result.false_positive[: len(curve)], fillvalue=0.0)
    ]
    ratios = [(1 + rank, slope) for rank, slope in enumerate(slopes) if slope > 0]
    return RelativeExamination.known(
        (position, slope / ratios[0][1], None, None) for position, slope in ratios
    )


@dataclasses.dataclass(frozen=True)
class ClickRatePropensities(PropensitySource):
    """Ratios of the click rates of the positions to that of the first, in lists of equal length.

    Where better documents are shown first, click rates fall faster than examination does: these are too steep.
    """

    @property
    def may_have_offsets(self) -> bool:
        """Whether it can know the click rates of irrelevant documents."""
        return False

    def __call__(self, dataset: Dataset) -> Propensities:
        """Counts the training sessions."""
        return _rate_ratios(dataset.train, "click rates, which fall with relevance, too")


@dataclasses.dataclass(frozen=True)
class RandomizedPropensities(PropensitySource):
    """Ratios of click rates in sessions whose documents were shown in random order, where they are unbiased.

    Lists of each length are compared among themselves, since longer ones may be of other queries.

    Joachims, Swaminathan and Schnabel 2017, "Unbiased learning-to-rank with biased feedback"; Wang et al. 2018,
    "Position bias estimation for unbiased learning to rank in personal search".

    Attributes:
        column: Column of the log, one value per session, that is true for these sessions; None: all of them are.
    """

    column: str | None = "randomized"

    @property
    def may_have_offsets(self) -> bool:
        """Whether it can know the click rates of irrelevant documents."""
        return False

    def __call__(self, dataset: Dataset) -> Propensities:
        """Counts these sessions of the training data; ConfigError where there are none."""
        sessions = dataset.train
        if self.column is not None:
            if self.column not in sessions.columns:
                have = ", ".join(
                    name for name in sessions.columns if not sessions.schema[name].per_document
                )
                raise ConfigError(
                    f"propensity.column={self.column}: the log has no such column; per session it has {have}. Declare "
                    f"it with '+dataset.columns.{self.column}={{dtype:bool,per:session}}', or give "
                    "propensity.column=null if all lists were shown in random order"
                )
            chosen = np.flatnonzero(
                np.asarray(sessions.column(self.column)).reshape(sessions.count, -1).any(axis=1)
            )
            if not len(chosen):
                raise ConfigError(
                    f"propensity.column={self.column}: no training session has it true"
                )
            sessions = sessions.select(chosen)
        return _rate_ratios(sessions, f"{sessions.count:,} randomised sessions")


def _rate_ratios(sessions: Sessions, source: str) -> Propensities:
    """Ratios of click rates in lists of equal length, with intervals symmetric in the logarithm.

    Over the lengths, by the weights of Mantel and Haenszel: sum c_kl n_1l / (n_kl + n_1l) over sum c_1l n_kl / (n_kl +
    n_1l), for n_kl documents at position k in lists of length l and c_kl clicks on them.
    """
    shown, clicked = _by_length(sessions)
    if not clicked[:, 0].any():
        raise ConfigError("propensities: the first position has no click to compare others with")
    both = np.maximum(shown + shown[:, :1], 1)
    weights, first = shown[:, :1] / both, shown / both
    with np.errstate(divide="ignore", invalid="ignore"):
        at, at_first = (clicked * weights).sum(axis=0), (clicked[:, :1] * first).sum(axis=0)
        missed = np.nan_to_num(1 - clicked / shown)
        variance = (clicked * missed * weights**2).sum(axis=0) / at**2
        variance += (clicked[:, :1] * missed[:, :1] * first**2).sum(axis=0) / at_first**2
        ratios = at / at_first
        variance[0] = 0
        low, high = ratio_bounds(ratios, variance)
    seen = np.flatnonzero(shown.sum(axis=0)).max(initial=0) + 1
    return Propensities.relative(ratios[:seen], low=low[:seen], high=high[:seen], source=source)


def _by_length(sessions: Sessions) -> tuple[np.ndarray, np.ndarray]:
    """Documents shown and clicks, `[length, position]`, positions from 1 at index 0."""
    size = sessions.ranks + 1, max(sessions.positions, sessions.ranks) + 1
    counts = np.zeros((2, size[0] * size[1]))
    for positions, clicks, more in documents(sessions, "lengths"):
        cells = more["lengths"].astype(np.int64) * size[1] + positions
        counts[0] += np.bincount(cells, minlength=counts.shape[1])
        counts[1] += np.bincount(cells[clicks], minlength=counts.shape[1])
    shown, clicked = counts.reshape(2, *size)[:, :, 1:]
    return shown, clicked

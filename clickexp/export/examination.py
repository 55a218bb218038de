"""Examination and click rates by rank."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from scipy.special import expit

from clickexp.data import Sessions
from clickexp.data.cells import Cells
from clickexp.export.predict import examination_outputs, predictor
from clickexp.models import ClickModel
from clickexp.parameters import LayoutParameter, PositionParameter
from clickexp.parameters.layouts import layouts_of, with_shared_cells
from clickexp.posteriors.intervals import propensity
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.run import SharedParameter
from clickexp.utils.progress import Steps
from clickexp.utils.statistics.means import QUANTILE


def examination(
    model: ClickModel, sessions: Sessions, posterior: SharedPosterior | None = None
) -> pl.DataFrame:
    """Returns P(examination) and the click rate by rank.

    The rank is the position, which models look up. Where examination is a tower of positions alone, as in PBM and the
    trust-bias model, it is the tower at each position; else the mean over the sessions.

    Args:
        model: The model.
        sessions: Those to average over.
        posterior: Of its shared parameters, if it is known.

    Returns:
        The columns of `examination_by`, where examination differs between layouts, rank (from 1), examination,
        propensity (examination divided by that of the first rank that the log shows, of one layout for all, since
        clicks determine examination up to a factor; of the trust-bias model, click rates of relevant documents less
        those of irrelevant ones, likewise; none where a model knows no examination and has 1 at all ranks), click_rate
        (clicks per impression), impressions (documents shown at the rank) and, with a posterior of
        examination itself, propensity_sd, the standard deviation of the logarithm of the propensity, and its 95%
        interval, propensity_low and propensity_high, without a value where the log leaves it open; see `propensity`.
    """
    cells = layouts_of(model) or Cells((), max(sessions.positions, sessions.ranks))
    view = cells.view(sessions)
    counts, clicks = view.by_position
    # intervals are those of the means of differences between layouts, without their spreads
    values, slopes = _rates(with_shared_cells(model), sessions, view, counts)
    ratios = [] if posterior is None else propensity(model, posterior, sessions)
    intervals = {
        cells.cell(ratio.layout, ratio.position): ratio
        for ratio in ratios
        if ratio.position is not None
    }
    first = next(
        (cell for cell, ratio in intervals.items() if ratio.sd == 0), _first(cells, counts)
    )
    shown = counts > 0
    is_known = shown.sum() < 2 or (values[shown] != 1).any()
    propensities = slopes / slopes[first] if is_known else np.full(len(values), np.nan)
    columns = {"examination": values, "propensity": propensities}
    bounds = _bounds(propensities, intervals) if intervals else {}
    return _by_rank(cells, columns, counts, clicks, bounds)


def _bounds(
    propensities: np.ndarray, intervals: Mapping[int, SharedParameter]
) -> dict[str, np.ndarray]:
    """Returns standard deviations of logarithms and ends of 95% intervals by cell, nan where they are open."""
    deviations = np.full(len(propensities), np.nan)
    for cell, ratio in intervals.items():
        deviations[cell] = ratio.sd
    has_ends = [cell for cell, ratio in intervals.items() if ratio.relative_low is not None]
    widths = np.full(len(propensities), np.nan)
    widths[has_ends] = QUANTILE * deviations[has_ends]
    return {
        "propensity_sd": deviations,
        "propensity_low": propensities * np.exp(-widths),
        "propensity_high": propensities * np.exp(widths),
    }


def _first(cells: Cells, counts: np.ndarray) -> int:
    """Returns the cell that propensities are relative to: the first rank that is shown, of the layout of reference."""
    of_reference = np.arange(len(counts)) // (cells.positions + 1) == cells.reference
    return int(np.argmax((counts > 0) * (1 + of_reference)))


def _rates(
    model: ClickModel, sessions: Sessions, view: Sessions, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns P(examination) by cell, and the same less the click rates of irrelevant documents."""
    tower = getattr(model, "examination", getattr(model, "true_positive", None))
    values = _curve(tower, len(counts))
    if values is None:
        values = _sums(model, sessions, view, len(counts)) / np.where(counts, counts, 1)
    false = getattr(model, "false_positive", None)
    rates = _curve(false, len(counts)) if false is not None else None
    if rates is None and isinstance(false, LayoutParameter):
        rates = np.asarray(expit(np.ravel(false.of_cells(np.arange(len(counts))))), np.float64)
    return values, values if rates is None else values - rates


def _curve(tower: object, cells: int) -> np.ndarray | None:
    """Returns the probabilities of a tower of positions alone, from 0; None of another one."""
    if isinstance(tower, PositionParameter) and tower.config.use_feature == "positions":
        positions = min(cells - 1, tower.weight.shape[0] - 1)
        return np.pad(tower.probabilities(positions), (1, cells - 1 - positions))
    return None


def _sums(model: ClickModel, sessions: Sessions, view: Sessions, cells: int) -> np.ndarray:
    """Returns the sum of P(examination) by cell."""
    sums, done = np.zeros(cells), 0
    with Steps("examination") as progress:
        for lengths, outputs in predictor(model, examination_outputs, progress)(sessions):
            chunk = view.chunk(done, done + len(lengths))
            examined = outputs["examination"].astype(np.float64)[chunk.shown]
            sums += np.bincount(chunk.of_documents("positions"), examined, len(sums))
            done += len(lengths)
    return sums


def learned_examination(curve: np.ndarray, sessions: Sessions) -> pl.DataFrame:
    """Returns the propensities that a ranker has learned beside click rates.

    Args:
        curve: By position from 1.
        sessions: Those whose clicks are counted.

    Returns:
        The columns rank, propensity, click_rate and impressions, as `examination` has them.
    """
    counts, clicks = sessions.by_position
    both = min(1 + len(curve), len(counts))
    columns = {"propensity": np.append(np.nan, curve)[:both]}
    return _by_rank(Cells((), both - 1), columns, counts[:both], clicks[:both])


def _by_rank(
    cells: Cells,
    columns: Mapping[str, np.ndarray],
    counts: np.ndarray,
    clicks: np.ndarray,
    more: Mapping[str, np.ndarray] | None = None,
) -> pl.DataFrame:
    """Returns a row for each cell with a document: layout, rank, columns, click rate and impressions, more columns."""
    rates = {"click_rate": clicks / np.where(counts, counts, 1), "impressions": counts}
    places = cells.batch(np.arange(len(counts)))
    ranks = {name: cells.values(name, places[name][0]) for name in cells.names}
    ranks["rank"] = places["positions"][0].astype(np.int64)
    table = pl.DataFrame({**ranks, **columns, **rates, **(more or {})}, nan_to_null=True)
    return table.filter(pl.col("impressions") > 0)

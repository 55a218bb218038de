"""Examination and click rates by rank."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from clickexp.data import Sessions
from clickexp.export.predict import examination_outputs, predicted
from clickexp.models import ClickModel
from clickexp.parameters import PositionParameter
from clickexp.parameters.context import in_new_session
from clickexp.posteriors.intervals import propensity
from clickexp.posteriors.shared import SharedPosterior
from clickexp.propensities.base import clicks_by_position
from clickexp.utils.statistics.means import QUANTILE


def examination(
    model: ClickModel, sessions: Sessions, posterior: SharedPosterior | None = None
) -> pl.DataFrame:
    """Returns P(examination) and the click rate by rank.

    Where examination is a tower of positions alone, as in PBM and the trust-bias model, it is the tower at each
    position; else the mean over the sessions, by position where it depends on positions, as in UBM, and by rank in the
    list elsewhere.

    Args:
        model: The model.
        sessions: Those to average over.
        posterior: Of its shared parameters, if it is known.

    Returns:
        The columns rank (from 1), examination, propensity (examination divided by that of the first rank that the log
        shows, since clicks determine examination up to a factor; of the trust-bias model, click rates of relevant
        documents less those of irrelevant ones, likewise; none where a model knows no examination and has 1 at all
        ranks), click_rate (clicks per document at the rank), sessions (those with a document at the rank) and, with a
        posterior of examination itself, propensity_sd, the standard deviation of the logarithm of the propensity, and
        its 95% interval, propensity_low and propensity_high, without a value where the log leaves it open; see
        `propensity`.
    """
    tower = getattr(model, "examination", getattr(model, "true_positive", None))
    if isinstance(tower, PositionParameter) and tower.config.use_feature == "positions":
        values = tower.probabilities(sessions.positions)
        counts, clicks = (each[1 : 1 + len(values)] for each in clicks_by_position(sessions))
    else:
        by_rank = not isinstance(in_new_session(tower)[1], PositionParameter)
        counts, clicks = (each[1:] for each in clicks_by_position(sessions, by_rank=by_rank))
        values = _sums(model, sessions, by_rank, len(counts)) / np.where(counts, counts, 1)
    false = getattr(model, "false_positive", None)
    slopes = values
    if isinstance(false, PositionParameter) and false.config.use_feature == "positions":
        slopes = values - false.probabilities(sessions.positions)[: len(values)]
    ranks = np.arange(1, len(values) + 1)
    unknown = (values[counts > 0] == 1).all() and len(values) > 1
    found = [] if posterior is None else propensity(model, posterior, sessions)
    intervals = {each.position: each for each in found if each.position is not None}
    first = min(intervals) if intervals else ranks[counts > 0].min(initial=len(ranks))
    propensities = np.full(len(values), np.nan) if unknown else slopes / slopes[first - 1]
    columns = {"examination": values, "propensity": propensities}
    more = {}
    if intervals:
        known = [intervals.get(rank) for rank in ranks.tolist()]
        more["propensity_sd"] = np.array([each and each.sd for each in known], float)
        is_open = np.array([each is None or each.relative_low is None for each in known])
        width = QUANTILE * np.where(is_open, np.nan, more["propensity_sd"])
        more["propensity_low"] = propensities * np.exp(-width)
        more["propensity_high"] = propensities * np.exp(width)
    return _by_rank(columns, counts, clicks, more)


def _sums(model: ClickModel, sessions: Sessions, by_rank: bool, ranks: int) -> np.ndarray:
    """Returns the sum of P(examination) by position, or by rank in the list, from 1."""
    sums, done = np.zeros(ranks + 1), 0
    for lengths, outputs in predicted(model, sessions, examination_outputs, "examination"):
        chunk = sessions.chunk(done, done + len(lengths))
        examined = outputs["examination"].astype(np.float64)[chunk.shown]
        sums += np.bincount(chunk.places(by_rank), examined, len(sums))
        done += len(lengths)
    return sums[1:]


def learned_examination(curve: np.ndarray, sessions: Sessions) -> pl.DataFrame:
    """Returns the propensities that a ranker has learned beside click rates.

    Args:
        curve: By position from 1.
        sessions: Those whose clicks are counted.

    Returns:
        The columns rank, propensity, click_rate and sessions, as `examination` has them.
    """
    counts, clicks = (each[1:] for each in clicks_by_position(sessions))
    both = min(len(curve), len(counts))
    return _by_rank({"propensity": curve[:both]}, counts[:both], clicks[:both])


def _by_rank(
    columns: Mapping[str, np.ndarray],
    counts: np.ndarray,
    clicks: np.ndarray,
    more: Mapping[str, np.ndarray] | None = None,
) -> pl.DataFrame:
    """Returns a row for each rank with a document: rank, columns, click rate and sessions, and more columns."""
    rates = {"click_rate": clicks / np.where(counts, counts, 1), "sessions": counts}
    ranks = {"rank": np.arange(1, len(counts) + 1)}
    table = pl.DataFrame({**ranks, **columns, **rates, **(more or {})}, nan_to_null=True)
    return table.filter(pl.col("sessions") > 0)

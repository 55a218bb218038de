"""The posteriors of documents that an export writes, and documents whose attraction a log leaves open."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import numpy as np

from clickexp.data import Sessions
from clickexp.data.cells import Cells
from clickexp.models import ClickModel, Model
from clickexp.parameters import EmbeddingParameter, Table
from clickexp.parameters.layouts import with_shared_cells
from clickexp.posteriors.documents import ROLES, effective_by_id, table_of_documents, tower_of
from clickexp.posteriors.first_position import FirstPosition
from clickexp.posteriors.policy_prior import Queries, UnderPolicy, lists_shown
from clickexp.posteriors.rows import newton_refined, with_shared_uncertainty
from clickexp.posteriors.satisfaction import along_attraction, rows_of_satisfaction
from clickexp.posteriors.shape import Shaped, has_shape, shaped
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.run import SharedParameter
from clickexp.utils.memory import break_cycles, return_freed_memory
from clickexp.utils.progress import Steps

ReadSeen = Callable[[], tuple[np.ndarray | None, Queries | None]]
"""Reads training impressions by id and lists of queries, those of earlier logs included; None of what is not known."""


class Exported(NamedTuple):
    """A model with the posteriors that each part of an export is of; the model itself where there is nothing to change.

    Attributes:
        probabilities: Posteriors without the noise of training, under a prior that knows which lists a policy has
            shown documents in.
        intervals: Also with the errors of shared parameters, and those of documents that no list shows.
        effective: Effective impressions by id, which that prior is no part of: a table, since devices share its rows.
            None where there is no such prior.
        ends: Both of 95% intervals of attraction by id, in standard deviations from the means. None where posteriors
            are normal.
    """

    probabilities: Model
    intervals: Model
    effective: Table | None = None
    ends: Table | None = None


def exported(
    model: Model,
    train: Sessions,
    impressions: np.ndarray,
    clicks: np.ndarray,
    posterior: SharedPosterior | None,
    read_seen: ReadSeen | None = None,
    devices: int | str = 1,
) -> Exported:
    """Returns the model as an export needs it.

    Of click models with whole tables of one number per row; all others stay as they are.

    Args:
        model: A fitted model.
        train: Its training sessions.
        impressions: Training impressions by id, of this log.
        clicks: Training clicks by id, of this log.
        posterior: Of its shared parameters, if it is known.
        read_seen: What this log and earlier ones have shown. It is read when it is needed, and freed then.
        devices: How many share the passes over the sessions, or `all`.
    """
    if not row_tables(model):
        return Exported(model, model)
    known, posteriors = _of_documents(model, train, impressions, clicks, read_seen, devices)
    first = None
    if posterior is not None and isinstance(posteriors, UnderPolicy):
        first = FirstPosition.of(model, posterior, posteriors)
    del posteriors
    break_cycles()
    return_freed_memory()
    if posterior is None:
        return known
    intervals = with_shared_cells(known.intervals)
    with Steps("errors of shared parameters") as progress:
        intervals = with_shared_uncertainty(
            intervals, row_tables(intervals), posterior, train, progress, devices, first
        )
    return known._replace(intervals=intervals)


def _of_documents(
    model: Model,
    train: Sessions,
    impressions: np.ndarray,
    clicks: np.ndarray,
    read_seen: ReadSeen | None,
    devices: int | str,
) -> tuple[Exported, UnderPolicy | Shaped | None]:
    """Returns the model with the posteriors of its documents alone, see `exported`, and what has these."""
    with Steps("posteriors of documents") as progress:
        refined = newton_refined(model, row_tables(model), train, progress, devices)
    under = _under_policy(refined, model, train, impressions, read_seen)
    if under is None:
        return Exported(refined, refined), None
    tower = cast(EmbeddingParameter, tower_of(refined, ROLES["attraction"]))
    effective, is_read = effective_by_id(tower), refined is not model
    # a table that is not needed from here on, as that of each posterior below
    del tower, refined
    satisfaction = None
    posteriors = under
    if is_read:
        posteriors, satisfaction = _read_again(under, clicks, train, devices)
    del under
    ends = posteriors.ends
    models = posteriors.probabilities(), posteriors.intervals()
    if satisfaction is not None:
        models = along_attraction(*models, train, satisfaction)
    return Exported(*models, effective, ends), posteriors


def _under_policy(
    refined: Model,
    model: Model,
    train: Sessions,
    impressions: np.ndarray,
    read_seen: ReadSeen | None,
) -> UnderPolicy | None:
    """Returns the posteriors of a refined model under a prior that knows which lists a policy has shown."""
    seen, queries = (None, None) if read_seen is None else read_seen()
    if queries is None:
        with Steps("lists of queries") as progress:
            queries = lists_shown(model, train, progress)
    return UnderPolicy.of(refined, impressions if seen is None else seen, queries)


def _read_again(
    under: UnderPolicy, clicks: np.ndarray, train: Sessions, devices: int | str
) -> tuple[UnderPolicy | Shaped, np.ndarray | None]:
    """Returns posteriors by what clicks say where a prior leaves documents, which training has not known.

    They are under the prior by that, with a shape where the model has one. Beside them are offsets and spreads of
    satisfaction where that pass has read it, None for models without.
    """
    model = under.probabilities()
    table = cast(Table, table_of_documents(tower_of(model, ROLES["attraction"])))
    tables, read_at = [table], np.array(table.get_value().values[:, :2])
    satisfaction = rows_of_satisfaction(model)
    of_satisfaction = None
    if satisfaction is not None and has_shape(under):
        tables.append(cast(Table, table_of_documents(tower_of(model, ROLES["satisfaction"]))))
        of_satisfaction = np.array(satisfaction.values[:, :2])
    with Steps("posteriors under a policy") as progress:
        refined = newton_refined(model, tables, train, progress, devices, longest=math.inf)
    del model, table, tables, satisfaction
    break_cycles()
    again = under.refitted(refined)
    return shaped(again, clicks, read_at) if has_shape(again) else again, of_satisfaction


def open_documents(
    train: Sessions,
    intervals: Iterable[SharedParameter],
    rows: int,
    cells: Cells | None = None,
) -> np.ndarray:
    """Returns which documents training shows at positions alone whose examination the log leaves open, by id.

    Their attraction is open, too, up to the same factor. One that is also shown at another position links the two.

    Args:
        train: The training sessions.
        intervals: Of shared parameters, from `shared_intervals`.
        rows: Number of ids.
        cells: Layouts that examination differs between; None where it does not.
    """
    cells = cells or Cells((), max(train.positions, train.ranks))
    ratios = [
        (cells.cell(interval.layout, interval.position), interval.relative_low)
        for interval in intervals
        if interval.relative is not None and interval.position is not None
    ]
    bounded = {position for position, low in ratios if low is not None}
    left_open = {position for position, _ in ratios} - bounded
    is_open, elsewhere = np.zeros((2, rows), bool)
    if not left_open:
        return is_open
    for chunk in cells.view(train).chunks():
        at_open = np.isin(chunk.positions, [*left_open])
        is_open[chunk["query_doc_ids"][chunk.shown & at_open]] = True
        elsewhere[chunk["query_doc_ids"][chunk.shown & ~at_open]] = True
    return is_open & ~elsewhere


def row_tables(model: Model) -> list[Table]:
    """Tables whose rows have a posterior of one number."""
    towers = (
        [tower_of(model, roles) for roles in ROLES.values()]
        if isinstance(model, ClickModel)
        else []
    )
    tables = [tower.table for tower in towers if isinstance(tower, EmbeddingParameter)]
    return [
        table
        for table in tables
        if isinstance(table, Table)
        and table.get_value().has_posteriors
        and table.get_value().dim == 1
    ]

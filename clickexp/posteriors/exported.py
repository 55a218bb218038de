"""The posteriors of documents that an export writes, and documents whose attraction a log leaves open."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import jax.numpy as jnp
import numpy as np

from clickexp.data import Sessions
from clickexp.data.cells import Cells
from clickexp.models import ClickModel, Model
from clickexp.parameters import EmbeddingParameter, Rows, Table
from clickexp.parameters.layouts import with_shared_cells
from clickexp.posteriors.documents import ROLES, table_of_documents, tower_of
from clickexp.posteriors.policy_prior import (
    Queries,
    UnderPolicy,
    learned_rows,
    lists_shown,
    with_rows,
)
from clickexp.posteriors.rows import newton_refined, with_shared_uncertainty
from clickexp.posteriors.shape import Shaped, has_shape, shaped
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.run import SharedParameter
from clickexp.utils.memory import break_cycles
from clickexp.utils.progress import Steps


class Exported(NamedTuple):
    """A model with the posteriors that each part of an export is of; the model itself where there is nothing to change.

    Attributes:
        effective: For effective impressions: posteriors without the noise of training.
        probabilities: Also with a prior that knows which lists a policy has shown documents in.
        intervals: Also with the errors of shared parameters, and those of documents that no list shows.
        ends: Both of 95% intervals of attraction by id, in standard deviations from the means: a table, since devices
            share its rows. None where posteriors are normal.
    """

    effective: Model
    probabilities: Model
    intervals: Model
    ends: Table | None = None


def exported(
    model: Model,
    train: Sessions,
    impressions: np.ndarray,
    clicks: np.ndarray,
    posterior: SharedPosterior | None,
    read_queries: Callable[[], Queries | None] | None = None,
    devices: int | str = 1,
) -> Exported:
    """Returns the model as an export needs it.

    Of click models with whole tables of one number per row; all others stay as they are.

    Args:
        model: A fitted model.
        train: Its training sessions.
        impressions: Training impressions by id, those of earlier logs included.
        clicks: Training clicks by id, of this log.
        posterior: Of its shared parameters, if it is known.
        read_queries: Reads those of documents, if they are known; see `lists_shown`. They are freed once they are used.
        devices: How many share the passes over the sessions, or `all`.
    """
    if not row_tables(model):
        return Exported(model, model, model)
    with Steps("posteriors of documents") as progress:
        effective = newton_refined(model, row_tables(model), train, progress, devices)
    queries = None if read_queries is None else read_queries()
    if queries is None:
        with Steps("lists of queries") as progress:
            queries = lists_shown(model, train, progress)
    under, shape = UnderPolicy.of(effective, impressions, queries), None
    del queries
    if under is not None and effective is not model:
        under = _read_again(under, train, devices)
        shape = shaped(under, clicks) if has_shape(under) else None
    known = Exported(effective, effective, effective)
    if under is not None and shape is None:
        known = Exported(effective, under.probabilities(), under.intervals())
    del under  # a table that is not needed from here on
    break_cycles()
    if shape is not None:
        known = _with_shape(effective, shape)
    del shape
    if posterior is None:
        return known
    intervals = with_shared_cells(known.intervals)
    with Steps("errors of shared parameters") as progress:
        intervals = with_shared_uncertainty(
            intervals, row_tables(intervals), posterior, train, progress, devices
        )
    return known._replace(intervals=intervals)


def _read_again(under: UnderPolicy, train: Sessions, devices: int | str) -> UnderPolicy:
    """Returns what clicks say where a prior leaves documents, which training has not known, and the prior by that."""
    model = under.probabilities()
    table = cast(Table, table_of_documents(tower_of(model, ROLES["attraction"])))
    with Steps("posteriors under a policy") as progress:
        refined = newton_refined(model, [table], train, progress, devices, longest=math.inf)
    break_cycles()
    return under.refitted(refined)


def _with_shape(effective: Model, shape: Shaped) -> Exported:
    """Returns models with posteriors under a prior with a shape."""
    rows = cast(Rows, learned_rows(tower_of(effective, ROLES["attraction"])))

    def changed(columns: np.ndarray) -> Model:
        def with_columns(before: np.ndarray, part: slice) -> np.ndarray:
            return np.column_stack([*columns[:, part], before[:, 2:]])

        return with_rows(effective, rows.recomputed(with_columns))

    ends = Table(Rows(jnp.asarray(shape.ends), 2))
    return Exported(effective, changed(shape.probabilities), changed(shape.intervals), ends)


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

"""Documents whose attraction an update has moved most, in units of what was known before."""

from collections.abc import Mapping

import numpy as np
from flax import nnx
from scipy.special import expit

from clickexp.data.names import read_names
from clickexp.models import Model
from clickexp.parameters import EmbeddingParameter
from clickexp.parameters.table import path_name
from clickexp.posteriors.documents import ROLES, table_of_documents, tower_of
from clickexp.runs.run import Moved
from clickexp.updates.growth import grown_rows

_MOST = 20
_LEAST = 1.0
"""Deviations below which a document has not moved."""


def moved(model: Model, stored: Mapping[str, np.ndarray], names: np.ndarray | None) -> list[Moved]:
    """Returns the documents that have moved most, the farthest first.

    Args:
        model: A fitted model.
        stored: Parameters of the run before, by name.
        names: Bytes of the file that names ids, if there is one.

    Returns:
        The documents; none where attraction is no table of documents with posteriors of one number.
    """
    tower = tower_of(model, ROLES["attraction"])
    table = table_of_documents(tower)
    if table is None or not isinstance(tower, EmbeddingParameter):
        return []
    rows = table.get_value()
    if not rows.has_posteriors or rows.dim != 1:
        return []
    path = next(path for path, node in nnx.iter_graph(model) if node is table)
    earlier = grown_rows(rows, path_name(path), stored)
    shown = np.asarray((earlier.values[:, : earlier.numbers] != 0).any(axis=1))
    sd = np.asarray(earlier.deviations(earlier.values))[:, 0]
    before = np.asarray(earlier.means(earlier.values))[:, 0]
    before = before + float(stored.get(path_name((*path[:-1], "baseline")), 0.0))
    baseline = 0.0 if tower.baseline is None else float(tower.baseline[...])
    after = np.asarray(rows.means(rows.values))[:, 0] + baseline
    distance = np.where(shown, (after - before) / sd, 0.0)
    order = np.argsort(-np.abs(distance), kind="stable")[:_MOST]
    chosen = order[np.abs(distance[order]) > _LEAST]
    called = None if names is None else read_names(names)
    return [
        Moved(
            id=int(row),
            **({} if called is None or row == 0 else called.row(int(row) - 1, named=True)),
            before=float(expit(before[row])),
            after=float(expit(after[row])),
            deviations=float(distance[row]),
        )
        for row in chosen
    ]

"""A model with the parameters of an earlier run, whose tables may be smaller, and with its posteriors as sites."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Integer

from clickexp.data.cells import Cells
from clickexp.errors import ConfigError
from clickexp.models import Model
from clickexp.models.roles import Index
from clickexp.parameters import EmbeddingParameter, PositionParameter, Rows, Table
from clickexp.parameters.compressed import CompressedEmbedding
from clickexp.parameters.layouts import CellParameter
from clickexp.parameters.table import LEAST_SITE, Prior, path_name, powers
from clickexp.posteriors.intervals import components
from clickexp.training.checkpoint import SAVED_VARIABLES
from clickexp.utils.blocks import blocks

_BLOCK = 1 << 16
"""Rows that are computed in double precision at a time."""
_REMEDY = "Give the settings of that run, as clickexp-update does, or fit this log from scratch"

Arrays = Mapping[str, np.ndarray]
Places = Integer[np.ndarray, " numbers"]


@dataclasses.dataclass(frozen=True)
class Taken:
    """Parameters that a model has taken over.

    Attributes:
        places: The new place of each number of a parameter whose shape has changed, by the name of the parameter.
        forgotten: Share of the information on rows that half-lives have taken off.
    """

    places: Mapping[str, Places]
    forgotten: float = 0.0


class Sizes(NamedTuple):
    """Sizes of a model.

    Attributes:
        positions: The largest position.
        columns: The largest value of each column of whole numbers.
    """

    positions: int
    columns: Mapping[str, int] = MappingProxyType({})


def take_over(
    model: Model,
    stored: Arrays,
    sizes: Sizes,
    kept: float | None,
    is_released: Callable[[str], bool] = lambda name: False,
) -> Taken:
    """Gives a model the parameters of an earlier run.

    New rows, and new positions, stay as they start. Rows with posteriors get sites, which are these posteriors over
    their prior; see `clickexp.parameters.Rows.site`.

    Args:
        model: The model before training.
        stored: The parameters of the run, by name.
        sizes: Those of the model of the run.
        kept: Share of the information on rows that is kept; None leaves sites out.
        is_released: Whether a table, by its name, keeps nothing.

    Raises:
        ConfigError: The run is of another model or has other towers.
    """
    state = nnx.state(model, SAVED_VARIABLES)
    _check_names(state, stored)
    places, total, lost = {}, 0.0, 0.0
    taken = []
    for path, variable in nnx.to_flat_state(state):
        name = path_name(path)
        if isinstance(variable, Table):
            at = _places_of_rows(model, path, variable, stored[name], sizes)
            if at is not None:
                # differences between layouts have these names among shared parameters
                places |= {name: at, f"{path_name(path[:-1])}/weight": at}
            rows = grown_rows(variable.get_value(), name, stored, at)
            if kept is not None:
                rows, information = _with_sites(rows, 0.0 if is_released(name) else kept)
                total, lost = total + information, lost + (1 - kept) * information
            taken.append((path, variable.copy(rows)))
            continue
        value = np.asarray(variable.get_value())
        old = stored[name]
        if old.shape != value.shape:
            places[name] = _places(model, path, old, value, sizes.positions)
            grown = value.copy()
            grown[places[name]] = old
            old = grown
        taken.append((path, variable.copy(jnp.asarray(old))))
    nnx.update(model, nnx.from_flat_state(taken))
    return Taken(places, lost / total if total else 0.0)


def _check_names(state: nnx.State, stored: Arrays) -> None:
    names = {path_name(path) for path, _ in nnx.to_flat_state(state)}
    kinds = {name for name in stored if "/prior/" not in name and not name.endswith("/log_ranks")}
    if differ := sorted(names ^ kinds):
        raise ConfigError(
            f"prior: that run is of another model, or has other towers: {', '.join(differ)} differ. {_REMEDY}"
        )


def _places_of_rows(
    model: Model, path: tuple, table: Table, stored: np.ndarray, sizes: Sizes
) -> Places | None:
    """Returns the new places of rows; None where new ones come behind.

    Raises:
        ConfigError: The table has another size than in the run, and its rows would be those of other documents.
    """
    if len(stored) == len(table.get_value().values):
        return None
    tower, name, positions = _node(model, path[:-1]), path_name(path), sizes.positions
    if isinstance(tower, CellParameter):
        columns = tuple((name, sizes.columns[name] + 1) for name in tower.cells.names)
        return tower.cells.places_of(Cells(columns, positions))
    index = Index("query_doc_ids", 0, positions)
    if isinstance(tower, EmbeddingParameter):
        index = _indices(model).get(tower.config.use_feature, index)
    by_id = (index.leading, index.radix) == ("query_doc_ids", positions)
    if isinstance(tower, CompressedEmbedding) or not by_id:
        raise ConfigError(
            f"prior: {name} had {len(stored):,} rows and would have {len(table.get_value().values):,}. Rows of a "
            "compressed table, or by position and document, cannot grow: fit both logs with the same number of "
            "parameters (parameters=N of the tower) and positions, or from scratch"
        )
    return None


def _indices(model: Model) -> dict[str, Index]:
    """Columns that the model, or components of a mixture, add to batches by position and another number."""
    return {
        key: size for part in components(model).values() for key, size in part.indices().items()
    }


def _node(model: Model, path: tuple) -> object:
    """Returns the module at a path."""
    return next((node for at, node in nnx.iter_graph(model) if at == path), None)


def _places(
    model: Model, path: tuple, old: np.ndarray, value: np.ndarray, positions: int
) -> Places:
    """Returns the new places of numbers by position, or by position and that of the last click above."""
    name, tower = path_name(path), _node(model, path[:-1])
    if not isinstance(tower, PositionParameter) or old.ndim != 1 or len(old) > len(value):
        raise ConfigError(
            f"prior: {name} has {old.shape} numbers there, and {value.shape} here. {_REMEDY}"
        )
    at, index = np.arange(len(old)), _indices(model).get(tower.config.use_feature)
    return at if index is None else at // (positions + 1) * index.radix + at % (positions + 1)


def grown_rows(rows: Rows, name: str, stored: Arrays, places: Places | None = None) -> Rows:
    """Returns a table with stored rows, and the stored prior.

    Args:
        rows: The table.
        name: Its name.
        stored: Parameters by name.
        places: Of the stored rows; None for those in front.

    Raises:
        ConfigError: They are of another kind, or more.
    """
    values, log_precision = stored[name], stored.get(f"{name}/prior/log_precision")
    slopes = stored.get(f"{name}/prior/slopes")
    same_kind = (log_precision is None) == (rows.prior is None) and (slopes is None) != rows.by_rank
    width = rows.numbers + rows.by_rank
    has_width = values.shape[1] in (width, width + 2 * rows.dim)
    if not (same_kind and has_width and len(values) <= len(rows.values)):
        raise ConfigError(
            f"prior: {name} has rows {values.shape} there, and {rows.values.shape} here, or another kind of posterior. "
            f"{_REMEDY}"
        )
    grown = np.zeros((len(rows.values), width), np.float32)
    grown[slice(len(values)) if places is None else places] = values[:, :width]
    prior = rows.prior
    if prior is not None and log_precision is not None:
        mean = jnp.asarray(stored[f"{name}/prior/mean"])
        slopes = None if slopes is None else jnp.asarray(slopes)
        prior = Prior(jnp.asarray(log_precision), mean, slopes)
    log_ranks = stored.get(f"{name}/log_ranks")
    log_ranks = None if log_ranks is None else jnp.asarray(log_ranks)
    return dataclasses.replace(
        rows, values=jnp.asarray(grown), prior=prior, log_ranks=log_ranks, has_sites=False
    )


def _with_sites(rows: Rows, kept: float) -> tuple[Rows, float]:
    """Returns rows with sites, and the information that these had before a part was forgotten.

    The posterior N(m, 1 / P) under the prior N(mu, 1 / tau) has the site of precision S = P - tau and tilt
    h = P m - tau mu. Of both a part is kept, and the row starts as prior times site.
    """
    if not rows.has_posteriors or rows.prior is None:
        return rows, 0.0
    tau = math.exp(float(rows.prior.log_precision))
    room = rows.with_sites()
    values, information = np.array(room.values), 0.0
    for part in blocks(len(values), _BLOCK):
        block = values[part].astype(np.float64)
        offsets, spreads = block[:, : rows.dim], block[:, rows.dim : rows.numbers]
        shown = (block[:, : rows.numbers] != 0).any(axis=1, keepdims=True)
        center = _centers(rows, rows.prior, block)
        site = np.where(shown, np.maximum(np.expm1(-2 * spreads), LEAST_SITE) * tau, 0.0)
        tilt = np.where(shown, (tau + site) * offsets + site * center, 0.0)
        information += float(np.maximum(site, 0.0).sum())
        site, tilt = kept * site, kept * tilt
        total = tau + site
        offsets[:] = (tilt - site * center) / total
        spreads[:] = np.log(tau / total) / 2
        values[part] = np.concatenate([block[:, : rows.width], site, tilt], axis=1)
    return dataclasses.replace(room, values=jnp.asarray(values)), information


def _centers(rows: Rows, prior: Prior, block: np.ndarray) -> np.ndarray:
    """Means of the prior of rows, [rows, dim]."""
    mean = np.asarray(prior.mean, np.float64)
    if prior.slopes is None:
        return np.broadcast_to(mean, (len(block), rows.dim))
    x = block[:, rows.numbers]
    finite = np.where(np.isfinite(x), x, 0.0)
    of_ranks = np.asarray(powers(finite), np.float64) @ np.asarray(prior.slopes, np.float64)
    return mean + np.where(np.isfinite(x)[:, None], of_ranks, 0.0)

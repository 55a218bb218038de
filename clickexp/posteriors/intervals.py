"""Intervals of shared probabilities: examination by rank, UBM's table, continuation."""

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import expit

from clickexp.data import Sessions
from clickexp.data.cells import Cells
from clickexp.data.inspect.identifiability import RANDOM, movement
from clickexp.models import (
    ClickChainModel,
    DynamicBayesianNetwork,
    MixtureModel,
    Model,
    TrustBiasModel,
)
from clickexp.parameters import GlobalParameter, PositionParameter
from clickexp.parameters.base import Parameter
from clickexp.parameters.context import in_new_session
from clickexp.parameters.layouts import LayoutParameter, PointCellParameter, with_shared_cells
from clickexp.posteriors.shared import MOST_SHARED, SharedPosterior, count_shared
from clickexp.runs.run import SharedParameter
from clickexp.types import Array
from clickexp.utils.statistics.means import QUANTILE

_LEAST_SLOPE = 1e-6
_OPEN = 3.5
"""Deviation of the logarithm of a ratio from which on the log leaves it open."""
_STRONGLY_ORDERED = 0.5
"""Movement of documents below which intervals of continuation hang on the prior of attraction."""
_BY_POSITION = ("examination", "slope")


class Key(NamedTuple):
    """The place of a shared number.

    Attributes:
        position: Position, or cell of a tower of layouts; None for all.
        last_click: Position of the last click above; None where that does not matter.
        cells: Where the position is one of these cells.
    """

    position: int | None = None
    last_click: int | None = None
    cells: Cells | None = None

    def place(self) -> dict[str, Any]:
        """Returns position, last click and layout as results have them."""
        if self.cells is None or self.position is None:
            return {"position": self.position, "last_click": self.last_click}
        cells, at = self.cells, self.position
        return {"position": cells.position(at), "layout": cells.layout(at)}


def shared_intervals(model: Model, posterior: SharedPosterior) -> list[SharedParameter]:
    """Returns the shared probabilities that the log says something about, with 95% intervals.

    Those of towers of one number or one per position; with context of search sessions those in a new one. Intervals of
    a probability are symmetric in its logit, those of a ratio in its logarithm. Models that separate examination from
    attraction have intervals of ratios to the first position. Those of the trust-bias model are of slopes, true less
    false positives, since clicks leave attraction open up to an affine change. Where examination differs between
    layouts, there is an interval per layout and position, and ratios are to the first position of one layout: the one
    that most training documents have.

    Args:
        model: A fitted model; of a mixture, one component after the other.
        posterior: From `shared_posterior`.
    """
    parameters = []
    for curve in curves(model, posterior):
        moments = posterior.moments_of(model, curve.function)
        parameters += (_ratios if curve.relative else _probabilities)(curve, *moments)
    return parameters


def curves(model: Model, posterior: SharedPosterior) -> "Iterator[Curve]":
    """Yields the curves of a model, of numbers that a posterior has."""
    model = with_shared_cells(model)
    for prefix, component in _components(model).items():
        for curve in _curves(component(model), prefix, set(posterior.names)):

            def function(
                model: Any, curve: Curve = curve, component: _Component = component
            ) -> Array:
                return curve.function(component(model))

            yield curve._replace(function=function)


def why_no_intervals(model: Model, posterior: SharedPosterior | None) -> str:
    """Returns why examination of a model that separates it has no intervals.

    Args:
        model: A fitted model.
        posterior: From `shared_posterior`.
    """
    _, tower = in_new_session(getattr(model, "examination", None))
    if not isinstance(tower, Parameter):
        return "the correction of a ranker estimates it, without a posterior"
    if not isinstance(tower, PositionParameter | LayoutParameter):
        return f"its tower is a {type(tower).__name__}, and intervals are of towers that read positions alone"
    if posterior is not None:
        return "the log says nothing about it"
    numbers = count_shared(model)
    if numbers > MOST_SHARED:
        return (
            f"the model has {numbers:,} shared numbers, and intervals are for {MOST_SHARED} at most"
        )
    return (
        "the run has not computed them (shared_intervals=false, or a warning of the run says why)"
    )


def short_intervals(model: Model, train: Sessions) -> str | None:
    """Returns why intervals are too short or hang on a prior; None where they are not known to.

    Args:
        model: A model.
        train: Its training sessions.
    """
    least, reason = _shortness(model)
    if not (model.has_posteriors and least) or not (moving := movement(train)) < least:
        return None
    return (
        f"warning: a policy orders lists ({moving:.0%} of the variance of log positions is within documents, where "
        f"random order has 100%). {reason} Remedy: some sessions in random order."
    )


def _shortness(model: Model) -> tuple[float, str]:
    """Returns the movement of documents below which not all intervals of a model hold, and which; 0 for none."""
    if isinstance(model, TrustBiasModel):
        return RANDOM, (
            "Click rates of the trust-bias model hang on the shape of attraction, and intervals of documents that "
            "attract least may be too short."
        )
    if _learns_continuation(model):
        return _STRONGLY_ORDERED, (
            "The probability of going on hangs on the shape of attraction: where few documents attract, its interval "
            "may miss it."
        )
    return 0.0, ""


def _learns_continuation(model: Model) -> bool:
    """Whether the log tells how users go on only by where clicks end, which attraction of what follows decides, too."""
    if isinstance(model, DynamicBayesianNetwork):
        return not model.fix_continuation
    return isinstance(model, ClickChainModel)


def propensity(
    model: Model, posterior: SharedPosterior, sessions: Sessions
) -> list[SharedParameter]:
    """Returns examination relative to the first position, by position, of models that separate it from attraction.

    That of UBM is the mean over the sessions, given the clicks above each document; of the trust-bias model, the slope.
    With context of search sessions it is that in a new one.

    Args:
        model: A fitted model.
        posterior: From `shared_posterior`.
        sessions: Those to average over.

    Returns:
        An interval per position, of each layout; none for models without a tower of positions for examination.
    """
    model = with_shared_cells(model)
    _, tower = in_new_session(getattr(model, "examination", None))
    if _reads_last_click(model, tower):
        return _means_after_clicks(model, posterior, sessions)
    return [
        interval
        for interval in shared_intervals(model, posterior)
        if interval.relative and interval.parameter in _BY_POSITION
    ]


def _reads_last_click(model: Model, tower: object) -> bool:
    """Whether a tower of examination has numbers by the position of the last click, too."""
    indices = model.indices()
    if isinstance(tower, PositionParameter):
        return tower.config.use_feature in indices
    return isinstance(tower, LayoutParameter) and bool(indices)


def _means_after_clicks(
    model: Model, posterior: SharedPosterior, sessions: Sessions
) -> list[SharedParameter]:
    """Returns mean examination by cell, given the clicks above each document, of a model that reads the last one."""
    path, tower = in_new_session(getattr(model, "examination", None))
    radix, cells, weights = next(iter(model.indices().values())).radix, tower.cells, 1.0
    if isinstance(tower, PositionParameter):  # without the numbers that the log does not move
        names = (f"examination/{path}weight[{place}]" for place in range(cells.count))
        informed, cells = set(posterior.names), Cells((), cells.count // radix - 1)
        weights = np.array([name in informed for name in names]).reshape(-1, radix)
    counts = weights * _by_last_click(sessions, cells, radix)
    shown = np.flatnonzero(counts.any(axis=1))
    at, last = np.nonzero(counts[shown])
    shares = counts[shown][at, last] / counts[shown].sum(axis=1)[at]
    batch = _after_clicks(model, cells.batch(shown[at]), last)

    def logs(model: Any) -> Array:
        probabilities = in_new_session(model.examination)[1].prob(batch)[0]
        return jnp.log(jnp.zeros(len(shown)).at[at].add(jnp.float32(shares) * probabilities))

    keys = [Key(int(cell), None, cells) for cell in shown]
    curve = Curve("examination", keys, logs, relative=True)
    return [*_ratios(curve, *posterior.moments_of(model, logs))]


def shared_examination(model: Model, sessions: Sessions) -> np.ndarray | None:
    """Returns examination by position, from 0, of a layout that training does not show: what its prior says of it.

    Args:
        model: A fitted model.
        sessions: Those to average over, given the clicks above each document, where the model reads the last one.

    Returns:
        Probabilities; None where examination does not differ between layouts.
    """
    model = with_shared_cells(model)
    _, tower = in_new_session(getattr(model, "examination", None))
    if not isinstance(tower, LayoutParameter):
        return None
    batch = tower.cells.batch(tower.cells.others())
    if not model.indices():
        return np.asarray(tower.prob(batch)[0], np.float64)
    index = next(iter(model.indices().values()))
    counts = _by_last_click(sessions, Cells((), tower.cells.positions), index.radix)
    at, last = np.nonzero(counts)
    places = {name: values[:, at] for name, values in batch.items()}
    probabilities = np.asarray(tower.prob(_after_clicks(model, places, last))[0])
    sums = np.bincount(at, counts[at, last] * probabilities, len(counts))
    return sums / np.maximum(counts.sum(axis=1), 1)


def _after_clicks(
    model: Model, batch: dict[str, np.ndarray], last: np.ndarray
) -> dict[str, np.ndarray]:
    """Adds to positions of one list those of the last click above, of a model that reads these."""
    key, index = next(iter(model.indices().items()))
    places = batch["positions"] * index.radix + last
    return {**batch, key: places, "last_click_positions": last[None]}


def _by_last_click(
    sessions: Sessions, cells: Cells, radix: int
) -> Float[np.ndarray, "cells radix"]:
    """Counts documents by cell and by the position of the last click above."""
    counts = np.zeros(cells.count * radix)
    ranks = np.arange(1, sessions.ranks + 1)
    for chunk, of_cells in zip(sessions.chunks(), cells.view(sessions).chunks(), strict=True):
        at = chunk.positions.astype(np.int64)
        clicked = np.where(chunk["clicks"] & chunk.shown, ranks * radix + at, 0)
        last = np.pad(np.maximum.accumulate(clicked, axis=1)[:, :-1] % radix, ((0, 0), (1, 0)))
        places = of_cells.positions.astype(np.int64) * radix + last
        counts += np.bincount(places[chunk.shown], minlength=len(counts))
    return counts.reshape(-1, radix)


_Component = Callable[[Any], Any]
"""From a model to one of its components, or itself."""


class Curve(NamedTuple):
    """Numbers of one tower.

    Attributes:
        parameter: Its role.
        keys: What each belongs to.
        function: From the model to logits, or to logarithms of what has an interval relative to the first.
        relative: Whether it has.
    """

    parameter: str
    keys: list[Key]
    function: Callable[[Any], Array]
    relative: bool


def _components(model: Model) -> dict[str, _Component]:
    if not isinstance(model, MixtureModel):
        return {"": lambda model: model}
    return {f"models/{k}/": lambda model, k=k: model.models[k] for k in range(len(model.models))}


def components(model: Model) -> dict[str, Model]:
    """Returns the components of a mixture by how names of their parameters begin; else the model itself, by nothing."""
    return {prefix: component(model) for prefix, component in _components(model).items()}


def towers(
    part: Model, prefix: str, informed: Container[str]
) -> Iterator[tuple[str, str, Parameter, np.ndarray]]:
    """Yields role, name, tower and informed places of the towers of one number or one per position that the log moves.

    Of towers of layouts, whose differences are shared parameters, the places are cells. Those of models that read the
    last click, too, are left out: they have no number of a cell alone.
    """
    for role, tower in vars(part).items():
        path, tower = in_new_session(tower)
        numbers = tower
        if isinstance(tower, LayoutParameter) and not part.indices():
            path, numbers = f"{path}terms/differences/", tower.terms["differences"]
        if isinstance(numbers, PositionParameter | GlobalParameter | PointCellParameter):
            name, sizes = f"{prefix}{role}/{path}weight", range(numbers.weight[...].size)
            places = np.array([i for i in sizes if f"{name}[{i}]" in informed], np.int32)
            if places.size:
                yield role, name, tower, places


def of_first_positions(model: Model, posterior: SharedPosterior) -> list[str] | None:
    """Returns the shared numbers that have to be known for attraction to be: those of the first position.

    Args:
        model: A fitted model.
        posterior: From `shared_posterior`.

    Returns:
        Their names, none where clicks determine the scale of attraction; None where no tower of positions has it.
    """
    model = with_shared_cells(model)
    parts = components(model)
    if not all(part.separates_examination for part in parts.values()):
        return []
    prefix, part = next(iter(parts.items()))
    names, informed = [], set(posterior.names)
    for _, name, tower, places in towers(part, prefix, informed):
        if isinstance(tower, LayoutParameter):
            names += _of_first_cell(model, posterior, name, tower)
        else:
            names.append(f"{name}[{places[0]}]")
    return [name for name in names if name in informed] or None


def _of_first_cell(
    model: Model, posterior: SharedPosterior, name: str, tower: LayoutParameter
) -> list[str]:
    """Returns both terms of the logit that ratios are to, which has no deviation."""
    intervals = shared_intervals(model, posterior)
    first = next(interval for interval in intervals if interval.sd == 0)
    position = first.position or 0
    cell = tower.cells.cell(first.layout, position)
    return [f"{name}[{cell}]", f"{name.replace('/differences/', '/shared/')}[{position}]"]


def _curves(part: Model, prefix: str, informed: Container[str]) -> Iterator[Curve]:
    for role, _, tower, places in towers(part, prefix, informed):
        if role == "false_positive":
            continue
        keys, relative = positions_of(part, tower, places), part.separates_examination
        if isinstance(part, TrustBiasModel):
            yield Curve(f"{prefix}slope", keys, partial(_log_slopes, places), relative)
        else:
            of_role = partial(_log_probs if relative else _logits, role, places)
            yield Curve(f"{prefix}{role}", keys, of_role, relative)


def positions_of(part: Model, tower: Parameter, places: np.ndarray) -> list[Key]:
    """Returns position and position of the last click of places in a tower, as far as it depends on them."""
    if isinstance(tower, LayoutParameter):
        return [Key(int(place), None, tower.cells) for place in places]
    if not isinstance(tower, PositionParameter):
        return [Key()]
    index = part.indices().get(tower.config.use_feature)
    if index is None:
        return [Key(int(place)) for place in places]
    return [Key(int(place) // index.radix, int(place) % index.radix) for place in places]


def _logits(role: str, places: np.ndarray, part: Any) -> Array:
    tower = in_new_session(getattr(part, role))[1]
    return jnp.ravel(tower.of_cells(places))


def _log_probs(role: str, places: np.ndarray, part: Any) -> Array:
    return jax.nn.log_sigmoid(_logits(role, places, part))


def _log_slopes(places: np.ndarray, part: Any) -> Array:
    true, false = (
        jax.nn.sigmoid(_logits(f"{side}_positive", places, part)) for side in ("true", "false")
    )
    slopes, at = true - false, jax.lax.stop_gradient(true - false)
    scale = jnp.maximum(at, _LEAST_SLOPE)
    # the logarithm, and its derivative, which is large below the least
    return jnp.log(scale) + (slopes - at) / scale


def _probabilities(
    curve: Curve, logits: np.ndarray, covariance: np.ndarray
) -> Iterator[SharedParameter]:
    for key, logit, variance in zip(curve.keys, logits, np.diag(covariance), strict=True):
        sd = variance**0.5
        low, high = (float(expit(logit + sign * QUANTILE * sd)) for sign in (-1, 1))
        yield SharedParameter(
            parameter=curve.parameter,
            **key.place(),
            value=float(expit(logit)),
            sd=float(sd),
            low=low,
            high=high,
        )


def _reference(keys: Sequence[Key]) -> int:
    """Returns which number ratios are to: the first of those of the layout of reference, or of all."""

    def is_elsewhere(at: int) -> bool:
        cells, position = keys[at].cells, keys[at].position or 0
        return cells is not None and position // (cells.positions + 1) != cells.reference

    return min(range(len(keys)), key=is_elsewhere)


def _ratios(curve: Curve, logs: np.ndarray, covariance: np.ndarray) -> Iterator[SharedParameter]:
    to_first = np.eye(len(logs))
    to_first[:, _reference(curve.keys)] -= 1
    ratios = to_first @ logs
    variances = np.maximum(np.einsum("ij,jk,ik->i", to_first, covariance, to_first), 0.0)
    for key, log, ratio, variance in zip(curve.keys, logs, ratios, variances, strict=True):
        sd = variance**0.5
        low, high = (
            float(np.exp(ratio + sign * QUANTILE * sd)) if sd < _OPEN else None for sign in (-1, 1)
        )
        value, relative = float(np.exp(log)), float(np.exp(ratio))
        yield SharedParameter(
            parameter=curve.parameter,
            **key.place(),
            value=value,
            sd=float(sd),
            relative=relative,
            relative_low=low,
            relative_high=high,
        )

"""Intervals of shared probabilities: examination by rank, UBM's table, continuation."""

from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from clickexp.data import Sessions
from clickexp.models import MixtureModel, Model, TrustBiasModel
from clickexp.parameters import GlobalParameter, PositionParameter
from clickexp.parameters.base import Parameter
from clickexp.parameters.context import in_new_session
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.run import SharedParameter
from clickexp.types import Array
from clickexp.utils.statistics.means import QUANTILE

_LEAST_SLOPE = 1e-6
_OPEN = 3.5
"""Deviation of the logarithm of a ratio from which on the log leaves it open."""
_BY_POSITION = ("examination", "slope")


def shared_intervals(model: Model, posterior: SharedPosterior) -> list[SharedParameter]:
    """Returns the shared probabilities that the log says something about, with 95% intervals.

    Those of towers of one number or one per position; with context of search sessions those in a new one. Intervals of
    a probability are symmetric in its logit, those of a ratio in its logarithm. Models that separate examination from
    attraction have intervals of ratios to the first position. Those of the trust-bias model are of slopes, true less
    false positives, since clicks leave attraction open up to an affine change.

    Args:
        model: A fitted model; of a mixture, one component after the other.
        posterior: From `shared_posterior`.
    """
    found = []
    for prefix, component in _components(model).items():
        for curve in _curves(component(model), prefix, set(posterior.names)):

            def function(
                model: Any, curve: _Curve = curve, component: _Component = component
            ) -> Array:
                return curve.function(component(model))

            values = np.asarray(function(model), np.float64)
            covariance = posterior.covariance_of(model, function)
            found += (_ratios if curve.relative else _probabilities)(curve, values, covariance)
    return found


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
        An interval per position; none for models without a tower of positions for examination.
    """
    path, tower = in_new_session(getattr(model, "examination", None))
    if not isinstance(tower, PositionParameter) or tower.config.use_feature not in model.indices():
        return [
            each
            for each in shared_intervals(model, posterior)
            if each.relative and each.parameter in _BY_POSITION
        ]
    index = model.indices()[tower.config.use_feature]
    names = (f"examination/{path}weight[{place}]" for place in range(tower.weight[...].size))
    known = np.array([name in set(posterior.names) for name in names]).reshape(-1, index.radix)
    counts = _last_clicks(sessions, index.radix, len(known)) * known
    positions = np.flatnonzero(counts.any(axis=1))
    shares = counts[positions] / counts[positions].sum(axis=1, keepdims=True)

    def logs(model: Any) -> Array:
        table = jax.nn.sigmoid(in_new_session(model.examination)[1].weight[...]).reshape(
            known.shape
        )
        return jnp.log(jnp.sum(jnp.float32(shares) * table[positions], axis=1))

    curve = _Curve(
        "examination", [(int(position), None) for position in positions], logs, relative=True
    )
    return [
        *_ratios(curve, np.asarray(logs(model), np.float64), posterior.covariance_of(model, logs))
    ]


def _last_clicks(sessions: Sessions, radix: int, positions: int) -> np.ndarray:
    """Returns how many documents there are by their position and that of the last click above, [positions, radix]."""
    counts = np.zeros(positions * radix)
    ranks = np.arange(1, sessions.ranks + 1)
    for chunk in sessions.chunks():
        at = chunk.positions.astype(np.int64)
        clicked = np.where(chunk["clicks"] & chunk.shown, ranks * radix + at, 0)
        last = np.pad(np.maximum.accumulate(clicked, axis=1)[:, :-1] % radix, ((0, 0), (1, 0)))
        counts += np.bincount((at * radix + last)[chunk.shown], minlength=len(counts))
    return counts.reshape(positions, radix)


_Component = Callable[[Any], Any]
"""From a model to one of its components, or itself."""


class _Curve(NamedTuple):
    """Numbers of one tower.

    Attributes:
        parameter: Its role.
        keys: Position and position of the last click of each.
        function: From the model to logits, or to logarithms of what has an interval relative to the first.
        relative: Whether it has.
    """

    parameter: str
    keys: list[tuple[int | None, int | None]]
    function: Callable[[Any], Array]
    relative: bool


def _components(model: Model) -> dict[str, _Component]:
    if not isinstance(model, MixtureModel):
        return {"": lambda model: model}
    return {f"models/{k}/": lambda model, k=k: model.models[k] for k in range(len(model.models))}


def towers(
    part: Model, prefix: str, known: Container[str]
) -> Iterator[tuple[str, str, Parameter, np.ndarray]]:
    """Yields role, name, tower and known places of the towers of one number or one per position that the log moves."""
    for role, tower in vars(part).items():
        path, tower = in_new_session(tower)
        if isinstance(tower, PositionParameter | GlobalParameter):
            name, sizes = f"{prefix}{role}/{path}weight", range(tower.weight[...].size)
            places = np.array([i for i in sizes if f"{name}[{i}]" in known], np.int32)
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
    parts = {prefix: of(model) for prefix, of in _components(model).items()}
    if not all(part.separates_examination for part in parts.values()):
        return []
    prefix, part = next(iter(parts.items()))
    return [
        f"{name}[{places[0]}]" for _, name, _, places in towers(part, prefix, set(posterior.names))
    ] or None


def _curves(part: Model, prefix: str, known: Container[str]) -> Iterator[_Curve]:
    for role, _, tower, places in towers(part, prefix, known):
        if role == "false_positive":
            continue
        keys, relative = positions_of(part, tower, places), part.separates_examination
        if isinstance(part, TrustBiasModel):
            yield _Curve(f"{prefix}slope", keys, partial(_log_slopes, places), relative)
        else:
            of_role = partial(_log_probs if relative else _logits, role, places)
            yield _Curve(f"{prefix}{role}", keys, of_role, relative)


def positions_of(
    part: Model, tower: Parameter, places: np.ndarray
) -> list[tuple[int | None, int | None]]:
    """Returns position and position of the last click of places in a tower, as far as it depends on them."""
    if not isinstance(tower, PositionParameter):
        return [(None, None)]
    index = part.indices().get(tower.config.use_feature)
    if index is None:
        return [(int(place), None) for place in places]
    return [(int(place) // index.radix, int(place) % index.radix) for place in places]


def _logits(role: str, places: np.ndarray, part: Any) -> Array:
    return in_new_session(getattr(part, role))[1].weight[...].ravel()[places]


def _log_probs(role: str, places: np.ndarray, part: Any) -> Array:
    return jax.nn.log_sigmoid(_logits(role, places, part))


def _log_slopes(places: np.ndarray, part: Any) -> Array:
    true, false = (
        jax.nn.sigmoid(_logits(f"{side}_positive", places, part)) for side in ("true", "false")
    )
    slopes, at = true - false, jax.lax.stop_gradient(true - false)
    scale = jnp.maximum(at, _LEAST_SLOPE)
    return (
        jnp.log(scale) + (slopes - at) / scale
    )  # the logarithm, and its derivative, which is large below the least


def _probabilities(
    curve: _Curve, logits: np.ndarray, covariance: np.ndarray
) -> Iterator[SharedParameter]:
    for key, logit, variance in zip(curve.keys, logits, np.diag(covariance), strict=True):
        sd = variance**0.5
        low, high = (float(expit(logit + sign * QUANTILE * sd)) for sign in (-1, 1))
        position, last_click = key
        yield SharedParameter(
            parameter=curve.parameter,
            position=position,
            last_click=last_click,
            value=float(expit(logit)),
            sd=float(sd),
            low=low,
            high=high,
        )


def _ratios(curve: _Curve, logs: np.ndarray, covariance: np.ndarray) -> Iterator[SharedParameter]:
    to_first = np.eye(len(logs))
    to_first[:, 0] -= 1
    ratios = to_first @ logs
    variances = np.maximum(np.einsum("ij,jk,ik->i", to_first, covariance, to_first), 0.0)
    for key, log, ratio, variance in zip(curve.keys, logs, ratios, variances, strict=True):
        sd = variance**0.5
        low, high = (
            float(np.exp(ratio + sign * QUANTILE * sd)) if sd < _OPEN else None for sign in (-1, 1)
        )
        value, relative = float(np.exp(log)), float(np.exp(ratio))
        position, last_click = key
        yield SharedParameter(
            parameter=curve.parameter,
            position=position,
            last_click=last_click,
            value=value,
            sd=float(sd),
            relative=relative,
            relative_low=low,
            relative_high=high,
        )

"""Whether a log contradicts what earlier ones say of shared parameters, as after a change of the layout of pages."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import null_space
from scipy.stats import chi2

from clickexp.models import Model
from clickexp.parameters.context import in_new_session
from clickexp.parameters.layouts import LayoutParameter, with_shared_cells
from clickexp.posteriors.intervals import Curve, components, curves, positions_of, towers
from clickexp.posteriors.shared import Estimate, SharedPosterior
from clickexp.posteriors.unlinked import open_directions
from clickexp.runs.run import Change
from clickexp.training.earlier import OPEN_DEVIATION, SharedPrior
from clickexp.updates.shared import phi_of, values_of

_SURE = 1e-4
"""Probability of a contradiction by chance from which on it counts as one."""
_INFLATED = 2.0
"""Variance of the difference over that of both posteriors, which are too sure of few clicks and ordered lists."""
_OPEN = 10.0
"""Deviation from which on a direction is open."""
_UNSURE = 0.3
"""Deviation of this log's estimate of a number, from which on it is not compared: so few clicks make none that is
normal."""
_UNSURE_LOGIT = 1.0
"""The same of its logit: near 1, a factor of click rates seems sure whatever the log says."""
_LEAST_KEPT = 1e-6
"""Share of the information, below which nothing is kept."""
_FAR = 3.0
"""Deviations from which on a number is named."""


class OfLayouts(NamedTuple):
    """Evidence of earlier logs on a role in the cells of layouts.

    Attributes:
        curve: Its cells.
        values: In these.
        covariance: Of the values, with a deviation of 100 in directions that the logs leave open.
    """

    curve: Curve
    values: Float[np.ndarray, " cells"]
    covariance: Float[np.ndarray, "cells cells"]


def of_layouts(model: Model, posterior: SharedPosterior, kept: float) -> list[OfLayouts]:
    """Returns what a posterior says of roles that differ between layouts, none of models that read the last click.

    Args:
        model: With the parameters of the earlier run.
        posterior: Of its shared parameters.
        kept: Share of the information that is kept.
    """
    shifts = OPEN_DEVIATION * open_directions(model, posterior.names, scale=True)
    covariance = posterior.covariance / max(kept, _LEAST_KEPT)
    wide = SharedPosterior(posterior.names, covariance + shifts.T @ shifts)
    return [
        OfLayouts(curve, *wide.moments_of(model, curve.function))
        for curve in curves(model, posterior)
        if _has_layouts(curve)
    ]


def untested(model: Model) -> list[str]:
    """Returns roles that no test compares: those that differ between layouts, of models that read the last click."""
    return [
        prefix + role
        for prefix, part in components(model).items()
        for role, tower in vars(part).items()
        if isinstance(in_new_session(tower)[1], LayoutParameter) and part.indices()
    ]


def changes(
    model: Model, estimate: Estimate, prior: SharedPrior | None, layouts: Sequence[OfLayouts] = ()
) -> list[Change]:
    """Returns the roles whose shared parameters a log contradicts.

    The Wald test compares the estimate of this log alone with the center of the prior, under the covariances of both
    (Wald 1943, "Tests of statistical hypotheses concerning several parameters when the number of observations is
    large").

    Args:
        model: The fitted model.
        estimate: What this log alone says.
        prior: What earlier logs say; None for nothing.
        layouts: The same of roles that differ between layouts.

    Returns:
        A test per role that is surely contradicted.
    """
    estimate = _at_this_scale(model, estimate)
    all_changes = [] if prior is None else _of_roles(model, estimate, prior)
    all_changes += _of_cells(model, estimate, layouts)
    return [change for change in all_changes if change.p < _SURE]


def _of_roles(model: Model, estimate: Estimate, prior: SharedPrior) -> list[Change]:
    """A test per role whose numbers are shared parameters."""
    own = estimate.posterior.names
    both = tuple(name for name in prior.names if name in own)
    at, before = _places(both, own), _places(both, prior.names)
    phi, slopes = phi_of(values_of(model, both), prior.is_factor[before])
    # a line through the model: ratios stay ratios where the scale is open, and the step long
    away = phi + slopes * estimate.step[at] - prior.center[before]
    own_covariance = estimate.posterior.covariance[np.ix_(at, at)] * np.outer(slopes, slopes)
    deviations = np.sqrt(np.maximum(np.diag(own_covariance), 0.0))
    is_sure = (deviations < _UNSURE) & (deviations < _UNSURE_LOGIT * slopes)
    covariance = own_covariance + prior.covariance()[np.ix_(before, before)]
    all_changes = []
    for role, (of_role, positions) in _by_role(model, both).items():
        sure = is_sure[of_role]
        chosen = of_role[sure]
        among = _INFLATED * covariance[np.ix_(chosen, chosen)]
        is_ratio = bool(prior.is_factor[before][of_role].all())
        change = _tested(role, positions[sure], away[chosen], among)
        all_changes.append(change.model_copy(update={"is_ratio": is_ratio}))
    return all_changes


def _of_cells(model: Model, estimate: Estimate, layouts: Sequence[OfLayouts]) -> list[Change]:
    """A test per role that differs between layouts, of the cells that this log and earlier ones show."""
    now = {curve.parameter: curve for curve in curves(model, estimate.posterior)}
    all_changes = []
    for before in layouts:
        curve = now.get(before.curve.parameter)
        if curve is None or not _has_layouts(curve):
            continue
        cells = _cells(curve), _cells(before.curve)
        _, own, earlier = np.intersect1d(*cells, return_indices=True)
        line = estimate.posterior.line_of(model, curve.function)
        values, slopes = (value[own] for value in line)
        away = values + slopes @ estimate.step - before.values[earlier]
        own_covariance = slopes @ estimate.posterior.covariance @ slopes.T
        sure = np.flatnonzero(_deviations(own_covariance) < _UNSURE)
        both = own_covariance + before.covariance[np.ix_(earlier, earlier)]
        positions = np.array([curve.keys[at].place()["position"] for at in own], np.intp)
        among = _INFLATED * both[np.ix_(sure, sure)]
        change = _tested(curve.parameter, positions[sure], away[sure], among)
        all_changes.append(change.model_copy(update={"is_ratio": curve.relative}))
    return all_changes


def _has_layouts(curve: Curve) -> bool:
    return curve.keys[0].cells is not None


def _cells(curve: Curve) -> np.ndarray:
    return np.array([key.position or 0 for key in curve.keys])


def released(prior: SharedPrior, changes: Collection[Change]) -> SharedPrior | None:
    """Returns the prior without the roles that a log contradicts, as if nothing was known of these."""
    kept = np.array([not is_of(name, changes) for name in prior.names])
    return prior.some(kept) if kept.any() else None


def is_of(name: str, changes: Iterable[Change]) -> bool:
    """Whether a parameter is one of the roles that a log contradicts."""
    return any(name.startswith(f"{change.parameter}/") for change in changes)


def _tested(role: str, positions: np.ndarray, away: np.ndarray, covariance: np.ndarray) -> Change:
    """The test of one role, but for directions that one of the logs leaves open."""
    variances, directions = np.linalg.eigh(covariance)
    is_known = variances < _OPEN**2
    roots = np.sqrt(np.maximum(variances[is_known], np.finfo(float).tiny))
    scores = directions[:, is_known].T @ away / roots
    apart = directions[:, is_known] @ (directions[:, is_known].T @ away)
    if not is_known.all():  # a factor that nobody knows is that of most numbers
        apart = apart - np.median(apart)
    deviations = np.sqrt(
        np.maximum((directions[:, is_known] * roots) ** 2 @ np.ones(is_known.sum()), 1e-12)
    )
    far = np.abs(apart) > _FAR * deviations
    return Change(
        parameter=role,
        p=float(chi2.sf(scores @ scores, max(int(is_known.sum()), 1))),
        positions=sorted({int(position) for position in positions[far] if position}),
        largest=float(apart[np.argmax(np.abs(apart))]) if len(apart) else 0.0,
    )


def _deviations(covariance: np.ndarray) -> np.ndarray:
    """Standard deviations of numbers given the others, so that an open factor of all does not count."""
    return np.diag(np.linalg.pinv(covariance, hermitian=True)) ** -0.5


def _at_this_scale(model: Model, estimate: Estimate) -> Estimate:
    """An estimate given the scale of examination, which one log tells too badly for a step along it."""
    posterior = estimate.posterior
    shifts = open_directions(model, posterior.names, scale=True)
    if not len(shifts):
        return estimate
    information = np.linalg.pinv(posterior.covariance, hermitian=True)
    # numbers that the log hardly tells would follow the others along the scale, and seem as sure as these
    is_known = np.diag(information) * _UNSURE_LOGIT**2 > 1
    ratios = null_space(np.where(is_known, shifts, 0.0))
    covariance = ratios @ np.linalg.pinv(ratios.T @ information @ ratios, hermitian=True) @ ratios.T
    step = covariance @ information @ estimate.step
    return Estimate(SharedPosterior(posterior.names, covariance), step, estimate.share)


def _places(names: Sequence[str], among: Sequence[str]) -> np.ndarray:
    places = {name: place for place, name in enumerate(among)}
    return np.array([places[name] for name in names], np.intp)


def _by_role(model: Model, names: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Places of the numbers of each role, and their positions, 0 where one belongs to none."""
    model = with_shared_cells(model)
    of_roles = {}
    for prefix, part in components(model).items():
        for _, name, tower, of_tower in towers(part, prefix, set(names)):
            keys = positions_of(part, tower, of_tower)
            places = _places([f"{name}[{place}]" for place in of_tower], names)
            positions = np.array([key.place()["position"] or 0 for key in keys])
            of_roles[name.rpartition("/")[0]] = places, positions
    return of_roles

"""The posterior of shared parameters as the prior of the next log's, and both as one."""

import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree
from scipy.linalg import null_space
from scipy.special import expit, log_expit

from clickexp.models import Model
from clickexp.parameters.layouts import with_shared_cells
from clickexp.posteriors.shared import Estimate, SharedPosterior, add_to_shared
from clickexp.posteriors.unlinked import factors, open_directions
from clickexp.training.earlier import SharedPrior, shared_names

_FLOOR = 1e-9
"""Eigenvalues in units of the diagonal, below which a direction is open."""
_FARTHEST = 1.0
"""That a step moves a number, in logits."""


def prior_of(
    model: Model, posterior: SharedPosterior, kept: float, *, differences: bool = False
) -> SharedPrior | None:
    """Returns the prior that an earlier posterior gives.

    Of examination it is that of ratios, since clicks leave its scale open: rows of documents have that scale, and with
    a prior of their own both would drift together.

    Args:
        model: With the parameters of the earlier run.
        posterior: Of its shared parameters, with the names that they have in the model.
        kept: Share of the information that is kept.
        differences: Whether the prior is also of differences between layouts, without what their common prior says.

    Returns:
        The prior of those that are no rows of tables while the model trains; None where there are none.
    """
    own = shared_names(nnx.state(with_shared_cells(model) if differences else model, nnx.Param))
    is_own = np.isin(posterior.names, own)
    names = tuple(np.array(posterior.names)[is_own].tolist())
    if not names:
        return None
    is_factor = np.isin(names, factors(model, names))
    center, slopes = phi_of(values_of(model, names), is_factor)
    covariance = posterior.covariance[np.ix_(is_own, is_own)] * np.outer(slopes, slopes)
    shifts = open_directions(model, posterior.names, scale=True)[:, is_own] * slopes
    ratios = null_space(shifts) if len(shifts) else np.eye(len(names))
    information = ratios @ _inverse(ratios.T @ covariance @ ratios) @ ratios.T
    information -= np.diag(_of_common_priors(model, names))
    return SharedPrior(names, is_factor, center, kept * information)


def _of_common_priors(model: Model, names: tuple[str, ...]) -> np.ndarray:
    """Returns the precisions of the common priors of differences between layouts, 0 of other numbers."""
    precisions: list[float] = []
    params = nnx.state(with_shared_cells(model), nnx.Param)
    for _, variable in nnx.to_flat_state(params):
        precision = variable.get_metadata().get("prior_precision", 0.0)
        precisions += [precision] * np.size(variable.get_value())
    of_names = dict(zip(shared_names(params), precisions, strict=True))
    return np.array([of_names[name] for name in names])


def pull_on(model: Model, prior: SharedPrior) -> dict[str, float]:
    """Returns the gradient of the negative logarithm of a prior at the parameters of a model, by name."""
    away, slopes = _away(model, prior)
    return dict(zip(prior.names, slopes * (prior.information @ away), strict=True))


def combined(
    model: Model, posterior: SharedPosterior | None, prior: SharedPrior
) -> SharedPosterior:
    """Returns the posterior of this log and the earlier ones.

    Args:
        model: The fitted model.
        posterior: What this log says of its shared parameters; None for nothing.
        prior: What the earlier ones say.
    """
    new = () if posterior is None else posterior.names
    names = tuple(dict.fromkeys([*new, *prior.names]))
    information = np.zeros((len(names), len(names)))
    if posterior is not None:
        information[: len(new), : len(new)] = _inverse(posterior.covariance)
    _, slopes = _away(model, prior)
    at = prior.among(names)
    information[np.ix_(at, at)] += prior.information * np.outer(slopes, slopes)
    only_earlier = np.arange(len(names)) >= len(new)
    information += np.diag(np.where(only_earlier, _of_common_priors(model, names), 0.0))
    return SharedPosterior(names, _inverse(information))


def move_shared(model: Model, estimate: Estimate, prior: SharedPrior | None) -> None:
    """Moves shared parameters by the Newton step that training has left.

    That is at most a deviation in each direction, and 1 of each number: of what is hardly known, a deviation is far.

    Args:
        model: The fitted model.
        estimate: What this log alone says.
        prior: What earlier ones say.
    """
    names, step = estimate.posterior.names, estimate.step
    own = shared_names(nnx.state(model, nnx.Param))
    kept = np.isin(names, own)
    names = tuple(np.array(names)[kept].tolist())
    information = _inverse(estimate.posterior.covariance)
    gradient = -(information @ step)[kept]
    information = information[np.ix_(kept, kept)]
    if prior is not None:
        at = np.flatnonzero(np.isin(prior.names, names))
        places = np.array([names.index(prior.names[place]) for place in at])
        _, slopes = _away(model, prior)
        pull = pull_on(model, prior)
        gradient[places] += [pull[prior.names[place]] for place in at]
        information[np.ix_(places, places)] += (prior.information * np.outer(slopes, slopes))[
            np.ix_(at, at)
        ]
    values, vectors = np.linalg.eigh(_inverse(information))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    moved = np.clip(-root @ np.clip(root.T @ gradient, -1, 1), -_FARTHEST, _FARTHEST)
    add_to_shared(model, np.array([own.index(name) for name in names]), moved)


def _away(model: Model, prior: SharedPrior) -> tuple[np.ndarray, np.ndarray]:
    """Returns how far phi is from the center of a prior, and its slopes in theta."""
    phi, slopes = phi_of(values_of(model, prior.names), prior.is_factor)
    return phi - prior.center, slopes


def phi_of(theta: np.ndarray, is_factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns what a `SharedPrior` is of, and its slopes in theta."""
    phi = np.where(is_factor, log_expit(theta), theta)
    return phi, np.where(is_factor, expit(-theta), 1.0)


def values_of(model: Model, names: tuple[str, ...]) -> np.ndarray:
    """Returns shared parameters by name, differences between layouts included."""
    params = nnx.state(with_shared_cells(model), nnx.Param)
    values = dict(zip(shared_names(params), np.asarray(ravel_pytree(params)[0]), strict=True))
    return np.array([values[name] for name in names], np.float64)


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """Returns the inverse of a positive definite matrix, of which estimates may have eigenvalues near 0."""
    scale = np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    root = vectors / np.sqrt(np.maximum(values, _FLOOR)) / scale[:, None]
    return root @ root.T

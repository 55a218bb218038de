"""The posterior of shared parameters, such as examination by rank and continuation: all that are no rows of a table."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Integer

from clickexp.data import Sessions
from clickexp.data.feed import Data
from clickexp.errors import UserError
from clickexp.models import ClickModel, Model
from clickexp.parameters.layouts import with_shared_cells
from clickexp.posteriors.information import Information, information
from clickexp.training.earlier import shared_names
from clickexp.types import Array
from clickexp.utils.files import undamaged, whole
from clickexp.utils.progress import Report, no_report

MOST_SHARED = 400
"""Shared numbers of models that have intervals; the time per session grows with them."""
WORK = 10_000_000
"""Sessions times shared numbers that are looked at, some ten seconds of one core; the first represent larger logs."""
_LEAST, _FLOOR = 1e-2, 1e-4
"""Information per number, and eigenvalues of it in units of its diagonal, below which a log says nothing."""
_MOST_EXPLAINED = 0.98
"""Share of the information that rows take off in any direction, at most: it makes deviations seven times as large."""
_LONGEST_STEP = 4.0
"""Of a Newton step from the parameters of a model, in logits and in any direction."""


@dataclasses.dataclass(frozen=True)
class SharedPosterior:
    """The normal posterior of shared parameters around those of a fitted model.

    Attributes:
        names: Of the numbers that the log says something about, such as "examination/weight[3]".
        covariance: Of them, [numbers, numbers].
    """

    names: tuple[str, ...]
    covariance: Float[np.ndarray, "numbers numbers"]

    def moments_of(
        self, model: Model, function: Callable[[Any], Array]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and the covariance of a function of the shared parameters, by the delta method.

        Args and errors are those of `line_of`.
        """
        values, slopes = self.line_of(model, function)
        return values, slopes @ self.covariance @ slopes.T

    def line_of(
        self, model: Model, function: Callable[[Any], Array]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the values of a function of the shared parameters, and its derivatives by these.

        Args:
            model: The fitted model.
            function: From a model `with_shared_cells` to a vector; JAX differentiates it. Rows of tables stay as they
                are.

        Raises:
            UserError: The posterior is that of another model.
        """
        model = with_shared_cells(model)
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)
        used = self.places(model)

        # one program in place of one per operation; it runs once
        @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
        def line(params: nnx.State, rest: nnx.State) -> tuple[Array, Array]:
            theta, unravel = ravel_pytree(params)

            def value(part: Array) -> Array:
                part = unravel(theta.at[used].set(part))
                return function(nnx.merge(graphdef, part, rest, copy=True))

            return value(theta[used]), jax.jacfwd(value)(theta[used])

        values, slopes = (np.asarray(part, np.float64) for part in line(params, rest))
        return values, slopes

    def given(self, names: Collection[str]) -> "SharedPosterior":
        """Returns the posterior of all other parameters, where these have the values of the model."""
        is_given = np.isin(self.names, list(names))
        across, of_known = (
            self.covariance[np.ix_(~is_given, is_given)],
            self.covariance[np.ix_(is_given, is_given)],
        )
        covariance = (
            self.covariance[np.ix_(~is_given, ~is_given)]
            - across @ np.linalg.pinv(of_known) @ across.T
        )
        return SharedPosterior(tuple(np.array(self.names)[~is_given].tolist()), covariance)

    def places(self, model: Model) -> Integer[np.ndarray, " numbers"]:
        """Returns where the numbers are in the vector of all shared parameters of the model.

        Raises:
            UserError: The posterior is that of another model.
        """
        params = nnx.state(with_shared_cells(model), nnx.Param)
        places = {name: place for place, name in enumerate(shared_names(params))}
        if not places.keys() >= set(self.names):
            raise UserError("the intervals are those of another model. Run the experiment again.")
        return np.array([places[name] for name in self.names], np.int32)

    def save(self, file: Path) -> None:
        """Writes the posterior as a NumPy archive, whole or not at all."""
        with whole(file) as part, part.open("wb") as stream:
            np.savez_compressed(stream, names=np.array(self.names), covariance=self.covariance)

    @classmethod
    def load(cls, file: Path) -> "SharedPosterior":
        """Reads what `save` wrote; UserError where it is damaged."""
        with undamaged(file), file.open("rb") as stream, np.load(stream) as stored:
            names, covariance = tuple(map(str, stored["names"])), stored["covariance"]
            if covariance.shape != (len(names), len(names)):
                raise ValueError("it is no covariance of these")
            return cls(names, covariance.astype(np.float64, casting="same_kind"))


def count_shared(model: Model) -> int:
    """Returns how many numbers all documents of a model share."""
    return len(shared_names(nnx.state(with_shared_cells(model), nnx.Param)))


def shared_posterior(
    model: Model,
    data: Data,
    report: Report = no_report,
    devices: int | str = 1,
) -> SharedPosterior | None:
    """Returns how sure the shared parameters of a fitted model are.

    The covariance is the inverse of the observed information, with rows of tables and precisions of learned priors
    integrated out; see `clickexp.posteriors.information`. Differences between layouts are shared parameters, too, with
    the prior that training has learned for them. Rows take off at most .98 of the information that
    there is with rows known, in any direction: the estimate of what they leave may be below 0. To the inverse comes the
    square of the Newton step that is left, at most a deviation in each direction: how far from the optimum training
    has ended.

    Of a log of more sessions than `WORK` has room for, the first ones represent all: the covariance is theirs times
    their share. That is at least that of all, since rows with few documents explain more in place of shared parameters.

    95% intervals hold the truth where rows have posteriors. Rows that are one number leave shared parameters biased,
    which intervals do not show.

    Args:
        model: The model, as training has left it.
        data: Its training sessions, or batches that can be iterated twice.
        report: Receives how many sessions of a pass are done, and how many there are, 0 if that is not known.
        devices: How many share the passes, or `all`.

    Returns:
        The posterior; None for a model that is no `ClickModel`, or has more than 400 shared numbers or none.
    """
    informed = _informed(model, data, report, devices)
    return None if informed is None else _trained(informed, {})


def _trained(informed: "_Informed", pull: Mapping[str, float]) -> SharedPosterior | None:
    """The posterior around a model as training has left it; None for that of nothing."""
    names, of_log, share = informed
    size = len(names)
    of_log.score[:size] += share * np.array([pull.get(name, 0.0) for name in names])
    covariance = share * _covariance(of_log)[:size, :size]
    if not size or not np.isfinite(covariance).all():
        return None
    return SharedPosterior(names, covariance)


class Estimate(NamedTuple):
    """An estimate of shared parameters from a log alone.

    Attributes:
        posterior: The covariance of the estimate.
        step: The estimate, less the parameters of the model.
        share: Of the log that it is of: large ones are read in part.
        trained: The posterior that `shared_posterior` returns, with the prior that training had.
    """

    posterior: SharedPosterior
    step: Float[np.ndarray, " numbers"]
    share: float = 1.0
    trained: SharedPosterior | None = None


def add_to_shared(
    model: Model, places: Integer[np.ndarray, " numbers"], step: Float[np.ndarray, " numbers"]
) -> None:
    """Adds a step to numbers of a model at these places in the vector of its shared parameters."""
    theta, back = ravel_pytree(nnx.state(model, nnx.Param))
    nnx.update(model, back(theta.at[places].add(np.float32(step))))


def shared_estimate(
    model: Model, data: Data, pull: Mapping[str, float], devices: int | str = 1
) -> Estimate | None:
    """Returns what a log says of shared parameters, one Newton step from those of a model.

    In no direction does it move a number by more than 4. Where clicks are few, curvatures are those of chance, or of
    probabilities near 1, and a step by such a curvature may go anywhere.

    Args:
        model: A model near the optimum for the log, and whatever else training has known.
        data: The sessions of the log.
        pull: By name, the gradient of the negative logarithm of a prior that training had and the log knows nothing of.
        devices: How many share the passes, or `all`.

    Returns:
        The estimate; None where there are no such parameters.
    """
    informed = _informed(model, data, no_report, devices)
    if informed is None:
        return None
    names, of_log, share = informed
    root = _inverse_root(of_log.complete, of_log.complete - of_log.matrix)
    farthest = _LONGEST_STEP / np.abs(root).max(axis=0)
    step = root @ np.clip(-root.T @ of_log.score, -farthest, farthest)
    size = len(names)
    posterior = SharedPosterior(names, (root @ root.T)[:size, :size])
    return Estimate(posterior, step[:size], share, _trained(informed, pull))


class _Informed(NamedTuple):
    """Evidence of a log on shared parameters.

    Attributes:
        names: Of those that it moves.
        of_log: What is said, of these first.
        share: Of the log that says it.
    """

    names: tuple[str, ...]
    of_log: Information
    share: float


def _informed(model: Model, data: Data, report: Report, devices: int | str) -> _Informed | None:
    model = with_shared_cells(model)
    params = nnx.state(model, nnx.Param)
    names = shared_names(params)
    if not isinstance(model, ClickModel) or not 0 < len(names) <= MOST_SHARED:
        return None
    model.eval()
    share = 1.0
    if isinstance(data, Sessions) and data.count * len(names) > WORK:
        first = max(WORK // len(names), 1)
        data, share = data.slice(0, first), first / data.count
    of_log = information(model, data, report, devices)
    used = of_log.used[of_log.used < len(names)]
    of_log = _without_unknown(_with_priors(of_log, params, used, share))
    return _Informed(tuple(names[place] for place in used), of_log, share)


def _with_priors(
    of_log: Information, params: nnx.State, used: np.ndarray, share: float
) -> Information:
    """Adds the priors of differences between layouts to what a share of a log says, in proportion."""
    precisions, pulls = [], []
    for _, variable in nnx.to_flat_state(params):
        value, metadata = np.ravel(variable.get_value()), variable.get_metadata()
        precisions.append(np.full(value.size, share * metadata.get("prior_precision", 0.0)))
        pulls.append(precisions[-1] * (value - metadata.get("prior_mean", 0.0)))
    more = np.zeros(len(of_log.score))
    more[: len(used)] = np.concatenate(precisions)[used]
    pull = np.zeros(len(of_log.score))
    pull[: len(used)] = np.concatenate(pulls)[used]
    return of_log._replace(
        matrix=of_log.matrix + np.diag(more),
        first=of_log.first + np.diag(more),
        complete=of_log.complete + np.diag(more),
        score=of_log.score + pull,
    )


def _without_unknown(of_log: Information) -> Information:
    """Leaves numbers by themselves that a log says nothing of, with the least information and no step.

    Where a probability is near 1, the log-likelihood may be convex in its logit: a negative curvature of one number is
    large beside the little that is known of it, and would make all others look sure.
    """
    unknown = np.diag(of_log.complete) < _LEAST
    is_apart = np.logical_or.outer(unknown, unknown)

    def apart(matrix: np.ndarray) -> np.ndarray:
        return np.where(is_apart, 0.0, matrix) + np.diag(np.where(unknown, _LEAST, 0.0))

    return of_log._replace(
        matrix=apart(of_log.matrix),
        first=apart(of_log.first),
        complete=apart(of_log.complete),
        score=np.where(unknown, 0.0, of_log.score),
    )


def _covariance(of_log: Information) -> np.ndarray:
    root = _inverse_root(of_log.complete, of_log.complete - of_log.matrix)
    of_first = _inverse_root(of_log.complete, of_log.complete - of_log.first)
    left = of_first @ np.clip(of_first.T @ of_log.score, -1, 1)
    return root @ root.T + np.outer(left, left)


def _inverse_root(complete: np.ndarray, explained: np.ndarray) -> np.ndarray:
    """Returns a root of the inverse of a positive definite matrix: complete - explained, as far as that is one.

    Both are estimates. Where the difference says less than 1 - `_MOST_EXPLAINED` of the information, or less than none,
    it is not known well enough to be inverted.
    """
    scale = np.sqrt(np.diag(complete))
    values, vectors = np.linalg.eigh(complete / np.outer(scale, scale))
    # eigenvalues below 0 say how far off estimates are
    whitened = vectors / np.sqrt(np.maximum(values, max(_FLOOR, -values[0]))) / scale[:, None]
    shares, directions = np.linalg.eigh(whitened.T @ explained @ whitened)
    return whitened @ directions / np.sqrt(1 - np.minimum(shares, _MOST_EXPLAINED))

"""Evidence of earlier logs on a model that is trained on a new one."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, Integer

from clickexp.parameters.table import path_name
from clickexp.training.sparse.learned_priors import Documents
from clickexp.training.sparse.packing import Path
from clickexp.types import Leaf

OPEN_DEVIATION = 100.0
"""Of a direction that logs leave open."""
_LEAST_INFORMATION = 1 / OPEN_DEVIATION**2


def shared_names(params: nnx.State) -> list[str]:
    """Returns the names of shared parameters in the order in which they are ravelled, such as examination/weight[3]."""
    names = []
    for path, variable in nnx.to_flat_state(params):
        name, value = path_name(path), variable.get_value()
        indices = range(np.size(value))
        names += [f"{name}[{index}]" for index in indices] if np.shape(value) else [name]
    return names


@dataclasses.dataclass(frozen=True)
class SharedPrior:
    """A normal prior of shared parameters theta: exp(-(phi - center)' information (phi - center) / 2).

    phi is log s(theta) of factors of click rates, such as examination, of which a log tells ratios, and else theta.

    Attributes:
        names: Of the parameters.
        is_factor: Which of them are such factors.
        center: Of phi.
        information: Inverse of the covariance of phi; 0 in directions that the logs leave open.
    """

    names: tuple[str, ...]
    is_factor: Bool[np.ndarray, " numbers"]
    center: Float[np.ndarray, " numbers"]
    information: Float[np.ndarray, "numbers numbers"]

    def among(self, names: Sequence[str]) -> Integer[np.ndarray, " numbers"]:
        """Returns the places of the parameters among all names; KeyError where one is not there."""
        places = {name: place for place, name in enumerate(names)}
        return np.array([places[name] for name in self.names], np.int32)

    def covariance(self) -> Float[np.ndarray, "numbers numbers"]:
        """Returns that of phi, with a deviation of 100 in directions that the logs leave open."""
        values, vectors = np.linalg.eigh(self.information)
        is_informed = values > _LEAST_INFORMATION
        variances = np.where(is_informed, 1 / np.where(is_informed, values, 1.0), OPEN_DEVIATION**2)
        return (vectors * variances) @ vectors.T

    def some(self, chosen: Bool[np.ndarray, " numbers"]) -> "SharedPrior":
        """Returns the prior of the chosen parameters, whatever the others are."""
        covariance = self.covariance()[np.ix_(chosen, chosen)]
        names = tuple(np.array(self.names)[chosen].tolist())
        information = np.linalg.pinv(covariance, hermitian=True)
        return SharedPrior(names, self.is_factor[chosen], self.center[chosen], information)

    def pull(self, params: nnx.State) -> "Pull":
        """Returns what steps need of the prior, before they are counted."""
        arrays = self.is_factor, np.float32(self.center), np.float32(self.information)
        places = self.among(shared_names(params))
        return Pull(*map(jnp.asarray, (places, *arrays)), share=jnp.zeros(()))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pull:
    """The prior of shared parameters in a step.

    Attributes:
        places: Of the parameters in the vector of all.
        is_factor: See `SharedPrior`.
        center: The same.
        information: The same.
        share: Of a step in a pass over the data.
    """

    places: Leaf
    is_factor: Leaf
    center: Leaf
    information: Leaf
    share: Leaf

    def gradient(self, params: nnx.State) -> nnx.State:
        """Returns the gradient of the step's share of the negative logarithm of the prior."""

        def loss(params: nnx.State) -> jax.Array:
            theta = ravel_pytree(params)[0][self.places]
            away = jnp.where(self.is_factor, jax.nn.log_sigmoid(theta), theta) - self.center
            return self.share * (away @ self.information @ away) / 2

        return jax.grad(loss)(params)


@dataclasses.dataclass(frozen=True)
class EarlierLogs:
    """Evidence of earlier logs, besides the sites in the rows of tables.

    Attributes:
        documents: How many documents each row has served there, and at which ranks.
        shared: Of shared parameters; None for nothing.
    """

    documents: Mapping[Path, Documents] = dataclasses.field(default_factory=dict)
    shared: SharedPrior | None = None

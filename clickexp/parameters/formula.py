"""The computation of towers, written down as steps that scorers without JAX repeat."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.errors import UserError

_ACTIVATIONS = {
    jax.nn.elu: "elu",
    jax.nn.relu: "relu",
    jax.nn.tanh: "tanh",
    jnp.tanh: "tanh",
    jax.nn.sigmoid: "sigmoid",
    jax.nn.silu: "silu",
    jax.nn.softplus: "softplus",
}


def identity(x: Any) -> Any:
    """Returns what it is given, in place of a layer."""
    return x


class Formula:
    """Records steps: operations on features, ids, arrays and the results of earlier steps.

    `Parameter.describe` adds those of a tower. `clickexp.models.ranker.scorer.OPERATIONS` lists the operations.

    Args:
        prefix: Of the names of results.
        features: What towers read as features.

    Attributes:
        features: Stands for the feature vectors of documents, [..., features].
        ids: Stands for their ids, [...].
        steps: Name, operation, names of what it reads, and settings of each step.
        arrays: Arrays that steps read, by name.
    """

    ids = "ids"

    def __init__(self, prefix: str = "", features: str = "features") -> None:
        self._prefix, self.features = prefix, features
        self.steps: list[tuple[str, str, list[str], dict[str, Any]]] = []
        self.arrays: dict[str, np.ndarray] = {}

    def reading(self, features: str) -> "Formula":
        """Returns a formula that adds to the steps of this one, whose features are a result of it."""
        other = Formula(self._prefix, features)
        other.steps, other.arrays = self.steps, self.arrays
        return other

    def step(self, operation: str, *inputs: str | np.ndarray, **settings: float) -> str:
        """Adds a step.

        Args:
            operation: Its name.
            inputs: Names of results, or arrays.
            settings: Of the operation.

        Returns:
            The name of the result.
        """
        name = f"{self._prefix}{operation}_{len(self.steps)}"
        names = []
        for place, value in enumerate(inputs):
            if not isinstance(value, str):
                self.arrays[f"{name}/{place}"] = np.asarray(value)
                value = f"{name}/{place}"
            names.append(value)
        self.steps.append((name, operation, names, settings))
        return name

    def layers(self, x: str, layers: Sequence[Any]) -> str:
        """Adds the steps of layers, one after the other.

        Args:
            x: The name of their input.
            layers: nnx.Linear, nnx.LayerNorm, nnx.Dropout, `identity`, and known activation functions.

        Returns:
            The name of the result.

        Raises:
            UserError: A layer is another one.
        """
        for layer in layers:
            if layer is identity or isinstance(layer, nnx.Dropout):
                continue
            if isinstance(layer, nnx.Linear):
                x = self.step("matmul", x, np.asarray(layer.kernel[...]))
                if layer.bias is not None:
                    x = self.step("add", x, np.asarray(layer.bias[...]))
            elif isinstance(layer, nnx.LayerNorm):
                x = self.step("layer_norm", x, epsilon=float(layer.epsilon))
                if layer.scale is not None:
                    x = self.step("multiply", x, np.asarray(layer.scale[...]))
                if layer.bias is not None:
                    x = self.step("add", x, np.asarray(layer.bias[...]))
            elif layer in _ACTIVATIONS:
                x = self.step(_ACTIVATIONS[layer], x)
            else:
                activations = ", ".join(dict.fromkeys(_ACTIVATIONS.values()))
                what = getattr(layer, "__name__", type(layer).__name__)
                raise UserError(
                    f"it has a layer {what}, and known are Linear, LayerNorm, {activations}"
                )
        return x

"""Fitted parameters on disk: a NumPy archive with one array a variable, named by its path in the model."""

from pathlib import Path

import jax
import numpy as np
from flax import nnx

from clickexp.models.base import ClickModel
from clickexp.parameters.table import Table

KEPT = (nnx.Param, Table)


def save_model(model: ClickModel, file: str | Path) -> None:
    """Writes the parameters of a model."""
    with open(file, "wb") as stream:  # by its name alone, NumPy would append a suffix
        np.savez(stream, **{name: np.asarray(values) for name, values in _named(model).items()})


def load_model(model: ClickModel, file: str | Path) -> ClickModel:
    """Reads parameters into a model of the same structure. ValueError where names or shapes differ."""
    with np.load(file) as stored:
        named = _named(model)
        differ = sorted(set(stored) ^ set(named))
        differ += [name for name in named if name in stored and stored[name].shape != named[name].shape]
        if differ:
            raise ValueError(f"{file} was written by another model or data: {', '.join(differ)} differ")
        state = nnx.state(model, KEPT)
        leaves, structure = jax.tree.flatten_with_path(state)
        values = [jax.numpy.asarray(stored[_name(path)]) for path, _ in leaves]
        nnx.update(model, jax.tree.unflatten(structure, values))
    return model


def _named(model: ClickModel) -> dict[str, jax.Array]:
    return {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(nnx.state(model, KEPT))}


def _name(path: tuple) -> str:
    return "/".join(str(part.key) for part in path if hasattr(part, "key"))

"""Models and interrupted trainings on disk: NumPy archives with one array a variable, named by its path."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.models.base import ClickModel
from clickexp.parameters.table import Table

KEPT = (nnx.Param, Table)
FACTS = "facts"
UNREADABLE = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile)


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


def save_training(file: Path, state: Any, facts: Mapping[str, Any]) -> None:
    """Writes the arrays of a training and what JSON holds of it, whole or not at all.

    One array after the other, so that none is held twice on the host.
    """
    part = file.with_name(file.name + ".part")
    try:
        with zipfile.ZipFile(part, "w") as archive:
            _write(archive, FACTS, np.array(json.dumps(facts, default=float)))
            for path, leaf in jax.tree.leaves_with_path(state):
                _write(archive, _path_name(path), _on_host(leaf))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def load_training(file: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """The arrays, in the structure of `like`, and the facts. ValueError for a file that is damaged or does not fit."""
    leaves, structure = jax.tree.flatten_with_path(like)
    try:
        with file.open("rb") as stream, np.load(stream) as stored:
            facts = json.loads(str(stored[FACTS]))
            if set(stored) != {FACTS, *(_path_name(path) for path, _ in leaves)}:
                raise ValueError("it is of another model or optimizer")
            arrays = [_on_device(stored[_path_name(path)], leaf) for path, leaf in leaves]
    except UNREADABLE as error:
        raise ValueError(
            f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        ) from error
    return jax.tree.unflatten(structure, arrays), facts


def _write(archive: zipfile.ZipFile, name: str, values: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
        np.lib.format.write_array(stream, values, allow_pickle=False)


def _path_name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_key(leaf: jax.Array | jax.ShapeDtypeStruct) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _on_host(leaf: jax.Array) -> np.ndarray:
    leaf = jax.random.key_data(leaf) if _is_key(leaf) else leaf
    if all(device.platform == "cpu" for device in leaf.devices()):
        return np.from_dlpack(leaf)  # np.asarray leaves a view behind, for which a donated array is copied
    return np.asarray(leaf)


def _on_device(values: np.ndarray, like: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
    array = jnp.array(values)
    array = jax.random.wrap_key_data(array) if _is_key(like) else array
    if (array.shape, array.dtype) != (like.shape, like.dtype):
        raise ValueError(f"it holds {array.dtype}{array.shape} for {like.dtype}{like.shape}")
    return array

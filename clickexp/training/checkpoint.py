"""Models and interrupted trainings on disk: NumPy archives with one array per variable, named by its path."""

import contextlib
import itertools
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data.arrays import load_arrays
from clickexp.errors import UserError, with_class
from clickexp.models.base import Model
from clickexp.parameters.table import NEVER_SHOWN, Rows, Table, path_name
from clickexp.training.spread import Block, OneDevice, by_row, is_added
from clickexp.utils.documents import parse_json
from clickexp.utils.files import undamaged, whole
from clickexp.utils.text import listed

SAVED_VARIABLES = (nnx.Param, Table)
_FACTS = "facts"
_PRECISION = "prior/log_precision"
_MOST_NAMED, _LONGEST = 4, 60
"""Settings that a message names at most, and characters of a value."""
_ABSURD = 1e30
"""No parameter of a training that has not diverged is beyond it."""
_ABSURD_LOG = 80.0
"""The same of logarithms, which are within single precision below."""
_UNREADABLE = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile)


def save_model(model: Model, file: str | Path) -> None:
    """Writes the parameters of a model, whole or not at all."""
    with whole(Path(file)) as part, zipfile.ZipFile(part, "w") as archive:
        for name, values in _named(model).items():
            _write(archive, name, np.asarray(values))


def load_model(model: Model, file: str | Path) -> Model:
    """Reads parameters into a model of the same structure; rows without posteriors may come into tables that have them.

    Raises:
        ValueError: Names, shapes or types differ.
        UserError: The file is damaged, or a number in it is none that training leaves.
    """
    with (
        undamaged(file, _UNREADABLE),
        open(file, "rb") as stream,
        load_arrays(stream) as stored,
    ):
        widths = {
            name: stored[name].shape[-1:] if f"{name}/{_PRECISION}" in stored else ()
            for name in stored
        }
        before = _as_stored(model, widths)
        named, by_rank = _named(model), _by_rank(model)
        leaves, structure = jax.tree.flatten_with_path(nnx.state(model, SAVED_VARIABLES))
        differ = _differences(stored, named)
        values = []
        for name in () if differ else (_name(path) for path, _ in leaves):
            array = stored[name]
            _check_numbers(array, by_rank.get(name), name, file)
            values.append(jnp.asarray(array, named[name].dtype))
    if differ:
        for table, rows in before:
            table.set_value(rows)
        raise ValueError(f"{file} was written by another model or data: {', '.join(differ)} differ")
    nnx.update(model, jax.tree.unflatten(structure, values))
    return model


def _differences(stored: Mapping[str, Any], named: Mapping[str, jax.Array]) -> list[str]:
    """Returns names of arrays that only a file or a model has, or whose shapes or types differ."""
    common = stored.keys() & named.keys()
    wrong = (name for name in named if name in common and not _fits(stored[name], named[name]))
    return [*sorted(stored.keys() ^ named.keys()), *wrong]


def read_parameters(file: str | Path) -> dict[str, np.ndarray]:
    """Returns the parameters in a file that `save_model` wrote, by name.

    Raises:
        UserError: It is damaged.
    """
    with (
        undamaged(file, _UNREADABLE),
        open(file, "rb") as stream,
        load_arrays(stream) as stored,
    ):
        return {name: stored[name] for name in stored}


def _as_stored(model: Model, widths: Mapping[str, tuple[int, ...]]) -> list[tuple[Table, Rows]]:
    """Leaves numbers in the rows of tables that were stored without posteriors, and makes room for sites in others.

    Args:
        model: The model.
        widths: Length of the last axis of each array that was stored, by name.

    Returns:
        These tables, with their rows as they were.
    """
    before = []
    for path, node in nnx.iter_graph(model):
        if not isinstance(node, Table):
            continue
        rows, name = node.get_value(), path_name(path)
        if f"{name}/{_PRECISION}" not in widths:
            changed = rows.point()
        elif widths.get(name) == (rows.with_sites().width,):
            changed = rows.with_sites()
        else:
            continue
        before.append((node, rows))
        node.set_value(changed)
    return before


def _by_rank(model: Model) -> dict[str, int]:
    """The column of x in tables that have one: `NEVER_SHOWN` in rows without documents in the training log."""
    tables = {path: node for path, node in nnx.iter_graph(model) if isinstance(node, Table)}
    rows = {path_name(path): node.get_value() for path, node in tables.items()}
    return {name: of_table.numbers for name, of_table in rows.items() if of_table.by_rank}


def _fits(stored: np.ndarray, leaf: jax.Array) -> bool:
    return stored.shape == leaf.shape and np.can_cast(stored.dtype, leaf.dtype, "same_kind")


def _check_numbers(values: np.ndarray, x: int | None, name: str, file: str | Path) -> None:
    """UserError unless numbers are finite and not absurd; those of the column x may be `NEVER_SHOWN`."""
    parts = [values]
    if x is not None:
        of_ranks = values[:, x]
        parts = [values[:, :x], of_ranks[of_ranks != NEVER_SHOWN], values[:, x + 1 :]]
    parts = [part for part in parts if part.size]
    most = _ABSURD_LOG if name.endswith(_PRECISION) else _ABSURD
    if all(part.min() >= -most and part.max() <= most for part in parts):
        return
    bad = sum(int((~(np.abs(part) <= most)).sum()) for part in parts)
    raise UserError(
        f"{file}: {bad:,} of {values.size:,} numbers in {name} are not finite, or beyond {most:g}. "
        "Run the experiment again."
    )


def _named(model: Model) -> dict[str, jax.Array]:
    return {
        _name(path): leaf
        for path, leaf in jax.tree.leaves_with_path(nnx.state(model, SAVED_VARIABLES))
    }


def _name(path: tuple) -> str:
    fields = [str(part.key) if hasattr(part, "key") else part.name for part in path]
    return "/".join(field for field in fields if field not in ("value", "values"))


def save_training(file: Path, blocks: Iterable[Block], facts: Mapping[str, Any]) -> None:
    """Writes a training, whole or not at all: block by block, so that the host holds no more of it.

    Args:
        file: Where to.
        blocks: Its arrays, each in the order of its rows.
        facts: What JSON holds of it.
    """
    with whole(file) as part, zipfile.ZipFile(part, "w") as archive:
        _write(archive, _FACTS, np.array(json.dumps(facts, default=float)))
        for name, of_array in itertools.groupby(blocks, lambda block: _path_name(block.path)):
            _write_blocks(archive, name, of_array)


def load_training(file: Path, like: Any, devices: OneDevice) -> tuple[Any, dict[str, Any]]:
    """Reads a training: one array after the other, so that the host holds no other whole.

    Args:
        file: What `save_training` wrote.
        like: The structure, shapes and types of its arrays on one device.
        devices: What lies where.

    Returns:
        The arrays where they lie, in the structure of `like`, and the facts.

    Raises:
        ValueError: The file is damaged or does not fit.
    """
    leaves, structure = jax.tree.flatten_with_path(like)
    places = jax.tree.leaves(by_row(like))
    with _opened(file) as (stored, facts):
        if set(stored) != {_FACTS, *(_path_name(path) for path, _ in leaves)}:
            raise ValueError("it is of another model or optimizer")
        arrays = [
            devices.placed(_checked(stored[_path_name(path)], leaf), place)
            for (path, leaf), place in zip(leaves, places, strict=True)
        ]
    return jax.tree.unflatten(structure, arrays), facts


def check_same(file: Path, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Compares facts of a training with those in its file.

    Args:
        file: What `save_training` wrote.
        facts: Some facts, each of them values by name.

    Raises:
        ValueError: Values differ, which the message names, or the file is damaged.
    """
    with _opened(file) as (_, stored):
        pairs = [(stored.get(fact, {}), _as_json(values)) for fact, values in facts.items()]
    differ = [
        f"{name} {_short(earlier.get(name))}, not {_short(values.get(name))}"
        for earlier, values in pairs
        for name in dict.fromkeys([*values, *earlier])
        if earlier.get(name) != values.get(name)
    ]
    if differ:
        raise ValueError(f"it is of a training with {listed(differ, _MOST_NAMED)}")


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tuple[Mapping[str, np.ndarray], dict[str, Any]]]:
    """The arrays of a training, each read when it is asked for, and the facts. ValueError for a damaged file."""
    try:
        with file.open("rb") as stream, load_arrays(stream) as stored:
            yield stored, parse_json(str(stored[_FACTS]))
    except _UNREADABLE as error:
        raise ValueError(with_class(error)) from error


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives them back."""
    return json.loads(json.dumps(values, default=float))


def _short(value: Any) -> str:
    """A value that one line has room for."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _write(archive: zipfile.ZipFile, name: str, values: np.ndarray) -> None:
    _write_blocks(archive, name, iter([Block((), values.shape, values)]))


def _write_blocks(archive: zipfile.ZipFile, name: str, blocks: Iterator[Block]) -> None:
    """Writes an array, whose header needs the first of its blocks."""
    first = next(blocks)
    stated = np.lib.format.header_data_from_array_1_0(_storable(first.values))
    stated |= {"shape": first.shape, "fortran_order": False}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
        np.lib.format.write_array_header_1_0(stream, stated)
        for block in itertools.chain([first], blocks):
            stream.write(np.ascontiguousarray(_storable(block.values)).data)


def _storable(values: np.ndarray) -> np.ndarray:
    """Numbers in a type that files have: float32 in place of bfloat16 and the like, all of which it holds."""
    return values.astype(np.float32) if is_added(values.dtype) else values


def _path_name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _checked(values: np.ndarray, like: jax.Array | jax.ShapeDtypeStruct) -> Any:
    """An array as it is in a training."""
    array: Any = values
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        array = jax.random.wrap_key_data(jnp.array(values))
    elif is_added(like.dtype):
        array = values.astype(like.dtype)
    if (array.shape, array.dtype) != (like.shape, like.dtype):
        raise ValueError(f"it holds {array.dtype}{array.shape} for {like.dtype}{like.shape}")
    return array

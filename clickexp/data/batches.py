"""The batches of a superbatch, as compiled programs take them out."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clickexp.data.devices import FEATURE_TABLE
from clickexp.data.feed import looked_up
from clickexp.data.records import RECORDS, ranks_of
from clickexp.data.sessions import Sessions
from clickexp.types import SHOWN_FIRST, Array, Batch, Count
from clickexp.utils.lengths import from_lengths

Arrays = Mapping[str, Array]
"""A superbatch: the batch's arrays with a leading axis of steps."""


def with_mask(arrays: Arrays) -> Arrays:
    """The superbatch with the mask that its `lengths` make, so that it is made once and not in every step.

    That mask has no holes, which SHOWN_FIRST says. A mask that comes ready-made may have some, whatever its lengths.
    """
    if "mask" in arrays:
        return arrays
    arrays = unpacked(looked_up(arrays))
    listed = arrays["clicks" if "clicks" in arrays else "labels"]
    lengths = arrays["lengths"]
    return {
        **arrays,
        "mask": from_lengths(lengths, listed.shape[-1]),
        SHOWN_FIRST: lengths,
    }


def unpacked(arrays: Arrays) -> Arrays:
    """The superbatch with the columns of its `records`, where it has such; see `clickexp.data.records`."""
    if RECORDS not in arrays:
        return arrays
    further = {name: values for name, values in arrays.items() if name != RECORDS}
    records = jnp.asarray(arrays[RECORDS])
    ranks = ranks_of(records.shape[-1])
    clicks = jax.lax.bitcast_convert_type(records[..., ranks:-1], jnp.uint8)
    clicks = clicks.reshape(*records.shape[:-1], -1)[..., :ranks]
    ids, lengths = records[..., :ranks], records[..., -1]
    return {"query_doc_ids": ids, "clicks": clicks, "lengths": lengths, **further}


def ranks_first(arrays: Arrays) -> Arrays:
    """The superbatch with numbers per document as `[steps, rank, batch]`.

    Models compute with ranks first. To turn a superbatch once costs a training step less than to turn each batch
    wherever it is read.
    """
    return {
        name: values.swapaxes(1, 2) if values.ndim == 3 and name != FEATURE_TABLE else values
        for name, values in arrays.items()
    }


def at_step(arrays: Arrays, index: Count | int, has_ranks_first: bool = False) -> Batch:
    """One batch of a superbatch with a mask, and with features where there is a table of them.

    Positions follow from the rank where they are not given.

    Args:
        arrays: The superbatch.
        index: Number of the step.
        has_ranks_first: Whether the superbatch has `ranks_first`.
    """
    batch = {
        name: _single_precision(values[index])
        for name, values in arrays.items()
        if name != FEATURE_TABLE
    }
    if has_ranks_first:
        batch = {name: values.T if values.ndim == 2 else values for name, values in batch.items()}
    if "clicks" in batch:  # lists to rank may have labels alone
        batch["clicks"] = batch["clicks"].astype(bool)
    if FEATURE_TABLE in arrays:
        batch["query_doc_features"] = _single_precision(
            arrays[FEATURE_TABLE][batch["query_doc_ids"]]
        )
    ranks = batch["mask"].shape[-1]
    batch.setdefault("positions", jnp.arange(1, ranks + 1, dtype=jnp.int32)[None])
    return batch


def _single_precision(values: Array) -> Array:
    """Half precision is for storage alone."""
    return values.astype(jnp.float32) if values.dtype == jnp.float16 else values


def batch_like(sessions: Sessions) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of a batch of one session that carries all columns."""
    arrays = {}
    for name in (*sessions.columns, *sessions.derived):
        column = sessions.schema[name]
        values = column.in_batch(np.empty(column.shape_of(1, sessions.ranks), column.dtype))
        arrays[name] = jax.ShapeDtypeStruct((1, *values.shape), values.dtype)
    if sessions.features is not None:
        values = sessions.features.values
        arrays[FEATURE_TABLE] = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return jax.eval_shape(lambda arrays: at_step(with_mask(arrays), 0), arrays)


def keys_read(compute: Callable[..., Any], batch: Mapping[str, Any], *others: Any) -> set[str]:
    """The keys of a batch that a computation from it and other arrays reads, found by tracing it once."""
    names = [path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
    program = jax.make_jaxpr(compute)(batch, *others).jaxpr
    used = {id(value) for value in program.outvars}
    for equation in reversed(program.eqns):
        # an array that is only turned is not read
        is_turn = equation.primitive.name == "transpose"
        if not is_turn or not used.isdisjoint(map(id, equation.outvars)):
            used |= {id(value) for value in equation.invars}
    return {name for name, value in zip(names, program.invars, strict=False) if id(value) in used}

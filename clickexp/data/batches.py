"""The batches of a superbatch, as compiled programs take them out."""

from collections.abc import Mapping

import jax.numpy as jnp

from clickexp.data.feed import FEATURE_TABLE
from clickexp.types import SHOWN_FIRST, Array, Batch, Count

Arrays = Mapping[str, Array]
"""A superbatch: the batch's arrays with a leading axis of steps."""


def with_mask(arrays: Arrays) -> Arrays:
    """The superbatch with the mask that its `lengths` make, so that it is made once and not in every step.

    That mask has no holes, which SHOWN_FIRST says. A mask that comes ready-made may have some, whatever its lengths.
    """
    if "mask" in arrays:
        return arrays
    listed = arrays["clicks" if "clicks" in arrays else "labels"]
    lengths = arrays["lengths"]
    return {**arrays, "mask": jnp.arange(listed.shape[-1]) < lengths[..., None], SHOWN_FIRST: lengths}


def at_step(arrays: Arrays, index: Count | int) -> Batch:
    """One batch of a superbatch with a mask, and with features where there is a table of them.

    Positions follow from the rank where they are not given.
    """
    batch = {name: values[index] for name, values in arrays.items() if name != FEATURE_TABLE}
    if "clicks" in batch:  # lists to rank may have labels alone
        batch["clicks"] = batch["clicks"].astype(bool)
    if FEATURE_TABLE in arrays:
        batch["query_doc_features"] = arrays[FEATURE_TABLE][batch["query_doc_ids"]].astype(jnp.float32)
    ranks = batch["mask"].shape[-1]
    batch.setdefault("positions", jnp.arange(1, ranks + 1, dtype=jnp.int32)[None])
    return batch

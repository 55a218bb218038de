"""The training step: what changes, one batch of a superbatch, and the loop over its batches."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from clickexp.models.base import ClickModel
from clickexp.parameters.table import Table
from clickexp.training import tables as tbl
from clickexp.training.dispatch import FEATURE_TABLE
from clickexp.training.optimizers import Optimizer
from clickexp.training.pages import use_huge_pages
from clickexp.types import Array, Batch, Count, Leaf, Scalar

Arrays = Mapping[str, Array]
"""A superbatch: the batch's arrays with a leading axis of steps."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tables", "params", "other", "optimizer", "step"],
    meta_fields=[],
)
@dataclasses.dataclass
class TrainState:
    """Everything a step changes: tables, other parameters, dropout keys and the like, Optax's state, steps done."""

    tables: nnx.State
    params: nnx.State
    other: nnx.State
    optimizer: optax.OptState
    step: Leaf


def split_model(model: ClickModel, optimizer: Optimizer) -> tuple[nnx.GraphDef, TrainState]:
    """A model as its structure and the state that trains; the state shares no buffer with the model."""
    dense = nnx.Param if optimizer.rows else (nnx.Param, Table)
    graphdef, params, tables, other = nnx.split(model, dense, Table, ...)
    if optimizer.rows:
        tables = tbl.pack(tables, optimizer.rows)
        for table in jax.tree.leaves(tables):
            use_huge_pages(table)
    params, other = jax.tree.map(jnp.copy, (params, other))
    return graphdef, TrainState(tables, params, other, optimizer.dense.init(params), jnp.zeros((), jnp.int32))


def with_mask(arrays: Arrays) -> Arrays:
    """The superbatch with the mask that its `lengths` make, so that it is made once and not in every step."""
    if "mask" in arrays:
        return arrays
    listed = arrays["clicks" if "clicks" in arrays else "labels"]
    return {**arrays, "mask": jnp.arange(listed.shape[-1]) < arrays["lengths"][..., None]}


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


class TrainStep:
    """Runs the steps of one superbatch: (state, arrays, steps) -> (state, summed loss, documents)."""

    def __init__(self, graphdef: nnx.GraphDef, optimizer: Optimizer):
        self.graphdef = graphdef
        self.optimizer = optimizer

    def __call__(self, state: TrainState, arrays: Arrays, steps: Count) -> tuple[TrainState, Scalar, Count]:
        arrays = with_mask(arrays)

        def body(index: Count, carry: tuple[TrainState, Scalar, Count]) -> tuple[TrainState, Scalar, Count]:
            state, loss, documents = carry
            batch = at_step(arrays, index)
            state, batch_loss = self._step(state, batch)
            return state, loss + batch_loss, documents + jnp.sum(batch["mask"], dtype=jnp.int32)

        start = (state, jnp.zeros(()), jnp.zeros((), jnp.int32))
        return jax.lax.fori_loop(0, steps, body, start)

    def count_rows(self, state: TrainState, arrays: Arrays, steps: Count) -> TrainState:
        """Counts how many documents of the superbatch each row serves."""
        arrays = with_mask(arrays)

        def body(index: Count, tables: nnx.State) -> nnx.State:
            return tbl.count(tables, self._ids(state, at_step(arrays, index)))

        return dataclasses.replace(state, tables=jax.lax.fori_loop(0, steps, body, state.tables))

    def _loss(
        self, taken: nnx.State, params: nnx.State, other: nnx.State, batch: Batch
    ) -> tuple[Scalar, nnx.State]:
        """Summed over documents, so that every document weighs the same in every batch."""
        model = nnx.merge(self.graphdef, params, taken, other, copy=True)
        loss = jnp.sum(model.compute_loss(batch, aggregate=False))
        return loss, nnx.split(model, nnx.Param, Table, ...)[3]

    def _ids(self, state: TrainState, batch: Batch) -> tbl.Taken:
        return tbl.ids_taken(state.tables, batch, lambda t: self._loss(t, state.params, state.other, batch))

    def _step(self, state: TrainState, batch: Batch) -> tuple[TrainState, Scalar]:
        ids = self._ids(state, batch)
        rows = tbl.gather(state.tables, ids)

        def loss_of(taken: tbl.Taken, params: nnx.State) -> tuple[Scalar, nnx.State]:
            return self._loss(tbl.serve(state.tables, taken), params, state.other, batch)

        taken = tbl.parameters_of(state.tables, ids, rows)
        (loss, other), (row_grads, grads) = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True)(
            taken, state.params
        )
        step = state.step + 1
        tables = tbl.update(state.tables, ids, rows, row_grads, self.optimizer.rows, step)
        mean_grads = jax.tree.map(lambda g: g / batch["mask"].size, grads)
        with jax.numpy_dtype_promotion("standard"):  # Optax relies on it, whatever the caller chose
            changes, optimizer = self.optimizer.dense.update(mean_grads, state.optimizer, state.params)
        params = optax.apply_updates(state.params, changes)
        return TrainState(tables, params, other, optimizer, step), loss

"""The training step: what changes, one batch of a superbatch, and the loop over its batches."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from clickexp.data.batches import Arrays, at_step, ranks_first, with_mask
from clickexp.models.base import Model
from clickexp.parameters.table import Prior, Table
from clickexp.training.earlier import Pull, SharedPrior
from clickexp.training.optimizers import Optimizer
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.sparse import rows as tbl
from clickexp.training.sparse.huge_pages import use_huge_pages
from clickexp.training.sparse.learned_priors import Documents
from clickexp.training.sparse.lookups import (
    ids_read,
    read_together,
    tables_read_at,
    with_rows,
)
from clickexp.training.sparse.packing import Path
from clickexp.training.sparse.placement import ONE_DEVICE, Whole
from clickexp.types import Batch, Count, Flag, Leaf, Scalar
from clickexp.utils.batches import missing_key


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """Everything a step changes, and numbers that it takes as data, so that all their values run the same program.

    Attributes:
        tables: Tables, with the optimizer's state in their rows, and the precisions of their priors.
        params: All other parameters.
        other: Dropout keys and the like.
        optimizer: Optax's state.
        step: Steps done.
        row_rates: Learning rates of table rows.
        prior_rate: Factor of the changes of the precisions.
        decays: How often learning rates were lowered.
        seed: Of draws from posteriors.
        steps_per_pass: Over how many batches, at least, a pass spreads the documents of a row with many: all, or 1 of
            data that are not shuffled; infinite until they are counted.
        pull: The prior that earlier logs give shared parameters; None for none.
    """

    tables: nnx.State
    params: nnx.State
    other: nnx.State
    optimizer: optax.OptState
    step: Leaf
    row_rates: dict[str, Leaf]
    prior_rate: Leaf
    decays: Leaf
    seed: Leaf
    steps_per_pass: Leaf
    pull: Pull | None = None


def split_model(
    model: Model,
    optimizer: Optimizer,
    seed: int = 0,
    shared: SharedPrior | None = None,
    batch: Mapping[str, Any] | None = None,
) -> tuple[nnx.GraphDef, TrainState]:
    """A model as its structure and the state that trains; the state shares no buffer with the model.

    Args:
        model: The model. Its tables lose their posteriors where the optimizer has no rule for rows.
        optimizer: What updates it.
        seed: Of draws from posteriors.
        shared: Prior of shared parameters that earlier logs give.
        batch: Shapes of a batch: tables that its loss reads at the same ids lie side by side. None leaves all apart.
    """
    dense, rates = nnx.Param, {}
    if optimizer.rows:
        rates = {name: jnp.float32(getattr(optimizer.rows, name)) for name in optimizer.rows.rates}
    else:
        dense = nnx.Param, Table
        nnx.update(model, packing.points(nnx.state(model, Table)))
    graphdef, params, tables, other = nnx.split(model, dense, Table, ...)
    if optimizer.rows:
        together = _read_together(graphdef, params, tables, other, batch)
        tables = packing.pack(tables, optimizer.rows, together)
        for table in jax.tree.leaves(tables):
            use_huge_pages(table)
    params, other = jax.tree.map(jnp.copy, (params, other))
    dense_state = optimizer.dense.init((params, packing.priors(tables)))
    done, prior_rate = jnp.zeros((), jnp.int32), jnp.ones(())
    state = TrainState(
        tables,
        params,
        other,
        dense_state,
        done,
        rates,
        prior_rate,
        jnp.copy(done),
        jnp.uint32(seed),
        jnp.float32(jnp.inf),
        None if shared is None else shared.pull(params),
    )
    return graphdef, state


def _read_together(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    tables: nnx.State,
    other: nnx.State,
    batch: Mapping[str, Any] | None,
) -> list[list[Path]]:
    """Groups of tables that the loss of a batch reads at the same ids; none without a batch, or of one table."""
    groups: list[list[Path]] = []
    if batch is None or len(nnx.to_flat_state(tables)) == 1:
        return groups

    def read(tables: nnx.State, params: nnx.State, other: nnx.State, batch: Batch) -> None:
        groups.extend(
            read_together(tables, lambda tables: _loss(graphdef, tables, params, other, batch))
        )

    try:
        jax.eval_shape(read, tables, params, other, batch)
    except KeyError as error:
        raise missing_key(error, batch) from error
    return groups


def learning_rates(state: TrainState) -> list[float]:
    """Learning rates that are data: of table rows, then of the rest."""
    return [float(rate) for rate in (*state.row_rates.values(), *_dense_rates(state).values())]


def decayed(state: TrainState, factor: float) -> TrainState:
    """The state at learning rates, those that are data, that are `factor` times as high."""
    optimizer = state.optimizer
    for path, rate in _dense_rates(state).items():
        optimizer = optax.tree_utils.tree_set(
            optimizer, lambda place, _, path=path: place == path, learning_rate=rate * factor
        )
    row_rates = {name: rate * factor for name, rate in state.row_rates.items()}
    return dataclasses.replace(
        state, optimizer=optimizer, row_rates=row_rates, decays=state.decays + 1
    )


def _dense_rates(state: TrainState) -> dict[tuple, Leaf]:
    return dict(optax.tree_utils.tree_get_all_with_path(state.optimizer, "learning_rate"))


class TrainStep:
    """Runs the steps of one superbatch.

    The loop runs over all batches of the superbatch, since XLA on GPUs waits for the host after every step of a loop
    whose trip count it does not know. Those from `steps` on change nothing.

    Args:
        graphdef: Structure of the model.
        optimizer: What updates it.
        placement: Where the rows of tables lie.
    """

    def __init__(self, graphdef: nnx.GraphDef, optimizer: Optimizer, placement: Whole = ONE_DEVICE):
        self.graphdef = graphdef
        self.optimizer = optimizer
        self.placement = placement

    def __call__(
        self, state: TrainState, arrays: Arrays, steps: Count
    ) -> tuple[TrainState, Scalar, Count]:
        """The state after the superbatch, the summed loss, and the number of documents."""
        arrays = ranks_first(with_mask(arrays))

        def body(index: Count, carry: tuple[TrainState, Scalar]) -> tuple[TrainState, Scalar]:
            state, loss = carry
            batch = at_step(arrays, index, has_ranks_first=True)
            state, batch_loss = self._step(state, batch, index < steps)
            return state, loss + batch_loss

        state, loss = jax.lax.fori_loop(0, len(arrays["mask"]), body, (state, jnp.zeros(())))
        shown = jnp.sum(arrays["mask"], axis=(1, 2), dtype=jnp.int32)
        documents = jnp.sum(jnp.where(jnp.arange(len(shown)) < steps, shown, 0))
        return state, loss, self.placement.summed(documents)

    def count(
        self, documents: dict[Path, Documents], state: TrainState, arrays: Arrays, steps: Count
    ) -> dict[Path, Documents]:
        """The documents of rows found so far, with those of the superbatch."""
        arrays = with_mask(arrays)

        def body(index: Count, documents: dict[Path, Documents]) -> dict[Path, Documents]:
            batch = at_step(arrays, index)
            ids, axes = self._ids(state, batch, index < steps)
            log_ranks = tbl.log_ranks(ids, batch["mask"])
            return learned_priors.count(documents, ids, axes, log_ranks, self.placement)

        return jax.lax.fori_loop(0, len(arrays["mask"]), body, documents)

    def tables_of_documents(
        self, state: TrainState, shapes: Mapping[str, jax.ShapeDtypeStruct]
    ) -> dict[Path, bool]:
        """Whether the loss reads each table once for each document of a superbatch, at its id."""
        of_documents: dict[Path, bool] = {}

        def read(state: TrainState, arrays: Arrays) -> None:
            batch = at_step(with_mask(arrays), 0)
            of_documents.update(
                tables_read_at(
                    batch["query_doc_ids"],
                    state.tables,
                    lambda tables: self._loss(tables, state.params, state.other, batch),
                )
            )

        jax.eval_shape(read, state, shapes)
        return of_documents

    def _loss(
        self, taken: nnx.State, params: nnx.State, other: nnx.State, batch: Batch
    ) -> tuple[Scalar, nnx.State]:
        return _loss(self.graphdef, taken, params, other, batch)

    def _ids(self, state: TrainState, batch: Batch, active: Flag) -> tuple[tbl.Taken, tbl.Axes]:
        """The ids that the loss reads, and the axes of sessions in them."""
        ids = ids_read(
            state.tables, lambda tables: self._loss(tables, state.params, state.other, batch)
        )
        mask = batch["mask"]
        ids = tbl.shown_ids(state.tables, ids, mask, active, self.placement)
        return ids, tbl.session_axes(ids, len(mask))

    def _step(self, state: TrainState, batch: Batch, active: Flag) -> tuple[TrainState, Scalar]:
        """The state after the batch, and its loss; the state as it is, and 0, unless active."""
        placement = self.placement
        ids, axes = self._ids(state, batch, active)
        key = jnp.stack([state.seed, state.step.astype(jnp.uint32)])
        rows = tbl.gather(state.tables, ids, axes, key, placement)
        own = placement.own_keys(state.other)

        def loss_of(taken: tbl.Taken, params: nnx.State) -> tuple[Scalar, nnx.State]:
            return self._loss(with_rows(state.tables, taken), params, own, batch)

        taken = tbl.drawn(state.tables, ids, rows)
        (loss, other), (row_grads, grads) = jax.value_and_grad(
            loss_of, argnums=(0, 1), has_aux=True
        )(taken, state.params)
        loss, grads = placement.summed((loss, grads))
        if state.pull is not None:
            grads = jax.tree.map(jnp.add, grads, state.pull.gradient(state.params))
        other = _with_keys(other, state.other)
        step = state.step + 1
        rule, tables, prior_grads = self.optimizer.rows, state.tables, {}
        if rule:
            tables, prior_grads = tbl.step_rows(
                tables,
                axes,
                rows,
                row_grads,
                rule.at_rates(state.row_rates),
                step,
                state.steps_per_pass,
                placement,
            )
        priors = packing.priors(tables)
        dense, weights = (
            (state.params, priors),
            (state.params, jax.tree.map(jnp.zeros_like, priors)),
        )
        documents = batch["mask"].size * placement.devices
        mean_grads = jax.tree.map(lambda g: g / documents, (grads, prior_grads))
        with jax.numpy_dtype_promotion("standard"):  # Optax relies on it, whatever the caller chose
            # to which priors are zeros: they are no weights to decay
            changes, optimizer = self.optimizer.dense.update(mean_grads, state.optimizer, weights)
        _, of_priors = cast(tuple[nnx.State, dict[tuple, Prior]], changes)
        for change in of_priors.values():
            change.log_precision = state.prior_rate * change.log_precision
        new = optax.apply_updates(dense, changes), other, optimizer, step
        old = dense, state.other, state.optimizer, state.step
        # the tables are not among them, which would be read whole: ids of an inactive batch point past their ends
        (params, priors), other, optimizer, step = jax.tree.map(
            lambda new, old: jnp.where(active, new, old), new, old
        )
        tables = packing.with_priors(tables, priors)
        changed = dataclasses.replace(
            state, tables=tables, params=params, other=other, optimizer=optimizer, step=step
        )
        return changed, jnp.where(active, loss, 0.0)


def _loss(
    graphdef: nnx.GraphDef, taken: nnx.State, params: nnx.State, other: nnx.State, batch: Batch
) -> tuple[Scalar, nnx.State]:
    """Summed over documents, so that every document weighs the same in every batch."""
    model = nnx.merge(graphdef, params, taken, other, copy=True)
    loss = jnp.sum(model.compute_loss(batch, aggregate=False))
    _, _, _, other = nnx.split(model, nnx.Param, Table, ...)
    return loss, other


def _with_keys(other: nnx.State, before: nnx.State) -> nnx.State:
    """The state after a step with the keys of random numbers before it, which all devices share; counts tell steps."""
    keys = dict(nnx.to_flat_state(before))

    def kept(path: tuple, variable: nnx.Variable) -> nnx.Variable:
        return keys[path] if isinstance(variable, nnx.RngKey) else variable

    return nnx.map_state(kept, other)

"""Trainings over several devices: what lies where, and the programs that run on all of them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from clickexp.data import Superbatch
from clickexp.data.feed import everywhere, is_table, place_of
from clickexp.errors import ConfigError
from clickexp.parameters.table import Rows
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.sparse.learned_priors import Documents
from clickexp.training.sparse.placement import AXIS, ONE_DEVICE, Spread, Whole
from clickexp.training.step import TrainStep

ALL = "all"
_EVERYWHERE = PartitionSpec()
_BY_ROW = PartitionSpec(AXIS)


def placement_on(devices: int | str) -> Whole:
    """Returns where rows of tables lie.

    Args:
        devices: How many of those that JAX sees, or `all`.

    Raises:
        ConfigError: JAX sees fewer, or some of those that several processes share.
    """
    seen = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    number = len(seen) if devices == ALL else devices
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ConfigError(f"trainer.devices={devices}: give a number from 1, or all")
    if number > len(seen):
        kind = seen[0].platform
        remedy = (
            f"XLA_FLAGS=--xla_force_host_platform_device_count={number} makes {number} of a CPU, for trying"
            if kind == "cpu"
            else f"trainer.devices={ALL} takes those that there are"
        )
        raise ConfigError(f"trainer.devices={number}: JAX sees {len(seen)} ({kind}); {remedy}")
    if 1 < number < len(seen) and jax.process_count() > 1:
        raise ConfigError(
            f"trainer.devices={number}: processes train together on all devices; set trainer.devices={ALL}"
        )
    return ONE_DEVICE if number == 1 else Spread(seen[:number])


class OneDevice:
    """A training on one device: its state is as models have it.

    Attributes:
        mesh: The devices that share batches; None for one.

    Args:
        placement: Where rows lie.
    """

    mesh: Mesh | None = None

    def __init__(self, placement: Whole):
        self.placement = placement

    def lay(self, tree: Any) -> Any:
        """Returns arrays where they lie while a model trains."""
        return tree

    def whole(self, tree: Any, like: Any) -> Any:
        """Returns arrays as one device has them.

        Args:
            tree: What `lay` has returned, or a step has made of it.
            like: The shapes of the arrays before.
        """
        return tree

    def check(self, batch: Superbatch) -> None:
        """ConfigError where devices cannot have equally many sessions of a batch."""

    def step(self, step: TrainStep) -> Callable[..., Any]:
        """Returns the program of a training step."""
        return step

    def count(self, step: TrainStep) -> Callable[..., Any]:
        """Returns the program of `TrainStep.count`."""
        return step.count

    def refit_priors(self, tables: nnx.State) -> nnx.State:
        """Returns the tables with refitted priors; see `learned_priors.refit_priors`."""
        return learned_priors.refit_priors(tables, self.placement)

    def evaluated(self, tables: nnx.State) -> nnx.State:
        """Returns the tables as evaluations look rows up."""
        return tables


class SeveralDevices(OneDevice):
    """A training whose tables are spread over devices by rows, and its batches by sessions; all else is on each.

    Args:
        placement: Where rows lie.
    """

    placement: Spread

    def __init__(self, placement: Spread):
        self.placement, self.mesh = placement, placement.mesh
        self.evaluated = jax.jit(self._evaluated)

    def lay(self, tree: Any) -> Any:
        """Returns rows over the devices, and all else on each."""

        def laid(leaf: Any) -> Any:
            match leaf:
                case Rows():
                    others = jax.tree.map(on_each, _others(leaf))
                    return dataclasses.replace(others, **_by_row(self.placement.laid, leaf))
                case Documents():
                    return Documents(self.placement.laid(leaf.sums), on_each(leaf.squares))
                case _:
                    return on_each(leaf)

        def on_each(leaf: Any) -> jax.Array:
            return everywhere(leaf, self.mesh)

        return jax.tree.map(laid, tree, is_leaf=_has_rows)

    def whole(self, tree: Any, like: Any) -> Any:
        """Returns rows in the order of ids, on one device."""

        def gathered(leaf: Any, like: Any) -> Any:
            match leaf:
                case Rows():
                    others = jax.tree.map(one, _others(leaf))
                    return dataclasses.replace(others, **_by_row(in_order(len(like.values)), leaf))
                case Documents():
                    sums = self.placement.whole(leaf.sums, len(like.sums))
                    return Documents(sums, one(leaf.squares))
                case _:
                    return jax.tree.map(one, leaf)

        def in_order(rows: int) -> Callable[[jax.Array], jax.Array]:
            return lambda values: jnp.asarray(self.placement.whole(values, rows))

        def one(leaf: jax.Array) -> jax.Array:
            return leaf.addressable_shards[0].data

        return jax.tree.map(gathered, tree, like, is_leaf=_has_rows)

    def check(self, batch: Superbatch) -> None:
        """ConfigError where devices cannot have equally many sessions of a batch."""
        number = self.placement.devices
        for values in (values for name, values in batch.arrays.items() if not is_table(name)):
            size = values.shape[1]
            if size % number:
                raise ConfigError(
                    f"trainer.devices={number}: {number} devices cannot share batches of {size} sessions; "
                    f"set trainer.batch_size={-(-size // number) * number}, or fewer devices"
                )

    def step(self, step: TrainStep) -> Callable[..., Any]:
        """Returns a step that each device runs on its own sessions and rows."""

        def run(state: Any, arrays: Mapping[str, Any], steps: Any) -> Any:
            places = _places(state)
            given = places, _places_of_batch(arrays), _EVERYWHERE
            return self._mapped(step, given, (places, _EVERYWHERE, _EVERYWHERE))(
                state, arrays, steps
            )

        return run

    def count(self, step: TrainStep) -> Callable[..., Any]:
        """Returns a count of the documents of each device's own rows."""

        def run(found: Any, state: Any, arrays: Mapping[str, Any], steps: Any) -> Any:
            places = _places(found)
            given = places, _places(state), _places_of_batch(arrays), _EVERYWHERE
            return self._mapped(step.count, given, places)(found, state, arrays, steps)

        return run

    def refit_priors(self, tables: nnx.State) -> nnx.State:
        """Returns priors that are refitted to the rows of all devices."""
        places = _places(tables)
        return self._mapped(super().refit_priors, (places,), places)(tables)

    def _evaluated(self, tables: nnx.State) -> nnx.State:
        """Tables whose rows are in the order of ids."""
        tables = packing.learned(tables)
        places = _places(tables)

        def in_order(tables: nnx.State) -> nnx.State:
            return packing.map_values(
                lambda path, table: self.placement.in_order(table.get_value().values), tables
            )

        return self._mapped(in_order, (places,), places)(tables)

    def _mapped(
        self, function: Callable[..., Any], given: Any, returned: Any
    ) -> Callable[..., Any]:
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=given, out_specs=returned, check_vma=False
        )


def training_on(placement: Whole) -> OneDevice:
    """Returns the training of a placement."""
    return SeveralDevices(placement) if isinstance(placement, Spread) else OneDevice(placement)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Rows | Documents)


def _by_row(change: Callable[[jax.Array], Any], rows: Rows) -> dict[str, Any]:
    """What has a row per id, changed."""
    aside = None if rows.aside is None else change(rows.aside)
    return {"values": change(rows.values), "aside": aside}


def _others(rows: Rows) -> Rows:
    """Rows without what has a row per id."""
    return dataclasses.replace(rows, values=None, aside=None)


def _places(tree: Any) -> Any:
    """Where each array lies: rows by row, all else everywhere."""

    def place(leaf: Any) -> Any:
        match leaf:
            case Rows():
                others = jax.tree.map(lambda _: _EVERYWHERE, _others(leaf))
                return dataclasses.replace(others, **_by_row(lambda _: _BY_ROW, leaf))
            case Documents():
                return Documents(_BY_ROW, _EVERYWHERE)
            case _:
                return _EVERYWHERE

    return jax.tree.map(place, tree, is_leaf=_has_rows)


def _places_of_batch(arrays: Mapping[str, Any]) -> dict[str, PartitionSpec]:
    """Sessions over the devices, and all else on each, as `over_devices` lays them."""
    return {name: place_of(name, AXIS) for name in arrays}

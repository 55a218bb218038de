"""Trainings over several devices: what lies where, and the programs that run on all of them."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from clickexp.data import Superbatch
from clickexp.data.devices import SINGLE, DeviceMesh, SingleDevice, is_table, place_of
from clickexp.errors import ConfigError
from clickexp.evaluation.evaluator import Evaluator, ModelState
from clickexp.evaluation.scores import laid_by
from clickexp.models.base import Model
from clickexp.parameters.table import Rows, Table, path_name
from clickexp.training.sparse import packing
from clickexp.training.sparse.learned_priors import Documents
from clickexp.training.sparse.placement import AXIS, ONE_DEVICE, Spread, Whole
from clickexp.utils import hosts
from clickexp.utils.rounding import round_up
from clickexp.utils.text import listed

ALL = "all"
Kind = Callable[[Any], Any]
"""The kind of an argument of a program: `by_row`, `by_session` or `on_each`, which return where its arrays lie."""
_MOST_NAMED = 3
_ADDED = 2
"""What NumPy calls types that others have added."""
_EVERYWHERE = PartitionSpec()
_BY_ROW = PartitionSpec(AXIS)


def placement_on(devices: int | str) -> Whole:
    """Returns where rows of tables lie; on one device, once processes have left each other.

    Args:
        devices: How many of those that JAX sees, or `all`.

    Raises:
        ConfigError: JAX sees fewer, or some of those that several processes share.
    """
    if hosts.have_left():
        return ONE_DEVICE
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
    return ONE_DEVICE if number == 1 else _spread(*seen[:number])


@functools.cache
def _spread(*devices: Any) -> Spread:
    return Spread(devices)


class Block(NamedTuple):
    """Some rows of an array of a training, or all of it.

    Attributes:
        path: Of the array.
        shape: Of the whole array.
        values: On the host.
    """

    path: tuple
    shape: tuple[int, ...]
    values: np.ndarray


class OneDevice:
    """A training on one device: its state is as models have it.

    Attributes:
        feeding: The devices that share batches.

    Args:
        placement: Where rows lie.
    """

    feeding: SingleDevice = SINGLE

    def __init__(self, placement: Whole):
        self.placement = placement

    def lay(self, tree: Any) -> Any:
        """Returns arrays where they lie while a model trains."""
        return tree

    def placed(self, values: Any, place: PartitionSpec) -> jax.Array:
        """Returns an array of the host where it lies while a model trains.

        Args:
            values: The array.
            place: As `by_row` returns it.
        """
        return jnp.array(values)

    def blocks(self, tree: Any, like: Any) -> Iterator[Block]:
        """Yields arrays on the host, as one device has them; all processes have to take all blocks.

        Args:
            tree: What `lay` has returned, or a step has made of it.
            like: The shapes of the arrays before.
        """
        for path, leaf in jax.tree.leaves_with_path(tree):
            values = on_host(leaf)
            yield Block(path, values.shape, values)

    def whole(self, tree: Any, like: Any) -> Any:
        """Returns arrays as one device has them.

        Args:
            tree: What `lay` has returned, or a step has made of it.
            like: The shapes of the arrays before.
        """
        return tree

    def check(self, batch: Superbatch) -> None:
        """ConfigError where devices cannot have equally many sessions of a batch."""

    def check_model(self, params: nnx.State, other: nnx.State) -> None:
        """ConfigError where devices cannot train a model to the estimates of one.

        Args:
            params: What the optimizer changes as a whole.
            other: All but parameters and tables.
        """

    def mapped(
        self, function: Callable[..., Any], kinds: Sequence[Kind], returned: Any
    ) -> Callable[..., Any]:
        """Returns a function that each device runs on its own rows and sessions.

        Args:
            function: It has the placement, by which devices exchange what they need of each other.
            kinds: What each argument is.
            returned: What it returns: the place of an argument that lies as this does, or `on_each`.
        """
        return function

    def adding(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> Callable[..., Any]:
        """Returns a function that adds to sums, of which each device has those of its own sessions.

        Args:
            function: From `own_sums` and other arguments to the sums.
            kinds: What each of the others is.
        """
        return function

    def own_sums(self, zeros: Any) -> Any:
        """Returns sums of nothing, for each device."""
        return zeros

    def total(self, sums: Any) -> Any:
        """Returns the sums over devices of what each has added up."""
        return sums

    def by_id(self, tree: Any) -> Any:
        """Returns rows that say where those of an id are, as evaluations look them up."""
        return tree

    def evaluated(self, tables: nnx.State) -> nnx.State:
        """Returns the tables as evaluations look rows up."""
        return self.by_id(packing.with_arrays(tables))

    def lay_model(self, state: nnx.State) -> nnx.State:
        """Returns the state of a whole model as evaluations take it."""
        return self.by_id(self.lay(state))

    def lay_others(self, state: nnx.State) -> nnx.State:
        """Returns the state of a model whose rows lie as they should, and all else where it should."""
        return state


class SeveralDevices(OneDevice):
    """A training whose tables are spread over devices by rows, and its batches by sessions; all else is on each.

    Args:
        placement: Where rows lie.
    """

    placement: Spread

    def __init__(self, placement: Spread):
        self.placement, self.feeding = placement, DeviceMesh(placement.mesh)
        self._total = jax.jit(_over_first_axis, out_shardings=placement.sharding())

    def lay(self, tree: Any) -> Any:
        """Returns rows over the devices, and all else on each."""
        return jax.tree.map(self.placed, tree, by_row(tree))

    def lay_others(self, state: nnx.State) -> nnx.State:
        """Returns the rows as they lie, and all else on each device."""

        def laid(values: Any, place: PartitionSpec) -> jax.Array:
            return values if place == _BY_ROW else self.feeding.everywhere(values)

        return jax.tree.map(laid, state, by_row(state))

    def placed(self, values: Any, place: PartitionSpec) -> jax.Array:
        """Returns rows over the devices, and all else on each; see `OneDevice.placed`."""
        return self.placement.laid(values) if place == _BY_ROW else self.feeding.everywhere(values)

    def blocks(self, tree: Any, like: Any) -> Iterator[Block]:
        """Yields rows in the order of ids, some at a time, and all else whole; see `OneDevice.blocks`."""
        leaves, places = jax.tree.leaves_with_path(tree), jax.tree.leaves(by_row(tree))
        for (path, leaf), place, whole in zip(leaves, places, jax.tree.leaves(like), strict=True):
            if place == _BY_ROW:
                for rows in self.placement.blocks(leaf, len(whole)):
                    yield Block(path, whole.shape, rows)
            else:
                values = on_host(_of_one(leaf))
                yield Block(path, values.shape, values)

    def whole(self, tree: Any, like: Any) -> Any:
        """Returns arrays on the host, rows in the order of ids; what lies on a device would draw whole tables there."""

        def gathered(place: PartitionSpec, leaf: jax.Array, like: Any) -> Any:
            if place == _BY_ROW:
                return self.placement.whole(leaf, len(like))
            values = on_host(_of_one(leaf))
            return jax.random.wrap_key_data(jnp.array(values)) if _is_key(leaf) else values

        return jax.tree.map(gathered, by_row(tree), tree, like)

    def check(self, batch: Superbatch) -> None:
        """ConfigError where devices cannot have equally many sessions of a batch."""
        number = self.placement.devices
        for values in (values for name, values in batch.arrays.items() if not is_table(name)):
            size = values.shape[1]
            if size % number:
                raise ConfigError(
                    f"trainer.devices={number}: {number} devices cannot share batches of {size} sessions; "
                    f"set trainer.batch_size={round_up(size, number)}, or fewer devices"
                )

    def check_model(self, params: nnx.State, other: nnx.State) -> None:
        """ConfigError for whole tables, and for numbers that change by all sessions of a batch; see `OneDevice`."""
        device = f"trainer.devices={self.placement.devices}"
        tables = _names(params, lambda leaf: isinstance(leaf, Table))
        if tables:
            raise ConfigError(
                f"{device}: the optimizer changes all rows of {tables} in every step, and devices share tables by "
                "rows; choose optimizer=natural_gradient or another of rows, or set trainer.devices=1"
            )
        moved = _names(other, _has_own_rule)
        if moved:
            raise ConfigError(
                f"{device}: every batch changes {moved} by all of its sessions and without a gradient, and devices "
                "have a part of them each; set trainer.devices=1"
            )

    def mapped(
        self, function: Callable[..., Any], kinds: Sequence[Kind], returned: Any
    ) -> Callable[..., Any]:
        """Returns a function that each device runs on its own rows and sessions; see `OneDevice.mapped`."""

        def run(*arguments: Any) -> Any:
            places = [kind(argument) for kind, argument in zip(kinds, arguments, strict=True)]
            of_result = jax.tree.map(
                lambda like: _EVERYWHERE if like is on_each else places[like], returned
            )
            return jax.shard_map(
                function,
                mesh=self.placement.mesh,
                in_specs=tuple(places),
                out_specs=of_result,
                check_vma=False,
            )(*arguments)

        return run

    def adding(self, function: Callable[..., Any], kinds: Sequence[Kind]) -> Callable[..., Any]:
        """Returns a function that adds to the sums of each device; see `OneDevice.adding`."""

        def on_device(sums: Any, *arguments: Any) -> Any:
            own = jax.tree.map(lambda leaf: leaf[0], sums)
            return jax.tree.map(lambda leaf: leaf[None], function(own, *arguments))

        return self.mapped(on_device, [_of_each, *kinds], 0)

    def own_sums(self, zeros: Any) -> Any:
        """Returns sums of nothing, for each device."""
        number, place = self.placement.devices, self.placement.sharding(AXIS)
        return jax.tree.map(
            lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype, device=place), zeros
        )

    def total(self, sums: Any) -> Any:
        """Returns the sums over devices, on each."""
        return self._total(sums)

    def by_id(self, tree: Any) -> Any:
        """Returns rows that say where those of an id are; see `OneDevice.by_id`."""

        def marked(leaf: Any) -> Any:
            if not isinstance(leaf, Rows):
                return leaf
            return dataclasses.replace(leaf, devices=self.placement.devices)

        return jax.tree.map(marked, tree, is_leaf=_has_rows)


def training_on(devices: int | str) -> OneDevice:
    """Returns what lies where on so many devices; see `placement_on`."""
    return _training_on(placement_on(devices))


@functools.cache
def _training_on(placement: Whole) -> OneDevice:
    return SeveralDevices(placement) if isinstance(placement, Spread) else OneDevice(placement)


@dataclasses.dataclass(frozen=True)
class EvaluatorOnDevices(Evaluator):
    """Evaluates models whose rows lie over devices, as those of a training do.

    Attributes:
        devices: How many; see `placement_on`.
    """

    devices: int | str = 1

    def state_of(self, model: Model) -> ModelState:
        """Returns the state of a model on the devices, in the order in which `nnx.merge` takes it."""
        return (training_on(self.devices).lay_model(nnx.state(model)),)


@contextlib.contextmanager
def computing_on(devices: int | str) -> Iterator[None]:
    """Has several devices compute outputs of models, each with a part of the rows; the models stay on the host."""
    several = training_on(devices)
    on_host = contextlib.nullcontext()
    if several.placement.devices > 1:
        with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS may leave the host out
            on_host = jax.default_device(jax.local_devices(backend="cpu")[0])
    with on_host, laid_by(several.lay_model):
        yield


def _names(state: nnx.State, is_meant: Callable[[Any], bool]) -> str:
    """The names of some leaves."""
    leaves = nnx.to_flat_state(state)
    return listed([path_name(path) for path, leaf in leaves if is_meant(leaf)], _MOST_NAMED)


def _has_own_rule(leaf: Any) -> bool:
    """Whether batches may change a leaf of no gradient: arrays that are no variables are constants, and keys stay."""
    return isinstance(leaf, nnx.Variable) and not isinstance(leaf, nnx.RngState)


def _of_one(leaf: jax.Array) -> jax.Array:
    """An array that each device has, of one of them."""
    return leaf.addressable_shards[0].data


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def on_host(leaf: jax.Array) -> np.ndarray:
    """Returns an array on the host, or the numbers of a key."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    is_on_cpu = all(device.platform == "cpu" for device in leaf.devices())
    if is_on_cpu and not is_added(leaf.dtype):
        # np.asarray leaves a view behind, for which a donated array is copied
        return np.from_dlpack(leaf)  # pyright: ignore[reportArgumentType]  # JAX types its keywords otherwise
    return np.asarray(leaf)


def is_added(dtype: np.dtype) -> bool:
    """Returns whether a library has added a type to those of NumPy, such as bfloat16."""
    return dtype.isbuiltin == _ADDED


def _over_first_axis(sums: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), sums)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Rows | Documents)


def _by_row(change: Callable[[jax.Array], Any], rows: Rows) -> dict[str, Any]:
    """Returns arrays with a row per id, changed."""
    return jax.tree.map(change, {"values": rows.values, "aside": rows.aside})


def _others(rows: Rows) -> Rows:
    """Rows without what has a row per id."""
    return dataclasses.replace(rows, values=None, aside=None)


def by_row(tree: Any) -> Any:
    """Where arrays of a state lie: rows by row, all else everywhere."""

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


def by_session(arrays: Mapping[str, Any]) -> dict[str, PartitionSpec]:
    """Where arrays of a superbatch lie: sessions over the devices, all else everywhere, as `DeviceMesh` lays them."""
    return {name: place_of(name, AXIS) for name in arrays}


def on_each(tree: Any) -> PartitionSpec:
    """Where arrays lie that each device has."""
    return _EVERYWHERE


def _of_each(tree: Any) -> PartitionSpec:
    """Where arrays lie of which each device has its own, along the first axis."""
    return _BY_ROW

"""Where the rows of tables lie while a model trains: on one device, or spread over several.

Over D devices, the row of an id lies on device `id % D` at place `id // D`, and each device has its own sessions of
every batch. In one program around a superbatch, a step sends per table, or once for tables that lie side by side

    ids        of one's own sessions to all devices                          4 bytes per document
    rows       from their owners to the devices that asked for them          4 bytes per column, most often 16
    changes    of one's own documents to all devices, whose owners add them  4 bytes per learned number, most often 8

and the sums of gradients of the parameters that all devices have. Noise is not sent: it is a hash of the number that a
lookup has among those of all devices, so that the same steps are done whatever the number of devices.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Integer, Real, UInt32

from clickexp.types import Array, Count
from clickexp.utils.rounding import ceil_div

Places = Integer[Array, "*ids"]
FlatPlaces = Integer[Array, " rows"]
Values = Real[jax.Array, "table width"]
Columns = Real[Array, "rows number"]
Some = Float[Array, "some number"]
Scatter = Callable[..., jax.Array]

AXIS = "devices"
"""Of the mesh: rows of tables, and sessions of batches, are spread over it."""
_EXCHANGED = 1 << 18
"""Rows of a table that devices exchange at a time, each of which has them for a moment."""


class Whole:
    """All rows on one device; a place is an id.

    Attributes:
        devices: How many share a batch.
    """

    devices: int = 1

    def places(self, ids: Places, values: Values) -> Places:
        """Returns the places of rows, as the other methods take them."""
        return ids

    def end(self, values: Values) -> int:
        """Returns the first place behind all rows."""
        return len(values)

    def once(self, places: Places, values: Values, axis: int | None) -> Places:
        """Returns places of what one device counts or changes, and others behind the end.

        Args:
            places: Of lookups.
            values: The table.
            axis: That of the sessions; None for lookups that all sessions of a batch share.
        """
        return places

    def numbers(
        self, taken: Sequence[Places], axes: Sequence[int | None]
    ) -> UInt32[Array, " rows"]:
        """Returns the number that each lookup has among those of all devices."""
        return jax.lax.iota(jnp.uint32, sum(ids.size for ids in taken))

    def lookups(self, taken: Sequence[Places], axes: Sequence[int | None]) -> int:
        """Returns how many lookups all devices have."""
        return sum(ids.size for ids in taken)

    def take(self, values: Values, places: FlatPlaces, number: int) -> Columns:
        """Returns the first columns of rows; any numbers for a place behind the end."""
        return first_columns(values, places, number, "clip")

    def scattered(
        self, scatter: Scatter, values: Values, places: FlatPlaces, columns: Columns
    ) -> Values:
        """Returns the table with first columns set, or added to; places behind the end change nothing."""
        return in_rows(scatter, values, places, columns)

    def summed(self, tree: Any) -> Any:
        """Returns sums over devices of arrays that each has of its sessions."""
        return tree

    def summed_once(self, gradient: Array, axis: int | None) -> Array:
        """Returns the gradient of a lookup, summed over devices where all sessions share it."""
        return gradient

    def every(self, numbers: UInt32[Array, " rows"], stride: int, squares: Columns) -> Some:
        """Returns the rows whose lookups have a number that the stride divides."""
        return squares[::stride]

    def own_keys(self, other: nnx.State) -> nnx.State:
        """Returns the state with keys of random numbers that no other device has."""
        return other

    def own_step(self, step: Count) -> Count:
        """Returns the number that a step on the sessions of this device alone has among those of all devices."""
        return step


ONE_DEVICE = Whole()


class Spread(Whole):
    """Rows over the devices of a mesh; to be called in a program that `jax.shard_map` maps over it.

    A place is `device * (rows per device) + id // devices`.

    Args:
        devices: At least two of JAX.
    """

    def __init__(self, devices: Sequence[Any]):
        self.devices = len(devices)
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self._some = jax.jit(self._some_rows, static_argnums=2, out_shardings=self.sharding())

    def places(self, ids: Places, values: Values) -> Places:
        """Returns owner and place in one number."""
        return ids % self.devices * len(values) + ids // self.devices

    def end(self, values: Values) -> int:
        """Returns the first place behind the rows of all devices."""
        return len(values) * self.devices

    def once(self, places: Places, values: Values, axis: int | None) -> Places:
        """Returns the places; those that all sessions share on the first device only."""
        if axis is not None:
            return places
        return jnp.where(jax.lax.axis_index(AXIS) == 0, places, self.end(values))

    def numbers(
        self, taken: Sequence[Places], axes: Sequence[int | None]
    ) -> UInt32[Array, " rows"]:
        """Returns the numbers that one device with all sessions would count."""
        start, numbers = 0, []
        for ids, axis in zip(taken, axes, strict=True):
            shape, number = list(ids.shape), jnp.zeros(ids.shape, jnp.uint32)
            if axis is not None:
                shape[axis] *= self.devices
            for place, size in enumerate(shape):
                index = jax.lax.broadcasted_iota(jnp.uint32, ids.shape, place)
                if axis is not None and place == axis % ids.ndim:
                    index += self._device() * np.uint32(ids.shape[axis])
                number = number * np.uint32(size) + index
            numbers.append(number.reshape(-1) + np.uint32(start))
            start += math.prod(shape)
        return jnp.concatenate(numbers)

    def lookups(self, taken: Sequence[Places], axes: Sequence[int | None]) -> int:
        """Returns how many all devices have; what sessions share is one."""
        parts = zip(taken, axes, strict=True)
        return sum(ids.size * (1 if axis is None else self.devices) for ids, axis in parts)

    def take(self, values: Values, places: FlatPlaces, number: int) -> Columns:
        """Returns rows from their owners; zeros for a place behind the end."""
        rows = first_columns(values, self._own(places, values), number, "fill")
        return jax.lax.psum_scatter(rows, AXIS, tiled=True)

    def scattered(
        self, scatter: Scatter, values: Values, places: FlatPlaces, columns: Columns
    ) -> Values:
        """Returns the rows of this device, changed by all."""
        everyone = jax.lax.all_gather(columns, AXIS, tiled=True)
        return in_rows(scatter, values, self._own(places, values), everyone)

    def summed(self, tree: Any) -> Any:
        """Returns sums over devices."""
        return jax.lax.psum(tree, AXIS)

    def summed_once(self, gradient: Array, axis: int | None) -> Array:
        """Returns the sum over devices where sessions share the lookup."""
        return self.summed(gradient) if axis is None else gradient

    def every(self, numbers: UInt32[Array, " rows"], stride: int, squares: Columns) -> Some:
        """Returns all rows, zeros where the stride does not divide the number."""
        return jnp.where((numbers % np.uint32(stride) == 0)[:, None], squares, 0.0)

    def own_keys(self, other: nnx.State) -> nnx.State:
        """Returns keys with the number of the device folded in."""

        def own(path: tuple, variable: nnx.Variable) -> nnx.Variable:
            if not isinstance(variable, nnx.RngKey):
                return variable
            return variable.copy(jax.random.fold_in(variable.get_value(), self._device()))

        return nnx.map_state(own, other)

    def own_step(self, step: Count) -> Count:
        """Returns the number of a step on one device whose batches are those that each of these has."""
        return step * np.uint32(self.devices) + self._device()

    def _device(self) -> Array:
        return jax.lax.axis_index(AXIS).astype(jnp.uint32)

    def _own(self, places: FlatPlaces, values: Values) -> FlatPlaces:
        """Rows of this device that all devices ask for; one behind its end for the rows of others."""
        everyone = jax.lax.all_gather(places, AXIS, tiled=True)
        at = everyone - jax.lax.axis_index(AXIS) * len(values)
        return jnp.where((at >= 0) & (at < len(values)), at, len(values))

    def sharding(self, *axes: str | None) -> NamedSharding:
        """Returns how an array lies on the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def rows_per_device(self, rows: int) -> int:
        """Returns how many rows a device has."""
        return ceil_div(rows, self.devices)

    def laid(self, values: Array) -> jax.Array:
        """Returns a whole table over the mesh, rows of zeros behind it."""
        host = np.asarray(values)
        per_device = self.rows_per_device(len(host))

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            start = (index[0].start if index else None) or 0
            own = host[start // per_device :: self.devices]
            return np.pad(own, ((0, per_device - len(own)), (0, 0)))

        shape = (per_device * self.devices, host.shape[1])
        return jax.make_array_from_callback(shape, self.sharding(AXIS), part)

    def whole(self, values: jax.Array, rows: int) -> np.ndarray:
        """Returns the rows of a table that is laid over the mesh, in the order of ids; each process has them all."""
        host, filled = np.empty((rows, values.shape[1]), values.dtype), 0
        for block in self.blocks(values, rows):
            host[filled : filled + len(block)] = block
            filled += len(block)
        return host

    def blocks(self, values: jax.Array, rows: int) -> Iterator[np.ndarray]:
        """Yields the rows of a table that is laid over the mesh, in the order of ids, some at a time.

        Devices exchange these only, so that none has the whole table. Each process takes part.
        """
        per_device = len(values) // self.devices
        number = min(per_device, ceil_div(_EXCHANGED, self.devices))
        for start in range(0, per_device, number):
            first = min(start, per_device - number)
            block = np.asarray(self._some(values, first, number))
            yield block[(start - first) * self.devices : rows - first * self.devices]

    def _some_rows(self, values: jax.Array, first: int, number: int) -> jax.Array:
        """Some rows of each device, in the order of ids."""
        by_device = values.reshape(self.devices, -1, values.shape[1])
        some = jax.lax.dynamic_slice_in_dim(by_device, first, number, 1)
        return some.swapaxes(0, 1).reshape(-1, values.shape[1])


def first_columns(values: Values, rows: FlatPlaces, number: int, mode: str) -> Columns:
    """Returns the first columns of rows; behind the end those of the last row (clip) or zeros (fill)."""
    dimensions = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    return jax.lax.gather(values, rows[:, None], dimensions, (1, number), mode=mode, fill_value=0)


def in_rows(scatter: Scatter, values: Values, rows: FlatPlaces, columns: Columns) -> Values:
    """Returns the table with first columns of rows set, or added to; rows behind the end change nothing."""
    dimensions = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return scatter(values, rows[:, None], columns, dimensions, mode="drop")

"""Where arrays of superbatches lie: on one device, or over those of a mesh."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from clickexp.data.loader import RESIDENT, Superbatch
from clickexp.types import Array
from clickexp.utils.rounding import round_up

FEATURE_TABLE = "feature_table"
"""Key of the table [ids, features] in the arrays of a superbatch, which looks up what a batch needs."""
_REPLICATED = PartitionSpec()


class SingleDevice:
    """One device, which has all arrays as they are."""

    def parts(self, batch_size: int) -> int:
        """Returns how many devices share a batch of so many sessions."""
        return 1

    def even_size(self, batch_size: int) -> int:
        """Returns the smallest size of batches, not below another, that the devices share evenly."""
        return batch_size

    def share(self, batch_size: int) -> tuple[int, int]:
        """Returns the place of this process among those that read a part of each batch, and how many these are."""
        return 0, 1

    def everywhere(self, values: Array) -> Any:
        """Returns an array on each device, those of other processes included, which have the same."""
        return values

    def lay(self, batch: Superbatch, batch_size: int) -> Superbatch:
        """Returns a superbatch on the devices, each with equally many sessions; with all, where that cannot be.

        Args:
            batch: The sessions that this process has read.
            batch_size: Sessions of a batch.
        """
        if jax.default_backend() == "cpu":  # which computes with arrays where they lie
            return batch
        return dataclasses.replace(batch, arrays=jax.device_put(dict(batch.arrays)))

    def by_part(self, function: Callable[..., jax.Array], parts: int) -> Callable[..., jax.Array]:
        """Compiles a function that each device computes its part of a superbatch's sessions with.

        Args:
            function: Takes the number of the part, and arguments that are on each device.
            parts: From `parts`.
        """
        return jax.jit(functools.partial(function, 0))

    def replicated(self, tree: Any) -> Any:
        """Returns arrays in a compiled program as each process reads them whole."""
        return tree


@dataclasses.dataclass(frozen=True)
class DeviceMesh(SingleDevice):
    """Devices that share the sessions of each batch.

    Attributes:
        mesh: The devices along one axis.
    """

    mesh: Mesh

    def parts(self, batch_size: int) -> int:
        """Returns how many devices share a batch: all, or one where they cannot evenly."""
        return 1 if batch_size % self.mesh.size else self.mesh.size

    def even_size(self, batch_size: int) -> int:
        """Returns the smallest size of batches, not below another, that the devices share evenly."""
        return round_up(batch_size, self.mesh.size)

    def share(self, batch_size: int) -> tuple[int, int]:
        """Returns the place of this process among those that read a part of each batch; see `SingleDevice.share`."""
        if self.parts(batch_size) == 1:
            return 0, 1
        processes = sorted({device.process_index for device in self.mesh.devices.flat})
        return processes.index(jax.process_index()), len(processes)

    def everywhere(self, values: Array) -> Any:
        """Returns an array on each device."""
        if jnp.issubdtype(values.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(self.everywhere(jax.random.key_data(values)))
        return self._laid(values, _REPLICATED, values.shape)

    def lay(self, batch: Superbatch, batch_size: int) -> Superbatch:
        """Returns a superbatch on the devices; see `SingleDevice.lay`."""
        is_shared = self.parts(batch_size) > 1

        def laid(name: str, values: Array) -> jax.Array:
            steps, _, *others = values.shape
            place = place_of(name, self._axis) if is_shared else _REPLICATED
            return self._laid(values, place, (steps, batch_size, *others))

        arrays = {name: laid(name, values) for name, values in batch.arrays.items()}
        return dataclasses.replace(batch, arrays=arrays)

    def by_part(self, function: Callable[..., jax.Array], parts: int) -> Callable[..., jax.Array]:
        """Compiles a function that each device computes its part with; see `SingleDevice.by_part`."""
        axis = self._axis if parts > 1 else None

        def on_device(*arguments: jax.Array) -> jax.Array:
            part = 0 if axis is None else jax.lax.axis_index(axis).astype(jnp.uint32)
            return function(part, *arguments)

        mapped = jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=_REPLICATED,
            out_specs=PartitionSpec(None, axis),
            check_vma=False,
        )
        return jax.jit(mapped)

    def replicated(self, tree: Any) -> Any:
        """Returns arrays in a compiled program whole on each device."""
        return jax.lax.with_sharding_constraint(tree, NamedSharding(self.mesh, _REPLICATED))

    @property
    def _axis(self) -> str:
        (axis,) = self.mesh.axis_names
        return axis

    def _laid(self, values: Array, place: PartitionSpec, shape: tuple[int, ...]) -> jax.Array:
        sharding = NamedSharding(self.mesh, place)
        return jax.make_array_from_process_local_data(sharding, np.asarray(values), shape)


SINGLE = SingleDevice()


def devices_with(state: Any) -> SingleDevice:
    """Returns the devices that arrays lie on."""
    for leaf in jax.tree.leaves(state):
        placed = getattr(leaf, "sharding", None)
        if isinstance(placed, NamedSharding) and isinstance(placed.mesh, Mesh):
            return DeviceMesh(placed.mesh)
    return SINGLE


def is_table(name: str) -> bool:
    """Returns whether an array of a superbatch is a table, which all its batches have in common."""
    return name == FEATURE_TABLE or name.startswith(RESIDENT)


def place_of(name: str, axis: str) -> PartitionSpec:
    """Where an array of a superbatch lies on a mesh: its sessions over the axis, or all of it on each device."""
    return _REPLICATED if is_table(name) else PartitionSpec(None, axis)

"""Superbatches of the numbers of sessions that stay on the devices, which compute them."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from clickexp.data.loader import NUMBERS, Superbatch
from clickexp.data.order import ShuffledOrder, mapped
from clickexp.types import Array
from clickexp.utils.rounding import ceil_div


def numbered(
    count: int,
    batch_size: int,
    steps: int,
    seed: int | None = None,
    epoch: int = 0,
    mesh: Mesh | None = None,
    lay: Callable[[Array], Array] = jnp.asarray,
) -> Iterator[Superbatch]:
    """One pass over the numbers of sessions in the order of `superbatches`, where they are computed.

    Of an epoch its `ShuffledOrder` travels alone: keys, or the permutation of few sessions.

    Args:
        count: Number of sessions, which is also the number of what fills up the last superbatch.
        batch_size: Sessions of a batch.
        steps: Batches of a superbatch.
        seed: Of the order; None for that of the files.
        epoch: Of the order.
        mesh: Devices that share each batch, where they can; None for one device.
        lay: Copies an array to each of them.
    """
    bits, tables = _order(count, seed, epoch)
    tables = [lay(table) for table in tables]
    compute = _program(bits, batch_size, steps, mesh)
    size = batch_size * steps
    for start in range(0, count, size):
        numbers = compute(np.uint32(start), np.uint32(count), *tables)
        sessions = min(size, count - start)
        yield Superbatch({NUMBERS: numbers}, ceil_div(sessions, batch_size), sessions)


def _order(count: int, seed: int | None, epoch: int) -> tuple[int | None, list[np.ndarray]]:
    """The bits of an order that is computed, None of another one; and the arrays that an order follows from."""
    if seed is None:
        return None, []
    order = ShuffledOrder(count, seed, epoch)
    if order.permutation is not None:
        return None, [order.permutation]
    return order.bits, [order.keys]


@functools.lru_cache(maxsize=8)
def _program(
    bits: int | None, batch_size: int, steps: int, mesh: Mesh | None
) -> Callable[..., jax.Array]:
    """Computes the numbers of a superbatch from its first place, the number of sessions, and the order's arrays."""
    size, axis = batch_size, None
    if mesh is not None and batch_size % mesh.size == 0:
        (axis,) = mesh.axis_names
        size //= mesh.size

    def numbers(start: jax.Array, count: jax.Array, *tables: jax.Array) -> jax.Array:
        part = 0 if axis is None else jax.lax.axis_index(axis).astype(jnp.uint32)
        batches = jnp.arange(steps, dtype=jnp.uint32)[:, None]
        places = start + batches * np.uint32(batch_size) + part * np.uint32(size)
        places += jnp.arange(size, dtype=jnp.uint32)
        within = places < count
        rows = _rows(bits, jnp.where(within, places, 0), count, *tables)
        return jnp.where(within, rows, count).astype(jnp.int32)

    if mesh is None:
        return jax.jit(numbers)
    replicated = PartitionSpec()
    return jax.jit(
        jax.shard_map(
            numbers,
            mesh=mesh,
            in_specs=replicated,
            out_specs=PartitionSpec(None, axis),
            check_vma=False,
        )
    )


def _rows(bits: int | None, places: jax.Array, count: jax.Array, *tables: jax.Array) -> jax.Array:
    if not tables:
        return places
    (table,) = tables
    if bits is None:
        return table[places].astype(jnp.uint32)

    def again(rows: jax.Array) -> jax.Array:
        return jnp.where(rows < count, rows, mapped(rows, table, bits))

    start = mapped(places, table, bits)
    return jax.lax.while_loop(lambda rows: jnp.any(rows >= count), again, start)

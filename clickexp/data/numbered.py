"""Superbatches of the numbers of sessions that stay on the devices, which compute them."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from clickexp.data.devices import SINGLE, SingleDevice
from clickexp.data.loader import NUMBERS, Superbatch
from clickexp.data.order import ShuffledOrder, mapped
from clickexp.utils.rounding import ceil_div


def numbered(
    count: int,
    batch_size: int,
    steps: int,
    seed: int | None = None,
    epoch: int = 0,
    devices: SingleDevice = SINGLE,
) -> Iterator[Superbatch]:
    """One pass over the numbers of sessions in the order of `superbatches`, where they are computed.

    Of an epoch its `ShuffledOrder` travels alone: keys, or the permutation of few sessions.

    Args:
        count: Number of sessions, which is also the number of what fills up the last superbatch.
        batch_size: Sessions of a batch.
        steps: Batches of a superbatch.
        seed: Of the order; None for that of the files.
        epoch: Of the order.
        devices: Those that share each batch, where they can.
    """
    bits, tables = _order(count, seed, epoch)
    tables = [devices.everywhere(jnp.asarray(table)) for table in tables]
    compute = _program(bits, batch_size, steps, devices)
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
    bits: int | None, batch_size: int, steps: int, devices: SingleDevice
) -> Callable[..., jax.Array]:
    """Computes the numbers of a superbatch from its first place, the number of sessions, and the order's arrays."""
    parts = devices.parts(batch_size)
    size = batch_size // parts

    def numbers(
        part: jax.Array | int, start: jax.Array, count: jax.Array, *tables: jax.Array
    ) -> jax.Array:
        batches = jnp.arange(steps, dtype=jnp.uint32)[:, None]
        places = start + batches * np.uint32(batch_size) + part * np.uint32(size)
        places += jnp.arange(size, dtype=jnp.uint32)
        within = places < count
        rows = _rows(bits, jnp.where(within, places, 0), count, *tables)
        return jnp.where(within, rows, count).astype(jnp.int32)

    return devices.by_part(numbers, parts)


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

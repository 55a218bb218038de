"""Passes over a log that add up derivatives of the loss by shared parameters and by rows of tables."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Integer

from clickexp.data.batches import Arrays, at_step, with_mask
from clickexp.data.feed import Compiled, Data, feed
from clickexp.parameters.hashing import murmur3
from clickexp.parameters.table import Rows
from clickexp.training.sparse import packing
from clickexp.training.sparse import rows as tbl
from clickexp.training.sparse.lookups import Traced
from clickexp.training.sparse.packing import Path
from clickexp.types import Array, Batch, Count

_BATCH, _STEPS = 256, 64
"""Small batches, whose derivatives in each direction stay in the cache of a core."""

_Ids = Integer[Array, " lookups"]
_Vector = Float[jax.Array, " shared"]
State = tuple[nnx.State, nnx.State, nnx.State]
"""Shared parameters, tables, the rest."""
Done = Callable[[int], None]
"""Receives how many sessions of a pass are done."""


class Sums(NamedTuple):
    """Sums over documents.

    Attributes:
        gradient: E[L_t], [shared].
        information: E[L_tt], [shared, shared].
        rows: By table [kept rows, dim, 2 shared + 2]:
            E[L_tz]; E[L_tz e s] = s^2 E[L_tzz] for z = m + e s; E[L_zz]; E[L_z].
    """

    gradient: jax.Array
    information: jax.Array
    rows: dict[Path, jax.Array]


def ravelled(
    state: State,
) -> tuple[_Vector, Callable[[jax.Array], tuple[nnx.State, dict[Path, jax.Array]]]]:
    """Shared parameters and the slopes of priors as a vector, and the way back."""
    params, tables, _ = state
    slopes = {
        path: t.get_value().prior.slopes
        for path, t in nnx.to_flat_state(tables)
        if t.get_value().by_rank
    }
    vector, back = ravel_pytree((params, slopes))
    return jnp.asarray(vector), back


class Passes:
    """Passes over a log, compiled.

    Args:
        graphdef: Structure of the model, split into shared parameters, tables and the rest.
    """

    def __init__(self, graphdef: nnx.GraphDef):
        self._graphdef = graphdef
        self._add = Compiled(functools.partial(self._loop, self._sums), donate_argnums=0)
        self._count = Compiled(functools.partial(self._loop, self._reads), donate_argnums=0)

    def reads(
        self, state: State, data: Data, done: Done
    ) -> tuple[np.ndarray, dict[Path, np.ndarray]]:
        """Returns which shared parameters the log moves, and how many documents each row serves."""
        moved = jnp.zeros(ravelled(state)[0].size, bool)
        counts = {
            path: jnp.zeros(len(t.get_value().values)) for path, t in nnx.to_flat_state(state[1])
        }
        return jax.tree.map(
            np.asarray, self._pass(self._count, (moved, counts), (state,), data, done)
        )

    def sums(
        self,
        state: State,
        used: np.ndarray,
        kept: Mapping[Path, np.ndarray],
        data: Data,
        done: Done,
    ) -> Sums:
        """Returns sums over the log for the shared parameters `used` and the rows that are kept."""
        rows, slots, size = {}, {}, len(used)
        for path, table in nnx.to_flat_state(state[1]):
            number, dim, found = len(table.get_value().values), table.get_value().dim, kept[path]
            slots[path] = (
                jnp.full(number, len(found), jnp.int32).at[found].set(np.arange(len(found)))
            )
            rows[path] = jnp.zeros((len(found), dim, 2 * size + 2))
        start = Sums(jnp.zeros(size), jnp.zeros((size, size)), rows)
        return self._pass(self._add, start, (state, jnp.asarray(used), slots), data, done)

    def _pass(self, program: Compiled, sums: Any, arguments: tuple, data: Data, done: Done) -> Any:
        done(0)
        for number, batch in enumerate(feed(data, _BATCH, _STEPS)):
            sums = program(
                sums, arguments, batch.arrays, np.int32(batch.steps), np.uint32(number * _STEPS)
            )
            jax.block_until_ready(sums)
            done((number * _STEPS + batch.steps) * _BATCH)
        return sums

    def _loop(
        self, add: Callable, sums: Any, arguments: tuple, arrays: Arrays, steps: Count, first: Count
    ) -> Any:
        arrays = with_mask(arrays)

        def body(index: Count, sums: Any) -> Any:
            batch = at_step(arrays, index)
            batch = {**batch, "mask": batch["mask"] & (index < steps)}
            return add(
                sums,
                _Step(self._graphdef, arguments[0], batch),
                first + index.astype(jnp.uint32),
                *arguments,
            )

        return jax.lax.fori_loop(0, len(arrays["mask"]), body, sums)

    @staticmethod
    def _reads(sums: tuple, step: "_Step", seed: Count, state: State) -> tuple:
        moved, counts = sums
        gradient = jax.grad(step.loss)(
            step.theta, step.deviations
        )  # which are above 0: rows that matter do not cancel
        counts = counts | {
            path: counts[path].at[ids].add(1.0, mode="drop") for path, ids in step.ids.items()
        }
        return moved | (gradient != 0), counts

    @staticmethod
    def _sums(
        sums: Sums,
        step: "_Step",
        seed: Count,
        state: State,
        used: Array,
        slots: dict[Path, jax.Array],
    ) -> Sums:
        size = used.size
        # each table has signs of its own, since several may have rows of the same ids
        drawn, probes = (
            {
                path: _signs(ids, seed, 2 * table + salt)
                for table, (path, ids) in enumerate(step.ids.items())
            }
            for salt in (0, 1)
        )
        # one direction per parameter and, for the diagonal of E[L_zz], random signs of all rows at once
        directions = (
            jnp.eye(size + 1, size),
            {
                path: jnp.zeros((size + 1, *sd.shape)).at[size].set(probes[path])
                for path, sd in step.deviations.items()
            },
        )

        def at_point(sign: jax.Array) -> Sums:
            def gradients(
                used_theta: _Vector, moved: dict[Path, jax.Array]
            ) -> tuple[_Vector, dict[Path, jax.Array]]:
                return jax.grad(
                    lambda part, moved: step.loss(step.theta.at[used].set(part), moved),
                    argnums=(0, 1),
                )(used_theta, moved)

            away = {path: sign * drawn[path] * sd for path, sd in step.deviations.items()}
            (of_theta, of_rows), push = jax.linearize(gradients, step.theta[used], away)
            second, cross = jax.vmap(push)(*directions)
            rows = {}
            for path, moved in away.items():
                cross_of = jnp.moveaxis(cross[path], 0, -1)
                own = (cross_of[..., size] * probes[path])[..., None]
                columns = (
                    cross_of[..., :size],
                    cross_of[..., :size] * moved[..., None],
                    own,
                    of_rows[path][..., None],
                )
                rows[path] = jnp.concatenate(columns, axis=-1)
            return Sums(of_theta, second[:size], rows)

        found = jax.tree.map(
            lambda each: jnp.mean(each, axis=0), jax.lax.map(at_point, jnp.array([1.0, -1.0]))
        )
        rows = {}
        for path, each in found.rows.items():
            at = slots[path].at[step.ids[path]].get(mode="fill", fill_value=len(sums.rows[path]))
            rows[path] = sums.rows[path].at[at].add(each, mode="drop")
        return Sums(
            sums.gradient + found.gradient, sums.information + found.information, sums.rows | rows
        )


class _Step:
    """The loss of a batch as a function of the vector of shared parameters and of how far rows are from their means.

    Attributes:
        theta: The vector of the model.
        ids: By table the rows that the batch reads.
        deviations: Standard deviations of their posteriors, [lookups, dim].
    """

    def __init__(self, graphdef: nnx.GraphDef, state: State, batch: Batch):
        params, tables, other = state
        self._tables = {path: table.get_value() for path, table in nnx.to_flat_state(tables)}
        self.theta, self._unravel = ravelled(state)
        opened, arguments = tbl.opened(tables), (params, other, batch)

        def loss(params: nnx.State, other: nnx.State, batch: Batch) -> jax.Array:
            model = nnx.merge(graphdef, params, opened, other, copy=True)
            return jnp.sum(model.compute_loss(batch, aggregate=False))

        self._traced, self._rest = Traced(loss, *arguments), arguments[1:]
        self._taken = tbl.ids_taken(tables, self._traced, batch["mask"], True, *arguments)
        self.ids = {path: packing.flat(ids) for path, ids in self._taken.items()}
        self._packed = {
            path: self._tables[path].values.at[ids].get(mode="clip")
            for path, ids in self.ids.items()
        }
        self.deviations = {
            path: _deviations(self._tables[path], packed) for path, packed in self._packed.items()
        }

    def loss(self, theta: _Vector, moved: dict[Path, jax.Array]) -> jax.Array:
        """Returns the sum over documents.

        Args:
            theta: Shared parameters.
            moved: By table how far the rows of lookups are from their means, [lookups, dim].
        """
        params, slopes = self._unravel(theta)
        taken = {}
        for path, ids in self._taken.items():
            table = self._tables[path]
            if path in slopes:
                table = dataclasses.replace(
                    table, prior=dataclasses.replace(table.prior, slopes=slopes[path])
                )
            values = table.means(self._packed[path]) + moved[path]
            taken[path] = packing.in_shapes(values, ids)
        return self._traced(tbl.in_order(self._traced, taken), params, *self._rest)


def _deviations(table: Rows, packed: jax.Array) -> jax.Array:
    return jnp.asarray(
        jnp.zeros((len(packed), table.dim)) if table.prior is None else table.deviations(packed)
    )


def _signs(ids: _Ids, seed: Count, salt: int) -> Float[jax.Array, "lookups 1"]:
    """Random signs, the same for all lookups of a row in a batch."""
    bits = murmur3(ids.astype(jnp.uint32), seed, seed=salt)
    return jnp.where(bits & np.uint32(1), 1.0, -1.0)[:, None]

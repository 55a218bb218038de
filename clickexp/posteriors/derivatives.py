"""Passes over a log that add up derivatives of the loss by shared parameters and by rows of tables."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Integer

from clickexp.data.batches import Arrays, at_step, with_mask
from clickexp.data.feed import Compiled, Data, feed, session_count
from clickexp.models.base import ClickModel, Model
from clickexp.parameters import (
    EmbeddingParameter,
    GlobalParameter,
    Parameter,
    PositionParameter,
    SumParameter,
)
from clickexp.parameters.hashing import murmur3
from clickexp.parameters.layouts import PointCellParameter
from clickexp.parameters.table import Rows, Table, path_name
from clickexp.training.sparse import packing
from clickexp.training.sparse import rows as tbl
from clickexp.training.sparse.lookups import ids_read, with_rows
from clickexp.training.sparse.packing import Path
from clickexp.training.sparse.placement import Whole
from clickexp.training.spread import OneDevice, by_row, by_session, on_each, training_on
from clickexp.types import Array, Batch, Count
from clickexp.utils.memory import return_freed_memory
from clickexp.utils.progress import Report, no_report

BATCH, _STEPS = 256, 64
"""Of each device. Small batches, whose derivatives in each direction stay in the cache of a core."""

_Ids = Integer[Array, " lookups"]
_Tree = TypeVar("_Tree")
_Vector = Float[jax.Array, " shared"]
State = tuple[nnx.State, nnx.State, nnx.State]
"""Shared parameters, tables, the rest."""


class Sums(NamedTuple):
    """Sums over documents.

    Attributes:
        gradient: E[L_t], [shared].
        information: E[L_tt], [shared, shared].
        rows: By table [kept rows, dim, 2 shared + 2], or of these columns the first `shared`:
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


def shared_size(state: State) -> int:
    """Returns the length of that vector."""
    return jax.eval_shape(lambda state: ravelled(state)[0], state).size


class Passes:
    """Passes over a log, compiled.

    Args:
        graphdef: Structure of the model, split into shared parameters, tables and the rest.
        roles: Result of `linear_towers`.
        devices: Those that share the rows of tables, and the sessions.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        roles: tuple[str, ...] = (),
        devices: OneDevice | None = None,
    ):
        self.graphdef, self._roles = graphdef, roles
        self._devices = devices or training_on(1)
        kinds = [by_row, by_session, on_each, on_each]
        add = functools.partial(self._loop, _of_documents if roles else self._sums)
        self._add = Compiled(self._devices.adding(add, kinds), donate_argnums=0)
        count = functools.partial(self._loop, self._reads)
        self._count = Compiled(self._devices.mapped(count, [by_row, *kinds], 0), donate_argnums=0)

    def reads(
        self, state: State, data: Data, report: Report = no_report
    ) -> tuple[np.ndarray, dict[Path, np.ndarray]]:
        """Returns which shared parameters the log moves, and how many documents each row serves."""
        nothing = {
            path: Rows(jnp.zeros((len(table.get_value().values), 1)), 1)
            for path, table in nnx.to_flat_state(state[1])
        }
        start = jnp.zeros(shared_size(state), jnp.int32), nothing
        read = self._pass(self._count, self._devices.lay(start), (state,), data, report)
        moved, counts = self._devices.whole(read, jax.eval_shape(lambda: start))
        return np.asarray(moved), {
            path: np.asarray(counted.values)[:, 0] for path, counted in counts.items()
        }

    def sums(
        self,
        state: State,
        used: np.ndarray,
        kept: Mapping[Path, np.ndarray],
        data: Data,
        report: Report = no_report,
        cross_only: bool = False,
    ) -> Sums:
        """Returns sums over the log for the shared parameters `used` and the rows that are kept.

        Args:
            state: The model.
            used: Shared parameters, as places in the vector of all.
            kept: Rows of each table.
            data: The log.
            report: Receives how many sessions are done, and how many there are, 0 if that is not known.
            cross_only: Whether rows have the columns E[L_tz] alone, which take less than half the memory of all.
        """
        rows, slots = {}, {}
        size = len(used)
        width = size if cross_only else 2 * size + 2
        for path, table in nnx.to_flat_state(state[1]):
            all_rows, kept_rows = table.get_value(), kept[path]
            slots[path] = Rows(_slots(len(all_rows.values), kept_rows), 1)
            # of NumPy, whose zeros take no memory while the first step is compiled
            rows[path] = np.zeros((len(kept_rows), all_rows.dim, width), np.float32)
        start = Sums(jnp.zeros(size), jnp.zeros((size, size)), rows)
        start = self._devices.own_sums(start)
        sums = self._pass(self._add, start, (state, jnp.asarray(used), slots), data, report)
        return self._devices.total(sums)

    def _pass(
        self, program: Compiled, sums: Any, arguments: tuple, data: Data, report: Report
    ) -> Any:
        arguments, steps, total = self._devices.lay(arguments), 0, session_count(data)
        report(0, total)
        size = BATCH * self._devices.placement.devices
        for batch in feed(data, size, _STEPS, devices=self._devices.feeding):
            rest = arguments, batch.arrays, np.int32(batch.steps), np.uint32(steps)
            if not steps:
                program.program(sums, *rest)
                return_freed_memory()  # of the compiler, up to 90 MiB, before there are sums
            sums = program(sums, *rest)
            jax.block_until_ready(sums)
            steps += batch.steps
            report(min(steps * size, total), total)
        return sums

    def _loop(
        self, add: Callable, sums: Any, arguments: tuple, arrays: Arrays, steps: Count, first: Count
    ) -> Any:
        arrays, placement = with_mask(arrays), self._devices.placement

        def body(index: Count, sums: Any) -> Any:
            batch = at_step(arrays, index)
            batch = {**batch, "mask": batch["mask"] & (index < steps)}
            return add(
                sums,
                _Step(self.graphdef, self._roles, placement, arguments[0], batch),
                placement.own_step(first + index.astype(jnp.uint32)),
                *arguments,
            )

        return jax.lax.fori_loop(0, len(arrays["mask"]), body, sums)

    @staticmethod
    def _reads(sums: tuple, step: "_Step", seed: Count, state: State) -> tuple:
        moved, counts = sums
        # deviations are above 0: rows that matter do not cancel
        gradient = jax.grad(step.loss)(step.theta, step.deviations)
        counts = counts | {path: step.counted(counts[path], path) for path in step.ids}
        return moved + step.placement.summed((gradient != 0).astype(jnp.int32)), counts

    @staticmethod
    def _sums(
        sums: Sums,
        step: "_Step",
        seed: Count,
        state: State,
        used: Array,
        slots: dict[Path, Rows],
    ) -> Sums:
        size = used.size
        drawn, probes = _draws(step, seed)
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

        mean = _mean_over_signs(at_point)
        rows = {}
        for path, columns in mean.rows.items():
            at = step.slots(slots[path], path, len(sums.rows[path]))
            before = sums.rows[path]
            rows[path] = before.at[at].add(columns[..., : before.shape[-1]], mode="drop")
        return Sums(
            sums.gradient + mean.gradient, sums.information + mean.information, sums.rows | rows
        )


def _mean_over_signs(at_point: Callable[[jax.Array], _Tree]) -> _Tree:
    """Returns the mean over two points on either side of m."""
    at_both = jax.lax.map(at_point, jnp.array([1.0, -1.0]))
    return jax.tree.map(lambda values: jnp.mean(values, axis=0), at_both)


def _slots(rows: int, kept: np.ndarray) -> jax.Array:
    """Returns the place of each row among those that are kept, [rows, 1]; their number for the others."""
    slots = np.full((rows, 1), len(kept), np.int32)
    slots[kept, 0] = np.arange(len(kept))
    return jnp.asarray(slots)


def _of_documents(
    sums: Sums, step: "_Step", seed: Count, state: State, used: Array, slots: dict[Path, Rows]
) -> Sums:
    """The same as `Passes._sums`, where the loss of a document depends on its own logits alone.

    With logits u that are linear in shared numbers t and rows z, L_tt = u_t' L_uu u_t and L_zt = u_z' L_uu u_t. L_uu
    has a few numbers per document, one for each pair of towers, so that the loss is differentiated once per tower. Of
    the numbers of positions, and of positions of layouts, a document has one each in a tower: they cost what documents
    do, however many there are.
    """
    size, total = used.size, step.theta.size
    place = jnp.full(total, size, jnp.int32).at[used].set(jnp.arange(size, dtype=jnp.int32))
    drawn, probes = _draws(step, seed)
    others, places = step.others, step.places
    still = {path: jnp.zeros((len(others), *sd.shape)) for path, sd in step.deviations.items()}

    def at_point(sign: jax.Array) -> _OfDocuments:
        away = {path: sign * drawn[path] * sd for path, sd in step.deviations.items()}

        def gradients(shifts: _Fields) -> _Fields:
            return jax.grad(lambda shifts: step.loss(step.theta, away, shifts))(shifts)

        gradient, push = jax.linearize(gradients, step.shifts)
        curvature = {
            role: push({**step.shifts, role: jnp.ones_like(shift)})
            for role, shift in step.shifts.items()
        }

        def bent(slopes: _Fields) -> _Fields:
            return {
                role: _sum(curvature[other][role] * slope for other, slope in slopes.items())
                for role in slopes
            }

        _, along = jax.linearize(step.logits, step.theta, away)
        _, pull = jax.vjp(lambda moved: step.logits(step.theta, moved), away)
        slopes = jax.vmap(along)(jnp.eye(total)[others], still)
        moved = bent(slopes)
        signs = {path: jnp.broadcast_to(probes[path], sd.shape) for path, sd in away.items()}
        (own,) = pull(bent(along(jnp.zeros(total), signs)))
        (of_rows,) = pull(gradient)
        (cross,) = jax.vmap(pull)(moved)
        by_place = {key: pull(curvature[_role(key)])[0] for key in places}
        rows = {}
        for path, sd in away.items():
            crossed = jnp.concatenate([cross[path], *(by[path][None] for by in by_place.values())])
            rows[path] = crossed
            if sums.rows[path].shape[-1] > size:
                own_of_rows = own[path] * signs[path]
                rows[path] = jnp.concatenate(
                    [crossed, crossed * sd, own_of_rows[None], of_rows[path][None]]
                )
        products = {role: (_flat(slope), _flat(moved[role])) for role, slope in slopes.items()}
        return _OfDocuments(
            _sum(products[role][0] @ gradient[role].ravel() for role in products),
            _sum(one @ other.T for one, other in products.values()),
            {key: gradient[_role(key)] for key in places},
            {key: moved[_role(key)] for key in places},
            {
                key: {other: curvature[_role(key)][_role(other)] for other in places}
                for key in places
            },
            rows,
        )

    mean = _mean_over_signs(at_point)
    of_others = place[others]
    # sums over the batch first, since those over the log are large numbers
    gradient = jnp.zeros(size).at[of_others].add(mean.gradient, mode="drop")
    information = jnp.zeros((size, size))
    information = information.at[of_others[:, None], of_others].add(mean.second, mode="drop")
    columns = {key: place[number] for key, number in places.items()}
    for key, column in columns.items():
        gradient = gradient.at[column].add(mean.of_places[key], mode="drop")
        mixed = _flat(mean.mixed[key])
        flat = column.ravel()
        information = information.at[of_others[:, None], flat].add(mixed, mode="drop")
        information = information.at[flat[:, None], of_others].add(mixed.T, mode="drop")
        for other, column_of_other in columns.items():
            information = information.at[column, column_of_other].add(
                mean.pairs[key][other], mode="drop"
            )
    rows = {}
    for path, values in mean.rows.items():
        at = step.slots(slots[path], path, len(sums.rows[path]))
        own_places = step.places_of_lookups(path)
        cells = [jnp.broadcast_to(of_others, (len(at), len(others)))]
        cells += [place[number][:, None] for number in own_places.values()]
        first = jnp.concatenate(cells, axis=1)
        second = jnp.where(first < size, first + size, 2 * size + 2)
        last = jnp.broadcast_to(jnp.array([2 * size, 2 * size + 1]), (len(at), 2))
        first = jnp.where(first < size, first, 2 * size + 2)
        cell = jnp.concatenate([first, second, last], axis=1)[:, : len(values)]
        rows[path] = (
            sums.rows[path].at[at[:, None], :, cell].add(jnp.moveaxis(values, 0, 1), mode="drop")
        )
    return Sums(sums.gradient + gradient, sums.information + information, sums.rows | rows)


_Fields = dict[str, jax.Array]
"""A number per document, `[batch, rank]`, of each tower."""


class _OfDocuments(NamedTuple):
    """Derivatives of the loss of a batch, where most shared numbers are numbers of positions.

    Attributes:
        gradient: By the other numbers.
        second: Twice by these.
        of_places: By the number of a position that a document has, of each weight by positions.
        mixed: By that and the other numbers, [others, batch, rank].
        pairs: By two such numbers.
        rows: By rows, [numbers, lookups, dim] of each table.
    """

    gradient: jax.Array
    second: jax.Array
    of_places: _Fields
    mixed: _Fields
    pairs: dict[str, _Fields]
    rows: dict[Path, jax.Array]


_SHIFT = "shift_of_"
"""How keys of a batch begin that shift the logits of a tower."""


def _shifted(tower: Parameter, role: str, logits: dict[str, jax.Array]) -> Parameter:
    """Returns a tower whose logits the batch shifts; those without the shift are noted."""

    class Shifted(Parameter):
        def logit(self, batch: Batch) -> jax.Array:
            logits[role] = jnp.broadcast_to(tower.logit(batch), batch["mask"].shape)
            return logits[role] + batch[f"{_SHIFT}{role}"]

    return Shifted()


def _role(key: str) -> str:
    """Returns the role of the tower that has a weight."""
    return key.partition("/")[0]


def _numbers_of_positions(
    state: State, roles: tuple[str, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The places of numbers that are of no position, and those of each weight that has a number per position."""
    theta, back = ravelled(state)
    with jax.ensure_compile_time_eval():
        params, _ = back(jnp.arange(theta.size, dtype=jnp.float32))
    numbers = {
        path_name(path): np.asarray(leaf.get_value()).ravel().astype(int)
        for path, leaf in nnx.to_flat_state(params)
        if path[0] in roles and path[-1] == "weight" and leaf.get_value().size > 1
    }
    is_other = np.ones(theta.size, bool)
    for places in numbers.values():
        is_other[places] = False
    return np.flatnonzero(is_other), numbers


def linear_towers(model: Model) -> tuple[str, ...]:
    """Returns the roles of a model whose sums `_of_documents` adds up; none of other models.

    These have no shared numbers outside towers, and towers of one number, of one per position or position of a layout,
    of sums of these, or of one per document.
    """
    if not (isinstance(model, ClickModel) and model.independent_given_clicks):
        return ()
    towers = {role: part for role, part in vars(model).items() if isinstance(part, Parameter)}
    inside = all(path[0] in towers for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param)))
    return tuple(sorted(towers)) if inside and all(map(_is_linear, towers.values())) else ()


def _is_linear(tower: Parameter) -> bool:
    terms = [*tower.terms.values()] if isinstance(tower, SumParameter) else [tower]
    if all(
        type(term) in (PositionParameter, GlobalParameter, PointCellParameter) for term in terms
    ):
        return True
    if type(tower) is not EmbeddingParameter or not isinstance(tower.table, Table):
        return False
    return tower.config.use_feature == "query_doc_ids" and tower.table.get_value().dim == 1


def _flat(array: jax.Array) -> jax.Array:
    """An array whose axes but the first are one, of which there may be none."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _sum(arrays: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, arrays)


class _Step:
    """The loss of a batch as a function of the vector of shared parameters and of how far rows are from their means.

    Attributes:
        theta: The vector of the model.
        ids: By table the rows that the batch reads.
        placement: Where rows lie.
        deviations: Standard deviations of their posteriors, [lookups, dim].
        shifts: Zeros for the logits of each tower that may be shifted.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        roles: tuple[str, ...],
        placement: Whole,
        state: State,
        batch: Batch,
    ):
        params, tables, other = state
        self.placement = placement
        self._tables = {path: table.get_value() for path, table in nnx.to_flat_state(tables)}
        self.theta, self._unravel = ravelled(state)
        self.shifts = {role: jnp.zeros(batch["mask"].shape) for role in roles}
        self.others, self._of_positions = _numbers_of_positions(state, roles)

        def loss(
            tables: nnx.State, params: nnx.State, batch: Batch
        ) -> tuple[jax.Array, dict[str, jax.Array]]:
            model, logits = nnx.merge(graphdef, params, tables, other, copy=True), {}
            for role in roles:
                setattr(model, role, _shifted(getattr(model, role), role, logits))
            return jnp.sum(model.compute_loss(batch, aggregate=False)), logits

        def of_tables(tables: nnx.State) -> tuple[jax.Array, dict[str, jax.Array]]:
            return loss(tables, params, self._shifting(batch, self.shifts))

        self._loss, self._whole, self._batch = loss, tables, batch
        read = ids_read(tables, of_tables)
        self._taken = tbl.shown_ids(tables, read, batch["mask"], True)
        self.ids = {path: packing.flat(ids) for path, ids in self._taken.items()}
        places = tbl.shown_ids(tables, read, batch["mask"], True, placement)
        self._at = {path: packing.flat(of_reads) for path, of_reads in places.items()}
        self._packed = {}
        for path, at in self._at.items():
            values = self._tables[path].values
            self._packed[path] = placement.take(values, at, values.shape[1])
        self.deviations = {
            path: _deviations(self._tables[path], packed) for path, packed in self._packed.items()
        }

    def loss(
        self,
        theta: _Vector,
        moved: dict[Path, jax.Array],
        shifts: Mapping[str, jax.Array] | None = None,
    ) -> jax.Array:
        """Returns the sum over documents.

        Args:
            theta: Shared parameters.
            moved: By table how far the rows of lookups are from their means, [lookups, dim].
            shifts: What is added to the logits of towers.
        """
        return self._computed(theta, moved, shifts or self.shifts)[0]

    def counted(self, counts: Rows, path: Path) -> Rows:
        """Returns counts of a table's rows, with the lookups of the batch."""
        one = jnp.ones((len(self._at[path]), 1))
        values = self.placement.scattered(jax.lax.scatter_add, counts.values, self._at[path], one)
        return dataclasses.replace(counts, values=values)

    def slots(self, slots: Rows, path: Path, behind: int) -> jax.Array:
        """Returns the slots of the rows that the batch reads; `behind` of what it does not show."""
        at = self._at[path]
        is_row = at < self.placement.end(slots.values)
        return jnp.where(is_row, self.placement.take(slots.values, at, 1)[:, 0], behind)

    @functools.cached_property
    def places(self) -> dict[str, jax.Array]:
        """Which number of the vector each document has of each weight by positions, `[batch, rank]`."""
        still = {path: jnp.zeros_like(sd) for path, sd in self.deviations.items()}
        numbers_by_weight = {}
        for key, places in self._of_positions.items():
            numbers = jnp.zeros(self.theta.size).at[places].set(places.astype(np.float32))
            numbers_by_weight[key] = self.logits(numbers, still)[_role(key)].astype(jnp.int32)
        return numbers_by_weight

    def places_of_lookups(self, path: Path) -> dict[str, jax.Array]:
        """The same of the documents of the lookups of a table, [lookups]."""
        still = {table: jnp.zeros_like(sd) for table, sd in self.deviations.items()}
        _, pull = jax.vjp(lambda moved: self.logits(self.theta, moved), still)
        numbers_by_weight = {}
        for other, numbers in self.places.items():
            (pulled,) = pull({**self.shifts, str(path[0]): numbers.astype(jnp.float32)})
            numbers_by_weight[other] = pulled[path][:, 0].astype(jnp.int32)
        return numbers_by_weight

    def logits(self, theta: _Vector, moved: dict[Path, jax.Array]) -> dict[str, jax.Array]:
        """Returns the logits of the towers that may be shifted, `[batch, rank]`, for arguments as `loss` has them."""
        return self._computed(theta, moved, self.shifts)[1]

    @staticmethod
    def _shifting(batch: Batch, shifts: Mapping[str, jax.Array]) -> Batch:
        return {**batch, **{f"{_SHIFT}{role}": shift for role, shift in shifts.items()}}

    def _computed(
        self, theta: _Vector, moved: dict[Path, jax.Array], shifts: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
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
        return self._loss(
            with_rows(self._whole, taken), params, self._shifting(self._batch, shifts)
        )


def _deviations(table: Rows, packed: jax.Array) -> jax.Array:
    return jnp.asarray(
        jnp.zeros((len(packed), table.dim)) if table.prior is None else table.deviations(packed)
    )


def _draws(step: "_Step", seed: Count) -> tuple[dict[Path, jax.Array], dict[Path, jax.Array]]:
    """Distances from means in standard deviations, and random signs; each table has its own, for ids may be equal."""
    drawn, probes = (
        {
            path: _signs(ids, seed, 2 * table + salt)
            for table, (path, ids) in enumerate(step.ids.items())
        }
        for salt in (0, 1)
    )
    return drawn, probes


def _signs(ids: _Ids, seed: Count, salt: int) -> Float[jax.Array, "lookups 1"]:
    """Random signs, the same for all lookups of a row in a batch."""
    bits = murmur3(ids.astype(jnp.uint32), seed, seed=salt)
    return jnp.where(bits & np.uint32(1), 1.0, -1.0)[:, None]

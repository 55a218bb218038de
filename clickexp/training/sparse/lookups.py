"""Row lookups of a traced function, found and answered wherever they stand, loops over ranks included.

A step needs the ids of all lookups before it can gather their rows, and the rows before it can differentiate the
loss. So the loss is traced once with every lookup left open. Running the trace then either collects the ids or
answers the lookups with rows. Inside `jax.lax.scan` both travel with the iterations, stacked along a leading axis.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.nnx.tracers import current_jax_trace
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive
from jax.interpreters import batching
from jaxtyping import Float, Integer

from clickexp.errors import ConfigError
from clickexp.types import Array

_INLINED = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2")
"""Calls whose body may hold lookups. Other control flow would hide how many there are, or its own derivative."""

_lookup = Primitive("table_lookup")
_lookup.def_abstract_eval(lambda ids, *, table, dim: ShapedArray((*ids.shape, dim), jnp.float32))


def _batched(
    arguments: Sequence[Array], axes: Sequence[int], **parameters: Any
) -> tuple[Array, int]:
    return _lookup.bind(jnp.moveaxis(arguments[0], axes[0], 0), **parameters), 0


batching.primitive_batchers[_lookup] = _batched


class OpenRows:
    """Stands in for the rows of a table while a model is traced.

    Args:
        table: Names the table among those of the model.
        dim: Numbers per row.
    """

    def __init__(self, table: tuple, dim: int):
        self.table, self.dim = table, dim
        self._taken: dict[int, tuple[Array, object, Array]] = {}

    def take(
        self, ids: Integer[Array, "*ids"], log_ranks: Array | None = None
    ) -> Float[Array, "*ids {self.dim}"]:
        """Rows that are filled in when the trace runs.

        The same array of ids, such as that of a batch, gets the same rows, and so the same draw of their posteriors,
        unless one of the lookups is in a loop or a compiled function: their arrays do not exist outside.
        """
        trace = current_jax_trace()
        taken = self._taken.get(id(ids))
        if taken is None or taken[1] != trace:
            rows = _lookup.bind(jnp.asarray(ids), table=self.table, dim=self.dim)
            taken = self._taken[id(ids)] = (
                ids,
                trace,
                rows,
            )  # the ids too, so that no other array takes their identity
        return taken[2]

    def variance(self, ids: Integer[Array, "*ids"]) -> None:
        """None: a step draws rows from their posteriors."""


class Lookup(NamedTuple):
    """A lookup in the order of the trace: its table, and the number of loops around it."""

    table: tuple
    loops: int


class Traced:
    """A function whose lookups are open, traced for the shapes of its arguments.

    Args:
        function: A function of arrays and pytrees of them; models inside hold `OpenRows` in their tables.
        arguments: Its arguments, of which only shapes and types count.

    Raises:
        ConfigError: A lookup is where it cannot be answered, such as in `jax.lax.cond`.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        self.structure = jax.tree.structure(shape)
        self.lookups = tuple(_lookups(self.closed.jaxpr))

    def ids(self, *arguments: Any) -> list[Array]:
        """The ids of each lookup; inside a loop, stacked `[iterations, *ids]`.

        Ids that depend on rows see rows of zeros. The compiler drops what the ids do not depend on.
        """
        return _run(self.closed.jaxpr, self.closed.consts, jax.tree.leaves(arguments), None)[1]

    def __call__(self, rows: Sequence[Array], *arguments: Any) -> Any:
        """The function's value with rows `[*ids, dim]` for each of the `ids`."""
        outputs, _ = _run(
            self.closed.jaxpr, self.closed.consts, jax.tree.leaves(arguments), iter(rows)
        )
        return self.structure.unflatten(outputs)


def _lookups(jaxpr: Jaxpr, loops: int = 0) -> Iterator[Lookup]:
    for equation in jaxpr.eqns:
        if equation.primitive is _lookup:
            yield Lookup(equation.params["table"], loops)
        yield from _lookups_inside(equation, loops)


def _lookups_inside(equation: JaxprEqn, loops: int = 0) -> Iterator[Lookup]:
    """Those in the programs that an equation runs, such as the body of a loop."""
    for inner in filter(_is_program, jax.tree.leaves(equation.params, is_leaf=_is_program)):
        yield from _lookups(_program(inner)[0], loops + (equation.primitive.name == "scan"))


def _is_program(value: object) -> bool:
    return isinstance(value, Jaxpr | ClosedJaxpr)


def _program(body: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, Sequence[Array]]:
    return (body.jaxpr, body.consts) if isinstance(body, ClosedJaxpr) else (body, ())


def _run(
    jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any], rows: Iterator[Array] | None
) -> tuple[list[Any], list[Array]]:
    """Outputs, and the ids of the lookups; rows answer these in turn, or zeros do."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
    found: list[Array] = []

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        inputs = [value(atom) for atom in equation.invars]
        outputs, ids = _evaluated(equation, inputs, rows)
        known |= zip(equation.outvars, outputs, strict=True)
        found += ids
    return [value(atom) for atom in jaxpr.outvars], found


def _evaluated(
    equation: JaxprEqn, inputs: list[Any], rows: Iterator[Array] | None
) -> tuple[Sequence[Any], list[Array]]:
    primitive, parameters = equation.primitive, equation.params
    if primitive is _lookup:
        (ids,) = inputs
        return [jnp.zeros((*ids.shape, parameters["dim"])) if rows is None else next(rows)], [ids]
    inside = len(list(_lookups_inside(equation)))
    if not inside:
        outputs = primitive.bind(*inputs, **primitive.get_bind_params(parameters))
        return outputs if primitive.multiple_results else [outputs], []
    if primitive.name == "scan":
        return _scan(
            parameters, inputs, None if rows is None else [next(rows) for _ in range(inside)]
        )
    if primitive.name in _INLINED:
        body = parameters["jaxpr"] if "jaxpr" in parameters else parameters["call_jaxpr"]
        return _run(*_program(body), inputs, rows)
    raise ConfigError(
        f"a table is read inside {primitive.name}; read it before, or in a jax.lax.scan or a loop of fixed length"
    )


def _scan(
    parameters: dict[str, Any], inputs: list[Any], rows: list[Array] | None
) -> tuple[Sequence[Any], list[Array]]:
    """The same scan with the ids of its lookups as further outputs, and rows as further inputs."""
    body, (fixed, carried) = parameters["jaxpr"], _sizes(parameters)

    def step(carry: list[Any], each: tuple[list[Any], list[Array] | None]) -> tuple[list[Any], Any]:
        inner, rows = each
        outputs, ids = _run(
            *_program(body), [*inputs[:fixed], *carry, *inner], None if rows is None else iter(rows)
        )
        return outputs[:carried], (outputs[carried:], ids)

    start, each = inputs[fixed : fixed + carried], inputs[fixed + carried :]
    options = {name: parameters[name] for name in ("length", "reverse", "unroll")}
    carry, (outputs, ids) = jax.lax.scan(step, start, (each, rows), **options)
    return [*carry, *outputs], ids


def _sizes(scan: dict[str, Any]) -> tuple[int, int]:
    """Constants and carried values of a scan, which JAX 0.11 and later keep as trees."""
    if "ft_in" in scan:
        constants, carry, _ = scan["ft_in"].unpack()
        return len(constants), len(carry)
    return scan["num_consts"], scan["num_carry"]

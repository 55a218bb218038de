"""Checks of batches where they come in: shapes always; values unless a program is being compiled, which knows none."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from clickexp.errors import DataError
from clickexp.types import SHOWN_FIRST, Array, Batch

LARGEST_ID = 2**31 - 1
LEAST = {"query_doc_ids": 0, "positions": 1}
SIZES = {"query_doc_ids": "query_doc_pairs", "positions": "positions"}
"""Argument of a model that makes room for larger values of a key."""

EVENTS = ("mask", "clicks")
KINDS = {"mask": "biuf", "clicks": "biuf", "query_doc_ids": "iu", "positions": "iu", "labels": "biuf"}
"""Kinds of numpy type that a key [batch, rank] holds."""


class Limit(NamedTuple):
    """The largest value of a key of the batch that the tower of a role has a parameter for."""

    key: str
    largest: int
    role: str


def check_batch(batch: Batch, required: Iterable[str]) -> None:
    """DataError where keys are missing, or are no arrays of the shape [batch, rank] of the first one required."""
    for key in required:
        if key not in batch:
            raise DataError(
                f"the batch has no {key}. Add it: {key} [batch, rank]; it has {', '.join(batch)}."
            )
    shape = None
    for key in (*required, *KINDS):
        if key not in batch:
            continue
        values = batch[key]
        if not hasattr(values, "shape"):
            raise DataError(f"{key} is a {type(values).__name__}. Give a NumPy or JAX array [batch, rank].")
        if len(values.shape) != 2:
            raise DataError(
                f"{key} has shape {tuple(values.shape)}. Give [batch, rank], one list in each row."
            )
        shape = shape or values.shape
        broadcast = key == "positions" and values.shape == (1, shape[1])
        if values.shape != shape and not broadcast:
            raise DataError(f"{key} has shape {tuple(values.shape)}, and {next(iter(required))} {tuple(shape)}. "
                            "Give one number per document.")  # fmt: skip
        kind = np.dtype(values.dtype).kind
        if kind not in KINDS.get(key, kind) and kind != "V":
            fit = "integers" if KINDS[key] == "iu" else "0 and 1" if key in EVENTS else "numbers"
            raise DataError(f"{key} has type {values.dtype}. Give {fit}.")


def check_values(batch: Batch, limits: Iterable[Limit], needed: Callable[[str], bool]) -> None:
    """DataError for clicks or masks other than 0 and 1, and for ids and positions that have no parameter.

    Documents that were not shown may hold anything.

    Args:
        batch: concrete, with a mask; keys that it lacks are not looked for.
        limits: those of the model.
        needed: whether what is computed depends on a key; asked only where its values are out of bounds.
    """
    check_events(batch["mask"], None, "mask")
    shown = np.asarray(batch["mask"]).astype(bool)
    if "lengths" in batch and (shown != from_lengths(np.asarray(batch["lengths"]), shown.shape[1])).any():
        raise DataError("lengths and mask differ. Leave lengths out where a mask has holes.")
    if "clicks" in batch:
        check_events(batch["clicks"], shown)
    bounds = [Limit("query_doc_ids", LARGEST_ID, ""), Limit("positions", LARGEST_ID, ""), *limits]
    for key, largest, role in bounds:
        value = _outside(batch.get(key), shown, LEAST.get(key, 0), largest)
        if value is not None and needed(key):
            raise _out_of_bounds(key, value, largest, role)


def check_events(values: Array, shown: Array | None, name: str = "clicks") -> None:
    """DataError unless events are 0 or 1 wherever a document was shown; without effect on a compiled program's."""
    if not is_concrete({"values": values, "shown": shown}) or np.dtype(values.dtype).kind == "b":
        return
    values = np.asarray(values)
    bad = ~((values == 0) | (values == 1))
    if shown is not None:
        bad &= np.asarray(shown).astype(bool)
    if bad.any():
        raise DataError(f"{name} holds {values[bad][0]}. Give 0 or 1, true or false.")


def is_concrete(batch: Mapping[str, Any]) -> bool:
    """Whether all values are known, as they are outside of compiled programs."""
    return not any(isinstance(values, jax.core.Tracer) for values in batch.values())


def from_lengths(lengths: np.ndarray, ranks: int) -> np.ndarray:
    """The mask [batch, rank] of lists whose first documents are shown."""
    return np.arange(ranks) < lengths[:, None]


def needs(compute: Callable[[Batch], Any], batch: Batch) -> Callable[[str], bool]:
    """Tells of a key whether something cannot be computed from a batch without it."""

    def needed(key: str) -> bool:
        try:
            compute({name: values for name, values in batch.items() if name != key})
        except (KeyError, DataError):
            return True
        return False

    return needed


def missing(error: KeyError, batch: Mapping[str, Any]) -> DataError | KeyError:
    """The error to raise where a tower did not find what it reads in the batch."""
    key = error.args[0] if error.args else None
    if not isinstance(key, str) or key in batch:
        return error
    there = ", ".join(name for name in batch if name != SHOWN_FIRST)
    return DataError(f"the batch has no {key}, which the model reads. It has {there}.")


def _outside(values: Array | None, shown: np.ndarray, least: int, largest: int) -> int | None:
    """A value beyond the bounds where a document was shown, the largest if it is too large."""
    if values is None:
        return None
    values = np.asarray(values)
    if not values.size or (least <= values.min() and values.max() <= largest):
        return None
    values = np.broadcast_to(values, shown.shape)[shown]
    bad = values[(values < least) | (values > largest)]
    return int(bad.max()) if bad.size else None


def _out_of_bounds(key: str, value: int, largest: int, role: str) -> DataError:
    if value < LEAST.get(key, 0):
        return DataError(f"{key} holds {value}. Give at least {LEAST.get(key, 0)}.")
    if not role:
        return DataError(f"{key} holds {value}. At most {largest} fits into 32 bits.")
    remedy = f"the model with {SIZES[key]}" if key in SIZES else f"{role} with parameters"
    return DataError(f"{key} holds {value}, and {role} has parameters up to {largest}. "
                     f"Build {remedy}={value} or more.")  # fmt: skip

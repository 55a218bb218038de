"""Checks of batches at the boundary: shapes always, values unless a program is being compiled, which has none."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer

from clickexp.errors import DataError
from clickexp.types import SHOWN_FIRST, Array, Batch
from clickexp.utils.lengths import from_lengths

_LARGEST_ID = 2**31 - 1


class _Key(NamedTuple):
    """Values [batch, rank] that models read.

    Attributes:
        kinds: Kinds of NumPy type.
        fitting: Values that fit, for messages.
        least: The smallest one of a document that is shown.
        size: Argument of a model that makes room for larger ones.
    """

    kinds: str = "biufcmMOSU"
    fitting: str = ""
    least: int = 0
    size: str | None = None


_KEYS = {
    "mask": _Key("biuf", "0 and 1"),
    "clicks": _Key("biuf", "0 and 1"),
    "query_doc_ids": _Key("iu", "integers", 0, "query_doc_pairs"),
    "positions": _Key("iu", "integers", 1, "positions"),
    "labels": _Key("biuf", "numbers"),
}
_OTHER = _Key()


class Limit(NamedTuple):
    """The largest value of a key that a tower has a parameter for.

    Attributes:
        key: A key of the batch.
        largest: The largest value.
        role: The role of the tower, for messages.
    """

    key: str
    largest: int
    role: str


def check_batch(batch: Batch, required: Iterable[str]) -> None:
    """Checks keys, shapes and types of a batch.

    Args:
        batch: Arrays [batch, rank] by key.
        required: Keys that must be there; the first one sets the shape.

    Raises:
        DataError: A key is missing, or its values have another shape or type.
    """
    for key in required:
        if key not in batch:
            raise DataError(
                f"the batch has no {key}. Add it: {key} [batch, rank]; it has {', '.join(batch)}."
            )
    shape = None
    for key in (*required, *_KEYS):
        if key not in batch:
            continue
        values = batch[key]
        _check_array(key, values)
        shape = shape or values.shape
        broadcast = key == "positions" and values.shape == (1, shape[1])
        if values.shape != shape and not broadcast:
            raise DataError(f"{key} has shape {tuple(values.shape)}, and {next(iter(required))} {tuple(shape)}. "
                            "Give one number per document.")  # fmt: skip


def _check_array(key: str, values: Any) -> None:
    """DataError for what is no array [batch, rank] of the kind of a key."""
    if not hasattr(values, "shape"):
        raise DataError(
            f"{key} is a {type(values).__name__}. Give a NumPy or JAX array [batch, rank]."
        )
    if len(values.shape) != 2:
        raise DataError(
            f"{key} has shape {tuple(values.shape)}. Give [batch, rank], one list in each row."
        )
    kind, allowed = np.dtype(values.dtype).kind, _KEYS.get(key, _OTHER)
    if kind not in allowed.kinds and kind != "V":
        raise DataError(f"{key} has type {values.dtype}. Give {allowed.fitting}.")


def check_values(batch: Batch, limits: Iterable[Limit], needed: Callable[[str], bool]) -> None:
    """Checks the values of displayed documents; others may hold anything.

    Args:
        batch: Concrete arrays, among them a mask. Keys that it lacks are not checked.
        limits: Those of the model.
        needed: Whether the result depends on a key. Called only where its values are out of bounds.

    Raises:
        DataError: Clicks or masks are neither 0 nor 1, or an id or position has no parameter, or an integer does not
            fit 32 bits.
    """
    check_events(batch["mask"], None, "mask")
    shown = np.asarray(batch["mask"]).astype(bool)
    if (
        "lengths" in batch
        and (shown != from_lengths(np.asarray(batch["lengths"]), shown.shape[1])).any()
    ):
        raise DataError("lengths and mask differ. Leave lengths out where a mask has holes.")
    if "clicks" in batch:
        check_events(batch["clicks"], shown)
    bounds = [Limit("query_doc_ids", _LARGEST_ID, ""), Limit("positions", _LARGEST_ID, ""), *limits]
    for key, largest, role in bounds:
        value = _outside(batch.get(key), shown, _KEYS.get(key, _OTHER).least, largest)
        if value is not None and needed(key):
            raise _out_of_bounds(key, value, largest, role)
    for key in batch.keys() - {"query_doc_ids", "positions", "lengths"}:
        _check_width(key, batch[key], shown, needed)


def check_events(values: Array, shown: Array | None, name: str = "clicks") -> None:
    """Checks that events are 0 or 1. Values of a program that is being compiled are not checked.

    Args:
        values: Events [batch, rank].
        shown: Which documents were displayed, as a mask [batch, rank]; None for all.
        name: Of the events, for the message.

    Raises:
        DataError: A value is neither 0 nor 1.
    """
    if not is_concrete({"values": values, "shown": shown}) or np.dtype(values.dtype).kind == "b":
        return
    values = np.asarray(values)
    bad = ~((values == 0) | (values == 1))
    if shown is not None:
        bad &= np.asarray(shown).astype(bool)
    if bad.any():
        raise DataError(f"{name} holds {values[bad][0]}. Give 0 or 1, true or false.")


def is_concrete(batch: Mapping[str, Any]) -> bool:
    """Whether all values are known, as they are outside compiled programs."""
    return not any(isinstance(values, Tracer) for values in batch.values())


def needs(compute: Callable[[Batch], Any], batch: Batch) -> Callable[[str], bool]:
    """A function that tests whether a result depends on a key of the batch.

    Args:
        compute: What computes the result.
        batch: What it is computed from.
    """

    def needed(key: str) -> bool:
        try:
            compute({name: values for name, values in batch.items() if name != key})
        except (KeyError, DataError):
            return True
        return False

    return needed


_OF_PAIRS = ("document_ids", "query_numbers")
"""Keys that follow from pairs which a reader has numbered."""


def missing_key(error: KeyError, batch: Mapping[str, Any]) -> DataError | KeyError:
    """The error to raise where a model did not find a key that it reads.

    Args:
        error: As the batch raised it.
        batch: The batch.

    Returns:
        A DataError with the name of the key; `error` itself if it is about another mapping.
    """
    key = error.args[0] if error.args else None
    if not isinstance(key, str) or key in batch:
        return error
    there = ", ".join(name for name in batch if name != SHOWN_FIRST)
    remedy = " Logs read with dataset.pair_key=query_document have it." if key in _OF_PAIRS else ""
    return DataError(f"the batch has no {key}, which the model reads. It has {there}.{remedy}")


def _check_width(key: str, values: Array, shown: np.ndarray, needed: Callable[[str], bool]) -> None:
    """Refuses integers that JAX would wrap around to others of 32 bits."""
    if np.dtype(values.dtype) not in (np.int64, np.uint64):
        return
    value = _outside(
        values[:, None] if values.ndim == 1 else values, shown, -_LARGEST_ID - 1, _LARGEST_ID
    )
    if value is not None and needed(key):
        raise DataError(
            f"{key} holds {value}. Give integers that fit 32 bits, such as numbers from 0."
        )


def _outside(values: Array | None, shown: np.ndarray, least: int, largest: int) -> int | None:
    """A value beyond the bounds where a document was shown, the largest if it is too large."""
    if values is None:
        return None
    values = np.asarray(values)
    if not values.size or (least <= values.min() and values.max() <= largest):
        return None
    if values.ndim <= shown.ndim:  # else there are several for each list
        values = np.broadcast_to(values, shown.shape)[shown]
    bad = values[(values < least) | (values > largest)]
    return int(bad.max()) if bad.size else None


def _out_of_bounds(key: str, value: int, largest: int, role: str) -> DataError:
    _, _, least, size = _KEYS.get(key, _OTHER)
    if value < least:
        return DataError(f"{key} holds {value}. Give at least {least}.")
    if not role:
        return DataError(f"{key} holds {value}. At most {largest} fits into 32 bits.")
    remedy = f"{role} with parameters" if size is None else f"the model with {size}"
    return DataError(f"{key} holds {value}, and {role} has parameters up to {largest}. "
                     f"Build {remedy}={value} or more.")  # fmt: skip

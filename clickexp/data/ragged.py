"""List columns of Arrow turned into padded arrays."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clickexp.data.schema import COLUMNS, DataError, Place

KINDS = {"i": pa.types.is_integer, "f": pa.types.is_floating, "b": pa.types.is_boolean}


def padded(columns: Mapping[str, pa.Array], ranks: int, place: Place) -> tuple[dict[str, np.ndarray], int]:
    """[rows, ranks] arrays of the lists and their lengths, and how many lists were cut at `ranks`.

    Values keep their types. DataError for nulls and for lists of one row that differ in length.
    """
    if ranks < 1:
        raise DataError(f"positions is {ranks}: no rank is left. Set it to at least 1.")
    lists = {name: _flat(name, lists, place) for name, lists in columns.items() if COLUMNS[name].per_document}
    lengths = lists["query_doc_ids"][1]
    for name, (_, others) in lists.items():
        _check_lengths(name, others, lengths, place)
    shown = np.arange(ranks) < lengths[:, None]
    cut = lengths > ranks
    starts = np.cumsum(lengths) - lengths
    kept = np.arange(lengths.sum()) - np.repeat(starts, lengths) < ranks if cut.any() else slice(None)
    arrays = {name: _scatter(values[kept], shown) for name, (values, _) in lists.items()}
    arrays["lengths"] = np.minimum(lengths, ranks)
    arrays |= {name: _numbers(name, columns[name], place) for name in columns.keys() - lists.keys()}
    return arrays, int(cut.sum())


def check_type(name: str, kind: pa.DataType, place: Place) -> None:
    """DataError unless values of this type, or lists of them, are what the packed column is read from."""
    values = kind
    if COLUMNS[name].per_document:
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise place.error(f"{name} has type {kind}", f"it must hold one list a row; {COLUMNS[name].rule}")
        values = kind.value_type
    if not any(is_kind(values) for letter, is_kind in KINDS.items() if letter in COLUMNS[name].kinds):
        raise place.error(f"{name} has type {kind}", COLUMNS[name].rule)


def longest(lists: pa.Array) -> int:
    """The length of the longest list, 0 if there is none."""
    return pc.max(pc.list_value_length(lists)).as_py() or 0


def _flat(name: str, lists: pa.Array, place: Place) -> tuple[np.ndarray, np.ndarray]:
    """The values of all lists in a row, and the length of each list."""
    _check_nulls(name, lists, np.arange(len(lists)), place)
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return _numbers(name, pc.list_flatten(lists), place, np.repeat(np.arange(len(lists)), lengths)), lengths


def _numbers(name: str, values: pa.Array, place: Place, rows: np.ndarray | None = None) -> np.ndarray:
    _check_nulls(name, values, np.arange(len(values)) if rows is None else rows, place)
    return values.to_numpy(zero_copy_only=False)


def _check_nulls(name: str, values: pa.Array, rows: np.ndarray, place: Place) -> None:
    if values.null_count:
        first = values.is_null().to_numpy(zero_copy_only=False).argmax()
        raise place.error(f"{name} holds null", f"fill it or drop the row; {COLUMNS[name].rule}", rows[first])


def _check_lengths(name: str, found: np.ndarray, lengths: np.ndarray, place: Place) -> None:
    if (found != lengths).any():
        row = int((found != lengths).argmax())
        what = f"{name} has length {found[row]}, query_doc_ids has {lengths[row]}"
        raise place.error(what, "the lists of a row have one length: mend or drop the row", row)


def _scatter(values: np.ndarray, shown: np.ndarray) -> np.ndarray:
    array = np.zeros(shown.shape, values.dtype)
    array[shown] = values
    return array

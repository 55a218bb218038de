"""List columns of Arrow turned into padded arrays."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clickexp.data.ingest.columns import Field
from clickexp.data.schema import COLUMNS, Column, SourceLocation
from clickexp.errors import DataError


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


KINDS = {"i": pa.types.is_integer, "f": pa.types.is_floating, "b": pa.types.is_boolean, "U": is_text}


def padded(
    columns: Mapping[str, pa.Array],
    ranks: int,
    location: SourceLocation,
    schema: Mapping[str, Column] = COLUMNS,
) -> tuple[dict[str, np.ndarray], int]:
    """[rows, ranks] arrays of the lists and their lengths, and how many lists were cut at `ranks`.

    Values keep their types. DataError for nulls and for lists of one row that differ in length.
    """
    if ranks < 1:
        raise DataError(f"positions is {ranks}: no rank is left. Set it to at least 1.")
    lists = {
        name: _flat(schema[name], lists, location)
        for name, lists in columns.items()
        if schema[name].per_document
    }
    lengths = lists["query_doc_ids"][1]
    for name, (_, others) in lists.items():
        check_lengths(name, others, "query_doc_ids", lengths, location)
    cut = lengths > ranks
    starts = np.cumsum(lengths) - lengths
    kept = np.arange(lengths.sum()) - np.repeat(starts, lengths) < ranks if cut.any() else slice(None)
    left = np.minimum(lengths, ranks)
    arrays = {
        name: scatter(values[kept], left, ranks, schema[name].padding) for name, (values, _) in lists.items()
    }
    arrays["lengths"] = left
    arrays |= {
        name: _numbers(schema[name], columns[name], location) for name in columns.keys() - lists.keys()
    }
    return arrays, int(cut.sum())


def check_type(name: str, column: Column | Field, kind: pa.DataType, location: SourceLocation) -> None:
    """DataError unless values of this type, or lists of them, are what the column is read from."""
    if column.per_document and not is_list(kind):
        raise location.error(f"{name} has type {kind}", f"it must hold one list a row; {column.rule}")
    values = kind.value_type if column.per_document else kind
    if not any(is_kind(values) for letter, is_kind in KINDS.items() if letter in column.kinds):
        raise location.error(f"{name} has type {kind}", column.rule)


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values without dictionaries and list views."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(plain_type(kind.value_type))
    if is_list(kind) and plain_type(kind.value_type) != kind.value_type:
        return pa.large_list(plain_type(kind.value_type))
    return kind


def plain(values: pa.Array) -> pa.Array:
    """The same values without dictionaries and list views, of plain_type."""
    kind = plain_type(values.type)
    if kind == values.type:
        return values
    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    # Arrow's own cast of a list view goes wrong where it is a slice.
    offsets = np.append(0, np.cumsum(list_lengths(values)))
    return pa.LargeListArray.from_arrays(offsets, plain(values.flatten()), mask=values.is_null())


def numbered(lengths: np.ndarray) -> pa.Array:
    """Lists of these lengths that hold 0, 1, ... one after another."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(offsets, pa.array(np.arange(offsets[-1])))


def list_lengths(lists: pa.Array) -> np.ndarray:
    """The length of each list, 0 for nulls."""
    return (
        pc.fill_null(pc.call_function("list_value_length", [lists]), 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )


def flat(
    name: str,
    lists: pa.Array,
    rule: str,
    location: SourceLocation,
    rows: np.ndarray | None = None,
    fill: float | None = None,
) -> tuple[pa.Array, np.ndarray]:
    """The values of all lists one after another, and the length of each list; DataError for nulls.

    `rows` holds the row of each list, by default its own number.
    """
    rows = np.arange(len(lists)) if rows is None else rows
    check_nulls(name, lists, rule, location, rows)
    lengths = pc.call_function("list_value_length", [lists]).to_numpy(zero_copy_only=False).astype(np.int64)
    values = filled(pc.call_function("list_flatten", [lists]), fill)
    check_nulls(name, values, rule, location, np.repeat(rows, lengths))
    return values, lengths


def filled(values: pa.Array, fill: float | None) -> pa.Array:
    """The values with `fill`, unless it is None, where there are none; of a type that also holds it."""
    if fill is None:
        return values
    fill = int(fill) if fill == int(fill) else fill
    own = np.dtype(values.type.to_pandas_dtype())
    both = np.result_type(own, np.min_scalar_type(fill)) if own.kind in "biuf" else own
    if both != own:
        values = values.cast(pa.from_numpy_dtype(both), safe=False)
    return pc.fill_null(values, fill) if values.null_count else values


def check_nulls(
    name: str, values: pa.Array, rule: str, location: SourceLocation, rows: np.ndarray | None = None
) -> None:
    """DataError for the first null; `rows` holds the row of each value, by default the value's own number."""
    if values.null_count:
        first = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
        row = first if rows is None else int(rows[first])
        raise location.error(f"{name} holds null", f"fill it or drop the row; {rule}", row)


def check_lengths(
    name: str, found: np.ndarray, other: str, lengths: np.ndarray, location: SourceLocation
) -> None:
    """DataError for the first row whose list differs in length from that of the other column."""
    if (found != lengths).any():
        row = int((found != lengths).argmax())
        what = f"{name} has length {found[row]}, {other} has {lengths[row]}"
        raise location.error(what, "the lists of a row have one length: mend or drop the row", row)


def scatter(values: np.ndarray, lengths: np.ndarray, ranks: int, padding: float = 0) -> np.ndarray:
    """[rows, ranks] of the values of lists that have these lengths, at most `ranks`, and beyond them padding."""
    array = np.full((len(lengths), ranks), padding, values.dtype)
    array[np.arange(ranks) < lengths[:, None]] = values
    return array


def _flat(column: Column, lists: pa.Array, location: SourceLocation) -> tuple[np.ndarray, np.ndarray]:
    values, lengths = flat(column.name, lists, column.rule, location, fill=column.fill)
    return values.to_numpy(zero_copy_only=False), lengths


def _numbers(column: Column, values: pa.Array, location: SourceLocation) -> np.ndarray:
    values = filled(values, column.fill)
    check_nulls(column.name, values, column.rule, location)
    return values.to_numpy(zero_copy_only=False)

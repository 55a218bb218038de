"""Feature vectors in tables: a list of numbers per document, of one length."""

import numpy as np
import polars as pl

from clickexp.data.ingest.columns import Field
from clickexp.data.schema import Column, SourceLocation

_RULE = "features are numbers that fit float32, as many for every document"
VECTORS = Field("v", _RULE)
"""A column with a list of numbers per document."""


def as_array(
    values: pl.Series,
    column: Column,
    location: SourceLocation,
    lengths: np.ndarray | None = None,
) -> np.ndarray:
    """Returns vectors as an array `[documents, numbers]` of the column's type.

    Args:
        values: A list of numbers per document.
        column: Its declaration.
        location: Where the rows are.
        lengths: Of the lists of documents of the rows; None where each row is a document.

    Raises:
        DataError: A vector has another length, or a number is missing or not finite. Where the location counts faults,
            such a vector holds zeros.
    """
    width, rule = column.numbers, f"fill it or drop the row; {column.rule}"
    values = values.arr.to_list() if isinstance(values.dtype, pl.Array) else values
    if column.nan:
        absent = pl.Series([[None] * width], dtype=values.dtype)
        values = values.zip_with(values.is_not_null(), absent.new_from_index(0, len(values)))
    location.reject(values.is_null(), values, column.name, rule, lengths, f"missing_{column.name}")
    sizes = values.list.len().fill_null(width).to_numpy()
    wrong = sizes != width
    _refuse_sizes(wrong, sizes, column, location, lengths)
    # what is refused goes on as zeros
    zeros = pl.Series([[0] * width], dtype=values.dtype).new_from_index(0, len(values))
    values = values.zip_with(values.is_not_null() & ~pl.Series(wrong), zeros)
    numbers = values.explode()
    of_lists = np.ones(len(values), np.int64) if lengths is None else lengths
    of_numbers = of_lists * width
    if not column.nan:
        gone = numbers.is_null()
        location.reject(gone, numbers, column.name, rule, of_numbers, f"missing_{column.name}")
        numbers = numbers.fill_null(0)
    with np.errstate(over="ignore"):
        packed = numbers.to_numpy().astype(column.dtype)
    allowed = np.isfinite(packed) | (np.isnan(numbers.to_numpy()) & column.nan)
    location.reject(~allowed, numbers, column.name, column.rule, of_numbers)
    packed[~allowed] = 0
    return packed.reshape(len(sizes), width)


def _refuse_sizes(
    wrong: np.ndarray,
    sizes: np.ndarray,
    column: Column,
    location: SourceLocation,
    lengths: np.ndarray | None,
) -> None:
    """Refuses the rows of vectors of another length than the first one of the log."""
    vectors = np.flatnonzero(wrong)
    rows = vectors
    if lengths is not None:
        rows = np.searchsorted(np.cumsum(lengths), vectors, side="right")

    def describe(number: int) -> str:
        size = sizes[vectors[number]]
        return f"{column.name} has a vector of {size} numbers, the first one has {column.numbers}"

    location.refuse(rows, describe, column.rule, f"vectors_of_another_length_in_{column.name}")

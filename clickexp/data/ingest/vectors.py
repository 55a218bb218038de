"""Feature vectors in tables: a list of numbers per document, of one length."""

import numpy as np
import polars as pl

from clickexp.data.ingest.columns import Field
from clickexp.data.schema import Column, SourceLocation

_RULE = "features are finite numbers, as many for every document"
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
        DataError: A vector has another length, or a number is missing or not finite.
    """
    location = SourceLocation(
        location.source, location.first, location.unit
    )  # the first is an error
    width = column.numbers
    values = values.arr.to_list() if isinstance(values.dtype, pl.Array) else values
    if column.nan:
        absent = pl.Series([[None] * width], dtype=values.dtype)
        values = values.zip_with(values.is_not_null(), absent.new_from_index(0, len(values)))
    rule = f"fill it or drop the row; {column.rule}"
    location.reject(values.is_null(), values, column.name, rule, lengths)
    sizes = values.list.len().to_numpy()
    lengths = np.ones(len(values), np.int64) if lengths is None else lengths
    wrong = (sizes != width) | (sizes == 0)
    if wrong.any():
        first = int(wrong.argmax())
        row = int(np.searchsorted(np.cumsum(lengths), first, side="right"))
        what = f"{column.name} has a vector of {sizes[first]} numbers, the first one has {width}"
        raise location.error(what, column.rule, row)
    numbers = values.explode()
    if not column.nan:
        location.reject(numbers.is_null(), numbers, column.name, rule, lengths * width)
    with np.errstate(over="ignore"):
        packed = numbers.to_numpy().astype(column.dtype)
    allowed = np.isfinite(packed) | (np.isnan(numbers.to_numpy()) & column.nan)
    location.reject(~allowed, numbers, column.name, column.rule, lengths * width)
    return packed.reshape(len(sizes), width)

"""Lists of documents, one per session: taken out of columns, cut and padded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan

import numpy as np
import polars as pl

from clickexp.data.ingest.columns import Field
from clickexp.data.ingest.times import TEXT, as_numbers
from clickexp.data.ingest.vectors import as_array
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import COLUMNS, Column, SourceLocation

Values = np.ndarray | pl.Series

_TRUTH = {"true": "1", "false": "0"}
_MISSING = ("", "null", "none", "na", "nan")
"""Words of a text for a value that it lacks, where a column has such values."""


@dataclass(frozen=True)
class Lists:
    """Documents, one list after another.

    Attributes:
        lengths: `[lists]`, documents of each.
        documents: Columns of documents, `[documents]` each.
        sessions: Columns of sessions, `[lists]` each.
    """

    lengths: np.ndarray
    documents: Mapping[str, Values]
    sessions: Mapping[str, Values]

    @classmethod
    def of(
        cls,
        columns: Mapping[str, pl.Series],
        location: SourceLocation,
        fields: Mapping[str, Column | Field] = COLUMNS,
    ) -> "Lists":
        """Takes columns with a row per list, which are lists themselves where they are per document.

        Args:
            columns: Columns by name; one at least is per document.
            location: Where the rows are.
            fields: What each column is read as.

        Raises:
            DataError: Values do not parse or are missing, or the lists of a row differ in length.
        """
        documents, sessions, lengths, first = {}, {}, None, ""
        for name, values in columns.items():
            if not fields[name].per_document:
                sessions[name] = cells(name, values, fields[name], location)
                continue
            if lengths is not None and isnan(fields[name].missing or 0):
                values = _with_missing(values, lengths)
            location.reject(
                values.is_null(), values, name, f"fill it or drop the row; {fields[name].rule}"
            )
            sizes = values.list.len().to_numpy().astype(np.int64)
            values = (
                values if sizes.all() else values.filter(sizes > 0)
            ).explode()  # an empty list gives a null
            documents[name] = cells(name, values, fields[name], location, sizes)
            lengths, first = (sizes, name) if lengths is None else (lengths, first)
            if (sizes != lengths).any():
                row = int((sizes != lengths).argmax())
                what = f"{name} has length {sizes[row]}, {first} has {lengths[row]}"
                raise location.error(
                    what, "the lists of a row have one length: mend or drop the row", row
                )
        return cls(np.asarray(lengths), documents, sessions)

    @cached_property
    def rows(self) -> np.ndarray:
        """`[documents]`, the list of each document."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def where(self, kept: np.ndarray) -> "Lists":
        """The documents with True in `kept`; lists may become empty."""
        lengths = np.bincount(self.rows[kept], minlength=len(self.lengths))
        return Lists(lengths, _filtered(self.documents, kept), self.sessions)

    def head(self, ranks: int, log: LogWriter | None = None) -> "Lists":
        """The first documents of each list, as many as there are ranks; the log counts what is cut."""
        if log is not None:
            log.note("cut_lists", (self.lengths > ranks).sum())
        if self.lengths.max(initial=0) <= ranks:
            return self
        starts = np.cumsum(self.lengths) - self.lengths
        return self.where(np.arange(len(self.rows)) - starts[self.rows] < ranks)

    def down_to(self, position: int | None, log: LogWriter) -> "Lists":
        """The documents down to a position, and the lists with any; the log counts what is cut and dropped."""
        if position is None:
            return self
        left = self.where(np.asarray(self.documents["positions"]) <= position)
        log.note("cut_lists", (left.lengths < self.lengths).sum())
        log.note(
            "dropped_lists_without_documents", ((left.lengths == 0) & (self.lengths > 0)).sum()
        )
        return left.without_empty(self.lengths > 0)

    def without_empty(self, cut: np.ndarray) -> "Lists":
        """The lists but for those with True in `cut` that have no documents."""
        some = (self.lengths > 0) | ~cut
        return Lists(self.lengths[some], self.documents, _filtered(self.sessions, some))

    def check_order(self, location: SourceLocation) -> None:
        """Raises a DataError for a list whose documents do not stand in the order of their positions.

        Models read a list from its first document on, and take those before a document to be above it.
        """
        if "positions" not in self.documents:
            return
        positions = np.asarray(self.documents["positions"])
        above = (np.diff(positions) < 0) & (np.diff(self.rows) == 0)
        if above.any():
            at = int(above.argmax())
            what = f"positions has {positions[at + 1]} after {positions[at]}"
            remedy = "sort the documents of each list by position, and what each of them has"
            raise location.error(what, remedy, int(self.rows[at]))

    def with_documents(self, **columns: Values) -> "Lists":
        """The same lists with these columns of documents."""
        return replace(self, documents={**self.documents, **columns})

    def padded(self, ranks: int, schema: Mapping[str, Column] = COLUMNS) -> dict[str, np.ndarray]:
        """The columns as arrays, `[lists, ranks]` where they are per document, and the lengths."""
        shown = np.arange(ranks) < self.lengths[:, None]
        arrays = {name: np.asarray(values) for name, values in self.sessions.items()}
        for name, values in self.documents.items():
            listed = np.asarray(values)
            arrays[name] = np.full(
                (*shown.shape, *listed.shape[1:]), schema[name].padding, listed.dtype
            )
            arrays[name][shown] = listed
        return arrays | {"lengths": self.lengths}


def cells(
    name: str,
    values: pl.Series,
    field: Column | Field,
    location: SourceLocation,
    lengths: np.ndarray | None = None,
) -> pl.Series:
    """The values of a column as it is read: text parsed, and what is missing filled.

    Args:
        name: Of the column.
        values: One per row, or those of the lists of the rows, one after another.
        field: What they are read as.
        location: Where the rows are.
        lengths: Of the lists of the rows.

    Raises:
        DataError: A value does not parse, or is missing and has no fill.
    """
    if isinstance(field, Column) and field.shape:
        return pl.Series(name, as_array(values, field, location, lengths))
    if isinstance(field, Column) and field.is_category and field.nan:
        return values.cast(pl.String if values.dtype in TEXT else pl.Int64)
    read, fill, is_text = values, field.missing, values.dtype in TEXT
    fill = int(fill) if fill is not None and fill == fill // 1 else fill
    if "t" in field.kinds:
        values = as_numbers(values)
    elif "U" in field.kinds:
        values = values.cast(
            pl.String if is_text else pl.UInt64 if values.dtype == pl.UInt64 else pl.Int64
        )
        values = values.set(values == "", None) if is_text else values
    elif is_text:
        words = values.cast(pl.String).str.to_lowercase()
        if fill is not None:
            words = words.fill_null("").replace(dict.fromkeys(_MISSING, str(fill)))
        if "f" in field.kinds:
            words = words.replace(_TRUTH)
        values = words.cast(pl.Int64, strict=False)
        if "f" in field.kinds and values.is_null().any():
            values = words.cast(pl.Float64, strict=False)
    elif fill is not None:
        values = values.fill_null(fill)
    remedy = field.rule if is_text else f"fill it or drop the row; {field.rule}"
    location.reject(values.is_null(), read, name, remedy, lengths)
    return values


def _with_missing(values: pl.Series, lengths: np.ndarray) -> pl.Series:
    """Lists of nulls in place of rows that are null or empty, as long as the other lists of their rows."""
    lacking = values.is_null() | (values.list.len() == 0)
    if not lacking.any():
        return values
    missing = pl.select(pl.lit(None).repeat_by(pl.Series(lengths))).to_series()
    return values.zip_with(~lacking, missing.cast(values.dtype))


def _filtered(columns: Mapping[str, Values], kept: np.ndarray) -> dict[str, Values]:
    return {
        name: values.filter(kept) if isinstance(values, pl.Series) else values[kept]
        for name, values in columns.items()
    }

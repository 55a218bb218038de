"""Lists of documents, one per session: taken out of columns, cut and padded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from clickexp.data.ingest.columns import Fields, Readable
from clickexp.data.ingest.times import TEXT, date_formats
from clickexp.data.ingest.vectors import as_array
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import COLUMNS, Column, Remedy, SourceLocation
from clickexp.utils.lengths import from_lengths

Values = np.ndarray | pl.Series

_TRUTH = {"true": "1", "false": "0"}
_WORDS_OF_TRUTH = {
    **dict.fromkeys(
        (
            "true",
            "t",
            "yes",
            "y",
            "wahr",
            "ja",
            "j",
            "vrai",
            "oui",
            "vero",
            "verdadero",
            "si",
            "sí",
        ),
        "1",
    ),
    **dict.fromkeys(("false", "f", "no", "n", "falsch", "nein", "faux", "non", "falso"), "0"),
}
"""Words for true and false, as databases and spreadsheets write them, where a column holds nothing else."""
_ANY = {pl.String(): "", pl.Boolean(): False}
"""A value of a type that is not numeric, in place of one that is refused."""
_EXACT = 1 << 53
"""Up to here floating-point numbers distinguish integers."""
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
        fields: Fields = COLUMNS,
    ) -> "Lists":
        """Takes columns with a row per list, which are lists themselves where they are per document.

        Args:
            columns: Columns by name; one at least is per document.
            location: Where the rows are.
            fields: What each column is read as.

        Raises:
            DataError: Values do not parse or are missing, or the lists of a row differ in length. Where the location
                counts faults, such a row has any values, or an empty list.
        """
        lists = {name: values for name, values in columns.items() if fields[name].per_document}
        first = next(iter(lists))
        for name in lists:
            if name != first and fields[name].missing is not None:
                lists[name] = _with_missing(lists[name], lists[first].list.len().fill_null(0))
        lengths = list_lengths(lists, location, fields)
        documents, sessions = {}, {}
        for name, values in columns.items():
            if name in lists:  # exploded, an empty list would give a null
                shown = lists[name] if lengths.all() else lists[name].filter(lengths > 0)
                documents[name] = cells(name, shown.explode(), fields[name], location, lengths)
            else:
                sessions[name] = cells(name, values, fields[name], location)
        return cls(lengths, documents, sessions)

    @cached_property
    def rows(self) -> np.ndarray:
        """`[documents]`, the list of each document."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def places(self) -> np.ndarray:
        """`[documents]`, the place of each document in its list, from 1."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(1, len(self.rows) + 1) - starts[self.rows]

    def completed(self) -> "Lists":
        """The same lists with what lists to predict may lack: no clicks, and the places of documents for their ids."""
        documents = dict(self.documents)
        if "query_doc_ids" not in documents:
            documents["query_doc_ids"] = self.places
        if "clicks" not in documents:
            documents["clicks"] = np.zeros(len(self.rows), bool)
        return replace(self, documents=documents)

    def where(self, kept: np.ndarray) -> "Lists":
        """The documents with True in `kept`; lists may become empty."""
        lengths = np.bincount(self.rows[kept], minlength=len(self.lengths))
        return Lists(lengths, _filtered(self.documents, kept), self.sessions)

    def without(self, dropped: np.ndarray) -> "Lists":
        """The lists without True in `dropped`."""
        kept = self.where(~dropped[self.rows])
        return Lists(kept.lengths[~dropped], kept.documents, _filtered(self.sessions, ~dropped))

    def sound(
        self, location: SourceLocation, log: LogWriter, note: str = "dropped_rows"
    ) -> tuple["Lists", np.ndarray]:
        """The lists that their location does not refuse, and their rows; the log counts the others."""
        rows = np.arange(len(self.lengths))
        refused = location.refused(len(rows))
        if refused is None:
            return self, rows
        log.note(note, int(refused.sum()))
        return self.without(refused), rows[~refused]

    def head(self, ranks: int | None, log: LogWriter | None = None) -> "Lists":
        """The first documents of each list, as many as there are ranks; the log counts what is cut."""
        if ranks is None:
            return self
        if log is not None:
            log.note("cut_lists", (self.lengths > ranks).sum())
        if self.lengths.max(initial=0) <= ranks:
            return self
        return self.where(self.places <= ranks)

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
        above = np.flatnonzero((np.diff(positions) < 0) & (np.diff(self.rows) == 0))
        rows, first = np.unique(self.rows[above], return_index=True)
        above = above[first]
        called = location.called("positions")
        remedy = "sort the documents of each list by position, and what each of them has"
        location.refuse(
            rows,
            lambda i: f"{called} has {positions[above[i] + 1]} after {positions[above[i]]}",
            remedy,
            "descending_positions",
        )

    def with_documents(self, **columns: Values) -> "Lists":
        """The same lists with these columns of documents."""
        return replace(self, documents={**self.documents, **columns})

    def padded(self, ranks: int, schema: Mapping[str, Column] = COLUMNS) -> dict[str, np.ndarray]:
        """The columns as arrays, `[lists, ranks]` where they are per document, and the lengths."""
        shown = from_lengths(self.lengths, ranks)
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
    field: Readable,
    location: SourceLocation,
    lengths: np.ndarray | None = None,
) -> Values:
    """The values of a column as it is read: text parsed, what is missing filled, in the type that it is packed in.

    Args:
        name: Of the column.
        values: One per row, or those of the lists of the rows, one after another.
        field: What they are read as.
        location: Where the rows are.
        lengths: Of the lists of the rows.

    Raises:
        DataError: A value does not parse, or is missing and has no fill. Where the location counts faults, the value
            is any valid one.
    """
    if isinstance(field, Column) and field.shape:
        return as_array(values, field, location, lengths)
    parsed = _parsed(values, field)
    if parsed.null_count() and not (field.is_category and field.missing is not None):
        _reject_nulls(name, values, parsed, field, location, lengths)
        if not parsed.dtype.is_nested():  # vectors are checked as such
            parsed = parsed.fill_null(_ANY.get(parsed.dtype, field.least or 0))
    if isinstance(field, Column) and not field.is_category:
        return field.convert(parsed.to_numpy(), location, lengths)
    return parsed


def _reject_nulls(
    name: str,
    values: pl.Series,
    parsed: pl.Series,
    field: Readable,
    location: SourceLocation,
    lengths: np.ndarray | None,
) -> None:
    """Rejects values that are missing, those that do not parse, and those that are too large to be exact."""
    is_empty = values.is_null()
    if values.dtype in TEXT:
        is_empty |= values == ""
    remedy = f"fill it or drop the row; {field.rule}"
    if field.is_category:
        remedy += f"; fill: 0 in columns.{name} makes empty cells a category, (none)"
    gone = parsed.is_null() & is_empty
    location.reject(gone, values, name, remedy, lengths, f"missing_{name}")
    wrong = parsed.is_null() & ~is_empty
    large = _is_large(values, field) & wrong
    location.reject(wrong & ~large, values, name, _rule_for(values.filter(wrong), field), lengths)
    remedy = f"{field.rule}; one so large is exact as text"
    location.reject(large, values, name, remedy, lengths)


def _rule_for(wrong: pl.Series, field: Readable) -> str:
    """What a column holds, and for dates in another order the option that reads them."""
    is_text = wrong.dtype in TEXT and field.form is not None
    forms = date_formats(wrong.cast(pl.String)) if is_text else []
    if len(forms) != 1:
        return field.rule
    form = forms[0]
    first = "days" if form.startswith("%d") else "months"
    return Remedy(f"{first} come first: time_format='{form}'", {"time_format": f"'{form}'"})


def _parsed(values: pl.Series, field: Readable) -> pl.Series:
    """The values as numbers or text, null where they are missing without a fill, or are neither."""
    if values.dtype == pl.Null:
        values = values.cast(pl.Int64)
    if field.form is not None:
        return field.form.numbers(values)
    if "U" in field.kinds:
        return _names(values, field) if values.dtype in TEXT else _whole_ids(values)
    if values.dtype in TEXT:
        values = _numbers(values, field)
    elif field.missing is not None:
        values = values.fill_null(_fill(field.missing))
    return _of_type(values, field)


def _of_type(numbers: pl.Series, field: Readable) -> pl.Series:
    """Numbers as integers where the field has no fractions."""
    if _has_fractions(numbers) and "f" not in field.kinds and "i" in field.kinds:
        return _whole(numbers)
    return numbers


def _whole_ids(values: pl.Series) -> pl.Series:
    """Ids that are no text, as 64-bit integers; of true and false, these words."""
    if values.dtype == pl.Boolean:
        return values.cast(pl.String)
    if _has_fractions(values):
        return _whole(values)
    return values.cast(pl.UInt64 if values.dtype == pl.UInt64 else pl.Int64)


def _truth(field: Readable) -> Mapping[str, str]:
    """The words for true and false that a column may have."""
    if "f" not in field.kinds:
        return {}
    return _TRUTH if field.is_number else _WORDS_OF_TRUTH


def _names(text: pl.Series, field: Readable) -> pl.Series:
    """Text as names, null where it is empty."""
    words = text.cast(pl.String)
    if field.normalize:
        words = normalized(words)
    return words.set(words == "", None)


def _numbers(text: pl.Series, field: Readable) -> pl.Series:
    """The numbers in a text, of words for true and false or for grades, too; null for other words."""
    words = text.cast(pl.String).str.to_lowercase()
    if field.words:
        grades = {word: str(number) for word, number in field.words.items()}
        words = words.str.strip_chars().replace(grades)
    if field.missing is not None:
        fill = str(_fill(field.missing))
        words = words.fill_null("").replace(dict.fromkeys(_MISSING, fill))
    if truth := _truth(field):
        words = words.replace(truth)
    numbers = words.cast(pl.Int64, strict=False)
    return words.cast(pl.Float64, strict=False) if numbers.null_count() else numbers


def _fill(missing: float) -> float:
    """The value in place of missing ones, as an integer where it is one."""
    return int(missing) if missing == missing // 1 else missing


def normalized(words: pl.Series) -> pl.Series:
    """Text in small letters, without blanks at its ends, and one blank between words."""
    return words.str.to_lowercase().str.strip_chars().str.replace_all(r"\s+", " ")


def _has_fractions(values: pl.Series) -> bool:
    return values.dtype.is_float() or values.dtype.is_decimal()


def _whole(numbers: pl.Series) -> pl.Series:
    """Integers written as floating-point numbers or decimals, as tables with missing values have them; else null."""
    integers = numbers.cast(pl.Int64, strict=False)
    is_exact = integers.cast(numbers.dtype, strict=False) == numbers
    if numbers.dtype.is_float():
        is_exact &= integers.abs() < _EXACT
    return integers.set(~is_exact.fill_null(False), None)


def _is_large(read: pl.Series, field: Readable) -> pl.Series:
    """Which numbers are so large that they are no exact integers of 64 bits."""
    if not _has_fractions(read) or "f" in field.kinds:
        return pl.repeat(False, len(read), eager=True)
    return (read.cast(pl.Float64).abs() >= _EXACT).fill_null(False)


def list_lengths(
    lists: Mapping[str, pl.Series],
    location: SourceLocation,
    fields: Fields,
) -> np.ndarray:
    """The length of the lists of each row, 0 where one is missing or they differ."""
    sizes = {}
    refused = np.zeros(len(next(iter(lists.values()))), bool)
    for name, values in lists.items():
        missing = values.is_null()
        remedy = f"fill it or drop the row; {fields[name].rule}"
        location.reject(missing, values, name, remedy, kind=f"missing_{name}")
        sizes[name] = values.list.len().fill_null(0).to_numpy().astype(np.int64)
        refused |= missing.to_numpy()
    (first, lengths), *others = sizes.items()
    for name, other_lengths in others:
        rows = np.flatnonzero((other_lengths != lengths) & ~refused)
        called, called_first = location.called(name), location.called(first)
        what = [
            f"{called} has length {other_lengths[row]}, {called_first} has {lengths[row]}"
            for row in rows
        ]
        of_clicks = "; clicks have 0 or 1 for each document" if name == "clicks" else ""
        remedy = f"the lists of a row have one length{of_clicks}: mend or drop the row"
        location.refuse(rows, what.__getitem__, remedy, "differing_lengths")
        refused[rows] = True
    rows = np.flatnonzero((lengths == 0) & ~refused)
    remedy = "drop the row; a list holds at least one document"
    location.refuse(rows, lambda _: "the list is empty", remedy, "empty_lists")
    return np.where(refused, 0, lengths)


def _with_missing(values: pl.Series, lengths: pl.Series) -> pl.Series:
    """Lists of nulls in place of rows that are null or empty, as long as the other lists of their rows."""
    lacking = values.is_null() | (values.list.len() == 0)
    if not lacking.any():
        return values
    missing = pl.select(pl.lit(None).repeat_by(lengths)).to_series()
    return values.zip_with(~lacking, missing.cast(values.dtype))


def _filtered(columns: Mapping[str, Values], kept: np.ndarray) -> dict[str, Values]:
    return {
        name: values.filter(kept) if isinstance(values, pl.Series) else values[kept]
        for name, values in columns.items()
    }

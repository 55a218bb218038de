"""The columns of packed sessions, and the checks that every reader shares."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from clickexp.errors import DataError
from clickexp.utils.lengths import from_lengths

Columns = Mapping[str, np.ndarray]

_TYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "float16",
    "float32",
    "float64",
)
CATEGORY = "category"
MUCH_LEFT_OUT = 0.05
"""Share of rows or pages that is much to be left out."""
LEFT_OUT = "share_of_rows_with_faults"
"""The note of a log that is read without so many rows or more."""
LARGEST_GRADE = 31
"""Of graded labels, whose gain 2^label - 1 is beyond all use above."""
_KINDS = {"b": "biuf", "i": "iu", "u": "iu", "f": "biuf"}
"""Kinds of numpy type that a column of each kind is read from."""

MADE = ("mask", "feature_table", "records")
"""Keys of a batch that are made from columns, and so name none."""


@dataclass(frozen=True)
class Column:
    """A column of packed sessions, as a reader declares it.

        Column("dwell", "float32")                      seconds on each document, [sessions, ranks]
        Column("device", "int8", per="session")         [sessions]

    Args:
        name: Key of the column in a batch, and name of its packed file.
        dtype: NumPy type that it is packed in: bool, an integer, or float16 to float64. Batches hold int64 as int32.
            "category" is read from integers, text, or true and false, and packed as their numbers from 1; 0 is none of
            them, and that of empty cells where `fill` is 0.
        per: Whether there is a value per document or per session.
        fill: Value of padding, by default 0. If it is given, it also replaces values that a source lacks.
        shape: Of each value, such as (8,) for vectors of eight numbers.
        least: Smallest value of a session, or of a document shown.
        nan: Whether NaN may stand for a value that a source lacks.
        rule: What the column holds, for errors; by default derived from the type.
        is_category: Whether dtype was "category".
        words: Numbers of words, in small letters, that a source may have in place of them.

    Raises:
        DataError: The column cannot be packed so.
    """

    name: str
    dtype: DTypeLike
    per: Literal["document", "session"] = "document"
    fill: float | None = None
    shape: tuple[int, ...] = ()
    least: int | None = None
    nan: bool = False
    rule: str = ""
    is_category: bool = False
    words: Mapping[str, float] = field(default_factory=dict, compare=False)

    normalize, form = False, None  # which other fields of tables have

    def __post_init__(self) -> None:
        is_category = self.is_category or self.dtype == CATEGORY
        dtype = np.dtype(np.int32) if is_category else self._packed_type()
        if not self.name.isidentifier() or self.name.startswith("_") or self.name in MADE:
            raise DataError(
                f"{self.name!r} cannot name a column. Choose another name, of letters and digits."
            )
        if self.per not in ("document", "session"):
            raise DataError(f"column {self.name} is per {self.per!r}. Choose document or session.")
        if not _fits(self.padding, dtype):
            raise DataError(
                f"column {self.name}: fill={self.fill!r} is no {dtype}. Change one of the two."
            )
        if is_category and self.padding != 0:
            raise DataError(
                f"column {self.name}: fill={self.fill!r} is no category. Choose 0, that of empty cells."
            )
        rules = {"b": "it must hold true or false, 1 or 0", "f": "it must hold finite numbers"}
        if is_category:
            rules["i"] = "it must hold integers, text, or true and false"
        rule = self.rule or rules.get(
            dtype.kind, f"it must hold integers that fit {dtype}, or be a {CATEGORY}"
        )
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "rule", rule)
        object.__setattr__(self, "is_category", is_category)

    def _packed_type(self) -> np.dtype:
        types = f"Choose one of {', '.join(_TYPES)} and {CATEGORY}."
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise DataError(f"column {self.name}: {error}. {types}") from error
        if dtype.name not in _TYPES:
            text = f"For text, choose {CATEGORY}. " if dtype.kind in "USO" else ""
            raise DataError(
                f"column {self.name} has dtype {self.dtype}, which models cannot read. {text}{types}"
            )
        return dtype

    @property
    def per_document(self) -> bool:
        """Whether there is a value per document."""
        return self.per == "document"

    @property
    def padding(self) -> float:
        """Value where there is no document."""
        return 0 if self.fill is None else self.fill

    @property
    def missing(self) -> float | None:
        """Value in place of those that a source lacks; None where that is an error."""
        return float("nan") if self.nan else self.fill

    @property
    def kinds(self) -> str:
        """Kinds of numpy type that it is read from; U is text."""
        if self.is_category:
            return "biuU"
        return _KINDS[np.dtype(self.dtype).kind]

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers that are not those of true and false."""
        return np.dtype(self.dtype).kind != "b"

    @property
    def numbers(self) -> int:
        """How many numbers a value has."""
        return math.prod(self.shape)

    def shape_of(self, sessions: int, ranks: int) -> tuple[int, ...]:
        """The shape of the packed column."""
        return (sessions, *((ranks,) if self.per_document else ()), *self.shape)

    @property
    def batch_type(self) -> np.dtype:
        """Type in a batch, of at most 32 bits, as JAX computes."""
        return np.dtype(
            {"int64": np.int32, "float64": np.float32}.get(np.dtype(self.dtype).name, self.dtype)
        )

    def in_batch(self, values: np.ndarray) -> np.ndarray:
        """Packed values as a batch holds them: one per session as [sessions, 1], which broadcasts over ranks.

        Callers have called `check_batch`.
        """
        values = values.astype(self.batch_type, copy=False)
        return values if self.per_document or self.name == "lengths" else values[:, None]

    def check_batch(self, values: np.ndarray, location: "SourceLocation") -> None:
        """Raises a DataError for the first packed value that is a whole number and another one in a batch.

        Fractions are rounded: a float32 has seven digits.
        """
        if values.dtype == self.batch_type:
            return
        bad = _is_another(values, values.astype(self.batch_type))
        kind = (
            "integers"
            if values.dtype.kind in "iu"
            else "floating-point numbers, whole ones up to 16777216"
        )
        location.reject(
            bad,
            values,
            self.name,
            f"batches hold 32-bit {kind}: number the values from 0, or scale them",
        )

    def convert(
        self, values: np.ndarray, location: "SourceLocation", lengths: np.ndarray | None = None
    ) -> np.ndarray:
        """The values in the packed type; DataError for the first that does not fit it.

        Args:
            values: Padded lists, or a value per row.
            location: Where the rows are.
            lengths: Of lists whose values follow one another.
        """
        if values.dtype.kind not in self.kinds:
            raise location.error(f"{self.name} has type {values.dtype}", self.rule)
        with np.errstate(over="ignore", invalid="ignore"):
            packed = values.astype(self.dtype, copy=False)
        bad = ~np.isfinite(packed) if packed.dtype.kind == "f" else _changed(packed, values)
        if self.nan:
            missing = np.isnan(values)
            packed = np.where(missing, np.float32(np.nan), packed).astype(self.dtype)
            bad &= ~missing
        if self.least is not None and packed.ndim == 1:
            bad |= packed < self.least
        location.reject(bad, values, self.name, self.rule, lengths)
        if packed.dtype.kind == "f" and packed.dtype.itemsize < 8 and values.dtype.kind in "iu":
            remedy = (
                f"the type {packed.dtype} rounds it: declare an integer type, or give fractions"
            )
            location.reject(_is_another(values, packed), values, self.name, remedy, lengths)
        return packed


def _changed(packed: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns where values have become others in another type."""
    return np.zeros(values.shape, bool) if packed is values else packed != values


def _is_another(values: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """Returns where whole numbers have become other ones in another type."""
    with np.errstate(invalid="ignore"):
        changed = packed.astype(values.dtype) != values
    return changed & (values == np.rint(values)) if values.dtype.kind == "f" else changed


def _fits(value: Any, dtype: np.dtype) -> bool:
    """Whether a type holds this number, floats rounded to their precision."""
    try:
        with np.errstate(over="ignore"):
            packed = np.array(value).astype(dtype)
    except (TypeError, ValueError, OverflowError):
        return False
    return packed.ndim == 0 and bool(np.isfinite(packed) if dtype.kind == "f" else packed == value)


COLUMNS = {
    column.name: column
    for column in (
        Column("query_doc_ids", np.int32, least=0, rule="ids are integers from 0 to 2147483647"),
        Column(
            "clicks",
            np.bool_,
            rule="clicks are true or false, 1 or 0; of numbers of clicks, write 1 for those above 0",
        ),
        Column("lengths", np.int32, "session", least=0, rule="a list holds at least one document"),
        Column("query_ids", np.int64, "session", rule="query ids are 64-bit integers"),
        Column(
            "session_ids", np.int64, "session", rule="ids of search sessions are 64-bit integers"
        ),
        Column("times", np.float64, "session", rule="times are finite numbers"),
        Column("positions", np.int32, least=1, rule="positions are integers from 1"),
        Column(
            "labels",
            np.float32,
            nan=True,
            rule="labels are finite numbers, or empty for documents that nobody judged",
        ),
        Column(
            "late_clicks",
            np.bool_,
            rule="clicks that came after a later list are true or false, 1 or 0",
        ),
    )
}
"""The columns that the package reads itself. The first three are always there."""

REQUIRED = ("query_doc_ids", "clicks", "lengths")


def declared(columns: Iterable[str | Column]) -> dict[str, Column]:
    """Columns by name, of which the package knows those that are given by name alone.

    Raises:
        DataError: A name that is unknown, given twice, or declared otherwise than the package does.
    """
    by_name: dict[str, Column] = {}
    for column in columns:
        name = column if isinstance(column, str) else column.name
        if isinstance(column, str) and name not in COLUMNS:
            raise DataError(f"there is no column {name!r}. Declare it: Column({name!r}, ...).")
        if name in by_name or column not in (name, COLUMNS.get(name, column)):
            raise DataError(f"column {name} is declared twice. Give one of the two another name.")
        by_name[name] = COLUMNS[name] if isinstance(column, str) else column
    return by_name


class Remedy(str):
    """What to do about a fault, and options of the reader with which rows do not have it.

    Args:
        text: What to do.
        options: The options, by key.
        is_safe: Whether other rows are read with the options as without them.
    """

    __slots__ = ("is_safe", "options")
    options: Mapping[str, str]
    is_safe: bool

    def __new__(cls, text: str, options: Mapping[str, str], is_safe: bool = False) -> "Remedy":
        """Returns the text with the options."""
        remedy = super().__new__(cls, text)
        remedy.options, remedy.is_safe = options, is_safe
        return remedy

    def __getnewargs__(self) -> tuple[str, Mapping[str, str], bool]:  # pyright: ignore[reportIncompatibleMethodOverride]  # as pickle asks
        """Returns the arguments with which another process makes it again."""
        return str(self), self.options, self.is_safe


@dataclass(frozen=True)
class SourceLocation:
    """Where rows came from: row i of a chunk is `unit` `first + i` of `source`, whose columns have these names."""

    source: str
    first: int = 0
    unit: str = "row"
    names: Mapping[str, str] = field(default_factory=dict, compare=False, kw_only=True)

    def called(self, column: str) -> str:
        """Returns what messages call a column."""
        return self.names.get(column, column)

    def of(self, row: int) -> str:
        """Returns where a row is: "SOURCE, row N"."""
        return f"{self.source}, {self.unit} {self.first + row}"

    def error(self, what: str, remedy: str, row: int | None = None) -> DataError:
        """The error to raise: "SOURCE, row N: what is wrong. Remedy."."""
        where = self.source if row is None else self.of(row)
        return DataError(f"{where}: {what}. {remedy[0].upper()}{remedy[1:]}.")

    def reject(
        self,
        bad: Any,
        values: Any,
        name: str,
        remedy: str,
        lengths: np.ndarray | None = None,
        kind: str | None = None,
    ) -> None:
        """Refuses the rows of the True of bad, [rows, ...], naming the value there.

        Args:
            bad: Array or series.
            values: The same.
            name: Of the values.
            remedy: What to do.
            lengths: Of the lists of the rows, whose values follow one another.
            kind: See `refuse`.
        """
        if bad.any():
            places = np.argwhere(np.asarray(bad))
            rows = places[:, 0]
            if lengths is not None:
                rows = np.searchsorted(np.cumsum(lengths), rows, side="right")

            def describe(number: int) -> str:
                first, *rest = (int(at) for at in places[number])
                return f"{self.called(name)} holds {_word(values[(first, *rest)] if rest else values[first])}"

            self.refuse(rows, describe, remedy, kind or f"invalid_{name}")

    def refuse(
        self, rows: np.ndarray, describe: Callable[[int], str], remedy: str, kind: str
    ) -> None:
        """Raises for the first of some rows.

        Args:
            rows: Numbers of the rows, in ascending order.
            describe: What is wrong with the i-th of them.
            remedy: What to do.
            kind: Name of what is wrong, where faults are counted instead; see `clickexp.data.ingest.faults`.
        """
        if len(rows):
            raise self.error(describe(0), remedy, int(rows[0]))

    def refused(self, count: int) -> np.ndarray | None:
        """Which of so many rows have been refused since the last call; None, since a fault raises."""
        return None


def _word(value: Any) -> Any:
    """A value as messages show it."""
    return repr(value[:80]) if isinstance(value, str) else "null" if value is None else value


def checked(
    columns: Columns,
    location: SourceLocation,
    max_id: int | None = None,
    schema: Mapping[str, Column] = COLUMNS,
) -> dict[str, np.ndarray]:
    """The columns in their packed types; DataError names the first row that breaks a rule."""
    ids = np.shape(columns["query_doc_ids"])
    if len(ids) != 2:
        raise location.error(f"query_doc_ids has shape {ids}", "it must be [sessions, ranks]")
    for name, values in columns.items():
        expected = schema[name].shape_of(*ids)
        if np.shape(values) != expected:
            raise location.error(
                f"{name} has shape {np.shape(values)}", f"query_doc_ids asks for {expected}"
            )
    packed = {
        name: schema[name].convert(np.asarray(values), location) for name, values in columns.items()
    }
    lengths, ranks = packed["lengths"], ids[1]
    bad = (lengths < 1) | (lengths > ranks)
    location.reject(bad, lengths, "lengths", f"a list holds 1 to {ranks} documents")
    shown = from_lengths(lengths, ranks)
    for name, values in packed.items():
        column = schema[name]
        if not column.per_document:
            continue
        is_shown = shown.reshape(*shown.shape, *[1] * len(column.shape))
        remedy = f"beyond the length of a list everything is {column.padding}"
        location.reject(~is_shown & (values != column.padding), values, name, remedy)
        if column.least is not None:
            location.reject(is_shown & (values < column.least), values, name, column.rule)
    if max_id is not None:
        check_ids(packed["query_doc_ids"], max_id, location)
    return packed


def bounds(columns: Columns) -> tuple[int, int]:
    """The largest id and the largest position; without positions, the rank is the position."""
    ids, ranks = columns["query_doc_ids"], columns["query_doc_ids"].shape[1]
    positions = columns["positions"].max(initial=0) if "positions" in columns else ranks
    return int(ids.max(initial=0)), int(positions)


def check_ids(
    ids: np.ndarray,
    query_doc_pairs: int,
    location: SourceLocation,
    lengths: np.ndarray | None = None,
) -> None:
    """DataError for the first id that a table of query_doc_pairs pairs has no row for."""
    remedy = (
        f"ids lie in 0 to query_doc_pairs, {query_doc_pairs}: raise it or number the pairs again"
    )
    location.reject(ids > query_doc_pairs, ids, "query_doc_ids", remedy, lengths)

"""The columns of packed sessions, and the checks that every reader shares."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from clickexp.errors import DataError

Columns = Mapping[str, np.ndarray]


class Column(NamedTuple):
    """A packed column: its type, the kinds of numpy type it is read from, and what it may hold."""

    dtype: type[np.generic]
    kinds: str
    rule: str
    per_document: bool = True


COLUMNS = {
    "query_doc_ids": Column(np.int32, "iu", "ids are integers from 0 to 2147483647"),
    "clicks": Column(np.bool_, "biuf", "clicks are true or false, 1 or 0"),
    "lengths": Column(np.int32, "iu", "a list holds at least one document", per_document=False),
    "query_ids": Column(np.int64, "iu", "query ids are 64-bit integers", per_document=False),
    "positions": Column(np.int32, "iu", "positions are integers from 1"),
    "labels": Column(np.float32, "biuf", "labels are finite numbers"),
}
"""[rows, ranks] where per document, else [rows]. The first three are always there; padding is 0."""


@dataclass(frozen=True)
class Place:
    """Where rows came from: row i of a chunk is `unit` `first + i` of `source`."""

    source: str
    first: int = 0
    unit: str = "row"

    def error(self, what: str, remedy: str, row: int | None = None) -> DataError:
        """The error to raise: "SOURCE, row N: what is wrong. Remedy."."""
        where = self.source if row is None else f"{self.source}, {self.unit} {self.first + row}"
        return DataError(f"{where}: {what}. {remedy[0].upper()}{remedy[1:]}.")

    def reject(self, bad: np.ndarray, values: np.ndarray, name: str, remedy: str) -> None:
        """Raises for the first True of bad, [rows] or [rows, ranks], naming the value there."""
        if bad.any():
            at = np.unravel_index(bad.argmax(), bad.shape)
            raise self.error(f"{name} holds {values[at]}", remedy, int(at[0]))


POSITIONS = "set positions to the ranks to keep; longer lists are cut, and counted"
PADDING = 10
"""Padding that takes more than so many times the data is refused,"""
FLOOR = 1 << 26
"""unless it takes less than so many bytes."""


def outweighs(padding: int, data: int, size: int) -> bool:
    """Whether so many numbers of padding, of a size in bytes, are too many for so many of data."""
    return padding * size > FLOOR and padding > PADDING * data


def shown_bytes(size: int) -> str:
    """In the unit that suits it."""
    power = min((max(size, 1).bit_length() - 1) // 10, 4)
    return f"{size / (1 << 10 * power):.4g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


class Extent:
    """Measures lists, to see what it takes to pad all of them to the longest."""

    def __init__(self):
        self.lists = self.documents = self.longest = 0
        self._error = Place("lists").error

    def add(self, lengths: np.ndarray, place: Any, rows: np.ndarray | None = None) -> None:
        """Lists of these lengths; `rows`, by default 0, 1, ..., are what the errors of the place name them by."""
        if len(lengths) and lengths.max() > self.longest:
            first = int(lengths.argmax())
            row = first if rows is None else int(rows[first])
            self.longest, self._error = int(lengths[first]), partial(place.error, row=row)
        self.lists += len(lengths)
        self.documents += int(lengths.sum())

    def ranks(self, columns: Iterable[str], remedy: str) -> int:
        """The length of the longest list, at least 1; DataError where padding to it outweighs the documents."""
        size = sum(np.dtype(COLUMNS[name].dtype).itemsize for name in columns if COLUMNS[name].per_document)
        padded = self.lists * self.longest
        if outweighs(padded - self.documents, self.documents, size):
            what = (
                f"the list has {self.longest} documents, lists on average {self.documents / self.lists:.1f}; "
                f"to pad all {self.lists} to it takes {shown_bytes(padded * size)}, "
                f"the documents {shown_bytes(self.documents * size)}"
            )
            raise self._error(what, remedy)
        return max(self.longest, 1)


def checked(columns: Columns, place: Place, max_id: int | None = None) -> dict[str, np.ndarray]:
    """The columns in their packed types; DataError names the first row that breaks a rule."""
    _check_shapes(columns, place)
    packed = {name: _converted(name, np.asarray(values), place) for name, values in columns.items()}
    _check_padding(packed, place)
    if max_id is not None:
        check_ids(packed["query_doc_ids"], max_id, place)
    return packed


def check_ids(ids: np.ndarray, query_doc_pairs: int, place: Place) -> None:
    """DataError for the first id that a table of query_doc_pairs pairs has no row for."""
    remedy = f"ids lie in 0 to query_doc_pairs, {query_doc_pairs}: raise it or number the pairs again"
    place.reject(ids > query_doc_pairs, ids, "query_doc_ids", remedy)


def _check_shapes(columns: Columns, place: Place) -> None:
    shape = np.shape(columns["query_doc_ids"])
    if len(shape) != 2:
        raise place.error(f"query_doc_ids has shape {shape}", "it must be [sessions, ranks]")
    for name, values in columns.items():
        expected = shape if COLUMNS[name].per_document else shape[:1]
        if np.shape(values) != expected:
            raise place.error(f"{name} has shape {np.shape(values)}", f"query_doc_ids asks for {expected}")


def _converted(name: str, values: np.ndarray, place: Place) -> np.ndarray:
    dtype, kinds, rule, _ = COLUMNS[name]
    if values.dtype.kind not in kinds:
        raise place.error(f"{name} has type {values.dtype}", rule)
    with np.errstate(over="ignore"):
        packed = values.astype(dtype, copy=False)
    if name == "labels":
        bad = ~np.isfinite(packed)
    else:
        bad = packed != values
        if name != "query_ids":
            bad |= packed < 0
    place.reject(bad, values, name, rule)
    return packed


def _check_padding(columns: Columns, place: Place) -> None:
    lengths, ranks = columns["lengths"], columns["query_doc_ids"].shape[1]
    bad = (lengths < 1) | (lengths > ranks)
    place.reject(bad, lengths, "lengths", f"a list holds 1 to {ranks} documents")
    padding = np.arange(ranks) >= lengths[:, None]
    for name, values in columns.items():
        if COLUMNS[name].per_document:
            remedy = "beyond the length of a list everything is 0"
            place.reject(padding & (values != 0), values, name, remedy)
    if "positions" in columns:
        positions = columns["positions"]
        place.reject(~padding & (positions < 1), positions, "positions", COLUMNS["positions"].rule)

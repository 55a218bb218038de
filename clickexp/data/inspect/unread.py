"""Columns of a table that its reader leaves out and that may tell layouts apart, such as a device."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import polars as pl
import pyarrow as pa

from clickexp.data.ingest.columns import ANY_ID, Field, Readable
from clickexp.data.ingest.layouts import names_read
from clickexp.data.ingest.source_table import SourceTable, TextForm
from clickexp.data.ingest.tables import batches_of, open_tables
from clickexp.data.inspect.layouts import MOST_VALUES
from clickexp.errors import DataError

_MOST_COLUMNS = 5
"""Columns that are proposed."""
_MOST_ROWS = 1 << 20
"""Rows that are looked at."""
_DECLARED: Mapping[str, Field] = {
    "category": ANY_ID._replace(per_document=False),
    "bool": Field("b", "they are true or false", per_document=False),
}
"""The types that such columns are declared with, and what they are read as."""
_SESSION = "session"

Declarations = dict[str, dict[str, str]]
"""By column what the option `columns` says of it."""


def layout_columns(
    path: Path,
    format: str,
    named: Collection[str],
    session: str | None,
    files: str | None,
    text: TextForm,
    is_strict: bool,
) -> Declarations:
    """Finds columns with few values, one per page, that a reader leaves out.

    Args:
        path: File or folder.
        format: Format of the log.
        named: Columns that options name.
        session: Column whose rows of one value are a page; None where each row is one.
        files: Pattern of the files in a folder.
        text: How text is written.
        is_strict: Whether all rows must have been looked at, since what is missing later would take pages with it.
    """
    columns = {}, {}, ()
    try:
        kinds = open_tables(path, *columns, files=files, text=text)[0].kinds()
        read = {*named, *names_read(format, kinds)}
        single = [name for name, kind in kinds.items() if not kind.is_list and name not in read]
        single = [name for name in single if _key(name).isidentifier()]
        declared = {name: dtype for name in single if (dtype := _dtype(path, name, files, text))}
        if not declared:
            return {}
        fields: dict[str, Readable] = {name: _DECLARED[dtype] for name, dtype in declared.items()}
        if session is not None:
            fields[_SESSION] = _DECLARED["category"]
        names = {name: session if name == _SESSION else name for name in fields}
        tables = open_tables(path, fields, names, fields, files=files, text=text)
        few = _of_few_values(tables, [*declared], is_strict)
    except DataError:  # which the reader of the log says
        return {}
    return dict(_declaration(name, declared[name]) for name in few[:_MOST_COLUMNS])


def _key(name: str) -> str:
    """The name that the option `columns` has for a column: letters, digits and underscores."""
    return re.sub(r"\W+", "_", name).strip("_")


def _declaration(name: str, dtype: str) -> tuple[str, dict[str, str]]:
    """The key of a column and what the option says of it, with its name where that cannot be the key."""
    key = _key(name)
    declared = {"dtype": dtype, "per": "session"}
    return key, declared if key == name else {**declared, "name": name}


def _dtype(path: Path, name: str, files: str | None, text: TextForm) -> str | None:
    """The type that a column is declared with; None of other kinds of values."""
    for dtype, field in _DECLARED.items():
        try:
            first, *_ = open_tables(
                path, {name: field}, {name: name}, {name}, files=files, text=text
            )
        except DataError:
            continue
        # ids may be written as fractions, if they are whole
        if not pa.types.is_floating(first.columns[name].type):
            return dtype
    return None


def _of_few_values(tables: list[SourceTable], names: list[str], is_strict: bool) -> list[str]:
    """Columns with two or a few values, none missing, and one per page."""
    values: dict[str, set] = {name: set() for name in names}
    rows = 0
    for batch in batches_of(tables):
        block = pl.DataFrame(batch.columns)
        for name in [*values]:
            values[name] |= set(block[name].unique())
            if None in values[name] or len(values[name]) > MOST_VALUES or _differs(block, name):
                del values[name]
        rows += len(block)
        if not values or rows >= _MOST_ROWS:
            break
    if is_strict and rows >= _MOST_ROWS:
        return []
    return [name for name, of_column in values.items() if len(of_column) > 1]


def _differs(block: pl.DataFrame, name: str) -> bool:
    """Whether a column has two values in one page."""
    if _SESSION not in block.columns:
        return False
    pages = block.select(_SESSION, name).unique()
    return pages[_SESSION].n_unique() < len(pages)

"""Columns of a table that its reader leaves out: times, and what may tell layouts apart, such as a device."""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from clickexp.data.ingest.columns import ANY_ID, Field
from clickexp.data.ingest.layouts import names_read, time_column
from clickexp.data.ingest.source_table import SourceTable, TextForm
from clickexp.data.ingest.tables import batches_of, open_tables
from clickexp.data.ingest.times import date_formats
from clickexp.data.inspect.layouts import MOST_VALUES
from clickexp.data.schema import CATEGORY, COLUMNS, MADE
from clickexp.errors import DataError

_MOST_COLUMNS = 5
"""Columns that are proposed."""
_MOST_ROWS = 1 << 20
"""Rows that are looked at."""
_CATEGORY = Field("biuU", "categories are integers, text, or true and false", per_document=False)
_PAGE = "\0page"
"""Key of the column whose rows of one value are a page; no column is called so."""
_DATES = "\0dates"
"""Key of a column of dates, which no format has."""
TIME = "time"
"""Key of the column of times."""


def unread_columns(
    path: Path,
    format: str,
    named: Mapping[str, str | None],
    files: str | None,
    text: TextForm,
) -> dict[str, Any]:
    """Finds columns that a reader leaves out: that of times, and those with few values, one per page.

    Empty cells make a value of their own.

    Args:
        path: File or folder.
        format: Format of the log.
        named: Names of columns that options state, by key; None leaves one out.
        files: Pattern of the files in a folder.
        text: How text is written.

    Returns:
        What the option `columns` says of them, by key.
    """
    columns, names = {}, {name for name in named.values() if name is not None}
    try:
        kinds = open_tables(path, {}, {}, (), files=files, text=text)[0].kinds()
        single = [name for name, kind in kinds.items() if not kind.is_list]
        time = time_column({*single} - names)
        if time is not None and TIME not in named:
            columns[TIME] = time
        read = {*names, *names_read(format, kinds)}
        left = [name for name in single if name not in read and _key(name).isidentifier()]
        session = named.get("session", "session") if format == "impressions" else None
        few = _with_few_values(path, left, session, files, text)
    except DataError:  # which the reader of the log says
        return columns
    for name in [*few][:_MOST_COLUMNS]:
        others = kinds.keys() - {name}
        key = _free_key(name, {*others, *read, *COLUMNS, *MADE, *columns})
        columns[key] = _declaration(name, key, few[name])
    return columns


def formats_of_dates(path: Path, name: str, files: str | None, text: TextForm) -> list[str]:
    """Returns the formats that a column of dates such as 24.12.2025 may have; none where it has others.

    Args:
        path: File or folder.
        name: Of the column.
        files: Pattern of the files in a folder.
        text: How text is written.
    """
    words = pl.Series(dtype=pl.String)
    columns, fields = {_DATES: name}, {_DATES: ANY_ID._replace(per_document=False)}
    try:
        for batch in batches_of(open_tables(path, fields, columns, fields, files=files, text=text)):
            words.append(pl.Series(batch.columns[_DATES]).cast(pl.String))
            if len(words) >= _MOST_ROWS:
                break
    except DataError:  # such as a cell without a date
        return []
    return date_formats(words)


def _key(name: str) -> str:
    """The name that the option `columns` has for a column: letters, digits and underscores."""
    return re.sub(r"\W+", "_", name).strip("_")


def _free_key(name: str, taken: Collection[str]) -> str:
    """The key of a column, which no other column has."""
    key = _key(name)
    while key in taken:
        key = f"{key}_"
    return key


def _declaration(name: str, key: str, may_lack: bool) -> dict[str, str | int]:
    """What the option `columns` says of a column, with its name where that cannot be the key."""
    declared: dict[str, str | int] = {"dtype": CATEGORY, "per": "session"}
    if may_lack:
        declared["fill"] = 0
    if key != name:
        declared["name"] = name
    return declared


def _is_category(path: Path, name: str, files: str | None, text: TextForm) -> bool:
    """Whether a column can be declared as a category."""
    try:
        open_tables(path, {name: _CATEGORY}, {name: name}, {name}, files=files, text=text)
    except DataError:
        return False
    return True


def _with_few_values(
    path: Path, names: Iterable[str], session: str | None, files: str | None, text: TextForm
) -> dict[str, bool]:
    """Those of some columns with two or a few values, one per page, and whether some of their cells may be empty."""
    columns = {name: name for name in names if _is_category(path, name, files, text)}
    if not columns:
        return {}
    fields = dict.fromkeys(columns, _CATEGORY)
    if session is not None:
        fields[_PAGE] = ANY_ID._replace(per_document=False)
        columns[_PAGE] = session
    return _of_few_values(open_tables(path, fields, columns, fields, files=files, text=text))


def _of_few_values(tables: list[SourceTable]) -> dict[str, bool]:
    """The same of all columns of some tables."""
    values: dict[str, set] = {name: set() for name in tables[0].columns if name != _PAGE}
    rows = 0
    for batch in batches_of(tables):
        block = pl.DataFrame(batch.columns)
        for name in [*values]:
            values[name] |= {*map(_category, block[name].unique())}
            fits = len(values[name]) <= MOST_VALUES and not any(map(_is_fraction, values[name]))
            if not fits or _differs(block, name):
                del values[name]
        rows += len(block)
        if not values or rows >= _MOST_ROWS:
            break
    are_all = rows < _MOST_ROWS
    return {
        name: None in of_column or not are_all
        for name, of_column in values.items()
        if len(of_column) > 1
    }


def _category(value: Any) -> Any:
    """A value as it names a category; None of an empty cell."""
    is_empty = value == "" or value != value  # nan
    return None if is_empty else value


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) and not value.is_integer()


def _differs(block: pl.DataFrame, name: str) -> bool:
    """Whether a column has two values in one page, empty cells aside."""
    if _PAGE not in block.columns:
        return False
    pages = block.select(_PAGE, name).unique().drop_nulls()
    pages = pages.filter(pl.col(name).cast(pl.String) != "")
    return pages[_PAGE].n_unique() < len(pages)

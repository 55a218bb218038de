"""The layout of a table, guessed from the names and kinds of its columns."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_IDS = ("", "id", "ids", "key", "text", "string")


def _squeezed(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def _names(*words: str, endings: tuple[str, ...] = _IDS) -> tuple[str, ...]:
    return tuple(word + ending for word in words for ending in endings)


_SESSIONS = _names(
    "session", "page", "resultpage", "serp", "request", "search", "impression", "pageview", "list"
)
_QUERIES = _names("query", "q", "keyword", "keywords", "searchterm", "searchphrase", "searchquery")
_DOCUMENTS = ("document", "doc", "url", "item", "product", "sku", "asin", "result", "article")
_CLICKS = ("click", "clicks", "clicked", "isclick", "isclicked", "wasclicked", "hasclick")
_COLUMNS = {
    "impressions": {
        "session": _SESSIONS,
        "query": _QUERIES,
        "document": _names(*_DOCUMENTS),
        "rank": ("rank", "position", "pos", "slot", "place"),
        "click": _CLICKS,
    },
    "lists": {
        "query_doc_ids": (
            "querydocids",
            *_names(*_DOCUMENTS, endings=("s", "ids", "idlist", "list")),
        ),
        "clicks": (*_CLICKS, "clicklist"),
        "query_id": _QUERIES,
    },
}
"""Names of columns by format and key, without signs and in small letters, the likelier ones first."""
_OPTIONAL = ("query", "query_id")
_OF_LISTS = ("query_doc_ids", "clicks")
ROWS = {
    "impressions": "a row per document shown",
    "lists": "a row per result page, with lists of documents and clicks",
}
"""Rows of each format."""


class Kind(NamedTuple):
    """Values of a column: whether each is a list, and whether they are text."""

    is_list: bool
    is_text: bool


class Layout(NamedTuple):
    """How a table is read.

    Attributes:
        format: The format that reads it.
        columns: The file's name of each key.
        options: Options of the format that say so.
    """

    format: str
    columns: dict[str, str]
    options: dict[str, str]

    def describe(self, present: Iterable[str]) -> str:
        """A line for the reader of a report; `present` are columns of the table, of which others may be read."""
        taken = [key if key == name else f"{name} as {key}" for key, name in self.columns.items()]
        unread = [name for name in present if name not in self.columns.values()]
        rest = f"; not read: {', '.join(unread)}" if unread else ""
        stated = " ".join([f"format={self.format}", *(f"{k}={v}" for k, v in self.options.items())])
        return (
            f"layout: {ROWS[self.format]}, by the names of columns: {', '.join(taken)}{rest}. "
            f"To say so, or otherwise: {stated}"
        )


def guess(columns: Mapping[str, Kind]) -> Layout | None:
    """Returns the layout of a table; None where no columns are called so, or two are.

    Args:
        columns: The kind of each column by its name.
    """
    for format in _COLUMNS:
        found = guessed_columns(format, columns)
        required = [key for key in _COLUMNS[format] if key not in _OPTIONAL]
        if all(key in found for key in required):
            return Layout(format, found, _options(format, found, columns))
    return None


def guessed_columns(format: str, columns: Mapping[str, Kind]) -> dict[str, str]:
    """Returns the names of the columns of a table for the keys of a format, where there is one likely name."""
    found = {}
    for key, names in _COLUMNS.get(format, {}).items():
        fitting = {
            _squeezed(name): name
            for name, kind in columns.items()
            if kind.is_list == (key in _OF_LISTS)
        }
        if key in columns and key in fitting.values():
            found[key] = key
        elif likely := [fitting[name] for name in names if name in fitting]:
            found[key] = likely[0]
    return found


def needed(format: str) -> str:
    """Returns the keys of a format, for a message."""
    return ", ".join(f"{key} (optional)" if key in _OPTIONAL else key for key in _COLUMNS[format])


def _options(format: str, found: Mapping[str, str], columns: Mapping[str, Kind]) -> dict[str, str]:
    options = {f"columns.{key}": name for key, name in found.items() if name != key}
    has_query = "query" in found or "query_id" in found
    pair_key = "query_document" if has_query else "document"
    if format == "lists":
        numbered = columns[found["query_doc_ids"]].is_text
        return options | ({"pair_key": pair_key} if numbered else {})
    return options if has_query else {**options, "pair_key": pair_key}

"""The layout of a table, guessed from the names and kinds of its columns."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

_IDS = ("", "id", "ids", "key", "text", "string")


def _squeezed(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def _names(*words: str, endings: tuple[str, ...] = _IDS) -> tuple[str, ...]:
    return tuple(word + ending for word in words for ending in endings)


_VISITS = (*_names("session", "sess", "visit", "sitzung", "sitzungs"), "sid")
"""Names of what may hold several pages of a user, or be one page."""
_PAGES = (
    *_names("pageview", "resultpage", "serp", "request"),
    *("pageid", "pagekey", "searchid", "searchkey", "listid", "pv", "pvid"),
    *_VISITS,
    *_names("page", "search", "impression", "list"),
)
_QUERIES = (
    *_names("query", "q", "keyword", "keywords", "searchterm", "searchphrase", "searchquery"),
    *("searchtext", "searchterms", "topqueries", "anfrage", "suchanfrage", "suchbegriff"),
)
_DOCUMENTS = (
    *("document", "doc", "url", "item", "product", "sku", "asin", "result", "article"),
    *("dokument", "produkt", "artikel"),
)
_ONE_DOCUMENT = (
    *_names(*_DOCUMENTS),
    *("artikelnummer", "productname", "itemname", "documentname", "produktname", "artikelname"),
)
_RANKS = ("rank", "position", "pos", "slot", "place", "rang")
_CLICKS = (
    *("click", "clicks", "clicked", "isclick", "isclicked", "wasclicked", "hasclick"),
    *("klick", "klicks", "geklickt"),
)
_TIMES = (
    *("time", "timestamp", "ts", "datetime", "date", "eventtime", "createdat", "when", "day", "dt"),
    *("eventtimestamp", "eventdate", "searchtime", "querytime", "clicktime", "loggedat"),
    *("zeit", "zeitpunkt", "zeitstempel", "datum"),
)
_SHOWN = ("impressions", "impression", "views", "shown", "displays", "exposures")
ROWS = {
    "counts": "a row per query, document and rank, with how often it was shown and clicked",
    "impressions": "a row per document shown",
    "lists": "a row per result page, with lists of documents and clicks",
}
"""Rows of each format."""
_READ = {
    "counts": ("label",),
    "impressions": ("label", "search_session", "seen", "query_doc_features"),
    "lists": ("search_session", "positions", "labels", "seen", "query_doc_features"),
}
"""Further columns that a format reads where they are there."""
_ALIKE = (
    {"query_doc_ids", "document"},
    {"query_id", "query"},
    {"clicks", "click"},
    {"positions", "rank"},
    {"labels", "label"},
)
"""Keys of columns that mean one thing in several formats."""
LACKING = {
    "counts": (
        *("features", "missing", "standardize", "time_format", "time_zone"),
        *("normalize", "positions", "query_doc_pairs"),
    ),
    "impressions": ("query_doc_pairs", "seed"),
    "lists": ("seed",),
}
"""Options of other formats of tables that a format does not have."""


class Kind(NamedTuple):
    """Values of a column: whether each is a list, whether they are text, and whether a list is one of lists."""

    is_list: bool
    is_text: bool
    is_nested: bool = False


class _Pattern(NamedTuple):
    """Columns of a format.

    Attributes:
        format: The format.
        names: Names of the columns by key, without signs and in small letters, the likelier ones first.
        in_lists: Keys whose columns hold lists.
        optional: Keys that need not be there.
        is_struct: Whether lists are those of structs.
    """

    format: str
    names: Mapping[str, tuple[str, ...]]
    in_lists: tuple[str, ...] = ()
    optional: tuple[str, ...] = ("query", "query_id", "search_session")
    is_struct: bool = False

    def find(self, columns: Mapping[str, Kind]) -> dict[str, str]:
        """Returns the names of the columns of a table by key, where there is one likely name."""
        by_key = {}
        for key, names in self.names.items():
            fitting = {name for name, kind in columns.items() if self._holds(key, name, kind)}
            likely = key if key in fitting else _likely_name(fitting, names)
            if likely is not None:
                by_key[key] = likely
        if by_key.get("search_session") == by_key.get("session"):
            by_key.pop("search_session", None)
        return by_key

    def _holds(self, key: str, name: str, kind: Kind) -> bool:
        """Returns whether a column holds lists where those of the key do; of structs, in one of their fields."""
        is_list = key in self.in_lists
        is_field = "." in name or not (is_list and self.is_struct)
        return kind.is_list == is_list and is_field

    def fits(self, by_key: Mapping[str, str]) -> bool:
        """Returns whether there are all columns that the format needs."""
        return all(key in by_key for key in self.names if key not in self.optional)


def _likely_name(columns: Collection[str], names: Iterable[str]) -> str | None:
    """Returns the column that has the likeliest of some names, as its name or the last part of it."""
    called = {_squeezed(name.rpartition(".")[2]): name for name in sorted(columns)}
    called |= {_squeezed(name): name for name in columns}
    return next((called[name] for name in names if name in called), None)


_OF_ROWS = {"query": _QUERIES, "document": _ONE_DOCUMENT, "rank": _RANKS, "click": _CLICKS}
_PATTERNS = (
    _Pattern(
        "counts",
        {
            "query": _QUERIES,
            "document": (*_ONE_DOCUMENT, *_names("page"), "landingpage", "toppages"),
            "rank": (*_RANKS, "averageposition", "avgposition"),
            "impressions": _SHOWN,
            "clicks": ("clicks", "clickcount", "numclicks", "nclicks", "klicks"),
        },
    ),
    _Pattern("impressions", {"session": _PAGES, **_OF_ROWS, "search_session": _VISITS}),
    _Pattern(
        "impressions",
        {
            "session": _PAGES,
            **_OF_ROWS,
            "document": (*_ONE_DOCUMENT, "id"),
            "search_session": _VISITS,
        },
        in_lists=("document", "rank", "click"),
        optional=("session", "query", "search_session"),
        is_struct=True,
    ),
    _Pattern(
        "lists",
        {
            "query_doc_ids": (
                "querydocids",
                *_names(*_DOCUMENTS, endings=("s", "ids", "idlist", "list", "id", "")),
                "id",
            ),
            "clicks": (*_CLICKS, "clicklist"),
            "query_id": _QUERIES,
        },
        in_lists=("query_doc_ids", "clicks"),
    ),
)
"""Layouts of tables, in the order in which they are tried."""


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

    def describe(self, present: Iterable[str], named: Mapping[str, str | None]) -> str:
        """A line for the reader of a report.

        Args:
            present: Columns of the table.
            named: Names of columns that options state, by key; None leaves one out.
        """
        taken = [
            key if key == name else f"{name} as {key}"
            for key, name in self._taken(present, named).items()
            if name is not None
        ]
        return f"layout: {ROWS[self.format]}, by the names of columns: {', '.join(taken)}"

    def left_out(self, present: Iterable[str], named: Mapping[str, str | None]) -> list[str]:
        """Names of columns that are not read.

        Args:
            present: Columns of the table.
            named: Names of columns that options state, by key; None leaves one out.
        """
        taken = self._taken(present, named).values()
        return [name for name in present if name not in taken]

    def _taken(
        self, present: Iterable[str], named: Mapping[str, str | None]
    ) -> dict[str, str | None]:
        """Names of the columns that are read, by key; None of those that options leave out."""
        besides = {key: key for key in _READ[self.format] if key in {*present}}
        columns = {**besides, **self.columns, **named}
        return {key: columns[key] for key in {**self.columns, **besides, **named}}


def guess(columns: Mapping[str, Kind]) -> Layout | None:
    """Returns the layout of a table; None where no columns are called so.

    Args:
        columns: The kind of each column by its name.
    """
    for pattern in _PATTERNS:
        by_key = pattern.find(columns)
        if pattern.fits(by_key):
            return Layout(pattern.format, by_key, _options(pattern.format, by_key, columns))
    named = {"query_doc_ids", "clicks"}
    # lists such as 3 5 8 in cells of text, or none, which the reader says
    if named <= columns.keys():
        columns = {**columns, **dict.fromkeys(named, Kind(is_list=True, is_text=False))}
        by_key = guessed_columns("lists", columns)
        return Layout("lists", by_key, _options("lists", by_key, columns))
    return None


def guessed_columns(format: str, columns: Mapping[str, Kind]) -> dict[str, str]:
    """Returns the names of the columns of a table for the keys of a format, where there is one likely name."""
    return next((pattern.find(columns) for pattern in _PATTERNS if pattern.format == format), {})


def restated(
    names: Mapping[str, str | None], columns: Mapping[str, Kind], layout: Layout
) -> dict[str, str | None]:
    """Returns options that read a table in its layout, in place of those of another; None leaves an option out.

    Args:
        names: Names of columns by the keys of the other format.
        columns: The kind of each column by its name.
        layout: That of the table.
    """
    keys = _keys(layout.format)
    others = {key for format in ROWS for key in _keys(format)} - keys
    options: dict[str, str | None] = dict.fromkeys(LACKING[layout.format])
    options |= {f"columns.{key}": None for key in names if key in others}
    options |= {"format": layout.format, **layout.options}
    for key, name in names.items():
        alike = {key}.union(*(group for group in _ALIKE if key in group)) & keys
        if name != key and name in columns and alike:  # not those that nobody gave
            options[f"columns.{alike.pop()}"] = name
    return options


def _keys(format: str) -> set[str]:
    """Returns the keys of the columns of a format."""
    pattern = next(other for other in _PATTERNS if other.format == format)
    return {*pattern.names, *_READ[format]} | ({"time"} if format != "counts" else set())


def names_read(format: str, columns: Mapping[str, Kind]) -> set[str]:
    """Returns names of columns of a table that a format reads without options, or that are those of times."""
    times = [name for name in columns if _squeezed(name) in _TIMES]
    keys = next(pattern.names for pattern in _PATTERNS if pattern.format == format)
    return {*keys, *_READ[format], *guessed_columns(format, columns).values(), *times}


def time_column(columns: Collection[str]) -> str | None:
    """Returns the column that is called as times are, if there is one."""
    return _likely_name(columns, _TIMES)


def likeliest(columns: Mapping[str, Kind]) -> dict[str, str]:
    """Returns options of the format whose columns a table has most of; NAME stands for what it needs and lacks.

    Args:
        columns: The kind of each column by its name.
    """
    matches = [(pattern, pattern.find(columns)) for pattern in _PATTERNS[1:]]
    pattern, by_key = max(matches, key=lambda match: len(match[1]))
    needed = {*pattern.names} - {*pattern.optional} | {"query"}
    lacking = [key for key in pattern.names if key in needed - {*by_key}]
    stated = {key: name for key, name in by_key.items() if key != name}
    stated |= dict.fromkeys(lacking, "NAME")
    return {"format": pattern.format, **{f"columns.{key}": name for key, name in stated.items()}}


def needed(format: str) -> str:
    """Returns the keys of a format, for a message."""
    pattern = next(other for other in _PATTERNS if other.format == format)
    keys = [key for key in pattern.names if key != "search_session"]
    return ", ".join(f"{key} (optional)" if key in pattern.optional else key for key in keys)


def _options(format: str, by_key: Mapping[str, str], columns: Mapping[str, Kind]) -> dict[str, str]:
    options = {f"columns.{key}": name for key, name in by_key.items() if name != key}
    if format == "impressions" and "session" not in by_key:
        options["columns.session"] = "null"  # each row of the file is one
    has_query = "query" in by_key or "query_id" in by_key
    pair_key = "query_document" if has_query else "document"
    if format == "lists":
        ids = (by_key[key] for key in ("query_doc_ids", "query_id") if key in by_key)
        numbered = any(columns[name].is_text for name in ids)
        return options | ({"pair_key": pair_key} if numbered else {})
    return options if has_query else {**options, "pair_key": pair_key}

"""The raw text of the Yandex Relevance Prediction Challenge, of the Web Search Click Data workshop 2012.

Serdyukov, Craswell and Dupret 2012, "WSCD 2012: Workshop on Web Search Click Data 2012".
"""

import functools
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from clickexp.data.ingest.faults import Faults, Invalid
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.numbering import PairIds
from clickexp.data.ingest.packing import PART, RANKING, ReadLog, ReadPart
from clickexp.data.ingest.streams import opened
from clickexp.data.loader import ahead
from clickexp.data.log_files import COMPRESSIONS, Piece
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import SourceLocation
from clickexp.errors import DataError
from clickexp.utils.bounds import PositiveInt
from clickexp.utils.sources import source_path

_BLOCK_BYTES = 1 << 20
_MAX_URLS, _MAX_DIGITS = 100, 18
_BEFORE_URLS, _CLICK_FIELDS, _ACTION = 5, 4, 2
_TAB, _NEWLINE = b"\t\n"
_INTEGER = f"[0-9]{{1,{_MAX_DIGITS}}}"
_SESSION = rf"({_INTEGER})\t".encode()
_KNOWN = b"0123456789QC\t\n"
"""Characters of a log."""

_PAGE_LAYOUT = "SessionID TimePassed Q QueryID RegionID URL1 URL2 ..."
_CLICK_LAYOUT = "SessionID TimePassed C URLID"
_LABEL_LAYOUT = "QueryID RegionID URLID Label"
_LAYOUT = f"separated by tabs: {_PAGE_LAYOUT}, or {_CLICK_LAYOUT}"
_LOG_REMEDY = f"expected, {_LAYOUT}; mend or delete the line"
_LABEL_REMEDY = f"expected four integers: {_LABEL_LAYOUT}; mend or delete the line"
_EXPECTED = f"Name a text whose lines are, {_LAYOUT}"
_COLUMNS = ("query_doc_ids", "clicks", "late_clicks", "lengths", "query_ids", "session_ids")
_LABELLED = ("query_doc_ids", "clicks", "labels", "lengths", "query_ids")
_MANY_LABELS = "leave labels of that query out of the file"
_FAULTY_LABELS = "faulty_labels"


class _Lines(NamedTuple):
    """Whole lines of a log.

    Attributes:
        values: `[lines, most fields]`, integers without the type of action, -1 where a line has no field. A faulty line
            has its session alone or, where nobody can read that, the session of the line above or below.
        is_page: Which are pages, the others being clicks.
        ends: Where they end in the text.
        faults: What is wrong with some, by the number of the line.
    """

    values: np.ndarray
    is_page: np.ndarray
    ends: np.ndarray
    faults: Mapping[int, str]


class _Pages(NamedTuple):
    """Result pages, and the clicks below them.

    urls, [pages, longest], is -1 beyond the length of a list. The pages above click i in its session are
    click_first[i] .. click_last[i]; there are none where the first comes after the last.
    """

    session_ids: np.ndarray
    query_ids: np.ndarray
    urls: np.ndarray
    click_urls: np.ndarray
    click_first: np.ndarray
    click_last: np.ndarray


def _pieces(source: Path, shares: int, *, relevance: str | None = None, **_: Any) -> list[Piece]:
    """A text in pieces that begin where sessions do, or whole where it is compressed; the labels come behind it."""
    labels = [*map(Piece.of, _label_files(relevance))]
    if source.suffix in COMPRESSIONS or not source.is_file():
        return [Piece.of(source), *labels]
    size = source.stat().st_size
    try:
        starts = {_session_start(source, size * share // shares) for share in range(1, shares)}
    except OSError as error:
        raise _unreadable(source, error) from error
    edges = [0, *sorted(starts - {0, size}), size]
    spans = itertools.starmap(range, itertools.pairwise(edges))
    return [*(Piece(source, len(span), span) for span in spans), *labels]


def _label_files(relevance: str | None) -> list[Path]:
    return [] if relevance is None else [source_path(relevance)]


def _session_start(source: Path, place: int) -> int:
    """The first byte behind a place at which a session begins, whoever reads it; that behind the last one if none."""
    before = None
    with source.open("rb") as text:
        text.seek(place)
        text.readline()
        while True:
            start = text.tell()
            line = text.readline()
            found = re.match(_SESSION, line)
            session = int(found[1]) if found else None
            if not line or (None not in (before, session) and before != session):
                return start
            before = session


@log_format("yandex", pieces=_pieces)
def open_yandex(
    source: Path,
    log: LogWriter,
    *,
    relevance: str | None = None,
    positions: PositiveInt = 10,
    invalid: Invalid = "error",
) -> ReadLog:
    """The dataset in such a file, plain or compressed: one result page is one session of the dataset.

    Lines are, separated by tabs, `SessionID TimePassed Q QueryID RegionID URL1 URL2 ...` with at least one URL,
    or `SessionID TimePassed C URLID`. The lines of a session follow one another. A click counts for the latest
    page above it in its session that shows the URL; where that is not the last page above it, the context of later
    pages does not have it. Clicks on what no page above shows, clicks before the first
    page, and clicks on documents beyond `positions` are dropped and counted. Pairs of query and URL are numbered
    from 1 in order of first appearance. A URL that a page lists twice keeps both ranks, under one id, and the
    first of them takes the clicks.

    relevance  file of lines `QueryID RegionID URLID Label`, in any white space: one list per query for the ranking
               metrics. Of a document labelled several times, as in several regions, the first label holds
    positions  ranks to keep; longer pages are cut and counted
    invalid    "error": DataError once all is read, which names each kind of fault with its count, first lines and what
               was expected. "drop": leaves out, counted, the sessions of faulty lines, since clicks there may count
               for other pages, and faulty labels

    Memory holds the table of pairs, 17 to 34 bytes per pair (half as much again while it grows), and some
    blocks of a megabyte of text, or the longest session.
    """
    faults, faults_of_labels = Faults(continues=str(source)), Faults()
    # first, since what is wrong with them shows in a moment
    files = [file for file in _label_files(relevance) if log.share.has(file)]
    labels = [_read_labels(file, faults_of_labels) for file in files]
    ids, parts = PairIds("query_document", log.names, own_queries=True), {}
    if log.share.has(source):
        parts[PART] = ReadPart(log, PART, _COLUMNS, positions)
        _read_pages(source, parts[PART], ids, faults, log)
    faults.join(faults_of_labels)
    for of_file in labels:
        parts[RANKING] = ReadPart(log, RANKING, _LABELLED, None, _MANY_LABELS)
        location = SourceLocation(str(relevance), 1, "query")
        parts[RANKING].append(_labelled(of_file, ids, location, log), location)
    return ReadLog(parts, faults, invalid, ids.tables, expected=_EXPECTED)


def _read_pages(source: Path, part: ReadPart, ids: PairIds, faults: Faults, log: LogWriter) -> None:
    location, size = SourceLocation(str(source)), source.stat().st_size
    makers = itertools.repeat(functools.partial(next, _blocks(source, faults, log), None))
    for pages, bytes_read in ahead(makers, 2, "yandex"):
        part.append(ids.number(_lists(pages, part.ranks, log)), location)
        log.progress(bytes_read, size)


def _blocks(source: Path, faults: Faults, log: LogWriter) -> Iterator[tuple[_Pages, int]]:
    """The pages of about _BLOCK_BYTES at a time, sessions whole, and the bytes of the file read so far."""
    first, rest, size = 1, b"", _BLOCK_BYTES
    span = log.share.span(source)
    try:
        with opened(source) as stream:
            left = sys.maxsize
            if span is not None:
                stream.stored.seek(span.start)
                left = len(span)
            while True:
                read = stream.content.read(min(size, left))
                left -= len(read)
                end = b"\n" if rest and not read and not rest.endswith(b"\n") else b""
                text = (rest + read + end).replace(b"\r\n", b"\n")
                lines = _parsed(text[: text.rfind(b"\n") + 1])
                changes = np.flatnonzero(np.diff(lines.values[:, 0])) + 1
                whole = int(changes.max(initial=0)) if read else len(lines.is_page)
                if whole:
                    location = SourceLocation(str(source), first, "line")
                    kept = _sound(lines, whole, location, faults, log)
                    yield _pages(lines.values[kept], lines.is_page[kept]), stream.stored.tell()
                    first += whole
                    rest, size = text[lines.ends[whole - 1] + 1 :], _BLOCK_BYTES
                else:
                    rest, size = text, 2 * size
                if not read:
                    return
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: Path, error: OSError) -> DataError:
    remedy = f"name a text file, plain or compressed ({', '.join(COMPRESSIONS)})"
    return SourceLocation(str(source)).error(f"cannot be read ({error})", remedy)


def _sound(
    lines: _Lines, whole: int, location: SourceLocation, faults: Faults, log: LogWriter
) -> np.ndarray | slice:
    """Which of the first lines are of sessions without a fault; counts the faulty lines."""
    faults.rows += whole
    faulty = [row for row in sorted(lines.faults) if row < whole]
    if not faulty:
        return slice(whole)
    rows = np.array(faulty)
    whats = [lines.faults[row] for row in faulty]
    faults.add("faulty_lines", location, rows, whats.__getitem__, _LOG_REMEDY, unit="lines")
    sessions = lines.values[:whole, 0]
    spoilt = np.isin(sessions, sessions[rows])
    log.note("dropped_lines", int(spoilt.sum()))
    return np.flatnonzero(~spoilt)


def _parsed(text: bytes) -> _Lines:
    """Whole lines as integers; those that are neither page nor click have a fault."""
    characters = np.frombuffer(text, np.uint8)
    separators = np.flatnonzero((characters == _TAB) | (characters == _NEWLINE))
    last = np.flatnonzero(characters[separators] == _NEWLINE)
    ends, counts = separators[last], np.diff(last, prepend=-1)
    good = (counts == _CLICK_FIELDS) | (
        (counts > _BEFORE_URLS) & (counts <= _BEFORE_URLS + _MAX_URLS)
    )
    if text.translate(None, _KNOWN):
        good[np.searchsorted(ends, np.flatnonzero(~np.isin(characters, list(_KNOWN))))] = False
    if good.all():
        values, is_page, good = _numbers(text, counts)
        if good.all():
            return _Lines(values, is_page, ends, {})
    return _with_faults(text, counts, ends, good)


def _numbers(text: bytes, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The integers of lines of some fields, which of them are pages, and which are pages or clicks."""
    if not len(counts):
        return np.zeros((0, _CLICK_FIELDS), np.int64), np.zeros(0, bool), np.zeros(0, bool)
    fields = list(map(str, range(counts.max())))
    schema = dict.fromkeys(fields, pl.Int64) | {str(_ACTION): pl.String}
    # the parser expects as many columns as the first line has
    first = "\t".join(fields).encode() + b"\n"
    options = {"has_header": False, "separator": "\t", "quote_char": None}
    table = pl.read_csv(
        first + text, schema=schema, ignore_errors=True, truncate_ragged_lines=True, **options
    )
    action = table[str(_ACTION)][1:].fill_null("")
    values = table[1:].drop(str(_ACTION)).fill_null(-1).to_numpy()
    is_page = (action == "Q").to_numpy()
    good = (values.view(np.uint64) < 10**_MAX_DIGITS).sum(axis=1) == counts - 1
    good &= np.where(
        is_page, counts > _BEFORE_URLS, (counts == _CLICK_FIELDS) & (action == "C").to_numpy()
    )
    return values, is_page, good


def _with_faults(text: bytes, counts: np.ndarray, ends: np.ndarray, good: np.ndarray) -> _Lines:
    """The same lines, some of which have faults."""
    lines = text.split(b"\n")[:-1]
    sound = np.flatnonzero(good)
    values, is_page, also_good = _numbers(b"".join(lines[i] + b"\n" for i in sound), counts[sound])
    good = good.copy()
    good[sound] = also_good
    sound = np.flatnonzero(good)
    all_values = np.full((len(lines), values.shape[1]), -1, np.int64)
    all_values[sound] = values[also_good]
    all_pages = np.zeros(len(lines), bool)
    all_pages[sound] = is_page[also_good]
    sessions = all_values[:, 0]
    faults = {}
    for row in np.flatnonzero(~good).tolist():
        words = lines[row].decode("utf-8", "backslashreplace").split("\t")
        faults[row] = _wrong(words)
        if re.fullmatch(_INTEGER, words[0]):
            sessions[row] = int(words[0])
        elif row:
            sessions[row] = sessions[row - 1]
    begun = int((sessions >= 0).argmax())
    sessions[:begun] = sessions[begun]
    return _Lines(all_values, all_pages, ends, faults)


def _wrong(words: list[str]) -> str:
    """The fault of a line of the log."""
    count, action = len(words), words[2] if len(words) > 2 else ""
    if count < 4:
        return f"too few fields, {count}"
    if action not in ("Q", "C"):
        return f"{action[:40]!r} is no known type of action"
    if action == "C" and count != 4:
        return f"a click of {count} fields"
    if action == "Q" and not 0 < count - _BEFORE_URLS <= _MAX_URLS:
        return f"a result page of {max(count - _BEFORE_URLS, 0)} URLs instead of 1 to {_MAX_URLS}"
    return next(
        _not_integer(word) for word in words[:2] + words[3:] if not re.fullmatch(_INTEGER, word)
    )


def _not_integer(word: str) -> str:
    return f"{word[:40]!r} is not an integer of 1 to {_MAX_DIGITS} digits"


def _pages(values: np.ndarray, is_page: np.ndarray) -> _Pages:
    """The pages and clicks of whole sessions."""
    pages, clicks, above = values[is_page], np.flatnonzero(~is_page), np.cumsum(is_page)
    starts = np.flatnonzero(np.diff(values[:, 0], prepend=-1))
    start = starts[np.searchsorted(starts, clicks, side="right") - 1]
    click_first = above[start] - is_page[start]
    return _Pages(
        pages[:, 0], pages[:, 2], pages[:, 4:], values[clicks, 2], click_first, above[clicks] - 1
    )


def _lists(pages: _Pages, positions: int | None, log: LogWriter) -> Lists:
    """The lists of a block; counts what is dropped."""
    shown, (clicks, early) = pages.urls >= 0, np.zeros((2, *pages.urls.shape), bool)
    page, rank, late = _clicked(pages)
    clicks[page, rank] = True
    early[page[~late], rank[~late]] = True
    above = pages.click_last >= pages.click_first
    log.note("clicks_before_any_page", (~above).sum())
    log.note("clicks_on_nothing_shown", above.sum() - page.size)
    log.note("clicks_beyond_positions", (rank >= positions).sum())
    log.note("clicks_after_a_later_page", late.sum())
    documents = {
        "query_doc_ids": pages.urls[shown],
        "clicks": clicks[shown],
        "late_clicks": (clicks & ~early)[shown],
    }
    per_list = {"session_ids": pages.session_ids, "query_ids": pages.query_ids}
    return Lists(shown.sum(axis=1), documents, per_list).head(positions, log)


def _clicked(pages: _Pages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Page and rank of each click that counts, and whether it came after a later page was shown."""
    page, rank = pages.click_last.copy(), np.zeros(pages.click_last.shape, np.int64)
    sought = np.flatnonzero(page >= pages.click_first)
    while sought.size:
        shows = pages.urls[page[sought]] == pages.click_urls[sought, None]
        rank[sought] = shows.argmax(axis=1)
        sought = sought[~shows.any(axis=1)]
        page[sought] -= 1
        sought = sought[page[sought] >= pages.click_first[sought]]
    counts = page >= pages.click_first
    return page[counts], rank[counts], page[counts] < pages.click_last[counts]


def _read_labels(file: Path, faults: Faults) -> pl.DataFrame:
    """The columns of _LABEL_LAYOUT, by number, of the lines without a fault."""
    location = faults.at(SourceLocation(str(file), 1, "line"))
    try:
        with opened(file) as stream:
            text = stream.content.read().decode("utf-8", "backslashreplace")
    except OSError as error:
        raise location.error(
            f"cannot be read ({error})", "set relevance to the file of labels, or null"
        ) from error
    words = pl.Series(text.split("\n")).str.extract_all(r"\S+")
    counts = words.list.len().to_numpy()
    if not counts.any():
        raise location.error("holds no label", _LABEL_REMEDY)
    rows = np.flatnonzero((counts != 0) & (counts != 4))
    location.refuse(
        rows, lambda i: f"the number of fields is {counts[rows[i]]}", _LABEL_REMEDY, _FAULTY_LABELS
    )
    faults.rows += len(counts)
    of_four = np.flatnonzero(counts == 4)
    flat = words.filter(counts == 4).explode()
    bad = np.flatnonzero(~flat.str.contains(f"^{_INTEGER}$").to_numpy())
    rows = of_four[bad // 4]
    location.refuse(rows, lambda i: _not_integer(flat[int(bad[i])]), _LABEL_REMEDY, _FAULTY_LABELS)
    numbers = flat.cast(pl.Int64, strict=False).to_numpy().reshape(-1, 4)
    sound = ~np.isin(np.arange(len(of_four)), bad // 4)
    numbers = numbers[sound].astype(np.int64)
    return pl.DataFrame({"query": numbers[:, 0], "document": numbers[:, 2], "label": numbers[:, 3]})


def _labelled(
    labels: pl.DataFrame, ids: PairIds, location: SourceLocation, log: LogWriter
) -> Lists:
    """The labelled lists, queries and documents in order of first appearance."""
    query, document = labels["query"], labels["document"]
    pairs = ids.number(
        Lists(np.ones(len(labels), np.int64), {"query_doc_ids": document}, {"query_ids": query})
    )
    labels = labels.with_columns(id=pairs.documents["query_doc_ids"])
    distinct = labels.unique("id", keep="first", maintain_order=True)
    log.note("repeated_labels", len(labels) - len(distinct))
    by_query = distinct.group_by("query", maintain_order=True).agg("id", "label")
    columns = {
        "query_doc_ids": by_query["id"],
        "labels": by_query["label"],
        "query_ids": by_query["query"],
    }
    lists = Lists.of(columns, location)
    return lists.with_documents(clicks=np.zeros(len(lists.rows), bool))

"""The raw text of the Yandex Relevance Prediction Challenge, of the Web Search Click Data workshop 2012.

Serdyukov, Craswell and Dupret 2012, "WSCD 2012: Workshop on Web Search Click Data 2012".
"""

import functools
import itertools
import re
import sys
from collections.abc import Iterator
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
from clickexp.utils.changes import changes
from clickexp.utils.lengths import from_lengths
from clickexp.utils.sources import source_path

_BLOCK_BYTES = 1 << 20
_MAX_URLS, _MAX_DIGITS = 100, 18
_BEFORE_URLS = 5
_INTEGER = f"[0-9]{{1,{_MAX_DIGITS}}}"
_SESSION = rf"({_INTEGER})\t".encode()
_URLS = rf"(?:\t{_INTEGER}){{1,{_MAX_URLS}}}"
_LINE = rf"^{_INTEGER}\t{_INTEGER}\t(?:C\t{_INTEGER}|Q\t{_INTEGER}\t{_INTEGER}{_URLS})$"

_PAGE_LAYOUT = "SessionID TimePassed Q QueryID RegionID URL1 URL2 ..."
_CLICK_LAYOUT = "SessionID TimePassed C URLID"
_LABEL = rf"^\s*(?:{_INTEGER}\s+){{3}}{_INTEGER}\s*$"
_LABEL_LAYOUT = "QueryID RegionID URLID Label"
_LAYOUT = f"separated by tabs: {_PAGE_LAYOUT}, or {_CLICK_LAYOUT}"
_LOG_REMEDY = f"expected, {_LAYOUT}; mend or delete the line"
_LABEL_REMEDY = f"expected four integers: {_LABEL_LAYOUT}; mend or delete the line"
_EXPECTED = f"Name a text whose lines are, {_LAYOUT}"
_COLUMNS = ("query_doc_ids", "clicks", "late_clicks", "lengths", "query_ids", "session_ids")
_LABELLED = ("query_doc_ids", "clicks", "labels", "lengths", "query_ids")
_MANY_LABELS = "leave labels of that query out of the file"
_FAULTY_LABELS = "faulty_labels"


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
                ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
                lines = _lines(text[: text.rfind(b"\n")])[: len(ends)]
                words, sessions = _words(lines)
                whole = int(np.flatnonzero(changes(sessions))[-1:].sum()) if read else len(lines)
                if whole:
                    location = SourceLocation(str(source), first, "line")
                    kept = _sound(lines[:whole], sessions[:whole], location, faults, log)
                    yield (
                        _pages(words[:whole].filter(kept), sessions[:whole][kept]),
                        stream.stored.tell(),
                    )
                    first += whole
                    rest, size = text[ends[whole - 1] + 1 :], _BLOCK_BYTES
                else:
                    rest, size = text, 2 * size
                if not read:
                    return
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: Path, error: OSError) -> DataError:
    remedy = f"name a text file, plain or compressed ({', '.join(COMPRESSIONS)})"
    return SourceLocation(str(source)).error(f"cannot be read ({error})", remedy)


def _lines(text: bytes) -> pl.Series:
    """The lines of a text."""
    return pl.Series([text.decode("utf-8", "backslashreplace")]).str.split("\n").explode()


def _words(lines: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """The words of each line, and its session: where it states none, that of the line above or below."""
    words = lines.str.split("\t")
    sessions = words.list.first().cast(pl.Int64, strict=False)
    known = sessions.fill_null(strategy="forward").fill_null(strategy="backward").fill_null(0)
    return words, known.to_numpy()


def _sound(
    lines: pl.Series,
    sessions: np.ndarray,
    location: SourceLocation,
    faults: Faults,
    log: LogWriter,
) -> np.ndarray:
    """Which lines are of sessions without a fault; counts the faulty lines."""
    faults.count(location, len(lines))
    rows = np.flatnonzero(~lines.str.contains(_LINE).to_numpy())
    faults.add(
        "faulty_lines",
        location,
        rows,
        lambda number: _wrong(lines[int(rows[number])].split("\t")),
        _LOG_REMEDY,
        unit="lines",
    )
    spoilt = np.isin(sessions, sessions[rows])
    log.note("dropped_lines", spoilt.sum())
    return ~spoilt


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


def _pages(words: pl.Series, sessions: np.ndarray) -> _Pages:
    """The pages and clicks of whole sessions, from the words of their lines."""
    is_page = (words.list.get(2) == "Q").to_numpy()
    # the query of a page, the URL of a click
    ids = words.list.get(3).cast(pl.Int64).to_numpy()
    listed = words.filter(is_page).list.slice(_BEFORE_URLS)
    lengths = listed.list.len().to_numpy()
    shown = from_lengths(lengths, int(lengths.max(initial=1)))
    urls = np.full(shown.shape, -1, np.int64)
    urls[shown] = listed.explode().cast(pl.Int64)
    clicks, above = np.flatnonzero(~is_page), np.cumsum(is_page)
    starts = np.flatnonzero(changes(sessions))
    start = starts[np.searchsorted(starts, clicks, side="right") - 1]
    click_first = above[start] - is_page[start]
    return _Pages(
        sessions[is_page], ids[is_page], urls, ids[clicks], click_first, above[clicks] - 1
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
    lines = pl.Series(text.split("\n"))
    words, is_label = lines.str.extract_all(r"\S+"), lines.str.contains(r"\S")
    if not is_label.any():
        raise location.error("holds no label", _LABEL_REMEDY)
    good = lines.str.contains(_LABEL)
    rows = np.flatnonzero(is_label & ~good)
    location.refuse(
        rows, lambda i: _wrong_label(words[int(rows[i])].to_list()), _LABEL_REMEDY, _FAULTY_LABELS
    )
    faults.count(location, len(lines))
    numbers = words.filter(good).explode().cast(pl.Int64).to_numpy().reshape(-1, 4)
    return pl.DataFrame({"query": numbers[:, 0], "document": numbers[:, 2], "label": numbers[:, 3]})


def _wrong_label(words: list[str]) -> str:
    """The fault of a line of the labels."""
    if len(words) != 4:
        return f"the number of fields is {len(words)}"
    return next(_not_integer(word) for word in words if not re.fullmatch(_INTEGER, word))


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

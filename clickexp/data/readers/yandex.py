"""The raw text of the Yandex Relevance Prediction Challenge, of the Web Search Click Data workshop 2012.

Serdyukov, Craswell and Dupret 2012, "WSCD 2012: Workshop on Web Search Click Data 2012".
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clickexp.data.ingest.id_table import IdTable, pair_keys
from clickexp.data.ingest.ragged import scatter
from clickexp.data.ingest.tsv import Fields, not_integer, tab_separated
from clickexp.data.loader import ahead
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import DataError, Extent, SourceLocation
from clickexp.utils.bounds import PositiveInt

BLOCK_BYTES = 1 << 20
MAX_URLS = 100
QUERY, CLICK = b"QC"
BEFORE_URLS = 5

PAGE_LAYOUT = "SessionID TimePassed Q QueryID RegionID URL1 URL2 ..."
CLICK_LAYOUT = "SessionID TimePassed C URLID"
LABEL_LAYOUT = "QueryID RegionID URLID Label"
LOG_REMEDY = f"expected, separated by tabs: {PAGE_LAYOUT}, or {CLICK_LAYOUT}; mend or delete the line"
LABEL_REMEDY = f"expected four integers: {LABEL_LAYOUT}; mend or delete the line"


class Pages(NamedTuple):
    """Result pages, and the clicks below them.

    urls, [pages, longest], is -1 beyond the length of a list. The pages above click i in its session are
    click_first[i] .. click_last[i]; there are none where the first comes after the last.
    """

    query_ids: np.ndarray
    urls: np.ndarray
    lengths: np.ndarray
    click_urls: np.ndarray
    click_first: np.ndarray
    click_last: np.ndarray


@log_format("yandex")
def open_yandex(
    source: Path,
    log: LogWriter,
    *,
    relevance: str | None = None,
    positions: PositiveInt = 10,
) -> None:
    """The dataset in such a file, also compressed (.gz): one result page is one session of the dataset.

    Lines are, separated by tabs, `SessionID TimePassed Q QueryID RegionID URL1 URL2 ...` with at least one URL,
    or `SessionID TimePassed C URLID`. The lines of a session follow one another. A click counts for the latest
    page above it in its session that shows the URL. Clicks on what no page above shows, clicks before the first
    page, and clicks on documents beyond `positions` are dropped and counted. Pairs of query and URL are numbered
    from 1 in order of first appearance. A URL that a page lists twice keeps both ranks, under one id, and the
    first of them takes the clicks.

    relevance  file of lines `QueryID RegionID URLID Label`, in any white space: one list a query for the ranking
               metrics. Of a document labelled several times, as in several regions, the first label holds.
    positions  ranks to keep; longer pages are cut and counted

    Memory holds the table of pairs, 17 to 34 bytes a pair (half as much again while it grows), and some
    blocks of a megabyte of text, or the longest session.
    DataError names file, line and what was expected.
    """
    if positions < 1:
        raise DataError(f"positions is {positions}: no rank is left. Set it to at least 1.")
    labels = None if relevance is None else _read_labels(Path(relevance).expanduser())
    table, size = IdTable(), source.stat().st_size
    with log.part("sessions", positions, ["query_doc_ids", "clicks", "lengths", "query_ids"]) as pack:
        for pages, bytes_read in ahead(_blocks(source), 2, "yandex"):
            location = SourceLocation(str(source), pack.written + 1, "result page")
            pack.append(_sessions(pages, positions, table, log), location)
            log.progress(bytes_read, size)
        if not pack.written:
            raise SourceLocation(str(source)).error("holds no result page", LOG_REMEDY)
    if labels is not None:
        shown = len(table)
        location = SourceLocation(str(relevance), 1, "query")
        lists = _lists(labels, table, location, log)
        log.note("labelled_pairs_never_shown", len(table) - shown)
        with log.part("ranking", lists["clicks"].shape[1], list(lists)) as pack:
            pack.append(lists, location)


def _blocks(source: Path) -> Iterator[tuple[Pages, int]]:
    """The pages of about BLOCK_BYTES at a time, sessions whole, and the bytes of the file read so far."""
    lines, rest, size = 0, b"", BLOCK_BYTES
    try:
        with open(source, "rb") as raw, gzip.open(raw) if source.suffix == ".gz" else raw as file:
            while True:
                read = file.read(size)
                end = b"\n" if rest and not read and not rest.endswith(b"\n") else b""
                text = (rest + read + end).replace(b"\r\n", b"\n")
                fields = tab_separated(text[: text.rfind(b"\n") + 1])
                is_page = _checked(fields, text, SourceLocation(str(source), 1 + lines, "line"))
                changes = np.flatnonzero(np.diff(fields.values[fields.first])) + 1
                whole = changes.max(initial=0) if read else len(is_page)
                if whole:
                    yield _pages(fields, is_page[:whole]), raw.tell()
                    lines, rest, size = lines + whole, text[fields.ends[whole - 1] + 1 :], BLOCK_BYTES
                else:
                    rest, size = text, 2 * size
                if not read:
                    return
    except (OSError, EOFError, zlib.error) as error:
        what, remedy = f"cannot be read ({error})", "name a text file, or one compressed as .gz"
        raise SourceLocation(str(source)).error(what, remedy) from error


def _checked(fields: Fields, text: bytes, location: SourceLocation) -> np.ndarray:
    """[lines] which lines are pages, the others being clicks; DataError names the first that is neither."""
    third = np.minimum(fields.first + 2, fields.last)
    action = np.frombuffer(text, np.uint8)[fields.starts[third]]
    action = np.where(fields.lengths[third] == 1, action, 0)
    is_page, counts = action == QUERY, fields.counts
    good = np.where(is_page, (counts > BEFORE_URLS) & (counts <= BEFORE_URLS + MAX_URLS), counts == 4)
    good &= is_page | (action == CLICK)
    integers = fields.good.copy()
    integers[third] = True
    good[fields.lines_of(np.flatnonzero(~integers))] = False
    if not good.all():
        row = int(good.argmin())
        raise location.error(_wrong(fields.words(text, row)), LOG_REMEDY, row)
    return is_page


def _wrong(words: list[str]) -> str:
    """The fault of a line of the log."""
    count, action = len(words), words[2] if len(words) > 2 else ""
    if count < 4:
        return f"too few fields, {count}"
    if action not in ("Q", "C"):
        return f"{action[:40]!r} is no known type of action"
    if action == "C" and count != 4:
        return f"a click of {count} fields"
    if action == "Q" and not 0 < count - BEFORE_URLS <= MAX_URLS:
        return f"a result page of {max(count - BEFORE_URLS, 0)} URLs instead of 1 to {MAX_URLS}"
    return not_integer(words[:2] + words[3:])


def _pages(fields: Fields, is_page: np.ndarray) -> Pages:
    """The first lines of a block."""
    values, first = fields.values, fields.first[: len(is_page)]
    at, lengths = first[is_page], fields.counts[: len(is_page)][is_page] - BEFORE_URLS
    ranks = np.arange(lengths.max(initial=1))
    urls = values[np.minimum(at[:, None] + BEFORE_URLS + ranks, len(values) - 1)]
    urls[ranks >= lengths[:, None]] = -1
    above = np.cumsum(is_page)
    starts = np.flatnonzero(np.diff(values[first], prepend=-1))
    clicks = np.flatnonzero(~is_page)
    start = starts[np.searchsorted(starts, clicks, side="right") - 1]
    click_first = above[start] - is_page[start]
    return Pages(values[at + 3], urls, lengths, values[first[clicks] + 3], click_first, above[clicks] - 1)


def _sessions(pages: Pages, positions: int, table: IdTable, log: LogWriter) -> dict[str, np.ndarray]:
    """The columns of a block; counts what is dropped."""
    lengths = np.minimum(pages.lengths, positions)
    shown = np.arange(positions) < lengths[:, None]
    ids, clicks = np.zeros(shown.shape, np.int64), np.zeros(shown.shape, bool)
    urls = pages.urls[:, :positions]
    listed = shown[:, : urls.shape[1]]
    queries = np.broadcast_to(pages.query_ids[:, None], urls.shape)
    ids[shown] = _numbered(queries[listed], urls[listed], table, log)
    page, rank = _clicked(pages)
    kept = rank < positions
    clicks[page[kept], rank[kept]] = True
    above = pages.click_last >= pages.click_first
    log.note("cut_lists", (pages.lengths > positions).sum())
    log.note("clicks_before_any_page", (~above).sum())
    log.note("clicks_on_nothing_shown", above.sum() - page.size)
    log.note("clicks_beyond_positions", (~kept).sum())
    return {"query_doc_ids": ids, "clicks": clicks, "lengths": lengths, "query_ids": pages.query_ids}


def _numbered(queries: np.ndarray, urls: np.ndarray, table: IdTable, log: LogWriter) -> np.ndarray:
    """The ids of pairs; new ones get their names."""
    ids = table.ids(pair_keys(queries, urls))
    new = log.names.unnamed(ids)
    log.names.append(query=queries[new], document=urls[new])
    return ids


def _clicked(pages: Pages) -> tuple[np.ndarray, np.ndarray]:
    """Page and rank of each click that counts."""
    page, rank = pages.click_last.copy(), np.zeros(pages.click_last.shape, np.int64)
    sought = np.flatnonzero(page >= pages.click_first)
    while sought.size:
        shows = pages.urls[page[sought]] == pages.click_urls[sought, None]
        rank[sought] = shows.argmax(axis=1)
        sought = sought[~shows.any(axis=1)]
        page[sought] -= 1
        sought = sought[page[sought] >= pages.click_first[sought]]
    found = page >= pages.click_first
    return page[found], rank[found]


def _read_labels(file: Path) -> np.ndarray:
    """[labels, 4] the columns of LABEL_LAYOUT."""
    location = SourceLocation(str(file), 1, "line")
    try:
        text = re.sub(rb"[^\S\n]+", b"\t", file.read_bytes())
    except OSError as error:
        raise location.error(
            f"cannot be read ({error})", "set relevance to the file of labels, or null"
        ) from error
    text = re.sub(rb"\t?\n\t?", b"\n", text + b"\n").lstrip(b"\t")
    fields = tab_separated(text)
    empty = (fields.counts == 1) & (fields.lengths[fields.first] == 0)
    good = empty | (fields.counts == 4)
    wrong = fields.lines_of(np.flatnonzero(~fields.good))
    good[wrong[~empty[wrong]]] = False
    if not good.all():
        row = int(good.argmin())
        words = fields.words(text, row)
        what = not_integer(words) if len(words) == 4 else f"the number of fields is {len(words)}"
        raise location.error(what, LABEL_REMEDY, row)
    if empty.all():
        raise SourceLocation(str(file)).error("holds no label", LABEL_REMEDY)
    return fields.values[fields.first[~empty][:, None] + np.arange(4)]


def _lists(
    labels: np.ndarray, table: IdTable, location: SourceLocation, log: LogWriter
) -> dict[str, np.ndarray]:
    """The columns of the labelled lists, queries and documents in order of first appearance."""
    ids = _numbered(labels[:, 0], labels[:, 2], table, log)
    kept = np.sort(np.unique(ids, return_index=True)[1])
    log.note("repeated_labels", len(labels) - len(kept))
    queries = IdTable().ids(labels[kept, 0])
    kept = kept[np.argsort(queries, stable=True)]
    lengths = np.bincount(queries)[1:]
    extent = Extent()
    extent.add(lengths, location)
    longest = extent.ranks(
        ("query_doc_ids", "clicks", "labels"), "leave labels of that query out of the file"
    )
    columns = {"query_doc_ids": ids[kept], "clicks": np.zeros(len(kept), bool), "labels": labels[kept, 3]}
    columns = {name: scatter(values, lengths, longest) for name, values in columns.items()}
    return columns | {"lengths": lengths, "query_ids": labels[kept[np.cumsum(lengths) - lengths], 0]}

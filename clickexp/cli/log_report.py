"""Tables and lines about a log on a terminal."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from rich.bar import Bar
from rich.table import Table as RichTable

from clickexp.data.dataset import Dataset
from clickexp.data.inspect.context import ContextSummary
from clickexp.data.inspect.identifiability import Identifiability
from clickexp.data.inspect.summary import Summary
from clickexp.data.prepared import Log
from clickexp.data.sessions import Sessions
from clickexp.data.time_ranges import TimeRange, in_utc
from clickexp.utils.documents import plain
from clickexp.utils.tables.table import Table
from clickexp.utils.tables.terminal import MOST_ROWS, console_table, first_ranks, note_on_ranks
from clickexp.utils.text import byte_size

if TYPE_CHECKING:
    from clickexp.results.figures.drawing import Panel

_Part = TypeVar("_Part")

_Groups = Mapping[str, Mapping[str, Sequence[int]]]
ByGroup = Mapping[str, _Groups]
"""Documents shown and clicks by rank, by what groups sessions and by group."""

_BAR_WIDTH, _MOST_GROUPS = 30, 6
_ALL_RANKS = "in what --json prints"
_MANY_GRADES = 12


def parts(log: Log) -> RichTable:
    """Returns sessions, documents shown, clicks and click rate of each part of a prepared log."""
    rows: dict[str, Callable[[Sessions], str]] = {
        "sessions": lambda part: f"{part.count:,}",
        "documents shown": lambda part: f"{part.documents:,}",
        "clicks": lambda part: f"{part.clicks_total:,}",
        "click rate": lambda part: _share(part.clicks_total, part.documents),
    }
    names = {"sessions": "all"}
    return _by_part({names.get(name, name): part for name, part in log.parts.items()}, rows)


def largest_id(parts: Iterable[Sessions]) -> str:
    """Returns how large a table the parts need: with gaps, or from 0, ids are not the number of pairs."""
    return f"query-document ids up to {max(part.query_doc_pairs for part in parts):,}"


def counts(summaries: Mapping[str, Summary]) -> RichTable:
    """Returns the counts of each part, and what its pairs have in common with those of training."""
    rows: dict[str, Callable[[Summary], str]] = {
        "sessions": lambda part: _number(part.sessions),
        "distinct queries": lambda part: _number(part.queries),
        "documents shown": lambda part: _number(part.documents_shown),
        "distinct query-document pairs": lambda part: _number(part.pairs),
        "pairs unseen in training": lambda part: _share(part.pairs_unseen_in_training, part.pairs),
        "documents shown of such pairs": lambda part: _share(
            part.documents_shown_of_such_pairs, part.documents_shown
        ),
        "lists that show a document twice": lambda part: _number(
            part.lists_that_show_a_document_twice or None
        ),
        "lists without labels": lambda part: _number(part.lists_without_labels or None),
        "documents without a label in others": lambda part: _number(
            part.documents_without_label_in_others or None
        ),
        "clicks": lambda part: _number(part.clicks),
        "click rate": lambda part: _share(part.clicks, part.documents_shown),
    }
    return _by_part(summaries, rows)


def context(summaries: Mapping[str, ContextSummary]) -> RichTable | None:
    """Returns what came before the lists of each part in their search sessions; None of a log without these."""
    rows: dict[str, Callable[[ContextSummary], str]] = {
        "search sessions": lambda part: f"{part.sessions:,}",
        "lists in a session, mean": lambda part: f"{part.lists / max(part.sessions, 1):.2f}",
        "lists after another": lambda part: _share(part.later, part.lists),
        "lists of a repeated query": lambda part: _share(part.query_repeated, part.lists),
        "lists that repeat the last one": lambda part: _share(part.list_repeated, part.lists),
        "documents shown before": lambda part: _share(part.seen, part.documents),
        "documents clicked before": lambda part: _share(part.clicked, part.documents),
    }
    return _by_part(summaries, rows) if summaries else None


def times(spans: Mapping[str, TimeRange]) -> RichTable | None:
    """Returns the first and the last time of each part; None of a log without dates."""
    rows = [[name, in_utc(span.start), in_utc(span.stop)] for name, span in spans.items()]
    return console_table(["times (UTC)", "first", "last"], rows) if rows else None


def separation(train: Summary, links: Identifiability) -> str:
    """Returns how well a log separates examination from attraction: impressions per pair, and movement."""
    moving = (
        "not known, since hardly a document is shown twice"
        if math.isnan(links.movement)
        else f"{links.movement:.0%} of the variance of log positions is within documents (random order: 100%)"
    )
    return (
        f"impressions per pair: {_per_pair(train):.1f} in the mean of training; movement: {moving}"
    )


def _per_pair(part: Summary) -> float:
    """Impressions per query-document pair."""
    return part.documents_shown / max(part.pairs, 1)


def click_rates(train: Summary) -> RichTable:
    """Returns a line per rank that training shows, with a bar as long as the rate; the first of long lists."""
    rates = _rates(train.clicks_by_rank, train.shown_by_rank)
    counts = zip(train.shown_by_rank, train.clicks_by_rank, rates, strict=True)
    rows = [
        [
            f"{rank}",
            f"{shown:,}",
            f"{clicks:,}",
            _share(clicks, shown),
            _bar(rate, np.nanmax(rates)),
        ]
        for rank, (shown, clicks, rate) in enumerate(counts, start=1)
        if shown
    ]
    header = ["rank (train)", "shown", "clicks", "click rate", ""]
    table = console_table(header, rows[:MOST_ROWS], text_columns=0)
    table.caption = "".join(note_on_ranks(len(rows), _ALL_RANKS)) or None
    table.caption_justify = "left"
    return table


def click_rates_by_group(groups: ByGroup) -> Iterator[Table]:
    """Yields a table of click rates by rank for each way to group the training sessions, a column per group."""
    for name, values in groups.items():
        largest = _largest(values)
        columns = [map(_share, group["clicks"], group["shown"]) for group in largest.values()]
        rows = [
            [f"{rank}", *cells]
            for rank, cells in enumerate(zip(*columns, strict=True), start=1)
            if {*cells} != {"-"}
        ]
        header = [f"click rate by {name}", *largest]
        yield first_ranks(Table(header, rows, align="r" * len(header)), _ALL_RANKS)


def _largest(values: _Groups) -> _Groups:
    """The groups with the most impressions, in their order."""
    by_size = sorted(values, key=lambda value: -sum(values[value]["shown"]))[:_MOST_GROUPS]
    return {value: group for value, group in values.items() if value in by_size}


def _rates(clicks: Any, shown: Any) -> np.ndarray:
    """Click rates, NaN where nothing is shown."""
    return np.asarray(clicks) / np.where(shown, shown, np.nan)


def quantiles(histogram: np.ndarray) -> str:
    """Returns smallest, 10%, median, 90%, largest and mean of whole numbers, of which histogram[n] are n."""
    upto, numbers = np.cumsum(histogram), np.arange(len(histogram))
    if np.count_nonzero(histogram) == 1:
        return f"{histogram.argmax()} in every list"
    at = {"10%": 0.1, "median": 0.5, "90%": 0.9}
    middle = (f"{name} {np.searchsorted(upto, share * upto[-1])}" for name, share in at.items())
    ends = np.flatnonzero(histogram)[[0, -1]]
    return f"min {ends[0]}, {', '.join(middle)}, max {ends[1]}, mean {histogram @ numbers / upto[-1]:.2f}"


def clicks_per_session(clicked: np.ndarray) -> str:
    """Returns how many clicks sessions have, of which clicked[n] have n."""
    mean = clicked @ np.arange(len(clicked)) / max(clicked.sum(), 1)
    shares = (_share(count, clicked.sum()) for count in (clicked[0], clicked[1], clicked[2:].sum()))
    none, one, more = shares
    return f"clicks in a session: none {none}, one {one}, several {more}, mean {mean:.2f}"


def as_json(
    dataset: Dataset,
    summaries: Mapping[str, Summary],
    links: Identifiability,
    contexts: Mapping[str, ContextSummary],
    doubts: Sequence[str],
) -> dict[str, Any]:
    """Returns what is reported of a log, in the types of JSON."""
    return {
        "name": dataset.name,
        "query_doc_pairs": max(part.query_doc_pairs for part in dataset.parts.values()),
        "parts": {name: _counts(part) for name, part in summaries.items()},
        "context": {name: plain(vars(part)) for name, part in contexts.items()},
        "features": dataset.train.feature_lengths,
        "notes": dict(dataset.notes),
        "doubts": list(doubts),
        "examination": {
            "identified": links.identified,
            "groups": [list(map(int, group)) for group in links.groups],
            "impressions_per_pair": _per_pair(summaries["train"]),
            "movement": None if math.isnan(links.movement) else links.movement,
            "weakest_link": None if links.weakest is None else links.weakest._asdict(),
        },
    }


def figures(
    summaries: Mapping[str, Summary], contexts: Mapping[str, ContextSummary], groups: ByGroup
) -> "dict[str, list[Panel]]":
    """Returns what there is to draw of a log."""
    from clickexp.results.figures.log import (  # here, since Matplotlib takes long to load
        curves,
        figures_by_group,
        shares,
    )

    clicked = {name: part for name, part in summaries.items() if part.clicks}
    lengths = {name: part.sessions_by_documents for name, part in summaries.items()}
    drawn = {"sessions": [shares(lengths, "Documents in a list")]}
    if clicked:
        clicks = {
            name: np.trim_zeros(part.sessions_by_clicks, "b") for name, part in clicked.items()
        }
        drawn["sessions"].append(shares(clicks, "Clicks in a session"))
        rates = {
            name: _rates(part.clicks_by_rank, part.shown_by_rank) for name, part in clicked.items()
        }
        by_group = figures_by_group("click_rate_by_", groups)
        drawn = {"click_rate": [curves(rates, "Click rate")], **drawn, **by_group}
    if contexts:
        of_users = {name: part.lengths for name, part in contexts.items()}
        drawn["context"] = [shares(of_users, "Lists in a search session")]
    return drawn


def _counts(part: Summary) -> dict[str, Any]:
    """Counts of a part in the types of JSON, grades as they are written."""
    labels = part.documents_by_label
    written = labels and {f"{grade:g}": count for grade, count in labels.items()}
    return plain({**vars(part), "documents_by_label": written})


def grades(part: str, labels: Mapping[float, int]) -> RichTable | str:
    """Returns a line per grade of relevance, or their range where there are many."""
    total = sum(labels.values())
    if len(labels) > _MANY_GRADES:
        return f"labels of {part}: {len(labels):,} values from {min(labels):g} to {max(labels):g}, {total:,} in all"
    rows = (
        [f"{grade:g}", f"{count:,}", _share(count, total), _bar(count, max(labels.values()))]
        for grade, count in labels.items()
    )
    return console_table([f"label ({part})", "documents", "share", ""], rows, text_columns=0)


def features(dataset: Dataset) -> str | None:
    """Returns length, type and size of the feature vectors, if there are any."""
    if dataset.train.features is None:
        return None
    values = dataset.train.features.values
    return f"features: {values.shape[1]} per document, {values.dtype}, {byte_size(values.nbytes)}"


def notes(noted: Mapping[str, int | str]) -> str | None:
    """Returns the notes of a reader, if it has any."""
    figures = {name: f"{n:,}" if isinstance(n, int) else n for name, n in noted.items() if n != 0}
    lines = (f"  {name.replace('_', ' ')}: {figure}" for name, figure in figures.items())
    return "\n".join(["notes", *lines]) if figures else None


def _bar(value: float, largest: float) -> Bar:
    return Bar(max(largest, 1e-9), 0, value, width=_BAR_WIDTH)


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _share(count: int | None, total: int) -> str:
    return "-" if count is None or not total else f"{count / total:.2%}"


def _by_part(parts: Mapping[str, _Part], rows: Mapping[str, Callable[[_Part], str]]) -> RichTable:
    """Returns a column per part, without the rows that say nothing of any."""
    lines = [[name, *map(cell, parts.values())] for name, cell in rows.items()]
    return console_table(["", *parts], [line for line in lines if {*line[1:]} != {"-"}])

"""Tables and lines about a log on a terminal."""

from collections.abc import Iterable, Mapping

import numpy as np
from rich.bar import Bar
from rich.table import Table

from clickexp.data.dataset import Dataset
from clickexp.data.inspect.summary import Summary
from clickexp.data.prepared import Log
from clickexp.data.sessions import Sessions
from clickexp.loggers.tables import console_table

_BAR_WIDTH = 30
_MANY_GRADES = 12


def parts(log: Log) -> Table:
    """Returns sessions, documents shown, clicks and click rate of each part of a prepared log."""
    of = list(log.parts.values())
    rows = {
        "sessions": [f"{part.count:,}" for part in of],
        "documents shown": [f"{part.documents:,}" for part in of],
        "clicks": [f"{part.clicks_total:,}" for part in of],
        "click rate": [_share(part.clicks_total, part.documents) for part in of],
    }
    return _by_part(("all" if name == "sessions" else name for name in log.parts), rows)


def largest_id(parts: Iterable[Sessions]) -> str:
    """Returns how large a table the parts need: with gaps, or from 0, ids are not the number of pairs."""
    return f"query-document ids up to {max(part.query_doc_pairs for part in parts):,}"


def counts(summaries: Mapping[str, Summary]) -> Table:
    """Returns the counts of each part, and what its pairs have in common with those of training."""
    of = list(summaries.values())
    rows = {
        "sessions": [f"{part.sessions:,}" for part in of],
        "distinct queries": ["-" if part.queries is None else f"{part.queries:,}" for part in of],
        "documents shown": [f"{part.shown.sum():,}" for part in of],
        "distinct query-document pairs": [f"{part.pairs:,}" for part in of],
        "pairs unseen in training": [_share(part.unseen_pairs, part.pairs) for part in of],
        "documents shown of such pairs": [_share(part.unseen_shown, part.shown.sum()) for part in of],
        "clicks": [f"{part.clicks.sum():,}" for part in of],
        "click rate": [_share(part.clicks.sum(), part.shown.sum()) for part in of],
    }
    return _by_part(summaries, {name: cells for name, cells in rows.items() if set(cells) != {"-"}})


def click_rates(train: Summary) -> Table:
    """Returns a line per rank of the training sessions, with a bar as long as the rate."""
    rates = train.clicks / np.maximum(train.shown, 1)
    rows = (
        [f"{rank}", f"{shown:,}", f"{clicks:,}", _share(clicks, shown), _bar(rate, rates.max())]
        for rank, (shown, clicks, rate) in enumerate(zip(train.shown, train.clicks, rates, strict=True), start=1)
    )
    return console_table(["rank (train)", "shown", "clicks", "click rate", ""], rows, text_columns=0)


def quantiles(histogram: np.ndarray) -> str:
    """Returns smallest, 10%, median, 90%, largest and mean of whole numbers, of which histogram[n] are n."""
    upto, numbers = np.cumsum(histogram), np.arange(len(histogram))
    if np.count_nonzero(histogram) == 1:
        return f"{histogram.argmax()} in every list"
    at = {"10%": 0.1, "median": 0.5, "90%": 0.9}
    middle = (f"{name} {np.searchsorted(upto, share * upto[-1])}" for name, share in at.items())
    ends = np.flatnonzero(histogram)[[0, -1]]
    return f"min {ends[0]}, {', '.join(middle)}, max {ends[1]}, mean {histogram @ numbers / upto[-1]:.2f}"


def grades(part: str, labels: Mapping[float, int]) -> Table | str:
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
    return f"features: {values.shape[1]} per document, {values.dtype}, {values.nbytes / 2**20:,.1f} MiB"


def notes(noted: Mapping[str, int | str]) -> str | None:
    """Returns the notes of a reader, if it has any."""
    figures = {name: f"{n:,}" if isinstance(n, int) else n for name, n in noted.items()}
    lines = (f"  {name.replace('_', ' ')}: {figure}" for name, figure in figures.items())
    return "\n".join(["notes", *lines]) if noted else None


def _bar(value: float, largest: float) -> Bar:
    return Bar(max(largest, 1e-9), 0, value, width=_BAR_WIDTH)


def _share(count: int | None, total: int) -> str:
    return "-" if count is None or not total else f"{count / total:.2%}"


def _by_part(names: Iterable[str], rows: Mapping[str, list[str]]) -> Table:
    return console_table(["", *names], ([name, *cells] for name, cells in rows.items()))

"""Tables and lines that tell of a log on a terminal."""

from collections.abc import Iterable, Mapping

import numpy as np
from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.table import Table

from clickexp.data.dataset import Dataset
from clickexp.data.inspect.summary import Summary
from clickexp.data.prepared import Log
from clickexp.data.sessions import Sessions

BAR_WIDTH = 30
MANY_GRADES = 12


def parts(log: Log) -> Table:
    """Sessions, documents shown, clicks and click rate of each part of a prepared log."""
    rows = {
        "sessions": [f"{part.count:,}" for part in log.parts.values()],
        "documents shown": [f"{part.documents:,}" for part in log.parts.values()],
        "clicks": [f"{part.clicks_total:,}" for part in log.parts.values()],
        "click rate": [_share(part.clicks_total, part.documents) for part in log.parts.values()],
    }
    names = ("all" if name == "sessions" else name for name in log.parts)
    return _by_part(names, rows)


def largest_id(parts: Iterable[Sessions]) -> str:
    """How large a table the parts ask for, in the words of Dataset.describe: with gaps, or from 0, ids are not the
    number of pairs."""
    return f"query-document ids up to {max(part.query_doc_pairs for part in parts):,}"


def counts(summaries: Mapping[str, Summary]) -> Table:
    """Counts of each part, and what its pairs have in common with those of training."""
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
    """A line a rank of the training sessions, with a bar as long as the rate."""
    table = _table(["rank (train)", "shown", "clicks", "click rate", ""])
    rates = train.clicks / np.maximum(train.shown, 1)
    for rank, (shown, clicks, rate) in enumerate(zip(train.shown, train.clicks, rates), start=1):
        bar = Bar(max(rates.max(), 1e-9), 0, rate, width=BAR_WIDTH)
        table.add_row(f"{rank}", f"{shown:,}", f"{clicks:,}", _share(clicks, shown), bar)
    return table


def quantiles(histogram: np.ndarray) -> str:
    """Smallest, 10%, median, 90%, largest and mean of whole numbers, of which histogram[n] are n."""
    upto, numbers = np.cumsum(histogram), np.arange(len(histogram))
    if np.count_nonzero(histogram) == 1:
        return f"{histogram.argmax()} in every list"
    at = {"10%": 0.1, "median": 0.5, "90%": 0.9}
    middle = (f"{name} {np.searchsorted(upto, share * upto[-1])}" for name, share in at.items())
    ends = np.flatnonzero(histogram)[[0, -1]]
    return f"min {ends[0]}, {', '.join(middle)}, max {ends[1]}, mean {histogram @ numbers / upto[-1]:.2f}"


def grades(part: str, labels: Mapping[float, int]) -> Table | str:
    """A line a grade of relevance, or their range where there are many."""
    total = sum(labels.values())
    if len(labels) > MANY_GRADES:
        return f"labels of {part}: {len(labels):,} values from {min(labels):g} to {max(labels):g}, {total:,} in all"
    table = _table([f"label ({part})", "documents", "share", ""])
    for grade, count in labels.items():
        bar = Bar(max(labels.values()), 0, count, width=BAR_WIDTH)
        table.add_row(f"{grade:g}", f"{count:,}", _share(count, total), bar)
    return table


def features(dataset: Dataset) -> str | None:
    """Length, type and size of the feature vectors, if there are any."""
    if dataset.train.features is None:
        return None
    values = dataset.train.features.values
    return f"features: {values.shape[1]} a document, {values.dtype}, {values.nbytes / 2**20:,.1f} MiB"


def notes(noted: Mapping[str, int | str]) -> str | None:
    """What a reader has to tell, if anything."""
    figures = {name: f"{n:,}" if isinstance(n, int) else n for name, n in noted.items()}
    told = (f"  {name.replace('_', ' ')}: {figure}" for name, figure in figures.items())
    return "\n".join(["notes", *told]) if noted else None


def _share(count: int | None, total: int) -> str:
    return "-" if count is None or not total else f"{count / total:.2%}"


def _by_part(names: Iterable[str], rows: Mapping[str, list[str]]) -> Table:
    table = _table(["", *names])
    table.columns[0].justify = "left"
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _table(names: Iterable[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table

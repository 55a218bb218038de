"""Doubts about a log: what may be right, so that no reader refuses it, and makes figures wrong where it is not."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import islice

import numpy as np

from clickexp.data.cells import Cells
from clickexp.data.dataset import Dataset
from clickexp.data.description import MANY, SHARE
from clickexp.data.encoding import FEATURES
from clickexp.data.id_table import mixed
from clickexp.data.inspect.copies import Copies, copies, list_keys
from clickexp.data.inspect.layouts import EXAMINATION_BY, layout_doubts
from clickexp.data.inspect.order import shuffled_sessions
from clickexp.data.inspect.summary import shows_twice
from clickexp.data.schema import LARGEST_GRADE
from clickexp.data.sessions import Sessions
from clickexp.data.view import Chunk
from clickexp.utils.blocks import blocks
from clickexp.utils.text import counted

_ENOUGH = 100_000
"""Lists that are looked at, about; of more, those whose first documents are a share of all."""
_SEARCH_ENGINES = 0.05
"""Share of lists that show a document twice in a sound log: 3% in one of the TREC Session Track."""
_VECTORS = 1024
"""Documents, or lists, whose features are looked at together."""
_ENOUGH_CLICKS = 20
"""Clicks that judgements do not happen to agree with."""
_FAR = 5
"""Grades from the largest label down to the next, whose gain is then a 32nd."""
_FEW_LABELS = 0.01
"""Share of labels that are a mistake rather than a grade."""
_WIDE = 2.0
"""Factor that a 95% interval of relative examination reaches to each side, above which figures are those of chance."""
_QUANTILE = 1.96
"""Of the normal distribution, for 95% intervals."""
_REMEDY = "Drop the copies: rows that are there twice, or files"


def doubts(dataset: Dataset) -> Iterator[str]:
    """Yields a message for each doubt, with counts and the remedy.

    It reads the log once, in chunks, and keeps 8 bytes per list. Of large logs it looks at a share of the lists: for a
    million lists of ten that takes 0.04 to 0.06 s of one core, where reading parquet takes 0.5 to 1.8 s. But it looks
    at all labels, of which one may be absurd.

    Args:
        dataset: The log.
    """
    parts = dataset.distinct_parts
    yield from _of_dropped(dataset)
    yield from _of_click_rate(dataset.train)
    yield from _same_features(dataset.train)
    share = max(round(sum(part.count for part in parts.values()) / _ENOUGH), 1)
    counts = {name: _Part(part, share) for name, part in parts.items()}
    sample = f" (counted in a sample, of one list in {share})" if share > 1 else ""
    ordered = (dataset.train, dataset.val, dataset.test)
    messages = (shuffled_sessions(part, share) for part in ordered if "session_ids" in part.columns)
    yield from islice(filter(None, messages), 1)
    for message in _of_lists(counts, simulated=dataset.truth is not None):
        yield message + sample
    yield from _absurd_labels(parts)


def _of_dropped(dataset: Dataset) -> Iterator[str]:
    """Doubts logs of which much was left out."""
    if (share := dataset.notes.get(SHARE)) is not None:
        yield (
            f"{share} of the rows have faults and were left out, as the notes count them by kind. What is left is "
            "another log where they have something in common, such as a file, a device or a click: compare them first"
        )
    pages = dataset.notes.get("dropped_pages", 0)
    if not isinstance(pages, int):
        return
    all_pages = pages + sum(part.count for part in dataset.distinct_parts.values())
    if pages and pages >= MANY * all_pages:
        yield (
            f"{pages:,} of {all_pages:,} pages were left out, since a row of theirs is faulty or contradicts another. "
            "Pages with many clicks or rows are so more often, and what is left has fewer of these: mend the rows first"
        )


def _of_click_rate(train: Sessions) -> Iterator[str]:
    """Doubts whether there is something to fit."""
    if train.clicks_total == train.documents:
        yield (
            "every document of the training sessions was clicked, so that runs refuse the log: there is nothing to "
            "fit. It needs rows of documents that were shown and not clicked, too. Check the column of clicks"
        )
    elif not train.clicks_total:
        yield (
            "no document of the training sessions was clicked, so that runs refuse the log: there is nothing to fit. "
            "Check the column of clicks, and which sessions are for training"
        )
    else:
        yield from _few_lists(train)


def _same_features(train: Sessions) -> Iterator[str]:
    """Doubts features that are those of every document; it reads as many as are."""
    first, documents = None, 0
    for vectors in _feature_vectors(train):
        vectors = vectors[~np.isnan(vectors).any(axis=1)]  # of documents without any
        if not len(vectors):
            continue
        first = vectors[0] if first is None else first
        if (vectors != first).any():
            return
        documents += len(vectors)
    if first is not None and documents > 1:
        yield (
            f"the features of all documents are the same, {counted(len(first), 'number')} each, so that models of "
            "features cannot tell documents apart. Check which columns, or which file, the features come from"
        )


def _feature_vectors(train: Sessions) -> Iterator[np.ndarray]:
    """Yields feature vectors of documents, a few at a time; none of a log without features."""
    if train.features is not None:
        values = train.features.values[1:]
        yield from (values[block] for block in blocks(len(values), _VECTORS))
    elif FEATURES in train.feature_lengths:
        for block in blocks(train.count, _VECTORS):
            yield train.chunk(block.start, block.stop).of_documents(FEATURES)


def _few_lists(train: Sessions) -> Iterator[str]:
    """Doubts figures of logs whose clicks leave examination at the middle impression open, whatever the model.

    With c clicks at a position, n at the first, and known attraction, the logarithm of the ratio of both examinations
    has the variance 1 / c + 1 / n.
    """
    shown, clicks = train.by_position
    first, *_ = np.flatnonzero(shown)
    middle = int(np.searchsorted(np.cumsum(shown), shown.sum() / 2))
    few = (
        f"{counted(train.count, 'training list')}: too few for figures that are not those of chance. With "
        f"{counted(int(clicks[middle]), 'click')} at position {middle} and {clicks[first]:,} at position {first}, "
    )
    of_ends = clicks[[first, middle]]
    if not of_ends.all():
        yield f"{few}the ratio of their examination is not known at all. Collect more lists"
        return
    half = _QUANTILE * math.sqrt((1 / of_ends).sum())
    enough = math.log(_WIDE)
    if half <= enough:
        return
    needed = train.count * (half / enough) ** 2
    digits = 10 ** max(math.floor(math.log10(needed)) - 1, 0)
    yield (
        f"{few}a 95% interval of the ratio of their examination reaches at least a factor of {math.exp(half):,.1f} to "
        f"each side, even where attraction is known. Collect some {math.ceil(needed / digits) * digits:,} lists, with "
        f"which that is {_WIDE:g}"
    )


def examination_doubts(
    dataset: Dataset, cells: Cells | None = None, setting: str = EXAMINATION_BY
) -> dict[str, str]:
    """Returns a doubt for each grouping of pages that one examination by rank does not fit; see `layout_doubts`.

    Args:
        dataset: The log, of whose training sessions it looks at a share where they are many.
        cells: Layouts whose examination a model has apart.
        setting: See `layout_doubts`.
    """
    share = max(round(dataset.train.count / _ENOUGH), 1)
    return layout_doubts(dataset, partial(_sampled, share=share), cells, setting)


class _Part:
    """Counts of doubtful lists of a part.

    Args:
        sessions: The lists.
        share: Of how many lists one is looked at, about.

    Attributes:
        keys: A hash of each list that was looked at.
        repeated: Lists that show a document twice.
        shared: Lists that show several documents at one position.
        disordered: Lists with a position below that of the document before.
        clicks: Documents that were clicked, of lists with labels.
        labels: The smallest and the largest label of documents that were clicked, and of the others.
        partly_judged: Lists of which some documents have labels and others have none.
        unjudged: Documents without a label in these.
    """

    def __init__(self, sessions: Sessions, share: int):
        keys = [np.zeros(0, np.uint64)]
        self.repeated = self.shared = self.disordered = self.clicks = 0
        self.partly_judged = self.unjudged = 0
        self.labels = {True: (np.inf, -np.inf), False: (np.inf, -np.inf)}
        for chunk in _sampled(sessions, share):
            keys.append(list_keys(chunk))
            self.repeated += int(np.count_nonzero(shows_twice(chunk)))
            if "positions" in chunk:
                below, shown = np.diff(chunk.positions), chunk.shown[:, 1:]
                self.shared += int(np.count_nonzero(((below == 0) & shown).any(axis=1)))
                self.disordered += int(np.count_nonzero(((below < 0) & shown).any(axis=1)))
            if "labels" in chunk:
                self._add_labels(chunk)
        self.keys = np.concatenate(keys)

    def _add_labels(self, chunk: Chunk) -> None:
        has_label = ~np.isnan(chunk["labels"])
        lacking = chunk.shown & ~has_label & (chunk.shown & has_label).any(axis=1, keepdims=True)
        self.partly_judged += int(np.count_nonzero(lacking.any(axis=1)))
        self.unjudged += int(np.count_nonzero(lacking))
        self.clicks += int(np.count_nonzero(chunk["clicks"] & has_label))
        for clicked, (least, most) in self.labels.items():
            labels = chunk["labels"][chunk.shown & has_label & (chunk["clicks"] == clicked)]
            self.labels[clicked] = (labels.min(initial=least), labels.max(initial=most))


class _Grades:
    """The largest labels of all documents of a part.

    Args:
        sessions: The lists.

    Attributes:
        judged: Documents with a label.
        absurd: Documents with a label beyond grades.
        largest: The two largest labels, and how many documents have them.
    """

    def __init__(self, sessions: Sessions):
        self.judged = self.absurd = 0
        self.largest: Counter[float] = Counter()
        for chunk in sessions.chunks():
            if "labels" in chunk:
                labels = chunk.of_documents("labels")
                self._add(labels[~np.isnan(labels)])

    def _add(self, labels: np.ndarray) -> None:
        self.judged += len(labels)
        self.absurd += int(np.count_nonzero(labels > LARGEST_GRADE))
        for _ in range(2):
            if not len(labels):
                break
            largest = labels.max()
            self.largest[float(largest)] += int(np.count_nonzero(labels == largest))
            labels = labels[labels < largest]
        self.largest = Counter({label: self.largest[label] for label in sorted(self.largest)[-2:]})

    def too_large(self) -> str:
        """Says which labels are no grades, and how many documents have them; nothing where all may be."""
        next_label, largest = [*([0.0] * (2 - len(self.largest))), *sorted(self.largest)]
        if self.absurd:
            return f"{self.absurd:,} have a label above {LARGEST_GRADE}, up to {largest:g}"
        few = self.largest[largest] < _FEW_LABELS * self.judged
        if few and next_label > 0 and largest - next_label >= _FAR:
            return f"{self.largest[largest]:,} have the label {largest:g}, and all others at most {next_label:g}"
        return ""


def _sampled(sessions: Sessions, share: int) -> Iterator[Chunk]:
    """Yields chunks of the lists whose first document has one of `share` remainders: equal lists all or none."""
    for chunk in sessions.chunks():
        if share > 1:
            first = chunk["query_doc_ids"][:, 0].astype(np.uint64)
            kept = np.flatnonzero(mixed(first + np.uint64(1)) % np.uint64(share) == 0)
            yield chunk.some(kept)
        else:
            yield chunk


def _of_lists(parts: Mapping[str, _Part], simulated: bool) -> Iterator[str]:
    yield from _copied_lists(parts)
    yield from _repeated_documents(parts.values())
    yield from _shared_positions(parts.values())
    if not simulated:  # simulated users may click what is relevant, and nothing else
        yield from _labels_of_clicks(parts)
    yield from _missing_labels(parts)


def _copied_lists(parts: Mapping[str, _Part]) -> Iterator[str]:
    """Doubts whether test figures are those of new lists."""
    train = parts["train"].keys
    held_out = {name: copies(parts[name].keys, train) for name in ("val", "test")}
    doubtful = {name: copied for name, copied in held_out.items() if copied.doubtful}
    words = {"val": "validation", "test": "test"}
    if doubtful:
        counts = " and ".join(
            f"{_count(copied)} {words[name]} lists" for name, copied in doubtful.items()
        )
        yield (
            f"{counts} are training lists, too, with the same documents and clicks. Users do not repeat so many: the "
            f"log seems to hold rows twice, so that its figures are of what training has seen. {_REMEDY}"
        )
        return
    middle = len(train) // 2
    within = copies(train[middle:], train[:middle])
    if within.doubtful:
        yield (
            f"{_count(within)} later training lists are among the earlier ones, too, with the same documents and "
            "clicks. Users do not repeat so many: the log seems to hold rows twice, so that intervals are too narrow. "
            f"{_REMEDY}"
        )


def _repeated_documents(parts: Collection[_Part]) -> Iterator[str]:
    """Doubts whether ids name documents."""
    repeated, lists = sum(part.repeated for part in parts), sum(len(part.keys) for part in parts)
    if repeated > _SEARCH_ENGINES * lists:
        yield (
            f"{repeated:,} of {lists:,} lists show a document twice, more than search engines do: ids seem to name "
            "something else, such as what is unknown. Name the column of documents, or drop what is repeated"
        )


def _shared_positions(parts: Collection[_Part]) -> Iterator[str]:
    """Doubts whether positions are where documents were shown."""
    lists = sum(len(part.keys) for part in parts)
    if disordered := sum(part.disordered for part in parts):
        yield (
            f"in {disordered:,} of {lists:,} lists positions are not in order, while models take the documents before "
            "another one to be above it. Sort the documents of each list by position"
        )
    if shared := sum(part.shared for part in parts):
        yield (
            f"{shared:,} of {lists:,} lists show several documents at one position, which is right where positions "
            "were merged. Give each document its rank otherwise, or leave positions out: columns.positions=null"
        )


def _labels_of_clicks(parts: Mapping[str, _Part]) -> Iterator[str]:
    """Doubts whether labels are judgements: what was clicked has one label, all else another."""
    doubtful = {}
    for name, part in parts.items():
        clicked, others = part.labels[True], part.labels[False]
        constant = clicked[0] == clicked[1] and others[0] == others[1]
        if part.clicks >= _ENOUGH_CLICKS and constant and clicked != others:
            doubtful[name] = part
    if doubtful:
        clicks = sum(part.clicks for part in doubtful.values())
        labels = next(iter(doubtful.values())).labels
        yield (
            f"labels of {', '.join(doubtful)} follow clicks: all {clicks:,} documents that were clicked have one "
            f"({labels[True][0]:g}), all others another ({labels[False][0]:g}). Ranking metrics then judge by the "
            "clicks that models learn from. Name the column of judgements by columns.labels=NAME, or leave it out: "
            "columns.labels=null"
        )


def _absurd_labels(parts: Mapping[str, Sessions]) -> Iterator[str]:
    """Doubts whether labels are grades, whose gain 2^label - 1 leaves others something to gain."""
    found = {name: _Grades(sessions).too_large() for name, sessions in parts.items()}
    absurd = {name: words for name, words in found.items() if words}
    if absurd:
        named = "; ".join(f"of the documents of {name}, {words}" for name, words in absurd.items())
        yield (
            f"{named}. Beside these the gain 2^label - 1, of ndcg and of simulated users, leaves others nothing. "
            "Correct the labels, scale them to grades, or set metric.ranking.NAME.form=linear"
        )


def _missing_labels(parts: Mapping[str, _Part]) -> Iterator[str]:
    """Doubts whether documents without a label are irrelevant."""
    for name in ("ranking", "test"):
        if name in parts and parts[name].partly_judged:
            part = parts[name]
            yield (
                f"{part.unjudged:,} documents in {part.partly_judged:,} judged lists of {name} have no label. They "
                "count as irrelevant, as in TREC, so that models are judged by which documents were judged, too. "
                "metric.unjudged_documents=removed leaves them out of their lists"
            )
            return


def _count(copied: Copies) -> str:
    return f"{copied.common:,} of {copied.lists:,}"

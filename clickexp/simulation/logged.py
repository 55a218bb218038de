"""Learning-to-rank files whose labels are clicks of a log, with the position of each document in a file beside."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clickexp.data.ingest.lists import Lists
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import SourceLocation
from clickexp.errors import DataError
from clickexp.simulation.svmlight import POSITION, LabelledLists, beside, read_positions

SIMULATED, LOGGED = "simulated", "logged"
CLICKS = (SIMULATED, LOGGED)
"""Kinds of clicks: those of a simulated user, or the labels."""
_COLUMNS = ["query_doc_ids", "clicks", "lengths", "query_ids"]


def check_clicks(clicks: str, paths: Mapping[str, Path]) -> None:
    """DataError for another word than one of CLICKS, or for files of positions where users are simulated."""
    if clicks not in CLICKS:
        raise DataError(f"clicks is {clicks!r}. It must be one of {CLICKS}.")
    for file in paths.values():
        positions = beside(file, POSITION)
        if clicks == SIMULATED and positions.is_file():
            raise DataError(
                f"{positions}: positions of a log, while letor simulates clicks. Set clicks={LOGGED} where labels are "
                "clicks; or move the file to another folder."
            )


def write_logged(
    log: LogWriter,
    paths: Mapping[str, Path],
    lists: Mapping[str, LabelledLists],
    positions: int | None,
    val_queries: float,
    rng: np.random.Generator,
) -> None:
    """Writes the parts of a log whose labels are clicks.

    A file whose labels are 0 and 1 is a log, that of training has to be; one with others has judged lists, to rank. A
    part without a log takes `val_queries` of the training lists.

    Args:
        log: The log, which has the feature vectors of the files, in their order.
        paths: File of each part.
        lists: What it has.
        positions: Documents of a list to keep; None keeps all.
        val_queries: Share of the training lists for validation, and for the test.
        rng: Source of which they are.

    Raises:
        DataError: A label of the training file is no click, or a part would be empty.
    """
    parts, labelled_lists, first, query = {}, None, 1, 0
    zero_based = [
        positions_of_file.min(initial=1) == 0
        for part, file in paths.items()
        if (positions_of_file := read_positions(file, len(lists[part].labels))) is not None
    ]
    for part, file in paths.items():
        documents = lists[part]
        columns = _columns(file, documents, first, query, shift=int(any(zero_based)))
        if part == "train" or np.isin(documents.labels, (0, 1)).all():
            parts[part] = _as_clicks(columns, file)
        elif part == "test":
            labelled_lists = columns
        first += len(documents.labels)
        query += len(columns.lengths)
    for part in ("val", "test"):
        if part not in parts:
            parts["train"], parts[part] = _divided(parts["train"], val_queries, rng, paths["train"])
    kept = {
        part: columns.head(positions or columns.lengths.max(), log)
        for part, columns in parts.items()
    }
    ranks = max(int(columns.lengths.max()) for columns in kept.values())
    for part in ("train", "val", "test"):
        _write(log, part, kept[part], ranks)
    if labelled_lists is not None:
        _write(log, "ranking", labelled_lists, int(labelled_lists.lengths.max()), "labels")


def _write(log: LogWriter, part: str, lists: Lists, ranks: int, *further: str) -> None:
    with log.part(part, ranks, [*_COLUMNS, "positions", *further]) as pack:
        pack.append(lists.padded(ranks), SourceLocation(str(log.source)))


def _columns(file: Path, documents: LabelledLists, first: int, query: int, shift: int) -> Lists:
    """The lists of a file by position, with its queries; their documents are numbered from `first` on."""
    lengths = np.diff(documents.starts)
    stated = read_positions(file, len(documents.labels))
    places = np.concatenate([np.arange(1, length + 1) for length in lengths])
    positions = places if stated is None else stated + shift
    row = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((positions, row))
    queries = documents.queries
    if queries is None:
        queries = query + np.arange(len(lengths))
    columns = {
        "query_doc_ids": first + order,
        "clicks": np.zeros(len(order), bool),
        "positions": positions[order],
        "labels": documents.labels[order].astype(np.float32),
    }
    return Lists(lengths, columns, {"query_ids": queries})


def _as_clicks(columns: Lists, file: Path) -> Lists:
    labels = np.asarray(columns.documents["labels"])
    wrong = ~np.isin(labels, (0, 1))
    if wrong.any():
        label = labels[int(wrong.argmax())]
        line = int(np.asarray(columns.documents["query_doc_ids"])[int(wrong.argmax())])
        raise SourceLocation(str(file), 0, "line").error(
            f"label {label:g} is no click, 0 or 1",
            f"set clicks={SIMULATED} where labels are grades",
            line,
        )
    clicked = columns.with_documents(clicks=labels == 1)
    documents = {name: values for name, values in clicked.documents.items() if name != "labels"}
    return Lists(columns.lengths, documents, columns.sessions)


def _divided(
    columns: Lists, share: float, rng: np.random.Generator, file: Path
) -> tuple[Lists, Lists]:
    """Splits lists at random."""
    count = len(columns.lengths)
    taken = round(count * share)
    if not 0 < taken < count:
        what = f"val_queries={share} of {count} training lists leaves a part empty"
        raise SourceLocation(str(file)).error(what, "change it, or add files for val and test")
    chosen = np.zeros(count, bool)
    chosen[rng.permutation(count)[:taken]] = True
    return columns.without(chosen), columns.without(~chosen)

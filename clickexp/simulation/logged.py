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
    parts, labelled_lists = {}, None
    for part, columns in _by_position(paths, lists).items():
        if part == "train" or np.isin(lists[part].labels, (0, 1)).all():
            parts[part] = _as_clicks(columns, paths[part])
        elif part == "test":
            labelled_lists = columns
    for part in ("val", "test"):
        if part not in parts:
            parts["train"], parts[part] = _divided(parts["train"], val_queries, rng, paths["train"])
    kept = {part: columns.head(positions, log) for part, columns in parts.items()}
    ranks = max(map(_longest, kept.values()))
    for part in ("train", "val", "test"):
        _write(log, part, kept[part], ranks)
    if labelled_lists is not None:
        _write(log, "ranking", labelled_lists, _longest(labelled_lists), "labels")


def _longest(lists: Lists) -> int:
    return int(lists.lengths.max())


def _write(log: LogWriter, part: str, lists: Lists, ranks: int, *further: str) -> None:
    with log.part(part, ranks, [*_COLUMNS, "positions", *further]) as pack:
        pack.append(lists.padded(ranks), SourceLocation(str(log.source)))


def _by_position(paths: Mapping[str, Path], lists: Mapping[str, LabelledLists]) -> dict[str, Lists]:
    """The lists of each file by position; positions count from 0 in all files if they do in one."""
    stated = {part: read_positions(file, len(lists[part].labels)) for part, file in paths.items()}
    first_ranks = [
        positions.min(initial=1) for positions in stated.values() if positions is not None
    ]
    shift = int(0 in first_ranks)
    columns, first, query = {}, 1, 0
    for part, positions in stated.items():
        documents = lists[part]
        ranks = None if positions is None else positions + shift
        columns[part] = _columns(documents, ranks, first, query)
        first += len(documents.labels)
        query += len(columns[part].lengths)
    return columns


def _columns(
    documents: LabelledLists, positions: np.ndarray | None, first: int, query: int
) -> Lists:
    """The lists of a file by position, with its queries; their documents are numbered from `first` on."""
    lengths = np.diff(documents.starts)
    if positions is None:
        positions = np.concatenate([np.arange(1, length + 1) for length in lengths])
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

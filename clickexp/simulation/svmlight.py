"""Learning-to-rank files in svmlight form: `label qid:N feature:value ...` per line, documents of a query together.

Without qid, the number of documents of each query is in a file of the same name plus ".query".
"""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from clickexp.data.ingest.extent import outweighs
from clickexp.data.ingest.streams import COMPRESSIONS, opened, whole_lines
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import SourceLocation
from clickexp.utils.changes import changes
from clickexp.utils.text import byte_size

_BLOCK = 1 << 24
"""Bytes of text that are parsed at a time."""
_SLICE = 1 << 26
"""Bytes of feature vectors that are dense at a time."""
TRANSFORMS = {"none": lambda x: x, "log1p": lambda x: np.sign(x) * np.log1p(np.abs(x))}
_LAYOUT = "a line is label, qid:N (or none, with a .query file of group sizes), feature:value ..., separated by blanks"
MISSING = 1.797e308
"""Istella's files have the largest float64 where a feature is missing, which other files leave out."""
_LARGEST = np.finfo(np.float32).max
DOCUMENTS = "hash of documents"
"""Name of the note of which documents the ids of a log are."""
POSITION = ".position"
"""Ending of a file of positions, one per line of documents, as LightGBM has it."""
_MOST_POSITIONS = 10**9 - 1
_LAST_INDEX = re.compile(rb"(\d+):[^ :\n]*(?=\n|\Z)")


class LabelledLists(NamedTuple):
    """The labelled documents of one file.

    Attributes:
        labels: `[documents]`.
        starts: `[queries + 1]`, where the list of each query starts, and the end.
        content: Hash of the lines of the file, which tells whose documents the rows are.
        queries: `[queries]`, their ids; None where a file of sizes replaces them.
    """

    labels: np.ndarray
    starts: np.ndarray
    content: str
    queries: np.ndarray | None = None


def _blocks(file: Path) -> Iterator[bytes]:
    """Whole lines, without comments, of a plain or compressed file."""
    try:
        with opened(file) as stream:
            for block in whole_lines(stream, _BLOCK):
                yield re.sub(rb"[ \t]*(?:#[^\n]*)?\r?(?=\n|\Z)", b"", block)
    except OSError as error:
        raise SourceLocation(str(file)).error(
            f"cannot be read ({error})", "pack the file again, or give it unpacked"
        ) from error


def feature_count(files: Iterable[Path]) -> int:
    """One more than the largest feature index at the end of a line.

    Raises:
        DataError: No line has a feature, or one makes documents too wide.
    """
    files = list(files)
    largest, at, documents, values = -1, SourceLocation(str(files[0].parent)), 0, 0
    for file in files:
        line = 1
        for block in _blocks(file):
            last = max(
                _LAST_INDEX.finditer(block), key=lambda match: int(match[1][:18]), default=None
            )
            if last and int(last[1][:18]) > largest:
                largest = int(last[1][:18])
                at = SourceLocation(str(file), line + block.count(b"\n", 0, last.start()), "line")
            lines = _lines(block)
            line, documents = line + lines, documents + lines
            values += block.count(b":") - block.count(b"qid:")
    if largest < 0:
        raise at.error("the files have no features", _LAYOUT)
    width, size = largest + 1, np.dtype(np.float32).itemsize
    if outweighs(documents * width - values, values, size):
        what = f"feature index {largest} makes each of {documents} documents {width} numbers, of {values} in the files"
        remedy = "mend the line, or set features to the number of features if it is right"
        raise at.error(f"{what}; that takes {byte_size(documents * width * size)}", remedy, 0)
    return width


def read_lists(
    file: Path,
    features: int | Sequence[int],
    transform: str,
    log: LogWriter,
    missing_above: float | None = MISSING,
    absent: float = 0.0,
) -> LabelledLists:
    """Reads labels and lists of a file; its feature vectors go to the log, which counts those that are missing.

    Args:
        file: The file.
        features: Length of a feature vector, or the indices of those that are taken.
        transform: One of TRANSFORMS.
        log: Receives the feature vectors.
        missing_above: Features of at least this are missing; None for none.
        absent: What stands for them; those that a line leaves out are 0, and of two the last counts.

    Raises:
        DataError: A line does not parse; it names file, line and what was expected.
    """
    labels, queries, named, line = [np.zeros(0)], [np.zeros(0, np.int64)], [np.zeros(0, bool)], 0
    if isinstance(features, int):
        width, taken = features, slice(None)
    else:
        width, taken = max(feature_count([file]), max(features) + 1), [*features]
    rows = max(_SLICE // (np.dtype(np.float32).itemsize * width), 1)
    content = hashlib.sha256()
    for block in _blocks(file):
        content.update(block)
        location = SourceLocation(str(file), line + 1, "line")
        parsed = _parsed(block, width, location, missing_above, absent)
        if parsed.missing:
            log.note("missing_features", parsed.missing)
        for start in range(0, len(parsed.labels), rows):
            log.add_features(
                TRANSFORMS[transform](parsed.dense(start, start + rows, width)[:, taken]),
                np.float32,
            )
        labels.append(parsed.labels)
        queries.append(parsed.queries)
        named.append(parsed.has_query)
        line += _lines(block)
    labels, queries, named = map(np.concatenate, (labels, queries, named))
    if not len(labels):
        raise SourceLocation(str(file)).error("there are no documents", _LAYOUT)
    sizes = beside(file, ".query")
    if sizes.is_file():
        starts = np.append(0, np.cumsum(_sizes(sizes, len(labels))))
        return LabelledLists(labels, starts, content.hexdigest())
    if not named.all():
        row = int(named.argmin())
        raise SourceLocation(str(file), 1, "line").error(
            "there is no qid", f"{_LAYOUT}; {sizes.name} is missing", row
        )
    starts = np.flatnonzero(changes(queries))
    if len(np.unique(queries)) < len(starts):
        raise SourceLocation(str(file)).error(
            "a query comes back after another", "put the lines of a query together"
        )
    ends = np.append(starts, len(labels))
    return LabelledLists(labels, ends, content.hexdigest(), queries[starts])


def absent_feature(missing: str) -> float:
    """Returns what stands for a missing feature until an encoder fills it: nan, unless it is zero."""
    return 0.0 if missing == "zero" else math.nan


def _lines(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


class _Parsed(NamedTuple):
    """Whole lines: labels, query ids and whether there is one [lines], and features one after another [values].

    line     [values] the line of each
    feature  [values] its feature, below the width
    missing  how many values are marked as missing
    """

    labels: np.ndarray
    queries: np.ndarray
    has_query: np.ndarray
    line: np.ndarray
    feature: np.ndarray
    value: np.ndarray
    missing: int

    def dense(self, start: int, stop: int, width: int) -> np.ndarray:
        """The feature vectors [lines, width] of the lines start <= i < stop."""
        first, end = np.searchsorted(self.line, [start, stop])
        values = np.zeros((min(stop, len(self.labels)) - start, width), np.float32)
        values[self.line[first:end] - start, self.feature[first:end]] = self.value[first:end]
        return values


def _parsed(
    block: bytes,
    width: int,
    location: SourceLocation,
    missing_above: float | None,
    absent: float,
) -> _Parsed:
    """The numbers of whole lines."""
    text = block.removesuffix(b"\n").decode("utf-8", "replace")
    words = pl.Series([text]).str.split("\n").explode().str.extract_all(r"[^ \t]+")
    lines, first = np.arange(len(words)), words.list.first().fill_null("")
    labels = _numbers(first)
    _check(~np.isfinite(labels), first, lines, location, _LAYOUT)
    further = words.list.slice(1)
    lengths = further.list.len().to_numpy()
    tokens = further.filter(lengths > 0).explode()  # of an empty list it would be a null
    line, is_query = np.repeat(lines, lengths), tokens.str.starts_with("qid:").to_numpy()
    queries, has_query = _queries(tokens.filter(is_query), line[is_query], len(words), location)
    tokens, line = tokens.filter(~is_query), line[~is_query]
    parts = tokens.str.splitn(":", 2).struct
    feature, value = _numbers(parts.field("field_0")), _numbers(parts.field("field_1"))
    within = (feature >= 0) & (feature < width) & (feature == np.floor(feature))
    remedy = f"{_LAYOUT}; feature indices lie below {width}"
    _check(~(within & np.isfinite(value)), tokens, line, location, remedy)
    missing = value >= (np.inf if missing_above is None else missing_above)
    value = np.where(missing, absent, value)
    huge = np.abs(value) > _LARGEST
    if huge.any():
        at = int(huge.argmax())
        what = f"feature {feature[at]:.0f} is {value[at]:g}, beyond float32"
        power = math.floor(math.log10(abs(value[at])))
        remedy = f"scale the feature; or set missing_above=1e{power} where it marks a missing value"
        raise location.error(what, remedy, int(line[at]))
    count = int(np.count_nonzero(missing))
    return _Parsed(labels, queries, has_query, line, feature.astype(np.int64), value, count)


def _numbers(words: pl.Series) -> np.ndarray:
    """The numbers that words are; nan of others."""
    return words.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()


def _check(
    bad: np.ndarray, tokens: pl.Series, line: np.ndarray, location: SourceLocation, remedy: str
) -> None:
    """DataError for the first bad token; `line` has that of each."""
    if bad.any():
        at = int(bad.argmax())
        raise location.error(f"{tokens[at]!r} does not parse", remedy, int(line[at]))


def beside(file: Path, ending: str) -> Path:
    """Returns the file of more about the lines of a file: its name, without that of a compression, and the ending.

    Raises:
        DataError: What is called so is no file, such as a pipe, whose reader might wait for ever.
    """
    name = file.stem if file.suffix in COMPRESSIONS else file.name
    found = [file.with_name(each + ending) for each in dict.fromkeys((file.name, name))]
    for path in found:
        if path.is_file():
            return path
        if os.path.lexists(path):
            raise SourceLocation(str(path)).error("is no file", "rename it, or write a file there")
    return found[-1]


def read_positions(file: Path, documents: int) -> np.ndarray | None:
    """Returns the position of each line of a file, as its file of positions has them; None where there is none.

    Args:
        file: The file of documents.
        documents: Its lines.

    Raises:
        DataError: A position is no whole number of at least 0, or their number differs.
    """
    positions = beside(file, POSITION)
    if not positions.is_file():
        return None
    remedy = "write one whole number of at least 0 per line of documents"
    numbers = _whole_numbers(positions, (0, _MOST_POSITIONS), "position", remedy)
    if len(numbers) != documents:
        what = f"there are {len(numbers)} positions for {documents} documents"
        raise SourceLocation(str(positions)).error(what, remedy)
    return numbers


def _queries(
    tokens: pl.Series, line: np.ndarray, lines: int, location: SourceLocation
) -> tuple[np.ndarray, np.ndarray]:
    """The query id of each of some lines, exactly, and whether there is one; `line` has that of each token."""
    counts = np.bincount(line, minlength=lines)
    if (counts > 1).any():
        raise location.error("there are two qids", _LAYOUT, int(counts.argmax()))
    words = tokens.str.strip_prefix("qid:")
    numbers = words.cast(pl.Int64, strict=False)
    if numbers.null_count():
        at = int(numbers.is_null().arg_max() or 0)
        what = f"qid {words[at][:40]!r} is no 64-bit integer"
        raise location.error(what, "renumber the queries", int(line[at]))
    queries = np.zeros(lines, np.int64)
    queries[line] = numbers
    return queries, counts > 0


def _whole_numbers(file: Path, bounds: tuple[int, int], what: str, remedy: str) -> np.ndarray:
    """The words of a text file, which are whole numbers within bounds."""
    location = SourceLocation(str(file), 1, "line")
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise SourceLocation(str(file)).error(f"cannot be read ({error})", remedy) from error
    numbers = []
    for row, line in enumerate(lines):
        for word in line.split():
            if not re.fullmatch("[0-9]{1,18}", word) or not bounds[0] <= int(word) <= bounds[1]:
                raise location.error(f"{word[:40]!r} is no {what}", remedy, row)
            numbers.append(int(word))
    return np.array(numbers, np.int64)


def _sizes(file: Path, documents: int) -> np.ndarray:
    remedy = "write one number of documents per line, from 1"
    what = f"number of documents from 1 to all {documents}"
    sizes = _whole_numbers(file, (1, documents), what, remedy)
    if sizes.sum() != documents:
        what = f"{len(sizes)} group sizes sum to {sizes.sum()}, and there are {documents} documents"
        raise SourceLocation(str(file)).error(what, remedy)
    return sizes

"""Learning-to-rank files in svmlight form, with clicks simulated from their relevance labels.

MSLR-WEB, Yahoo LTRC, Istella and their kin: `label qid:N feature:value ...` a line, the documents of a query together;
or without qid, with the number of documents of each query in a file of the same name plus ".query".
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import DataError, Extent, SourceLocation, outweighs, shown_bytes
from clickexp.simulation.simulated import World, zipf
from clickexp.utils.bounds import Fraction, NonNegativeFloat, PositiveInt, Probability, Seed
from clickexp.utils.signatures import located

PARTS = {"train": ("train",), "val": ("vali", "valid", "val", "dev"), "test": ("test",)}
SUFFIXES = ("", ".txt", ".svm", ".svmlight", ".dat")
BLOCK = 1 << 24
POLICIES = ("trained", "random", "scores")
SLICE = 1 << 26
QID = re.compile(rb"(?<![^ \t\n])qid:([^ \t\n]*)")
INTEGER = re.compile(rb"[+-]?[0-9]{1,19}")
LAYOUT = "a line is label, qid:N (or none, with a .query file of group sizes), feature:value ..., separated by blanks"
COLUMNS = ["query_doc_ids", "clicks", "lengths", "query_ids", "labels"]
TRANSFORMS = {"none": lambda x: x, "log1p": lambda x: np.sign(x) * np.log1p(np.abs(x))}


class Lists(NamedTuple):
    """The judged documents of one file: labels [documents], and where each query's list starts, with the end."""

    labels: np.ndarray
    starts: np.ndarray


@log_format("letor", comes_split=True, has_features=True)
def open_letor(
    source: Path,
    log: LogWriter,
    *,
    user: Callable | str = "clickexp.models.PositionBasedModel",
    files: Mapping[str, str | None] | None = None,
    features: PositiveInt | None = None,
    transform: str = "log1p",
    sessions: PositiveInt = 100_000,
    val_sessions: PositiveInt = 20_000,
    test_sessions: PositiveInt = 20_000,
    val_queries: Fraction = 0.2,
    positions: PositiveInt = 10,
    policy: str = "trained",
    policy_queries: Probability = 0.05,
    policy_noise: NonNegativeFloat = 0.5,
    zipf_exponent: float = 0.0,
    click_noise: Probability = 0.1,
    examination_top: float = 2.0,
    examination_decay: float = 1.5,
    continuation: float = 2.0,
    seed: Seed = 0,
) -> None:
    """The dataset in a folder of such files: simulated clicks to train on, labelled test lists to rank.

    user            the click model that clicks: its constructor, or where it is found
    files           names of the files train, val and test; None looks for them by their names
    val_queries     share of the training queries to validate on where there is no file for that
    features        numbers a document; None takes the largest index in the files, from 0
    transform       "log1p", sign(x) log(1 + |x|), tames features of any scale; "none"
    policy          ranks what users see: "trained", a ridge regression on the labels of `policy_queries` (a share) of
                    the training queries; "random"; "scores", one number a line in files named as these plus ".scores"
    policy_noise    standard deviation of the noise added to the policy's standardised scores, each session anew
    zipf_exponent   popularity of the i-th query is proportional to i ** -exponent
    click_noise     attraction of an irrelevant document e; that of label y is e + (1 - e) (2^y - 1) / (2^max - 1)
    examination_top, examination_decay, continuation   see clickexp.simulation.simulated

    Training, validation and test sessions come from the queries of their own files. DataError names file, line and
    what was expected.
    """
    _check(policy, transform)
    found = _found(source, files or {})
    width = features or _width(found)
    lists = {part: _read(file, width, transform, log) for part, file in found.items()}
    split = SourceLocation(str(found["train"]))
    starts, queries = _numbered(lists, val_queries, np.random.default_rng(seed), split)
    ranks = _longest(found["test"], np.diff(starts)[queries["test"]])
    labels = np.concatenate([[0.0], *(part.labels for part in lists.values())])
    if labels.max() <= 0:
        raise SourceLocation(str(source)).error(
            "no document has a label above 0", "clicks are simulated from graded labels"
        )
    gain = (2 ** np.maximum(labels, 0) - 1) / (2 ** labels.max() - 1)
    attraction = np.float32(click_noise + (1 - click_noise) * gain)
    with np.errstate(divide="ignore"):
        logits = np.clip(np.log(attraction / (1 - attraction)), -30, 30)
    rng = np.random.default_rng((seed, 1))
    judged = rng.permutation(queries["train"])[: max(1, round(policy_queries * len(queries["train"])))]
    scores = _policy_scores(policy, found, labels, starts, judged, log, rng)
    world = World(starts, scores, np.float32(labels), logits, logits)
    clicker = world.user(
        located(user) if isinstance(user, str) else user,
        positions,
        (examination_top, examination_decay),
        continuation,
    )
    log.notes |= {
        "features": width,
        "judged queries behind the policy": len(judged) if policy == "trained" else 0,
    }
    counts = dict(train=sessions, val=val_sessions, test=test_sessions)
    done = 0
    for number, (part, count) in enumerate(counts.items()):
        popularity = zipf(len(queries[part]), zipf_exponent)
        with log.part(part, positions, COLUMNS) as pack:
            for chunk in world.browse(
                clicker, queries[part], popularity, policy_noise, positions, count, seed + number, rng
            ):
                pack.append(chunk, SourceLocation(str(source)))
                log.progress(done + pack.written, sum(counts.values()))
        done += count
    _write_ranking(world, queries["test"], ranks, log, SourceLocation(str(source)))


def _check(policy: str, transform: str) -> None:
    if policy not in POLICIES:
        raise DataError(f"policy is {policy!r}. It must be one of {POLICIES}.")
    if transform not in TRANSFORMS:
        raise DataError(f"transform is {transform!r}. It must be one of {tuple(TRANSFORMS)}.")


def _found(folder: Path, names: Mapping[str, str | None]) -> dict[str, Path]:
    """The file of each part; train and test must be there."""
    if unknown := names.keys() - PARTS.keys():
        raise DataError(f"files has keys {sorted(unknown)}. The keys are {list(PARTS)}.")
    found = {}
    for part, words in PARTS.items():
        if names.get(part):
            matches = [folder / names[part]]
        else:
            matches = [file for file in sorted(folder.glob("*")) if _is_named(file, words)]
        if len(matches) == 1 and matches[0].is_file():
            found[part] = matches[0]
        elif matches or part != "val":
            seen = [file.name for file in matches] or "none"
            raise DataError(f"{folder}: one file for {part} was looked for, found {seen}. Set files.{part}.")
    return found


def _is_named(file: Path, words: tuple[str, ...]) -> bool:
    """Whether one of the words stands alone in the name of a file that may hold documents."""
    stem = next((file.name.removesuffix(s) for s in SUFFIXES[1:] if file.name.endswith(s)), file.name)
    return (
        file.is_file()
        and not {*re.split(r"[^a-z]+", stem.lower())}.isdisjoint(words)
        and not file.name.endswith((".query", ".scores"))
    )


def _blocks(file: Path) -> Iterator[bytes]:
    """Whole lines, without comments."""
    with open(file, "rb") as lines:
        while block := lines.read(BLOCK):
            yield re.sub(rb"[ \t]*(?:#[^\n]*)?\r?(?=\n|\Z)", b"", block + lines.readline())


def _width(files: Mapping[str, Path]) -> int:
    """One more than the largest feature index at the end of a line; DataError where it makes documents too wide."""
    last = re.compile(rb"(\d+):[^ :\n]*(?=\n|\Z)")
    largest, at, documents, values = -1, SourceLocation(""), 0, 0
    for file in files.values():
        line = 1
        for block in _blocks(file):
            found = max(last.finditer(block), key=lambda match: int(match[1][:18]), default=None)
            if found and int(found[1][:18]) > largest:
                largest, at = (
                    int(found[1][:18]),
                    SourceLocation(str(file), line + block.count(b"\n", 0, found.start()), "line"),
                )
            lines = block.count(b"\n") + (not block.endswith(b"\n"))
            line, documents, values = (
                line + lines,
                documents + lines,
                values + block.count(b":") - block.count(b"qid:"),
            )
    width = largest + 1
    size = np.dtype(np.float32).itemsize
    if outweighs(documents * width - values, values, size):
        what = f"feature index {largest} makes each of {documents} documents {width} numbers, of {values} in the files"
        remedy = "mend the line, or set features to the number of features if it is right"
        raise at.error(f"{what}; that takes {shown_bytes(documents * width * size)}", remedy, 0)
    return width


def _read(file: Path, width: int, transform: str, log: LogWriter) -> Lists:
    """Labels and lists of a file; its feature vectors go to the log."""
    labels, queries, named, line = [np.zeros(0)], [np.zeros(0, np.int64)], [np.zeros(0, bool)], 0
    rows = max(SLICE // (np.dtype(np.float32).itemsize * width), 1)
    for block in _blocks(file):
        parsed = _parsed(block, width, SourceLocation(str(file), line + 1, "line"))
        for start in range(0, len(parsed.labels), rows):
            log.add_features(TRANSFORMS[transform](parsed.dense(start, start + rows, width)), np.float32)
        labels.append(parsed.labels)
        queries.append(parsed.queries)
        named.append(parsed.has_query)
        line += block.count(b"\n") + (not block.endswith(b"\n"))
    labels, queries, named = map(np.concatenate, (labels, queries, named))
    if not len(labels):
        raise SourceLocation(str(file)).error("there are no documents", LAYOUT)
    sizes = file.with_name(file.name + ".query")
    if sizes.is_file():
        return Lists(labels, np.append(0, np.cumsum(_sizes(sizes, len(labels)))))
    if not named.all():
        row = int(named.argmin())
        raise SourceLocation(str(file), 1, "line").error("there is no qid", f"{LAYOUT}; {sizes.name} is missing", row)
    starts = np.flatnonzero(np.append(True, queries[1:] != queries[:-1]))
    if len(np.unique(queries)) < len(starts):
        raise SourceLocation(str(file)).error("a query comes back after another", "put the lines of a query together")
    return Lists(labels, np.append(starts, len(labels)))


class Parsed(NamedTuple):
    """Whole lines: labels, query ids and whether there is one [lines], and features one after another [values].

    line   [values] the line of each
    index  [values] its feature, below the width
    """

    labels: np.ndarray
    queries: np.ndarray
    has_query: np.ndarray
    line: np.ndarray
    index: np.ndarray
    value: np.ndarray

    def dense(self, start: int, stop: int, width: int) -> np.ndarray:
        """The feature vectors [lines, width] of the lines start <= i < stop."""
        first, end = np.searchsorted(self.line, [start, stop])
        values = np.zeros((min(stop, len(self.labels)) - start, width), np.float32)
        values[self.line[first:end] - start, self.index[first:end]] = self.value[first:end]
        return values


def _parsed(block: bytes, width: int, location: SourceLocation) -> Parsed:
    """The numbers of whole lines.

    The parser gets one token per line, qid left out; a label has no value. A first line that is no token makes it
    expect two columns.
    """
    block = block.removesuffix(b"\n")
    if double := re.search(rb":[^ \t\n:]*:", block):
        row = block.count(b"\n", 0, double.start())
        raise location.error("a token has two colons", LAYOUT, row)
    if empty := re.search(rb"^[ \t]*$", block, re.MULTILINE):
        raise location.error("the line is empty", LAYOUT, block.count(b"\n", 0, empty.start()))
    lines = block.count(b"\n") + 1
    queries, has_query = _queries(block, lines, location)
    tokens = b"0:0\n" + re.sub(rb"[ \t]*(\n|[ \t])[ \t]*", b"\n", QID.sub(b"", block).strip(b" \t"))
    schema = {"key": pl.Float64, "value": pl.Float64}
    table = pl.read_csv(
        io.BytesIO(tokens),
        has_header=False,
        separator=":",
        schema=schema,
        ignore_errors=True,
        quote_char=None,
    )
    key, value = (table[name].to_numpy() for name in schema)
    is_label = np.isnan(value) & _bare(tokens)
    key, value, is_label, tokens = key[1:], value[1:], is_label[1:], tokens[4:]
    line = np.cumsum(is_label) - 1
    bad = ~np.isfinite(key) | (~is_label & ~np.isfinite(value)) | (line < 0)
    bad |= ~is_label & ((key < 0) | (key >= width) | (key != np.floor(key)))
    if bad.any():
        at = int(bad.argmax())
        token = tokens.split(b"\n", at + 1)[at].decode("utf-8", "replace")
        remedy = f"{LAYOUT}; feature indices lie below {width}"
        raise location.error(f"{token!r} does not parse", remedy, max(int(line[at]), 0))
    if is_label.sum() != lines:
        raise location.error("there is a line without a label, or with two", LAYOUT)
    features = ~is_label
    return Parsed(
        key[is_label], queries, has_query, line[features], key[features].astype(np.int64), value[features]
    )


def _queries(block: bytes, lines: int, location: SourceLocation) -> tuple[np.ndarray, np.ndarray]:
    """The query id of each line, exactly, and whether there is one."""
    queries, has_query = np.zeros(lines, np.int64), np.zeros(lines, bool)
    found = [(match.start(), match[1]) for match in QID.finditer(block)]
    if not found:
        return queries, has_query
    starts, words = zip(*found)
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    at = np.searchsorted(ends, starts)
    twice = np.flatnonzero(np.diff(at) == 0)
    if twice.size:
        raise location.error("there are two qids", LAYOUT, int(at[twice[0]]))
    for row, word in zip(at, words):
        if not INTEGER.fullmatch(word) or not -(2**63) <= int(word) < 2**63:
            text = word.decode("utf-8", "replace")[:40]
            raise location.error(f"qid {text!r} is no 64-bit integer", "renumber the queries", int(row))
    queries[at], has_query[at] = np.fromiter(map(int, words), np.int64, len(words)), True
    return queries, has_query


def _bare(tokens: bytes) -> np.ndarray:
    """Which of the tokens have no colon."""
    text = np.frombuffer(tokens + b"\n", np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    colons = np.cumsum(text == ord(":"))[ends]
    return np.diff(colons, prepend=0) == 0


def _sizes(file: Path, documents: int) -> np.ndarray:
    location, remedy = SourceLocation(str(file), 1, "line"), "write one number of documents per line, from 1"
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise SourceLocation(str(file)).error(f"cannot be read ({error})", remedy) from error
    words = [(row, word) for row, line in enumerate(lines) for word in line.split()]
    for row, word in words:
        if not re.fullmatch("[0-9]{1,18}", word) or not 1 <= int(word) <= documents:
            what = f"{word[:40]!r} is no number of documents from 1 to all {documents}"
            raise location.error(what, remedy, row)
    sizes = np.array([int(word) for _, word in words], np.int64)
    if sizes.sum() != documents:
        what = f"{len(sizes)} group sizes sum to {sizes.sum()}, and there are {documents} documents"
        raise SourceLocation(str(file)).error(what, remedy)
    return sizes


def _numbered(
    lists: Mapping[str, Lists], val_queries: float, rng: np.random.Generator, location: SourceLocation
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Where each query's ids start, over all files, and the numbers of the queries of each part."""
    sizes = np.concatenate([np.diff(part.starts) for part in lists.values()])
    ends = np.cumsum([len(part.starts) - 1 for part in lists.values()])
    numbers = np.split(np.arange(ends[-1]), ends[:-1])
    queries = dict(zip(lists, numbers, strict=True))
    if "val" not in queries:
        shuffled = rng.permutation(queries["train"])
        kept = round(len(shuffled) * (1 - val_queries))
        if not 0 < kept < len(shuffled):
            what = f"val_queries={val_queries} of {len(shuffled)} training queries leaves a part empty"
            raise location.error(what, "change it, or add a file for val")
        queries["train"], queries["val"] = shuffled[:kept], shuffled[kept:]
    return 1 + np.append(0, np.cumsum(sizes)), queries


def _policy_scores(
    policy: str,
    files: Mapping[str, Path],
    labels: np.ndarray,
    starts: np.ndarray,
    judged: np.ndarray,
    log: LogWriter,
    rng: np.random.Generator,
) -> np.ndarray:
    """Scores [ids] of the logging policy, of mean 0 and standard deviation 1."""
    if policy == "random":
        return rng.standard_normal(len(labels)).astype(np.float32)
    if policy == "scores":
        scores = np.concatenate([[0.0], *(_scores(file) for file in files.values())])
        if len(scores) != len(labels):
            raise DataError(
                f"there are {len(scores) - 1} scores for {len(labels) - 1} documents. Give one a line."
            )
    else:
        rows = np.concatenate([np.arange(starts[query], starts[query + 1]) for query in judged])
        scores = _ridge(log.features(), rows, labels)
    return ((scores - scores.mean()) / max(scores.std(), 1e-9)).astype(np.float32)


def _scores(file: Path) -> np.ndarray:
    file = file.with_name(file.name + ".scores")
    try:
        return np.array(file.read_text().split(), np.float64)
    except (OSError, ValueError) as error:
        raise SourceLocation(str(file)).error(
            f"cannot be read ({error})", "write one score a document and line"
        ) from error


def _ridge(features: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """What a ridge regression on the labels of some documents predicts for all; the penalty is their number."""
    x = features[rows].astype(np.float64)
    mean, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
    x = (x - mean) / scale
    weights = np.linalg.solve(
        x.T @ x + len(rows) * np.eye(x.shape[1]), x.T @ (labels[rows] - labels[rows].mean())
    )
    blocks = range(0, len(features), 1 << 16)
    return np.concatenate([(features[at : at + (1 << 16)] - mean) / scale @ weights for at in blocks])


def _longest(file: Path, lengths: np.ndarray) -> int:
    """The length of the longest list of a file."""
    extent = Extent()
    extent.add(lengths, SourceLocation(str(file), 1, "query"))
    return extent.ranks(COLUMNS, "leave documents of that query out of the file")


def _write_ranking(world: World, queries: np.ndarray, ranks: int, log: LogWriter, location: SourceLocation) -> None:
    """Whole lists of the test queries in the order of their file."""
    with log.part("ranking", ranks, COLUMNS) as pack:
        for some in np.array_split(queries, -(-len(queries) // 4096)):
            ids, there = world.candidates(some)
            ids = np.pad(np.where(there, ids, 0), ((0, 0), (0, pack.ranks - ids.shape[1])))
            pack.append(
                dict(
                    query_doc_ids=ids,
                    clicks=np.zeros(ids.shape, bool),
                    lengths=there.sum(axis=1),
                    query_ids=some,
                    labels=world.labels[ids],
                ),
                location,
            )

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

from clickexp.bounds import Fraction, NonNegativeFloat, PositiveInt, Probability, Seed
from clickexp.construct import located
from clickexp.data.log import LogWriter, log_format
from clickexp.data.schema import DataError, Place
from clickexp.data.simulate import World, zipf

PARTS = {"train": ("train",), "val": ("vali", "valid", "val", "dev"), "test": ("test",)}
SUFFIXES = ("", ".txt", ".svm", ".svmlight", ".dat")
BLOCK = 1 << 24
POLICIES = ("trained", "random", "scores")
LAYOUT = "a line is label, qid:N (or none, with a .query file of group sizes), feature:value ..., separated by blanks"
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
    examination_top, examination_decay, continuation   see clickexp.data.simulate

    Training, validation and test sessions come from the queries of their own files. DataError names file, line and
    what was expected.
    """
    _check(policy, transform)
    found = _found(source, files or {})
    width = features or _width(found)
    lists = {part: _read(file, width, transform, log) for part, file in found.items()}
    starts, queries = _numbered(lists, val_queries, np.random.default_rng(seed))
    labels = np.concatenate([[0.0], *(part.labels for part in lists.values())])
    if labels.max() <= 0:
        raise Place(str(source)).error(
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
    done, columns = 0, ["query_doc_ids", "clicks", "lengths", "query_ids", "labels"]
    for number, (part, count) in enumerate(counts.items()):
        popularity = zipf(len(queries[part]), zipf_exponent)
        with log.part(part, positions, columns) as pack:
            for chunk in world.browse(
                clicker, queries[part], popularity, policy_noise, positions, count, seed + number, rng
            ):
                pack.append(chunk, Place(str(source)))
                log.progress(done + pack.written, sum(counts.values()))
        done += count
    _write_ranking(world, queries["test"], columns, log, Place(str(source)))


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
    """One more than the largest feature index at the end of a line."""
    last = re.compile(rb"(\d+):[^ :\n]*(?=\n|\Z)")
    return 1 + max(
        (int(index) for file in files.values() for block in _blocks(file) for index in last.findall(block)),
        default=0,
    )


def _read(file: Path, width: int, transform: str, log: LogWriter) -> Lists:
    """Labels and lists of a file; its feature vectors go to the log."""
    labels, queries, line = [np.zeros(0)], [np.zeros(0)], 0
    for block in _blocks(file):
        place = Place(str(file), line + 1, "line")
        part_labels, part_queries, values = _parsed(block, width, place)
        log.add_features(TRANSFORMS[transform](values), np.float32)
        labels.append(part_labels)
        queries.append(part_queries)
        line += block.count(b"\n") + (not block.endswith(b"\n"))
    labels, queries = np.concatenate(labels), np.concatenate(queries)
    if not len(labels):
        raise Place(str(file)).error("there are no documents", LAYOUT)
    sizes = file.with_name(file.name + ".query")
    if sizes.is_file():
        return Lists(labels, np.append(0, np.cumsum(_sizes(sizes, len(labels)))))
    if np.isnan(queries).any():
        row = int(np.isnan(queries).argmax())
        raise Place(str(file), 1, "line").error("there is no qid", f"{LAYOUT}; {sizes.name} is missing", row)
    starts = np.flatnonzero(np.diff(queries, prepend=np.nan))
    if len(np.unique(queries)) < len(starts):
        raise Place(str(file)).error("a query comes back after another", "put the lines of a query together")
    return Lists(labels, np.append(starts, len(labels)))


def _parsed(block: bytes, width: int, place: Place) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels [lines], query ids [lines] (nan for none) and dense features [lines, width] of whole lines.

    Every token is a line of its own for the parser: a label has no value, a query's key is -1. A first line that is
    no token tells the parser of two columns.
    """
    block = block.removesuffix(b"\n")
    if double := re.search(rb":[^ \t\n:]*:", block):
        row = block.count(b"\n", 0, double.start())
        raise place.error("a token has two colons", LAYOUT, row)
    if empty := re.search(rb"^[ \t]*$", block, re.MULTILINE):
        raise place.error("the line is empty", LAYOUT, block.count(b"\n", 0, empty.start()))
    tokens = b"0:0\n" + re.sub(
        rb"[ \t]*(\n|[ \t])[ \t]*", b"\n", block.strip(b" \t").replace(b"qid:", b"-1:")
    )
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
    feature = ~is_label & (key != -1)
    bad = ~np.isfinite(key) | (~is_label & ~np.isfinite(value)) | (line < 0)
    bad |= feature & ((key < 0) | (key >= width) | (key != np.floor(key)))
    if bad.any():
        at = int(bad.argmax())
        token = tokens.split(b"\n", at + 1)[at].decode("utf-8", "replace")
        remedy = f"{LAYOUT}; feature indices lie below {width}"
        raise place.error(f"{token!r} does not parse", remedy, max(int(line[at]), 0))
    lines = int(is_label.sum())
    if lines != block.count(b"\n") + 1:
        raise place.error("there is a line without a label, or with two", LAYOUT)
    queries, values = np.full(lines, np.nan), np.zeros((lines, width), np.float32)
    query = ~is_label & ~feature
    queries[line[query]] = value[query]
    values[line[feature], key[feature].astype(np.int64)] = value[feature]
    return key[is_label], queries, values


def _bare(tokens: bytes) -> np.ndarray:
    """Which of the tokens have no colon."""
    text = np.frombuffer(tokens + b"\n", np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    colons = np.cumsum(text == ord(":"))[ends]
    return np.diff(colons, prepend=0) == 0


def _sizes(file: Path, documents: int) -> np.ndarray:
    try:
        sizes = np.array(file.read_text().split(), np.int64)
    except ValueError as error:
        raise Place(str(file)).error(
            f"cannot be read ({error})", "write one number of documents a line"
        ) from error
    if (sizes < 1).any() or sizes.sum() != documents:
        what = f"{len(sizes)} group sizes sum to {sizes.sum()}, and there are {documents} documents"
        raise Place(str(file)).error(what, "write one number of documents a line, from 1")
    return sizes


def _numbered(
    lists: Mapping[str, Lists], val_queries: float, rng: np.random.Generator
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
            raise DataError(
                f"val_queries={val_queries} of {len(shuffled)} training queries leaves a part empty. Change it."
            )
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
        raise Place(str(file)).error(
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


def _write_ranking(
    world: World, queries: np.ndarray, columns: list[str], log: LogWriter, place: Place
) -> None:
    """Whole lists of the test queries in the order of their file."""
    counts = np.diff(world.starts)[queries]
    with log.part("ranking", int(counts.max()), columns) as pack:
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
                place,
            )

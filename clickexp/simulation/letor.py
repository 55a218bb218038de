"""Learning-to-rank datasets such as MSLR-WEB, Yahoo LTRC and Istella, with clicks simulated from their labels."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from clickexp.data.ingest.columns import check_keys
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import Extent, SourceLocation
from clickexp.errors import DataError
from clickexp.simulation.simulated import GroundTruth, zipf
from clickexp.simulation.svmlight import TRANSFORMS, Lists, feature_count, read_lists
from clickexp.utils.bounds import Fraction, NonNegativeFloat, PositiveInt, Probability, Seed
from clickexp.utils.signatures import located

PARTS = {"train": ("train",), "val": ("vali", "valid", "val", "dev"), "test": ("test",)}
SUFFIXES = ("", ".txt", ".svm", ".svmlight", ".dat")
POLICIES = ("trained", "random", "scores")
COLUMNS = ["query_doc_ids", "clicks", "lengths", "query_ids", "labels"]


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
    features        numbers per document; None takes the largest index in the files, from 0
    transform       "log1p", sign(x) log(1 + |x|), tames features of any scale; "none"
    policy          ranks what users see: "trained", a ridge regression on the labels of `policy_queries` (a share) of
                    the training queries; "random"; "scores", one number per line in files named as these plus ".scores"
    policy_noise    standard deviation of the noise added to the policy's standardised scores, drawn for each session
    zipf_exponent   popularity of the i-th query is proportional to i ** -exponent
    click_noise     attraction of an irrelevant document e; that of label y is e + (1 - e) (2^y - 1) / (2^max - 1)
    examination_top, examination_decay, continuation   see clickexp.simulation.simulated

    Training, validation and test sessions come from the queries of their own files. DataError names file, line and
    what was expected.
    """
    _check(policy, transform)
    found = _found(source, files or {})
    width = features or feature_count(found.values())
    lists = {part: read_lists(file, width, transform, log) for part, file in found.items()}
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
    truth = GroundTruth(starts, scores, labels.astype(np.float32), logits, logits)
    clicker = truth.user(
        located(user) if isinstance(user, str) else user,
        positions,
        (examination_top, examination_decay),
        continuation,
    )
    log.notes |= {
        "features": width,
        "judged queries behind the policy": len(judged) if policy == "trained" else 0,
    }
    counts = {"train": sessions, "val": val_sessions, "test": test_sessions}
    done = 0
    for number, (part, count) in enumerate(counts.items()):
        popularity = zipf(len(queries[part]), zipf_exponent)
        with log.part(part, positions, COLUMNS) as pack:
            for chunk in truth.browse(
                clicker, queries[part], popularity, policy_noise, positions, count, seed + number, rng
            ):
                pack.append(chunk, SourceLocation(str(source)))
                log.progress(done + pack.written, sum(counts.values()))
        done += count
    ids, there = truth.candidates(queries["test"])  # whole lists
    with log.part("ranking", ranks, COLUMNS) as pack:
        lists = truth.labelled(np.where(there, ids, 0)[:, :ranks], queries["test"])
        pack.append(lists, SourceLocation(str(source)))


def _check(policy: str, transform: str) -> None:
    if policy not in POLICIES:
        raise DataError(f"policy is {policy!r}. It must be one of {POLICIES}.")
    if transform not in TRANSFORMS:
        raise DataError(f"transform is {transform!r}. It must be one of {tuple(TRANSFORMS)}.")


def _found(folder: Path, names: Mapping[str, str | None]) -> dict[str, Path]:
    """The file of each part; train and test must be there."""
    check_keys("files", names, PARTS)
    found = {}
    for part, words in PARTS.items():
        if name := names.get(part):
            matches = [folder / name]
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
        left = round(len(shuffled) * (1 - val_queries))
        if not 0 < left < len(shuffled):
            what = f"val_queries={val_queries} of {len(shuffled)} training queries leaves a part empty"
            raise location.error(what, "change it, or add a file for val")
        queries["train"], queries["val"] = shuffled[:left], shuffled[left:]
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
                f"there are {len(scores) - 1} scores for {len(labels) - 1} documents. Give one per line."
            )
    else:
        rows = np.concatenate([np.arange(int(starts[query]), int(starts[query + 1])) for query in judged])
        scores = _ridge(log.features(), rows, labels)
    return ((scores - scores.mean()) / max(scores.std(), 1e-9)).astype(np.float32)


def _scores(file: Path) -> np.ndarray:
    file = file.with_name(file.name + ".scores")
    try:
        return np.array(file.read_text().split(), np.float64)
    except (OSError, ValueError) as error:
        raise SourceLocation(str(file)).error(
            f"cannot be read ({error})", "write one score per document and line"
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

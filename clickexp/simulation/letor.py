"""Learning-to-rank datasets such as MSLR-WEB, Yahoo LTRC and Istella, with clicks simulated from their labels."""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge

from clickexp.data.encoding import FEATURES, FeatureSettings, Missing
from clickexp.data.ingest.columns import check_keys
from clickexp.data.ingest.extent import Extent
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import Column, SourceLocation
from clickexp.errors import DataError
from clickexp.simulation.logged import LOGGED, SIMULATED, check_clicks, write_logged
from clickexp.simulation.policies import check_policy, policy_scores
from clickexp.simulation.simulated import RANDOMIZED, GroundTruth, zipf
from clickexp.simulation.svmlight import (
    DOCUMENTS,
    MISSING,
    POSITION,
    TRANSFORMS,
    LabelledLists,
    absent_feature,
    feature_count,
    read_lists,
)
from clickexp.simulation.towers import Behavior
from clickexp.simulation.truth import LARGEST, attraction_logits, letor_user
from clickexp.utils.bounds import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Seed,
)

_PARTS = {"train": ("train",), "val": ("vali", "valid", "val", "dev"), "test": ("test",)}
_SUFFIXES = ("", ".txt", ".svm", ".svmlight", ".dat")
_UNPACK = {
    ".zip": "unzip {0} -d FOLDER",
    ".rar": "unrar x {0} FOLDER/",
    ".7z": "7z x {0} -oFOLDER",
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), "tar -xf {0} -C FOLDER"),
}
"""Commands that unpack archives, by the endings of their names."""
_COLUMNS = ["query_doc_ids", "clicks", "lengths", "query_ids", "labels"]
_POLICY_SCORES = Column("policy_scores", np.float32)
"""The logging policy's score of each document, of mean 0 and standard deviation 1, before noise."""
_Folds = Annotated[int, Ge(2)]


@log_format("letor", comes_split=True, has_features=True, true_user=letor_user)
def open_letor(
    source: Path,
    log: LogWriter,
    *,
    user: Callable | str = "clickexp.models.PositionBasedModel",
    files: Mapping[str, str | None] | None = None,
    features: PositiveInt | Sequence[NonNegativeInt] | None = None,
    missing_above: PositiveFloat | None = MISSING,
    missing: Missing = "zero",
    transform: str = "log1p",
    standardize: bool = False,
    clicks: str = SIMULATED,
    sessions: PositiveInt = 100_000,
    val_sessions: PositiveInt = 20_000,
    test_sessions: PositiveInt = 20_000,
    val_queries: Fraction = 0.2,
    folds: _Folds | None = None,
    fold: NonNegativeInt = 0,
    positions: PositiveInt | None = 10,
    policy: str = "trained",
    policy_queries: Probability = 0.05,
    policy_feature: NonNegativeInt | None = None,
    policy_ranker: str | None = None,
    policy_noise: NonNegativeFloat = 0.5,
    randomized_sessions: Probability = 0.0,
    keep_policy_scores: bool = False,
    zipf_exponent: float = 0.0,
    click_noise: Probability = 0.1,
    attraction_by_label: Sequence[Probability] | None = None,
    behavior: Behavior,
    seed: Seed = 0,
) -> None:
    """The dataset in a folder of such files: clicks to train on, simulated or logged, and labelled test lists to rank.

    user            the click model that clicks: its constructor, or where it is found
    files           names of the files train, val and test; None looks for them by their names
    val_queries     share of the training queries to validate on where there is no file for that
    folds, fold     cross-validation by query: all queries of the files are dealt to so many folds, and number `fold`,
                    from 0, is the test; val_queries of the others validate
    features        numbers per document, or the indices of those to take, such as [0, 7, 12]; None takes all, from 0 to
                    the largest index in the files
    missing_above   features of at least this are missing, and counted; None for none
    missing         what stands for a missing feature: "zero", as for those that a line leaves out; "mean", over the
                    training documents; or "indicator", the mean and a further feature that says so
    clicks          "simulated", from the labels as below; or "logged", the labels are clicks, 0 or 1: a list per query,
                    in the order of positions in files named as these plus ".position", one per line, from 0 or 1, or of
                    the lines. A file for test with other labels has judged lists; the test sessions then are
                    val_queries of the training ones, too. Of the other options, those up to `standardize`, and
                    `positions`, count
    transform       "log1p", sign(x) log(1 + |x|), tames features of any scale; "none"
    standardize     features get mean 0 and standard deviation 1 over the training documents, after `transform`
    positions       documents shown; None shows all
    policy          ranks what users see: "trained", a ridge regression on the labels of `policy_queries` (a share) of
                    the training queries; "random", one random order of each list; "scores", one number per line in
                    files named as these plus ".scores"; "oracle", the labels; "feature", feature number
                    `policy_feature`, transformed, the largest first; "ranker", a fitted run, `policy_ranker` being
                    its folder, after clickexp-export RUN --numpy, or the ranker.npz that this wrote
    policy_noise    standard deviation of the noise added to the policy's standardised scores, drawn for each session
    randomized_sessions   share of sessions whose lists are in uniformly random order; column `randomized` flags them
    keep_policy_scores    adds the column `policy_scores`, the policy's standardised score of each document before noise
    zipf_exponent   popularity of the i-th query is proportional to i ** -exponent
    click_noise     attraction of an irrelevant document e; that of label y is e + (1 - e) (2^y - 1) / (2^max - 1)
    attraction_by_label   attraction of the labels 0, 1, ..., in place of that formula
    examination_top, examination_decay, continuation   see clickexp.simulation.simulated
    examination_by_rank   P(examination) of each rank, in place of s(top - decay log(rank))
    trust_positive, trust_negative   P(click | examined) of attractive documents and of others at each rank, for the
                    user clickexp.models.TrustBiasModel

    Training, validation and test sessions come from the queries of separate files. DataError names file, line and
    what was expected.
    """
    check_policy(policy, policy_feature, policy_ranker)
    _check(transform, folds, fold)
    paths = _files(source, files or {}, folds is not None)
    check_clicks(clicks, paths)
    taken = _taken(features, paths.values())
    absent = absent_feature(missing)
    lists = {
        part: read_lists(file, taken, transform, log, missing_above, absent)
        for part, file in paths.items()
    }
    log.features_of = _encoding(missing, standardize)
    log.notes |= {
        "features": log.features().shape[1],
        "transform": transform,
        DOCUMENTS: _hash_of(lists),
    }
    if clicks == LOGGED:
        write_logged(log, paths, lists, positions, val_queries, np.random.default_rng(seed))
        return
    split = SourceLocation(str(paths.get("train", source)))
    starts, queries = _numbered(lists, val_queries, folds, fold, np.random.default_rng(seed), split)
    tested = paths["test"] if folds is None else source
    ranks = _longest(tested, np.diff(starts)[queries["test"]])
    shown = positions or _longest(source, np.diff(starts))
    labels = np.concatenate([[0.0], *(part.labels for part in lists.values())])
    place = SourceLocation(str(source))
    logits = attraction_logits(labels, labels.max(), click_noise, attraction_by_label, place)
    rng = np.random.default_rng((seed, 1))
    labelled_count = max(1, round(policy_queries * len(queries["train"])))
    labelled = rng.permutation(queries["train"])[:labelled_count]
    order_by = policy_ranker if policy_feature is None else policy_feature
    scores = policy_scores(policy, paths, labels, starts, labelled, order_by, transform, log, rng)
    truth = GroundTruth(starts, scores, labels.astype(np.float32), logits, logits)
    clicker = truth.user(user, shown, behavior)
    log.notes |= {
        LARGEST: f"{labels.max():.9g}",
        "judged queries behind the policy": labelled_count if policy == "trained" else 0,
    }
    kept = [_POLICY_SCORES] if keep_policy_scores else []
    columns = [*_COLUMNS, *kept, *([RANDOMIZED] if randomized_sessions else [])]
    counts = {"train": sessions, "val": val_sessions, "test": test_sessions}
    done = 0
    for number, (part, count) in enumerate(counts.items()):
        popularity = zipf(len(queries[part]), zipf_exponent)
        who = (clicker, queries[part], popularity, policy_noise, shown, count, seed + number, rng)
        with log.part(part, shown, columns) as pack:
            for chunk in truth.browse(*who, randomized_sessions):
                pack.append(_with_scores(chunk, kept, scores), place)
                log.progress(done + pack.written, sum(counts.values()))
        done += count
    ids, mask = truth.candidates(queries["test"])  # whole lists
    with log.part("ranking", ranks, [*_COLUMNS, *kept]) as pack:
        ranking = truth.labelled(np.where(mask, ids, 0)[:, :ranks], queries["test"])
        pack.append(_with_scores(ranking, kept, scores), place)


def _hash_of(lists: Mapping[str, LabelledLists]) -> str:
    """Returns what tells which documents the ids of a log are, whatever its options and the names of its files."""
    contents = "".join(part.content for part in lists.values())
    return hashlib.sha256(contents.encode()).hexdigest()[:12]


def _encoding(missing: Missing, standardize: bool) -> FeatureSettings | None:
    """How feature vectors are encoded; None where they are as the files have them."""
    if missing == "zero" and not standardize:
        return None
    return FeatureSettings(
        columns=[FEATURES],
        missing=missing,
        standardize=standardize,
    )


def _with_scores(
    columns: dict[str, np.ndarray], kept: Sequence[Column], scores: np.ndarray
) -> dict[str, np.ndarray]:
    """The columns, with the policy's scores of their documents where these are kept."""
    ids = columns["query_doc_ids"]
    return {**columns, **{column.name: np.where(ids > 0, scores[ids], 0) for column in kept}}


def _taken(features: int | Sequence[int] | None, files: Collection[Path]) -> int | Sequence[int]:
    """The length of feature vectors, or the indices of the features to take; DataError for one that no line has."""
    if isinstance(features, int):
        return features
    width = feature_count(files)
    if beyond := [number for number in features or () if number >= width]:
        what = f"features has {beyond[0]}, and the largest index in the files is {width - 1}"
        raise DataError(f"{what}. Give indices from 0 to {width - 1}.")
    return features or width


def _check(transform: str, folds: int | None, fold: int) -> None:
    if transform not in TRANSFORMS:
        raise DataError(f"transform is {transform!r}. It must be one of {tuple(TRANSFORMS)}.")
    if folds is None and fold:
        raise DataError(f"fold is {fold}, of no folds. Set folds, such as folds=5.")
    if folds is not None and fold >= folds:
        raise DataError(
            f"fold is {fold}, and there are {folds} folds. Give one of 0 to {folds - 1}."
        )


def _files(folder: Path, names: Mapping[str, str | None], pooled: bool) -> dict[str, Path]:
    """The file of each part; train and test must be there, or where their queries are `pooled`, any."""
    check_keys("files", names, _PARTS)
    if not folder.is_dir():
        raise _no_folder(folder)
    paths = {}
    for part, words in _PARTS.items():
        matches = _matches(folder, names.get(part), words)
        if len(matches) == 1 and matches[0].is_file():
            paths[part] = matches[0]
        elif matches or (part != "val" and not pooled):
            raise _no_file(folder, part, matches)
    if not paths:
        raise DataError(
            f"{folder}: there is no file with train, vali, valid or test in its name. Set files.train."
        )
    return paths


def _no_file(folder: Path, part: str, matches: Sequence[Path]) -> DataError:
    """The error about a part of which there is no file, or not one alone."""
    if len(matches) == 1 and os.path.lexists(matches[0]):
        return SourceLocation(str(matches[0])).error(
            "is no file", f"remove it, or set files.{part}"
        )
    present = [file.name for file in matches] or "none"
    such = f"={present[0]}" if matches else ""
    return DataError(
        f"{folder}: one file for {part} was looked for, found {present}. Set files.{part}{such}, and those "
        "of the other parts alike."
    )


def _no_folder(source: Path) -> DataError:
    """The error about a source that is a file; it says how an archive is unpacked."""
    command = _UNPACK.get(next((end for end in _UNPACK if source.name.endswith(end)), ""), "")
    remedy = f"Unpack it: {command.format(source)}" if command else "Give the folder that has it"
    return DataError(
        f"{source}: this is a file, not a folder of files for train and test. {remedy}."
    )


def _matches(folder: Path, name: str | None, words: tuple[str, ...]) -> list[Path]:
    """The file of a name or, without one, the files that one of the words names."""
    if name:
        return [folder / name]
    return [file for file in sorted(folder.glob("*")) if _is_named(file, words)]


def _is_named(file: Path, words: tuple[str, ...]) -> bool:
    """Whether one of the words stands alone in the name of a file that may hold documents."""
    stem = next(
        (file.name.removesuffix(s) for s in _SUFFIXES[1:] if file.name.endswith(s)), file.name
    )
    return (
        not file.is_dir()
        and not {*re.split(r"[^a-z]+", stem.lower())}.isdisjoint(words)
        and not file.name.endswith((".query", ".scores", POSITION))
    )


def _numbered(
    lists: Mapping[str, LabelledLists],
    val_queries: float,
    folds: int | None,
    fold: int,
    rng: np.random.Generator,
    location: SourceLocation,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Where each query's ids start, over all files, and the numbers of the queries of each part."""
    sizes = np.concatenate([np.diff(part.starts) for part in lists.values()])
    ends = np.cumsum([len(part.starts) - 1 for part in lists.values()])
    numbers = np.split(np.arange(ends[-1]), ends[:-1])
    queries = dict(zip(lists, numbers, strict=True))
    if folds is not None:
        if folds > ends[-1]:
            raise location.error(f"there are {ends[-1]} queries for {folds} folds", "lower folds")
        dealt = rng.permutation(ends[-1])
        is_test = np.arange(ends[-1]) % folds == fold
        queries = {"train": np.sort(dealt[~is_test]), "test": np.sort(dealt[is_test])}
    if "val" not in queries:
        shuffled = rng.permutation(queries["train"])
        left = round(len(shuffled) * (1 - val_queries))
        if not 0 < left < len(shuffled):
            what = (
                f"val_queries={val_queries} of {len(shuffled)} training queries leaves a part empty"
            )
            raise location.error(what, "change it, or add a file for val")
        queries["train"], queries["val"] = shuffled[:left], shuffled[left:]
    return 1 + np.append(0, np.cumsum(sizes)), queries


def _longest(file: Path, lengths: np.ndarray) -> int:
    """The length of the longest list of a file."""
    extent = Extent()
    extent.add(lengths, SourceLocation(str(file), 1, "query"))
    return extent.ranks(_COLUMNS, "leave documents of that query out of the file")

"""Logging policies: what orders the lists that simulated users see."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import SourceLocation
from clickexp.errors import DataError, with_class
from clickexp.models.ranker.scorer import Scorer
from clickexp.runs.store import RANKER
from clickexp.simulation.svmlight import DOCUMENTS, beside
from clickexp.utils.blocks import blocks

_BLOCK = 1 << 16
"""Documents that are scored at a time."""
_NO_RANKER = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    MemoryError,
    zipfile.BadZipFile,
)
"""Errors of a file that holds no ranker, or a damaged one."""
_WRITE_RANKER = "write it with clickexp-export RUN --numpy"
_POLICIES = ("trained", "random", "scores", "oracle", "feature", "ranker")


def check_policy(policy: str, feature: int | None, ranker: str | None) -> None:
    """DataError for a policy that there is not, or one without the feature or the ranker that it orders by."""
    if policy not in _POLICIES:
        raise DataError(f"policy is {policy!r}. It must be one of {_POLICIES}.")
    for name, value in (("feature", feature), ("ranker", ranker)):
        if (policy == name) != (value is not None):
            stated = f"no policy_{name}" if value is None else f"policy_{name}={value}"
            raise DataError(
                f"policy is {policy!r}, with {stated}. Set policy={name} and policy_{name} together."
            )
    if ranker is not None and not (file := _file_of(ranker)).is_file():
        remedy = f"it has no {file.name}. Write it: clickexp-export {ranker} --numpy."
        why = remedy if Path(ranker).expanduser().is_dir() else "no such file or folder."
        raise DataError(f"policy_ranker={ranker}: {why}")


def policy_scores(
    policy: str,
    files: Mapping[str, Path],
    labels: np.ndarray,
    starts: np.ndarray,
    labelled: np.ndarray,
    order_by: int | str | None,
    transform: str,
    log: LogWriter,
    rng: np.random.Generator,
) -> np.ndarray:
    """Scores documents by a logging policy.

    Args:
        policy: One of _POLICIES.
        files: Of the documents, in the order of their ids.
        labels: `[ids]`; id 0 is no document.
        starts: `[queries + 1]`, the first id of each query.
        labelled: The queries whose labels "trained" knows.
        order_by: The number of the feature that "feature" orders by, or the file of "ranker".
        transform: Of the features.
        log: Has the feature vectors.
        rng: Source of "random".

    Returns:
        `[ids]`, of mean 0 and standard deviation 1.

    Raises:
        DataError: Scores are missing or do not fit the documents, or there is no such feature.
    """
    if policy == "random":
        return rng.standard_normal(len(labels)).astype(np.float32)
    if policy == "scores":
        scores = np.concatenate([[0.0], *(_read_scores(file) for file in files.values())])
        if len(scores) != len(labels):
            raise DataError(
                f"there are {len(scores) - 1} scores for {len(labels) - 1} documents. Give one per line."
            )
    elif policy == "oracle":
        scores = np.asarray(labels, np.float64)
    elif policy == "feature":
        scores = _feature(log.features(), int(order_by or 0))
    elif policy == "ranker":
        scores = _ranker(_file_of(str(order_by)), transform, len(labels), log)
    else:
        rows = np.concatenate(
            [np.arange(int(starts[query]), int(starts[query + 1])) for query in labelled]
        )
        scores = _ridge(log.features(), rows, labels)
    return ((scores - scores.mean()) / max(scores.std(), 1e-9)).astype(np.float32)


def _feature(features: np.ndarray, number: int) -> np.ndarray:
    """One feature of each document; DataError where there is none of this number, or it is the same for all."""
    if number >= features.shape[1]:
        last = features.shape[1] - 1
        raise DataError(
            f"policy_feature is {number}, and the last feature is {last}. Give one of 0 to {last}."
        )
    values = np.nan_to_num(features[:, number].astype(np.float64))
    if (values[1:] == values[1]).all():
        raise DataError(
            f"policy_feature is {number}, which is {values[1]:g} for all documents. Choose another one."
        )
    return values


def _file_of(ranker: str) -> Path:
    """The file of a ranker, also where the folder of its run is given."""
    path = Path(ranker).expanduser()
    return path / RANKER if path.is_dir() else path


def _ranker(file: Path, transform: str, rows: int, log: LogWriter) -> np.ndarray:
    """Scores of a fitted ranker; DataError where it was fitted to other features or documents."""
    location = SourceLocation(str(file))
    try:
        with file.open("rb") as stream:
            scores = _scores_of(Scorer(stream), location, transform, rows, log)
    except DataError:
        raise
    except _NO_RANKER as error:
        raise location.error(f"is no ranker ({with_class(error)})", _WRITE_RANKER) from error
    if not np.isfinite(scores).all():
        raise location.error("it scores documents by what is no number", _WRITE_RANKER)
    return scores


def _scores_of(
    ranker: Scorer, location: SourceLocation, transform: str, rows: int, log: LogWriter
) -> np.ndarray:
    features, what = log.features(), None
    if ranker.width not in (None, features.shape[1]):
        what = f"it reads {ranker.width} features, and documents have {features.shape[1]}"
    elif ranker.width is not None and ranker.description["transform"] != transform:
        what = f"it reads features with transform={ranker.description['transform']}, and these have {transform}"
    if ranker.rows - {rows}:
        documents = max(ranker.rows) - 1
        what = f"it knows {documents:,} documents by their ids, and there are {rows - 1:,}"
    elif ranker.rows and ranker.description.get("documents") != log.notes[DOCUMENTS]:
        what = "it knows documents by their ids, and those of these files are others"
    if what:
        raise location.error(
            what, "choose a run on the same files, with the same features and transform"
        )
    is_encoded = bool(ranker.description["encoding"])
    scores = []
    for block in blocks(rows, _BLOCK):
        ids = np.arange(*block.indices(rows))
        numbers = features[ids] if is_encoded else np.nan_to_num(features[ids])
        scores.append(ranker.score(ranker.encoded(numbers), ids, transformed=True))
    return np.concatenate(scores)


def _read_scores(file: Path) -> np.ndarray:
    file = beside(file, ".scores")
    try:
        return np.array(file.read_text().split(), np.float64)
    except (OSError, ValueError) as error:
        raise SourceLocation(str(file)).error(
            f"cannot be read ({error})", "write one score per document and line"
        ) from error


def _ridge(features: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Predictions for all documents of a ridge regression on the labels of some; the penalty is their number."""
    x = np.nan_to_num(features[rows].astype(np.float64))
    mean, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
    x = (x - mean) / scale
    weights = np.linalg.solve(
        x.T @ x + len(rows) * np.eye(x.shape[1]), x.T @ (labels[rows] - labels[rows].mean())
    )
    return np.concatenate(
        [
            (np.nan_to_num(features[block]) - mean) / scale @ weights
            for block in blocks(len(features), _BLOCK)
        ]
    )

"""A fitted ranker as arrays and a description of its towers, which NumPy and ONNX score documents by."""

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clickexp.data import Dataset, Features
from clickexp.data.batches import batch_like, keys_read
from clickexp.data.encoding import FEATURES, Encoder
from clickexp.data.schema import COLUMNS, Column
from clickexp.errors import UserError, install
from clickexp.evaluation.scores import relevance_scores
from clickexp.export.predict import single_documents
from clickexp.models import ClickModel, Model
from clickexp.models.ranker import scorer
from clickexp.models.ranker.scorer import Scorer
from clickexp.parameters import Formula, Parameter
from clickexp.runs.store import RANKER
from clickexp.simulation.svmlight import DOCUMENTS

_messages = logging.getLogger(__name__)
_RANKER, _SCORER = Path(RANKER).name, "ranker.py"
_BLOCK, _IDS = 1 << 16, "query_doc_ids"
LETOR = "clickexp.simulation.open_letor"
"""The reader of learning-to-rank files, whose features it transforms by default."""


def described(
    model: Model, dataset: Dataset, transform: str = "none", or_by_id: bool = False
) -> Scorer:
    """Describes a ranker.

    Args:
        model: A fitted model whose score is a sum of towers: of features, or of ids.
        dataset: The dataset that it was fitted to.
        transform: Of features, which the dataset has applied to those of its files.
        or_by_id: Whether any other score becomes a table by id of the documents of the log, such as that of a mixture.

    Raises:
        UserError: The score is something else, or a tower of features has no description.
    """
    try:
        return _ranker(model, dataset, transform)
    except UserError as error:
        if not or_by_id:
            raise UserError(f"{error}. Use --rank.") from error
        _messages.warning(
            "%s: ranker.npz has the scores of the documents of the log by their ids", error
        )
    return _by_id(model, dataset)


def ranker_files(ranker: Scorer) -> dict[str, bytes]:
    """Returns the content of ranker.npz, and of ranker.py, which scores with NumPy alone, by name."""
    archive = _archive(ranker.description, ranker.arrays).getvalue()
    return {_RANKER: archive, _SCORER: Path(scorer.__file__).read_bytes()}


def onnx_writer() -> Callable[[Scorer], bytes]:
    """Returns what makes the file of an ONNX model; a UserError where the package is not installed."""
    try:
        from clickexp.export.onnx_graph import onnx_model
    except ModuleNotFoundError as error:
        raise UserError(f"--onnx needs the package onnx: {install('onnx')}") from error
    return lambda ranker: onnx_model(ranker).SerializeToString()


def _by_id(model: Model, dataset: Dataset) -> Scorer:
    """Returns a table of the scores of all ids."""
    score = relevance_scores(model)
    scores = [
        part[:, 0]
        for ids in _blocks(dataset.query_doc_pairs + 1)
        for part in score(single_documents(dataset, ids))
    ]
    formula = Formula()
    formula.step("row", np.concatenate(scores), formula.ids)
    return _scorer(model, formula, dataset, "none")


def _ranker(model: Model, dataset: Dataset, transform: str) -> Scorer:
    """Returns the sum of towers, of which those of columns read these as features."""
    kinds = "towers of features (linear, deep, deep_cross) or of ids"
    reason = f"the score of {model.name or type(model).__name__} is no sum of {kinds}"
    towers = model.score_towers() if _has_own_towers(type(model)) else []
    if not towers or not all(isinstance(tower, Parameter) for tower in towers):
        raise UserError(reason)
    try:
        return _sum_of_towers(model, towers, dataset, transform)
    except UserError as error:
        raise UserError(f"{reason}: {error}") from error


def _has_own_towers(kind: type[Model]) -> bool:
    """Returns whether a model states its towers where it states its score, and not a class that it follows."""
    names = ("score_towers", "relevance", "predict_relevance")
    towers, *scores = (next(c for c in kind.__mro__ if name in vars(c)) for name in names)
    return all(issubclass(towers, score) for score in scores)


def _sum_of_towers(
    model: Model, towers: Sequence[Parameter], dataset: Dataset, transform: str
) -> Scorer:
    columns = _columns_of_documents(dataset)
    keys = [_key(tower, dataset, columns) for tower in towers]
    names = sorted({column.name for column in columns} & set(keys))
    if names and FEATURES in keys:
        raise UserError(f"its towers read {FEATURES} and {', '.join(names)}")
    formula = Formula()
    terms = []
    for tower, key in zip(towers, keys, strict=True):
        features = formula.features
        if key in names and len(names) > 1:
            features = formula.step("take", features, np.array([names.index(key)]))
        logit = _describe(tower, key, formula.reading(features), dataset)
        is_log = isinstance(model, ClickModel)
        terms.append(formula.step("log_sigmoid", logit) if is_log else logit)
    if len(terms) > 1:
        formula.step("add", *terms)
    return _scorer(model, formula, dataset, transform, names)


def _columns_of_documents(dataset: Dataset) -> list[Column]:
    """Returns the columns of one number per document that a log declares."""
    train = dataset.train
    declared = (train.schema[name] for name in train.columns.keys() - {*COLUMNS, FEATURES})
    return [column for column in declared if column.per_document and not column.shape]


def _key(tower: Parameter, dataset: Dataset, columns: Sequence[Column]) -> str:
    """Returns the key of a batch that a tower reads, by default ids; UserError where documents alone do not have it."""
    numbers = {column: np.zeros((1, 1), column.dtype) for column in columns}
    document = single_documents(dataset, np.zeros(1, np.int64), numbers)
    try:
        read = keys_read(tower.logit, batch_like(document))
    except KeyError as error:
        raise UserError(f"its tower reads {error}") from error
    if len(read) > 1 or not read <= {_IDS, FEATURES, *(column.name for column in columns)}:
        raise UserError(f"its tower reads {', '.join(sorted(read))}")
    return next(iter(read), _IDS)


def _describe(tower: Parameter, key: str, formula: Formula, dataset: Dataset) -> str:
    """Adds a tower to a formula: as a table of its logits where it looks rows up, else by its own description."""
    if key == _IDS:
        rows, ids = dataset.query_doc_pairs + 1, formula.ids
    elif key in tower.limits():
        rows, ids = tower.limits()[key] + 1, formula.step("squeeze", formula.features)
    else:
        return tower.describe(formula)
    compute = jax.jit(tower.logit)
    pieces = []
    for numbers in _blocks(rows):
        logits = np.asarray(compute({key: jnp.asarray(numbers[:, None], jnp.int32)}))
        pieces.append(np.broadcast_to(logits, (len(numbers), 1))[:, 0])
    return formula.step("row", np.concatenate(pieces), ids)


def _blocks(rows: int) -> Iterator[np.ndarray]:
    """Yields the numbers of rows, from 0."""
    for start in range(0, rows, _BLOCK):
        yield np.arange(start, min(start + _BLOCK, rows))


def _scorer(
    model: Model, formula: Formula, dataset: Dataset, transform: str, names: Sequence[str] = ()
) -> Scorer:
    """Returns the scorer of a formula, which reads its own columns, or else feature vectors, as features."""
    encoding = Formula("encoding_")
    width, columns = None, []
    if names:
        width, transform = len(names), "none"
        columns = [(name, 1, dataset.categories.get(name)) for name in names]
    elif dataset.features is not None and _reads_features(formula):
        width, columns = _features_read(dataset, dataset.features, encoding)
    description = {
        "model": model.name or type(model).__name__,
        "features": width,
        "transform": transform,
        "documents": dataset.notes.get(DOCUMENTS),
        "encoding": encoding.steps,
        "columns": columns,
        "steps": formula.steps,
    }
    return Scorer(_archive(description, {**formula.arrays, **encoding.arrays}))


def _reads_features(formula: Formula) -> bool:
    return any(formula.features in inputs for _, _, inputs, _ in formula.steps)


def _features_read(
    dataset: Dataset, features: Features, encoding: Formula
) -> tuple[int, list[tuple[str, int, Any]]]:
    """Returns how many features a scorer reads, and the columns of vectors that are encoded, whose steps it adds."""
    encoder = dataset.encoding.features
    if encoder is None:
        return features.values.shape[1], []
    _describe_encoder(encoder, encoding)
    columns = [(column.name, column.width, column.categories) for column in encoder.columns]
    return len(encoder.fill), columns


def _describe_encoder(encoder: Encoder, formula: Formula) -> None:
    """Adds the steps from the numbers of columns to feature vectors."""
    filled = formula.step("fill", formula.features, np.asarray(encoder.fill))
    parts = []
    for column, place in encoder.places():
        numbers = formula.step("take", filled, np.arange(place, place + column.width))
        if column.categories is not None:
            numbers = formula.step("one_hot", numbers, np.arange(1.0, len(column.categories) + 1))
        parts.append(numbers)
    if encoder.indicated:
        missing = formula.step("is_missing", formula.features)
        parts.append(formula.step("take", missing, np.asarray(encoder.indicated)))
    vectors = formula.step("concatenate", *parts)
    if encoder.is_standardized:
        centred = formula.step("subtract", vectors, np.asarray(encoder.center))
        formula.step("multiply", centred, np.asarray(encoder.scale))


def _archive(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> io.BytesIO:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, description=np.array(json.dumps(description)), **arrays)
    content.seek(0)
    return content


def transform_of(config: Mapping[str, Any], dataset: Dataset) -> str:
    """Returns the transform of features that the dataset of a run applied to those of its files.

    Args:
        config: Configuration of the run.
        dataset: Its dataset, whose reader notes it.
    """
    settings = config["dataset"]
    default = settings.get("transform", "log1p" if settings.get("_target_") == LETOR else "none")
    return str(dataset.notes.get("transform", default))

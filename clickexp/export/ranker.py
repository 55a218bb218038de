"""A fitted ranker as arrays and a description of its towers, which NumPy and ONNX score documents by."""

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from clickexp.data import Dataset, Sessions
from clickexp.data.batches import batch_like, keys_read
from clickexp.data.encoding import FEATURES, Encoder
from clickexp.data.schema import COLUMNS
from clickexp.errors import UserError, install
from clickexp.evaluation.scores import relevance_scores
from clickexp.export.predict import single_documents
from clickexp.models import Model
from clickexp.models.ranker import scorer
from clickexp.models.ranker.scorer import Scorer
from clickexp.parameters import Formula, Parameter
from clickexp.runs.store import RANKER

_messages = logging.getLogger(__name__)
_RANKER, _SCORER = Path(RANKER).name, "ranker.py"
_FORMULAS = (
    ("attraction", False),
    ("attraction", True),
    ("attraction satisfaction", True),
    ("ctr", True),
)
"""Towers whose sum may be the score, and whether of log-probabilities."""
_PROBES, _BLOCK = 512, 1 << 16
LETOR = "clickexp.simulation.open_letor"
"""What reads learning-to-rank files, whose features it transforms by default."""
_CLOSE = 1e-4
"""How far float32 may lie from float64."""


class _Probes(NamedTuple):
    """Documents that a description is checked against.

    Attributes:
        ids: Their ids.
        sessions: One of each.
        vectors: Their feature vectors; None where the log has none.
        columns: Values of columns that the log declares per document, as training shows some.
    """

    ids: np.ndarray
    sessions: Sessions
    vectors: np.ndarray | None
    columns: dict[str, np.ndarray]

    @classmethod
    def of(cls, dataset: Dataset) -> "_Probes":
        """Returns documents of a log."""
        ids = np.unique(np.linspace(0, dataset.query_doc_pairs, _PROBES).astype(np.int64))
        vectors = None
        if dataset.features is not None:
            vectors = np.asarray(dataset.features.values[ids])
            there = np.isfinite(vectors).all(axis=1)  # of another log, unknown documents have none
            ids, vectors = ids[there], vectors[there]
        train, columns = dataset.train, {}
        shown = train.slice(0, _PROBES).chunk()
        for name in train.columns.keys() - {*COLUMNS, FEATURES}:
            column = train.schema[name]
            if column.per_document and not column.shape:
                columns[column] = np.resize(shown.of_documents(name), (len(ids), 1))
        sessions = single_documents(dataset, ids, columns)
        return cls(ids, sessions, vectors, {each.name: columns[each][:, 0] for each in columns})

    def features_of(self, ranker: Scorer) -> np.ndarray | None:
        """Returns what a ranker reads as features, transformed and encoded."""
        if not ranker.description["columns"] or ranker.description["encoding"]:
            return self.vectors
        return np.stack([self.columns[name] for name, *_ in ranker.description["columns"]], axis=1)


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
    probes = _Probes.of(dataset)
    expected = np.concatenate([*relevance_scores(model)(probes.sessions)])[:, 0]
    problem = ""
    for roles, log_probability in _FORMULAS:
        towers = [getattr(model, role, None) for role in roles.split()]
        if not all(isinstance(tower, Parameter) for tower in towers):
            continue
        try:
            ranker = _ranker(model, roles.split(), log_probability, dataset, transform, probes)
        except UserError as error:
            problem = f": {error}"
            continue
        features = probes.features_of(ranker)
        scores = np.asarray(ranker.score(features, probes.ids, transformed=True))
        if np.allclose(scores, expected, rtol=_CLOSE, atol=_CLOSE):
            return ranker
    kinds = "towers of features (linear, deep, deep_cross) or of ids"
    reason = f"the score of {model.name or type(model).__name__} is no sum of {kinds}{problem}"
    if not or_by_id:
        raise UserError(f"{reason}. Use --rank.")
    _messages.warning(
        "%s: ranker.npz has the scores of the documents of the log by their ids", reason
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


def _ranker(
    model: Model,
    roles: Sequence[str],
    log_probability: bool,
    dataset: Dataset,
    transform: str,
    probes: _Probes,
) -> Scorer:
    """Returns the sum of towers, of which those of columns read these as features."""
    towers = [getattr(model, role) for role in roles]
    keys = [_keys(tower, probes) for tower in towers]
    own = sorted(probes.columns.keys() & set().union(*keys))
    if own and FEATURES in set().union(*keys):
        raise UserError(f"its towers read {FEATURES} and {', '.join(own)}")
    formula = Formula()
    terms = []
    for tower, read in zip(towers, keys, strict=True):
        (key,) = read or {"query_doc_ids"}
        features = formula.features
        if key in own and len(own) > 1:
            features = formula.step("take", features, np.array([own.index(key)]))
        logit = _describe(tower, key, formula.reading(features), dataset)
        terms.append(formula.step("log_sigmoid", logit) if log_probability else logit)
    if len(terms) > 1:
        formula.step("add", *terms)
    return _scorer(model, formula, dataset, transform, own)


def _keys(tower: Parameter, probes: _Probes) -> set[str]:
    """Returns the key of a batch that a tower reads, if any; UserError for one that documents alone do not have."""
    try:
        read = keys_read(tower.logit, batch_like(probes.sessions))
    except KeyError as error:
        raise UserError(f"its tower reads {error}") from error
    known = {"query_doc_ids", FEATURES, *probes.columns}
    if len(read) > 1 or not read <= known:
        raise UserError(f"its tower reads {', '.join(sorted(read))}")
    return read


def _describe(tower: Parameter, key: str, formula: Formula, dataset: Dataset) -> str:
    """Adds a tower to a formula: as a table of its logits where it looks rows up, else by its own description."""
    if key == "query_doc_ids":
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
    model: Model, formula: Formula, dataset: Dataset, transform: str, own: Sequence[str] = ()
) -> Scorer:
    """Returns the scorer of a formula, which reads columns of its own, or else feature vectors, as features."""
    reads_features = any(formula.features in inputs for _, _, inputs, _ in formula.steps)
    features = dataset.features if reads_features and not own else None
    encoder = dataset.encoding.features if dataset.encoding is not None and features else None
    encoding = Formula("encoding_")
    width = None if features is None else features.values.shape[1]
    columns = [(name, 1, dataset.categories.get(name)) for name in own]
    if own:
        width, transform = len(own), "none"
    if encoder is not None:
        _describe_encoder(encoder, encoding)
        width = len(encoder.fill)
        columns = [(column.name, column.width, column.categories) for column in encoder.columns]
    description = {
        "model": model.name or type(model).__name__,
        "features": width,
        "transform": transform,
        "encoding": encoding.steps,
        "columns": columns,
        "steps": formula.steps,
    }
    return Scorer(_archive(description, {**formula.arrays, **encoding.arrays}))


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
    given = settings.get("transform", "log1p" if settings.get("_target_") == LETOR else "none")
    return str(dataset.notes.get("transform", given))

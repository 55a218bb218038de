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

from clickexp.data import Dataset
from clickexp.data.batches import batch_like, keys_read
from clickexp.data.encoding import Encoder
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
    probes = np.unique(np.linspace(0, dataset.query_doc_pairs, _PROBES).astype(np.int64))
    features = None
    if dataset.features is not None:
        features = np.asarray(dataset.features.values[probes])
        there = np.isfinite(features).all(axis=1)  # of another log, unknown documents have none
        probes, features = probes[there], features[there]
    sessions = single_documents(dataset, probes)
    expected = np.concatenate([*relevance_scores(model)(sessions)])[:, 0]
    problem = ""
    for roles, log_probability in _FORMULAS:
        towers = [getattr(model, role, None) for role in roles.split()]
        if not all(isinstance(tower, Parameter) for tower in towers):
            continue
        try:
            ranker = _ranker(model, roles.split(), log_probability, dataset, transform)
        except UserError as error:
            problem = f": {error}"
            continue
        scores = np.asarray(ranker.score(features, probes, transformed=True))
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
        part[:, 0] for ids in _blocks(dataset) for part in score(single_documents(dataset, ids))
    ]
    formula = Formula()
    formula.step("row", np.concatenate(scores), formula.ids)
    return _scorer(model, formula, dataset, "none")


def _ranker(
    model: Model, roles: Sequence[str], log_probability: bool, dataset: Dataset, transform: str
) -> Scorer:
    """Returns the sum of towers."""
    formula = Formula()
    terms = []
    for role in roles:
        logit = _describe(getattr(model, role), formula, dataset)
        terms.append(formula.step("log_sigmoid", logit) if log_probability else logit)
    if len(terms) > 1:
        formula.step("add", *terms)
    return _scorer(model, formula, dataset, transform)


def _describe(tower: Parameter, formula: Formula, dataset: Dataset) -> str:
    """Adds a tower to a formula: one of ids as a table of their logits, any other by its own description."""
    documents = single_documents(dataset, np.arange(1))
    try:
        read = keys_read(tower.logit, batch_like(documents))
    except KeyError as error:
        raise UserError(f"its tower reads {error}") from error
    if others := sorted(read - {"query_doc_ids", "query_doc_features"}):
        raise UserError(f"its tower reads {', '.join(others)}")
    if "query_doc_features" in read:
        return tower.describe(formula)
    compute = jax.jit(tower.logit)
    pieces = []
    for ids in _blocks(dataset):
        logits = np.asarray(compute({"query_doc_ids": jnp.asarray(ids[:, None], jnp.int32)}))
        pieces.append(np.broadcast_to(logits, (len(ids), 1))[:, 0])
    return formula.step("row", np.concatenate(pieces), formula.ids)


def _blocks(dataset: Dataset) -> Iterator[np.ndarray]:
    """Yields all ids of a dataset, 0 included."""
    rows = dataset.query_doc_pairs + 1
    for start in range(0, rows, _BLOCK):
        yield np.arange(start, min(start + _BLOCK, rows))


def _scorer(model: Model, formula: Formula, dataset: Dataset, transform: str) -> Scorer:
    reads_features = any(formula.features in inputs for _, _, inputs, _ in formula.steps)
    features = dataset.features if reads_features else None
    encoder = dataset.encoding.features if dataset.encoding is not None and features else None
    encoding, columns = Formula("encoding_"), []
    if encoder is not None:
        _describe_encoder(encoder, encoding)
        columns = [(column.name, column.width, column.categories) for column in encoder.columns]
    width = None if features is None else features.values.shape[1]
    description = {
        "model": model.name or type(model).__name__,
        "features": width if encoder is None else len(encoder.fill),
        "transform": transform if encoder is None else "encoded",
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

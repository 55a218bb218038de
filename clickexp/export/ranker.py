"""A fitted ranker as arrays and a description of its towers, which NumPy and ONNX score documents by."""

import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data import Dataset
from clickexp.data.batches import batch_like, keys_read
from clickexp.errors import UserError, install
from clickexp.evaluation.scores import relevance_scores
from clickexp.export.predict import single_documents
from clickexp.models import Model
from clickexp.parameters import Parameter
from clickexp.parameters.dense import DeepCrossParameter, DeepParameter, LinearParameter
from clickexp.runs.scorer import Scorer
from clickexp.runs.store import RANKER
from clickexp.types import Batch
from clickexp.utils.files import whole

_messages = logging.getLogger(__name__)
_RANKER, _SCORER = Path(RANKER).name, "ranker.py"
_ACTIVATIONS = {
    jax.nn.elu: "elu",
    jax.nn.relu: "relu",
    jax.nn.tanh: "tanh",
    jnp.tanh: "tanh",
    jax.nn.sigmoid: "sigmoid",
    jax.nn.silu: "silu",
    jax.nn.softplus: "softplus",
}
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
        UserError: The score is something else, or a tower has layers that the description does not know.
    """
    probes = np.unique(np.linspace(0, dataset.query_doc_pairs, _PROBES).astype(np.int64))
    features = None
    if dataset.train.features is not None:
        features = np.asarray(dataset.train.features.values[probes])
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
        scores = ranker.score(
            features=None if ranker.width is None else features, ids=probes, transformed=True
        )
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


def write_ranker(ranker: Scorer, folder: Path) -> list[Path]:
    """Writes ranker.npz, and ranker.py, which scores with NumPy alone.

    Args:
        ranker: From `described`.
        folder: Where to.

    Returns:
        The files.
    """
    source = (files("clickexp.runs") / "scorer.py").read_text()
    made = {
        _RANKER: _archive(ranker.description, ranker.arrays).getvalue(),
        _SCORER: source.encode(),
    }
    for name, text in made.items():
        with whole(folder / name) as part:
            part.write_bytes(text)
    return [folder / name for name in made]


def onnx_writer() -> Callable[[Scorer, Path], None]:
    """Returns what writes an ONNX model of a ranker; a UserError where the package is not installed."""
    try:
        from clickexp.export.onnx_graph import write_onnx
    except ModuleNotFoundError as error:
        raise UserError(f"--onnx needs the package onnx: {install('onnx')}") from error
    return write_onnx


def _by_id(model: Model, dataset: Dataset) -> Scorer:
    score, rows = relevance_scores(model), dataset.query_doc_pairs + 1
    blocks = (np.arange(start, min(start + _BLOCK, rows)) for start in range(0, rows, _BLOCK))
    scores = np.concatenate(
        [part[:, 0] for ids in blocks for part in score(single_documents(dataset, ids))]
    )
    tower = {"kind": "table", "values": "scores", "log_probability": False}
    description = {"features": None, "transform": "none", "towers": [tower]}
    return Scorer(
        _archive({"model": model.name or type(model).__name__, **description}, {"scores": scores})
    )


def _ranker(
    model: Model, roles: Sequence[str], log_probability: bool, dataset: Dataset, transform: str
) -> Scorer:
    arrays: dict[str, np.ndarray] = {}
    towers = []
    for role in roles:
        tower = getattr(model, role)
        is_network = isinstance(tower, LinearParameter | DeepParameter | DeepCrossParameter)
        if is_network and tower.config.use_feature == "query_doc_features":
            own = _network(tower, role, arrays)
        else:
            own = _table(tower, role, arrays, dataset)
        towers.append({**own, "log_probability": log_probability})
    width = next((tower["width"] for tower in towers if tower["kind"] == "network"), None)
    name = model.name or type(model).__name__
    description = {"model": name, "features": width, "transform": transform, "towers": towers}
    return Scorer(_archive(description, arrays))


def _archive(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> io.BytesIO:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, description=np.array(json.dumps(description)), **arrays)
    content.seek(0)
    return content


def _network(tower: Any, role: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    cross = [
        _dense(layer, f"{role}/cross/{i}", arrays)
        for i, layer in enumerate(getattr(tower, "cross", ()))
    ]
    deep = getattr(tower, "deep", None)
    layers = [] if deep is None else deep.layers
    last = tower.linear if isinstance(tower, LinearParameter) else tower.output
    return {
        "kind": "network",
        "width": tower.width,
        "input": _layers([tower.input_norm], f"{role}/input", arrays),
        "cross": cross,
        "deep": _layers(layers, f"{role}/deep", arrays),
        "combination": "stacked" if getattr(tower, "stacked", True) else "parallel",
        "output": _dense(last, f"{role}/output", arrays),
    }


def _layers(
    layers: Sequence[Any], name: str, arrays: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    found = []
    for i, layer in enumerate(layers):
        key = f"{name}/{i}"
        if isinstance(layer, nnx.Dropout) or getattr(layer, "__name__", "") == "_identity":
            continue
        if isinstance(layer, nnx.Linear):
            found.append(_dense(layer, key, arrays))
        elif (
            isinstance(layer, nnx.LayerNorm) and layer.scale is not None and layer.bias is not None
        ):
            arrays |= {
                f"{key}/scale": np.asarray(layer.scale[...]),
                f"{key}/bias": np.asarray(layer.bias[...]),
            }
            own = {"scale": f"{key}/scale", "bias": f"{key}/bias", "epsilon": float(layer.epsilon)}
            found.append({"kind": "layer_norm", **own})
        elif layer in _ACTIVATIONS:
            found.append({"kind": "activation", "name": _ACTIVATIONS[layer]})
        else:
            known = ", ".join(dict.fromkeys(_ACTIVATIONS.values()))
            what = getattr(layer, "__name__", type(layer).__name__)
            raise UserError(f"it has a layer {what}, and known are Linear, LayerNorm, {known}")
    return found


def _dense(layer: nnx.Linear, key: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    bias = (
        np.zeros(layer.out_features, np.float32)
        if layer.bias is None
        else np.asarray(layer.bias[...])
    )
    arrays |= {f"{key}/kernel": np.asarray(layer.kernel[...]), f"{key}/bias": bias}
    return {"kind": "dense", "kernel": f"{key}/kernel", "bias": f"{key}/bias"}


def _table(
    tower: Parameter, role: str, arrays: dict[str, np.ndarray], dataset: Dataset
) -> dict[str, Any]:
    """The logit of each id, which any tower of ids gives."""
    sessions = single_documents(dataset, np.arange(1))
    try:
        read = keys_read(tower.logit, batch_like(sessions))
    except KeyError as error:
        raise UserError(f"its tower reads {error}") from error
    if others := sorted(read - {"query_doc_ids"}):
        raise UserError(f"its tower reads {', '.join(others)}")
    compute = jax.jit(tower.logit)
    rows = dataset.query_doc_pairs + 1
    pieces = []
    for start in range(0, rows, _BLOCK):
        ids = np.minimum(np.arange(start, start + min(_BLOCK, rows)), rows - 1).astype(np.int32)[
            :, None
        ]
        batch: Batch = {"query_doc_ids": jnp.asarray(ids)}
        logits = np.broadcast_to(np.asarray(compute(batch)), ids.shape)[:, 0]
        pieces.append(logits[: rows - start])
    arrays[f"{role}/table"] = np.concatenate(pieces)
    return {"kind": "table", "values": f"{role}/table"}


def transform_of(config: Mapping[str, Any], dataset: Dataset) -> str:
    """Returns the transform of features that the dataset of a run applied to those of its files.

    Args:
        config: Configuration of the run.
        dataset: Its dataset, whose reader notes it.
    """
    settings = config["dataset"]
    given = settings.get("transform", "log1p" if settings.get("_target_") == LETOR else "none")
    return str(dataset.notes.get("transform", given))

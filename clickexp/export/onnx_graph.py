"""A described ranker as an ONNX model, which scores documents wherever ONNX runs."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import (  # pyright: ignore[reportMissingImports]  # of an extra
    ModelProto,
    TensorProto,
    checker,
    helper,
    numpy_helper,
)

from clickexp.models.ranker.scorer import Scorer

_OPSET, _IR = 17, 9
"""Versions of operators and of the format, which runtimes of 2023 and later read."""


def onnx_model(ranker: Scorer) -> ModelProto:
    """Returns the ONNX model of a ranker.

    Its inputs are `features` [documents, features] float32, as in the files that training read (numbers of its columns,
    which the metadata `columns` describe, with categories by their numbers from 1), and `ids` [documents]
    int64, each where a step reads it; its output is `scores` [documents] float32. In between it computes in float64,
    as the scorer of NumPy does.
    """
    graph, inputs = _Graph(), []
    names = {"ids": "ids"}
    if ranker.width is not None:
        inputs.append(
            helper.make_tensor_value_info(
                "features", TensorProto.FLOAT, ["documents", ranker.width]
            )
        )
        names["features"] = graph.features(ranker.description["transform"])
    for key, values in ranker.arrays.items():
        names[key] = graph.constant(values, np.int64 if values.dtype.kind == "i" else np.float64)
    graph.steps(ranker.description["encoding"], names)
    if ranker.description["encoding"]:
        names["features"] = names[ranker.description["encoding"][-1][0]]
    if ranker.reads_ids:
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["documents"]))
    score = graph.steps(ranker.description["steps"], names)
    graph.node("Cast", score, name="scores", to=TensorProto.FLOAT)
    output = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["documents"])
    onnx_graph = helper.make_graph(graph.nodes, ranker.name, inputs, [output], graph.constants)
    model = helper.make_model(
        onnx_graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR
    )
    model.producer_name = "clickexp"
    if ranker.description["columns"]:
        helper.set_model_props(model, {"columns": json.dumps(ranker.description["columns"])})
    checker.check_model(model, full_check=True)
    return model


class _Graph:
    """Collects nodes and constants; methods return the name of what they compute."""

    def __init__(self):
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        output = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, values: Any, dtype: Any = np.float64) -> str:
        name = f"constant_{len(self.constants)}"
        array = np.ascontiguousarray(values, dtype).reshape(np.shape(values))
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def steps(self, steps: Sequence[Any], names: dict[str, str]) -> str:
        """Adds the steps of a scorer and their results to the names; returns the name of the last one."""
        result = ""
        for name, operation, read, settings in steps:
            result = OPERATIONS[operation](self, *[names[key] for key in read], **settings)
            names[name] = result
        return result

    def features(self, transform: str) -> str:
        features = self.node("Cast", "features", to=TensorProto.DOUBLE)
        if transform != "log1p":
            return features
        shifted = self.node("Add", self.node("Abs", features), self.constant(1.0))
        return self.node("Mul", self.node("Sign", features), self.node("Log", shifted))


def _node(kind: str, **attributes: Any) -> Callable[..., str]:
    return lambda graph, *inputs: graph.node(kind, *inputs, **attributes)


def _fill(graph: _Graph, x: str, values: str) -> str:
    return graph.node("Where", graph.node("IsNaN", x), values, x)


def _is_missing(graph: _Graph, x: str) -> str:
    return graph.node("Cast", graph.node("IsNaN", x), to=TensorProto.DOUBLE)


def _one_hot(graph: _Graph, x: str, levels: str) -> str:
    return graph.node("Cast", graph.node("Equal", x, levels), to=TensorProto.DOUBLE)


def _squeeze(graph: _Graph, x: str) -> str:
    return graph.node("Squeeze", x, graph.constant([-1], np.int64))


def _row(graph: _Graph, table: str, ids: str) -> str:
    zero, ids = graph.constant(0, np.int64), graph.node("Cast", ids, to=TensorProto.INT64)
    rows = graph.node("Squeeze", graph.node("Shape", table))
    has_row = graph.node("And", graph.node("Greater", ids, zero), graph.node("Less", ids, rows))
    return graph.node("Gather", table, graph.node("Where", has_row, ids, zero))


def _layer_norm(graph: _Graph, x: str, epsilon: float) -> str:
    centred = graph.node("Sub", x, graph.node("ReduceMean", x, axes=[-1]))
    variance = graph.node("ReduceMean", graph.node("Mul", centred, centred), axes=[-1])
    spread = graph.node("Sqrt", graph.node("Add", variance, graph.constant(epsilon)))
    return graph.node("Div", centred, spread)


def _elu(graph: _Graph, x: str) -> str:
    zero = graph.constant(0.0)
    below = graph.node("Exp", graph.node("Min", x, zero))
    below = graph.node("Sub", below, graph.constant(1.0))
    return graph.node("Where", graph.node("Greater", x, zero), x, below)


def _relu(graph: _Graph, x: str) -> str:
    return graph.node("Max", x, graph.constant(0.0))


def _log_sigmoid(graph: _Graph, x: str) -> str:
    """min(x, 0) - log(1 + exp(-|x|))."""
    small = graph.node("Exp", graph.node("Neg", graph.node("Abs", x)))
    log = graph.node("Log", graph.node("Add", small, graph.constant(1.0)))
    return graph.node("Sub", graph.node("Min", x, graph.constant(0.0)), log)


def _sigmoid(graph: _Graph, x: str) -> str:
    return graph.node("Exp", _log_sigmoid(graph, x))


def _silu(graph: _Graph, x: str) -> str:
    return graph.node("Mul", x, _sigmoid(graph, x))


def _softplus(graph: _Graph, x: str) -> str:
    return graph.node("Neg", _log_sigmoid(graph, graph.node("Neg", x)))


OPERATIONS: dict[str, Callable[..., str]] = {
    "add": _node("Add"),
    "subtract": _node("Sub"),
    "multiply": _node("Mul"),
    "matmul": _node("MatMul"),
    "take": _node("Gather", axis=-1),
    "fill": _fill,
    "is_missing": _is_missing,
    "one_hot": _one_hot,
    "concatenate": _node("Concat", axis=-1),
    "squeeze": _squeeze,
    "row": _row,
    "layer_norm": _layer_norm,
    "elu": _elu,
    "relu": _relu,
    "tanh": _node("Tanh"),
    "sigmoid": _sigmoid,
    "silu": _silu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
}
"""Builders of the scorer's operations, from operators that runtimes have for float64: most lack Elu and Softplus."""

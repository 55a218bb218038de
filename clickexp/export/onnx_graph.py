"""A described ranker as an ONNX model, which scores documents wherever ONNX runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (  # pyright: ignore[reportMissingImports]  # of an extra
    ModelProto,
    TensorProto,
    checker,
    helper,
    numpy_helper,
)

from clickexp.runs.scorer import Scorer
from clickexp.utils.files import whole

_OPSET, _IR = 17, 9
"""Versions of operators (LayerNormalization came with 17) and of the format, which runtimes of 2023 and later read."""


def write_onnx(ranker: Scorer, file: Path) -> None:
    """Writes an ONNX model of a ranker, whole or not at all.

    Its inputs are `features` [documents, features] float32, as in the files that training read, and `ids` [documents]
    int64, each where a tower reads it; its output is `scores` [documents] float32. In between it computes in float64,
    as the scorer of NumPy does.

    Args:
        ranker: The ranker.
        file: Where to.
    """
    content = onnx_model(ranker).SerializeToString()
    with whole(file) as part:
        part.write_bytes(content)


def onnx_model(ranker: Scorer) -> ModelProto:
    """Returns the model that `write_onnx` writes."""
    graph = _Graph(ranker)
    terms = [graph.tower(tower) for tower in ranker.description["towers"]]
    graph.node("Cast", [graph.node("Sum", terms)], name="scores", to=TensorProto.FLOAT)
    inputs = []
    if ranker.width is not None:
        inputs.append(
            helper.make_tensor_value_info(
                "features", TensorProto.FLOAT, ["documents", ranker.width]
            )
        )
    if ranker.reads_ids:
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["documents"]))
    output = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["documents"])
    made = helper.make_graph(graph.nodes, ranker.name, inputs, [output], graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    model.producer_name = "clickexp"
    checker.check_model(model, full_check=True)
    return model


class _Graph:
    """Collects nodes and constants; methods return the name of what they compute."""

    def __init__(self, ranker: Scorer):
        self.ranker = ranker
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: set[str] = set()
        self._features = ""

    def node(self, kind: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        output = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, name: str, values: np.ndarray) -> str:
        if name not in self._known:
            self._known.add(name)
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def _number(self, value: int) -> str:
        return self.constant(f"number_{value}", np.array(value, np.float64))

    def array(self, key: str) -> str:
        return self.constant(key, self.ranker.arrays[key].astype(np.float64))

    def tower(self, tower: dict[str, Any]) -> str:
        z = self._table(tower) if tower["kind"] == "table" else self._network(tower)
        if not tower["log_probability"]:
            return z
        return self._log_sigmoid(z)

    def _table(self, tower: dict[str, Any]) -> str:
        rows = len(self.ranker.arrays[tower["values"]])
        zero, end = (
            self.constant(name, np.array(n, np.int64))
            for name, n in (("zero", 0), (f"rows_{rows}", rows))
        )
        known = self.node(
            "And", [self.node("Greater", ["ids", zero]), self.node("Less", ["ids", end])]
        )
        return self.node(
            "Gather", [self.array(tower["values"]), self.node("Where", [known, "ids", zero])]
        )

    def _network(self, tower: dict[str, Any]) -> str:
        x = self._layers(tower["input"], self._transformed())
        crossed = x
        for layer in tower["cross"]:
            crossed = self.node(
                "Add", [self.node("Mul", [x, self._dense(layer, crossed)]), crossed]
            )
        if tower["combination"] == "stacked":
            last = self._layers(tower["deep"], crossed)
        else:
            last = self.node("Concat", [self._layers(tower["deep"], x), crossed], axis=-1)
        axis = self.constant("last_axis", np.array([-1], np.int64))
        return self.node("Squeeze", [self._dense(tower["output"], last), axis])

    def _transformed(self) -> str:
        if not self._features:
            self._features = self.node("Cast", ["features"], to=TensorProto.DOUBLE)
            if self.ranker.description["transform"] == "log1p":
                log = self.node(
                    "Log", [self.node("Add", [self.node("Abs", [self._features]), self._number(1)])]
                )
                self._features = self.node("Mul", [self.node("Sign", [self._features]), log])
        return self._features

    def _layers(self, layers: Sequence[dict[str, Any]], x: str) -> str:
        for layer in layers:
            if layer["kind"] == "dense":
                x = self._dense(layer, x)
            elif layer["kind"] == "layer_norm":
                inputs = [x, self.array(layer["scale"]), self.array(layer["bias"])]
                x = self.node("LayerNormalization", inputs, axis=-1, epsilon=layer["epsilon"])
            else:
                x = self._activation(layer["name"], x)
        return x

    def _activation(self, name: str, x: str) -> str:
        """Of operators that runtimes have for float64: most have none for Elu and Softplus."""
        zero = self._number(0)
        if name == "elu":
            below = self.node(
                "Sub", [self.node("Exp", [self.node("Min", [x, zero])]), self._number(1)]
            )
            return self.node("Where", [self.node("Greater", [x, zero]), x, below])
        if name == "relu":
            return self.node("Max", [x, zero])
        if name == "tanh":
            return self.node("Tanh", [x])
        if name == "softplus":
            return self.node("Neg", [self._log_sigmoid(self.node("Neg", [x]))])
        sigmoid = self.node("Exp", [self._log_sigmoid(x)])
        return sigmoid if name == "sigmoid" else self.node("Mul", [x, sigmoid])

    def _log_sigmoid(self, x: str) -> str:
        """min(x, 0) - log(1 + exp(-|x|))."""
        small = self.node("Exp", [self.node("Neg", [self.node("Abs", [x])])])
        log = self.node("Log", [self.node("Add", [small, self._number(1)])])
        return self.node("Sub", [self.node("Min", [x, self._number(0)]), log])

    def _dense(self, layer: dict[str, Any], x: str) -> str:
        product = self.node("MatMul", [x, self.array(layer["kernel"])])
        return self.node("Add", [product, self.array(layer["bias"])])

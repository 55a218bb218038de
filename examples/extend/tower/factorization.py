"""A tower over feature vectors, which NumPy and ONNX serve: a factorization machine (Rendle 2010)."""

from dataclasses import dataclass

import jax
import numpy as np
from flax import nnx

from clickexp.parameters import Parameter, ParameterConfig
from clickexp.utils.bounds import PositiveInt


class FactorizationMachine(Parameter):
    """z = b + w . x + 1/2 sum_f ((v_f . x)^2 - v_f^2 . x^2), which has a term x_i x_j for each pair of features."""

    def __init__(self, features, factors, rngs):
        self.linear = nnx.Linear(features, 1, rngs=rngs)
        self.factors = nnx.Param(0.1 * jax.random.normal(rngs.params(), (features, factors)))

    def logit(self, batch):
        x, factors = batch["query_doc_features"], self.factors[...]
        pairs = (x @ factors) ** 2 - x**2 @ factors**2
        return self.linear(x)[..., 0] + pairs.sum(axis=-1) / 2

    def describe(self, formula):
        x, factors = formula.features, np.asarray(self.factors[...])
        sums = formula.step("matmul", x, factors)
        squares = formula.step("matmul", formula.step("multiply", x, x), factors**2)
        pairs = formula.step("subtract", formula.step("multiply", sums, sums), squares)
        halves = formula.step("matmul", pairs, np.full((factors.shape[1], 1), 0.5))
        return formula.step(
            "squeeze", formula.step("add", formula.layers(x, [self.linear]), halves)
        )


@dataclass(frozen=True)
class FactorizationConfig(ParameterConfig):
    factors: PositiveInt = 8

    def build(self, sizes, *, rngs):
        features = sizes.width("query_doc_features", None)
        return FactorizationMachine(features, self.factors, rngs)

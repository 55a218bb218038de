"""The towers behind the parameters of a click model. One config class builds each; any role takes any of them."""

from clickexp.parameters.base import ModuleParameter, Parameter, ParameterConfig, Sizes, build_parameter
from clickexp.parameters.compressed import HashEmbedding, QRCombination, QREmbedding, RobeDEmbedding
from clickexp.parameters.dense import (
    Combination,
    DeepCrossParameter,
    DeepCrossParameterConfig,
    DeepParameter,
    DeepParameterConfig,
    LinearParameter,
    LinearParameterConfig,
)
from clickexp.parameters.embedding import EmbeddingParameter, EmbeddingParameterConfig, FullEmbedding
from clickexp.parameters.simple import (
    GlobalParameter,
    GlobalParameterConfig,
    PositionParameter,
    PositionParameterConfig,
)
from clickexp.parameters.table import Rows, Table, new_table

__all__ = [
    "Combination",
    "DeepCrossParameter",
    "DeepCrossParameterConfig",
    "DeepParameter",
    "DeepParameterConfig",
    "EmbeddingParameter",
    "EmbeddingParameterConfig",
    "FullEmbedding",
    "GlobalParameter",
    "GlobalParameterConfig",
    "HashEmbedding",
    "LinearParameter",
    "LinearParameterConfig",
    "ModuleParameter",
    "Parameter",
    "ParameterConfig",
    "PositionParameter",
    "PositionParameterConfig",
    "QRCombination",
    "QREmbedding",
    "RobeDEmbedding",
    "Rows",
    "Sizes",
    "Table",
    "build_parameter",
    "new_table",
]

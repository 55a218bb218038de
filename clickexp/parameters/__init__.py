"""The towers behind the parameters of a click model. One config class builds each; any role takes any of them.

Nothing here knows a click model; optimizers of tables are in `clickexp.training.sparse`.
"""

from clickexp.parameters.base import ModuleParameter as ModuleParameter
from clickexp.parameters.base import Parameter as Parameter
from clickexp.parameters.base import ParameterConfig as ParameterConfig
from clickexp.parameters.base import Sizes as Sizes
from clickexp.parameters.base import build_parameter as build_parameter
from clickexp.parameters.compressed import HashEmbedding as HashEmbedding
from clickexp.parameters.compressed import QRCombination as QRCombination
from clickexp.parameters.compressed import QREmbedding as QREmbedding
from clickexp.parameters.compressed import RobeDEmbedding as RobeDEmbedding
from clickexp.parameters.context import ContextParameter as ContextParameter
from clickexp.parameters.context import ContextParameterConfig as ContextParameterConfig
from clickexp.parameters.dense import Combination as Combination
from clickexp.parameters.dense import DeepCrossParameter as DeepCrossParameter
from clickexp.parameters.dense import DeepCrossParameterConfig as DeepCrossParameterConfig
from clickexp.parameters.dense import DeepParameter as DeepParameter
from clickexp.parameters.dense import DeepParameterConfig as DeepParameterConfig
from clickexp.parameters.dense import LinearParameter as LinearParameter
from clickexp.parameters.dense import LinearParameterConfig as LinearParameterConfig
from clickexp.parameters.embedding import EmbeddingParameter as EmbeddingParameter
from clickexp.parameters.embedding import EmbeddingParameterConfig as EmbeddingParameterConfig
from clickexp.parameters.embedding import FullEmbedding as FullEmbedding
from clickexp.parameters.formula import Formula as Formula
from clickexp.parameters.layouts import LayoutParameter as LayoutParameter
from clickexp.parameters.layouts import LayoutParameterConfig as LayoutParameterConfig
from clickexp.parameters.simple import GlobalParameter as GlobalParameter
from clickexp.parameters.simple import GlobalParameterConfig as GlobalParameterConfig
from clickexp.parameters.simple import PositionParameter as PositionParameter
from clickexp.parameters.simple import PositionParameterConfig as PositionParameterConfig
from clickexp.parameters.sum import SumParameter as SumParameter
from clickexp.parameters.sum import SumParameterConfig as SumParameterConfig
from clickexp.parameters.table import Rows as Rows
from clickexp.parameters.table import Table as Table
from clickexp.parameters.table import new_table as new_table
from clickexp.parameters.vectors import FeatureVectorsConfig as FeatureVectorsConfig
from clickexp.parameters.vectors import TableVectorsConfig as TableVectorsConfig
from clickexp.parameters.vectors import Vectors as Vectors
from clickexp.parameters.vectors import VectorsConfig as VectorsConfig

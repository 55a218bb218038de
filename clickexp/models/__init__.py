"""Click models and rankers. Each is a short definition; what they share lives in base and cascade.chain.

Nothing here trains.
"""

from clickexp.models.base import ClickModel as ClickModel
from clickexp.models.base import Model as Model
from clickexp.models.base import Sample as Sample
from clickexp.models.cascade.ccm import ClickChainModel as ClickChainModel
from clickexp.models.cascade.cm import CascadeModel as CascadeModel
from clickexp.models.cascade.cm import CascadeModelMarginal as CascadeModelMarginal
from clickexp.models.cascade.dbn import DynamicBayesianNetwork as DynamicBayesianNetwork
from clickexp.models.cascade.dcm import DependentClickModel as DependentClickModel
from clickexp.models.ctr import DocumentCTRModel as DocumentCTRModel
from clickexp.models.ctr import DocumentRankCTRModel as DocumentRankCTRModel
from clickexp.models.ctr import GlobalCTRModel as GlobalCTRModel
from clickexp.models.ctr import RankCTRModel as RankCTRModel
from clickexp.models.mixture import MixtureModel as MixtureModel
from clickexp.models.neural.cacm import ContextAwareClickModel as ContextAwareClickModel
from clickexp.models.neural.cacm_minus import CACMMinusModel as CACMMinusModel
from clickexp.models.neural.ncm import NeuralClickModel as NeuralClickModel
from clickexp.models.pbm import PositionBasedModel as PositionBasedModel
from clickexp.models.ranker.ranker import Ranker as Ranker
from clickexp.models.roles import Role as Role
from clickexp.models.sequential import SequentialClickModel as SequentialClickModel
from clickexp.models.trust_bias import TrustBiasModel as TrustBiasModel
from clickexp.models.two_towers import TwoTowersModel as TwoTowersModel
from clickexp.models.ubm import UserBrowsingModel as UserBrowsingModel

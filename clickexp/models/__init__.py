"""The click models. Each is a short definition; loss, predictions and sampling live in base and cascade.chain."""

from clickexp.models.base import ClickModel, Model, Sample
from clickexp.models.cascade.ccm import ClickChainModel
from clickexp.models.cascade.cm import CascadeModel
from clickexp.models.cascade.dbn import DynamicBayesianNetwork
from clickexp.models.cascade.dcm import DependentClickModel
from clickexp.models.ctr import DocumentCTRModel, DocumentRankCTRModel, GlobalCTRModel, RankCTRModel
from clickexp.models.mixture import MixtureModel
from clickexp.models.pbm import PositionBasedModel
from clickexp.models.roles import Role
from clickexp.models.sequential import SequentialClickModel
from clickexp.models.trust_bias import TrustBiasModel
from clickexp.models.ubm import UserBrowsingModel

__all__ = [
    "CascadeModel",
    "ClickChainModel",
    "ClickModel",
    "DependentClickModel",
    "DocumentCTRModel",
    "DocumentRankCTRModel",
    "DynamicBayesianNetwork",
    "GlobalCTRModel",
    "MixtureModel",
    "Model",
    "PositionBasedModel",
    "RankCTRModel",
    "Role",
    "Sample",
    "SequentialClickModel",
    "TrustBiasModel",
    "UserBrowsingModel",
]

"""The click models. Each is a short definition; loss, predictions and sampling live in base and chain."""

from clickexp.models.base import ClickModel, Sample
from clickexp.models.ccm import ClickChainModel
from clickexp.models.cm import CascadeModel
from clickexp.models.ctr import DocumentCTRModel, DocumentRankCTRModel, GlobalCTRModel, RankCTRModel
from clickexp.models.dbn import DynamicBayesianNetwork
from clickexp.models.dcm import DependentClickModel
from clickexp.models.pbm import PositionBasedModel
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
    "PositionBasedModel",
    "RankCTRModel",
    "Sample",
    "UserBrowsingModel",
]

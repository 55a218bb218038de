"""Dependent click model."""

from clickexp.models.cascade.chain import CascadeFamily, CascadeProbs
from clickexp.models.roles import Role
from clickexp.numerics import log_not
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig
from clickexp.types import ByRank
from clickexp.utils.bounds import Pairs, PositiveInt


class DependentClickModel(CascadeFamily):
    """DCM: the cascade model with several clicks; after a click at rank r users go on with probability l_r.

    P(continue | click at r) = l_r and P(continue | examined, no click) = 1: a click satisfies with 1 - l_r.

    Guo, Liu and Wang 2009, "Efficient multiple-click models in web search".
    """

    name = "DCM"

    positions: PositiveInt | None = None
    query_doc_pairs: Pairs | None = None
    attraction: Role = Role(EmbeddingParameterConfig())
    continuation: Role = Role(PositionParameterConfig())

    def probs(self, batch: ByRank) -> CascadeProbs:
        """Returns a, and satisfaction with 1 - l."""
        satisfaction = log_not(self.continuation.log_pair(batch))
        return CascadeProbs(self.attraction.log_pair(batch), satisfaction)

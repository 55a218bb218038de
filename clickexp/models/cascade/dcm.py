"""Dependent click model."""

from flax import nnx

from clickexp.models.cascade.chain import Browsing, CascadeFamily
from clickexp.numerics import log_not
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig, Sizes, build_parameter
from clickexp.parameters.base import Features, Source
from clickexp.types import Batch
from clickexp.utils.bounds import Pairs, PositiveInt, Probability


class DependentClickModel(CascadeFamily):
    """DCM: the cascade model with several clicks; after a click at rank r users go on with probability l_r.

    P(continue | click at r) = l_r and P(continue | examined, no click) = 1: a click satisfies with 1 - l_r.

    Guo, Liu and Wang 2009, "Efficient multiple-click models in web search".
    """

    name = "DCM"

    def __init__(
        self,
        positions: PositiveInt | None = None,
        query_doc_pairs: Pairs | None = None,
        attraction: Source = None,
        continuation: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        sizes = Sizes(query_doc_pairs, positions, click_rate, features=features)
        self.attraction = build_parameter(
            "attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs
        )
        self.continuation = build_parameter(
            "continuation", continuation, PositionParameterConfig(), sizes, rngs=rngs
        )

    def browsing(self, batch: Batch) -> Browsing:
        return Browsing(self.attraction.ranked(batch), satisfaction=log_not(self.continuation.ranked(batch)))

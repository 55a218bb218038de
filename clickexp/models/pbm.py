"""Position-based model."""

import jax
from flax import nnx

from clickexp.models.base import IndependentModel, Sample, bernoulli
from clickexp.numerics import LogPair, log_and
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig, Sizes, build_parameter
from clickexp.parameters.base import Features, Source
from clickexp.types import Array, Batch, Logits
from clickexp.utils.bounds import Pairs, PositiveInt, Probability


class PositionBasedModel(IndependentModel):
    """PBM: a click needs examination, which depends on the rank, and attraction, which depends on the document.

    P(c_r = 1) = e_r a_r.

    Richardson, Dominowska and Ragno 2007, "Predicting clicks: estimating the click-through rate for new ads";
    Craswell, Zoeter, Taylor and Ramsey 2008, "An experimental comparison of click position-bias models".
    """

    name = "PBM"
    separates_examination = True

    def __init__(
        self,
        positions: PositiveInt | None = None,
        query_doc_pairs: Pairs | None = None,
        examination: Source = None,
        attraction: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        sizes = Sizes(query_doc_pairs, positions, click_rate, features=features)
        self.examination = build_parameter(
            "examination", examination, PositionParameterConfig(), sizes, rngs=rngs
        )
        self.attraction = build_parameter(
            "attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs
        )

    def marginal(self, batch: Batch) -> LogPair:
        return log_and(self.examination.ranked(batch), self.attraction.ranked(batch))

    def relevance(self, batch: Batch) -> Logits:
        return self.attraction.log_prob(batch)

    def draw(self, batch: Batch, key: Array) -> Sample:
        examination_key, attraction_key = jax.random.split(key)
        examination = bernoulli(examination_key, self.examination.log_prob(batch), batch)
        attraction = bernoulli(attraction_key, self.attraction.log_prob(batch), batch)
        return Sample(examination & attraction, examination, attraction)

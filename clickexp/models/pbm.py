"""Position-based model."""

import jax

from clickexp.models.base import IndependentModel, Sample
from clickexp.models.events import bernoulli
from clickexp.models.roles import Role
from clickexp.numerics import LogPair, log_and
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig
from clickexp.types import Array, ByRank
from clickexp.utils.bounds import Pairs, PositiveInt


class PositionBasedModel(IndependentModel):
    """PBM: a click needs examination, which depends on the rank, and attraction, which depends on the document.

    P(c_r = 1) = e_r a_r.

    Richardson, Dominowska and Ragno 2007, "Predicting clicks: estimating the click-through rate for new ads";
    Craswell, Zoeter, Taylor and Ramsey 2008, "An experimental comparison of click position-bias models".
    """

    name = "PBM"
    separates_examination = True

    positions: PositiveInt | None = None
    query_doc_pairs: Pairs | None = None
    examination: Role = Role(PositionParameterConfig())
    attraction: Role = Role(EmbeddingParameterConfig())

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns e_r a_r."""
        return log_and(self.examination.log_pair(batch), self.attraction.log_pair(batch))

    def draw(self, batch: ByRank, key: Array) -> Sample:
        """Draws examination and attraction."""
        examination, attraction = (
            bernoulli(key, tower.log_prob(batch), batch)
            for key, tower in zip(
                jax.random.split(key), (self.examination, self.attraction), strict=True
            )
        )
        return Sample(examination & attraction, examination, attraction)

"""Dynamic Bayesian network click model, and its simplified form."""

from typing import Any

from flax import nnx

from clickexp.models.cascade.chain import CascadeFamily, CascadeProbs
from clickexp.models.roles import Role
from clickexp.numerics import ALWAYS
from clickexp.parameters import EmbeddingParameterConfig, GlobalParameterConfig
from clickexp.parameters.base import Parameter
from clickexp.types import ByRank, LogitsByRank
from clickexp.utils.bounds import Pairs


class DynamicBayesianNetwork(CascadeFamily):
    """DBN: a clicked document satisfies with probability s; unsatisfied users go on with probability g.

    P(continue | click) = g (1 - s) and P(continue | examined, no click) = g; relevance is a s.
    `fix_continuation=True` sets g = 1, which is the simplified DBN (SDBN).

    Chapelle and Zhang 2009, "A dynamic Bayesian network click model for web search ranking".
    """

    query_doc_pairs: Pairs | None = None
    attraction: Role = Role(EmbeddingParameterConfig())
    # ranks predict satisfaction mostly where a single probability g does not fit users who stop
    satisfaction: Role = Role(EmbeddingParameterConfig(baseline=0.0, posterior="normal"))
    fix_continuation: bool = False
    continuation: Role = Role(GlobalParameterConfig(1.0))

    @classmethod
    def name_with(cls, *, fix_continuation: bool = False, **settings: Any) -> str:
        """Returns DBN or SDBN."""
        return "SDBN" if fix_continuation else "DBN"

    def setup(self, rngs: nnx.Rngs) -> None:
        """Leaves the tower out that g = 1 does without."""
        self.name = self.name_with(fix_continuation=self.fix_continuation)
        if self.fix_continuation:
            self.continuation = None

    def probs(self, batch: ByRank) -> CascadeProbs:
        """Returns a, s, and g after a click that does not satisfy and after a skip."""
        goes_on = ALWAYS if self.fix_continuation else self.continuation.log_pair(batch)
        return CascadeProbs(
            attraction=self.attraction.log_pair(batch),
            satisfaction=self.satisfaction.log_pair(batch),
            unsatisfied=goes_on,
            skipped=goes_on,
        )

    def log_attraction(self, batch: ByRank) -> LogitsByRank:
        """Returns log a."""
        return self.attraction.log_prob(batch)

    def relevance(self, batch: ByRank) -> LogitsByRank:
        """Returns log a s."""
        return self.attraction.log_prob(batch) + self.satisfaction.log_prob(batch)

    def score_towers(self) -> list[Parameter]:
        """Returns both towers."""
        return [self.attraction, self.satisfaction]

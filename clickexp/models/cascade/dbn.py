"""Dynamic Bayesian network click model, and its simplified form."""

from flax import nnx

from clickexp.models.cascade.chain import Browsing, CascadeFamily
from clickexp.numerics import ALWAYS
from clickexp.parameters import EmbeddingParameterConfig, GlobalParameterConfig, Sizes, build_parameter
from clickexp.parameters.base import Features, Source
from clickexp.types import Batch, Logits
from clickexp.utils.bounds import Pairs, Probability


class DynamicBayesianNetwork(CascadeFamily):
    """DBN: a clicked document satisfies with probability s; unsatisfied users go on with probability g.

    P(continue | click) = g (1 - s) and P(continue | examined, no click) = g; relevance is a s.
    `fix_continuation=True` sets g = 1, which is the simplified DBN (SDBN).

    Chapelle and Zhang 2009, "A dynamic Bayesian network click model for web search ranking".
    """

    def __init__(
        self,
        query_doc_pairs: Pairs | None = None,
        attraction: Source = None,
        satisfaction: Source = None,
        fix_continuation: bool = False,
        continuation: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        sizes = Sizes(query_doc_pairs, click_rate=click_rate, features=features)
        self.name = self.name_with(fix_continuation=fix_continuation)
        self.attraction = build_parameter(
            "attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs
        )
        default = EmbeddingParameterConfig(baseline=0.0)
        self.satisfaction = build_parameter("satisfaction", satisfaction, default, sizes, rngs=rngs)
        learned = None
        if not fix_continuation:
            learned = build_parameter(
                "continuation", continuation, GlobalParameterConfig(1.0), sizes, rngs=rngs
            )
        self.continuation = learned

    @classmethod
    def name_with(cls, *, fix_continuation: bool = False, **settings: object) -> str:
        return "SDBN" if fix_continuation else "DBN"

    def browsing(self, batch: Batch) -> Browsing:
        goes_on = ALWAYS if self.continuation is None else self.continuation.ranked(batch)
        return Browsing(
            attraction=self.attraction.ranked(batch),
            satisfaction=self.satisfaction.ranked(batch),
            unsatisfied=goes_on,
            skipped=goes_on,
        )

    def attractive(self, batch: Batch) -> Logits:
        return self.attraction.log_prob(batch)

    def relevance(self, batch: Batch) -> Logits:
        return self.attraction.log_prob(batch) + self.satisfaction.log_prob(batch)

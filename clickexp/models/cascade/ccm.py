"""Click chain model."""

from flax import nnx

from clickexp.models.cascade.chain import Browsing, CascadeFamily
from clickexp.parameters import EmbeddingParameterConfig, GlobalParameterConfig, Sizes, build_parameter
from clickexp.parameters.base import Features, Source
from clickexp.types import Batch
from clickexp.utils.bounds import Pairs, Probability


class ClickChainModel(CascadeFamily):
    """CCM: users may leave without a click, and a clicked document satisfies with its attraction a.

    P(continue | examined, no click) = t1, P(continue | click) = (1 - a) t2 + a t3, with three global
    probabilities: t1 after a skip, t2 after an unsatisfying and t3 after a satisfying click.

    Guo, Liu, Kannan, Minka, Taylor, Wang and Faloutsos 2009, "Click chain model in web search".
    """

    name = "CCM"

    def __init__(
        self,
        query_doc_pairs: Pairs | None = None,
        attraction: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        sizes = Sizes(query_doc_pairs, click_rate=click_rate, features=features)
        self.attraction = build_parameter(
            "attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs
        )
        self.continuation_exam_no_click = GlobalParameterConfig(1.0).build(sizes, rngs=rngs)
        self.continuation_click_not_satisfied = GlobalParameterConfig(1.0).build(sizes, rngs=rngs)
        self.continuation_click_satisfied = GlobalParameterConfig(0.0).build(sizes, rngs=rngs)

    def browsing(self, batch: Batch) -> Browsing:
        attraction = self.attraction.ranked(batch)
        return Browsing(
            attraction=attraction,
            satisfaction=attraction,
            satisfied=self.continuation_click_satisfied.ranked(batch),
            unsatisfied=self.continuation_click_not_satisfied.ranked(batch),
            skipped=self.continuation_exam_no_click.ranked(batch),
        )

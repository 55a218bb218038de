"""Click chain model."""

from clickexp.models.cascade.chain import CascadeFamily, CascadeProbs
from clickexp.models.roles import Role
from clickexp.parameters import EmbeddingParameterConfig, GlobalParameterConfig
from clickexp.types import ByRank
from clickexp.utils.bounds import Pairs


class ClickChainModel(CascadeFamily):
    """CCM: users may leave without a click, and a clicked document satisfies with its attraction a.

    P(continue | examined, no click) = t1, P(continue | click) = (1 - a) t2 + a t3, with three global
    probabilities: t1 after a skip, t2 after an unsatisfying and t3 after a satisfying click.

    Guo, Liu, Kannan, Minka, Taylor, Wang and Faloutsos 2009, "Click chain model in web search".
    """

    name = "CCM"

    query_doc_pairs: Pairs | None = None
    attraction: Role = Role(EmbeddingParameterConfig())
    continuation_exam_no_click: Role = Role(GlobalParameterConfig(1.0))
    continuation_click_not_satisfied: Role = Role(GlobalParameterConfig(1.0))
    continuation_click_satisfied: Role = Role(GlobalParameterConfig(0.0))

    def probs(self, batch: ByRank) -> CascadeProbs:
        """Returns a, satisfaction a, and t3, t2, t1."""
        attraction = self.attraction.log_pair(batch)
        return CascadeProbs(
            attraction=attraction,
            satisfaction=attraction,
            satisfied=self.continuation_click_satisfied.log_pair(batch),
            unsatisfied=self.continuation_click_not_satisfied.log_pair(batch),
            skipped=self.continuation_exam_no_click.log_pair(batch),
        )

"""A listwise loss on any tower: the softmax cross-entropy of the clicks in each list, from Rax."""

import rax

from clickexp.models import Model
from clickexp.parameters import EmbeddingParameterConfig, Sizes, build_parameter


class ListwiseRanker(Model):
    """Minimises -sum_i c_i log softmax(s)_i over the scores s of a tower; relevance is the score."""

    name = "Listwise"

    def __init__(self, query_doc_pairs, attraction=None, click_rate=None, features=None, *, rngs):
        sizes = Sizes(query_doc_pairs, None, click_rate, features)
        self.attraction = build_parameter("attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs)

    def relevance(self, batch):
        return self.attraction.logit(batch)

    def compute_loss(self, batch, aggregate=True):
        scores, clicks = self.relevance(batch), batch["clicks"].astype("float32")
        losses = rax.softmax_loss(scores, clicks, where=batch["mask"], reduce_fn=None)
        return losses.mean() if aggregate else losses
